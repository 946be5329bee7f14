"""Rules of a mean against arithmetic of NumPy, written anew from the papers; and what they refuse."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedloom import Weighted, Weights, tree
from fedloom.core.errors import NobodyAnswered, SettingError, StackingError
from fedloom.engines.aggregators import AGGREGATORS, Krum, _weighted_median, aggregator

Floats = npt.NDArray[np.float64]
RULES = ["mean", "trimmed:0.2", "median", "geometric_median", "krum:2", "multi_krum:2:4"]


def vectors(count: int = 11, size: int = 7, seed: int = 0, liars: int = 2) -> tuple[Floats, Floats, Floats]:
    """Uploads of which some are far away, what was sent, and weights."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, size)) + 3
    x[:liars] = 50 * rng.normal(size=(liars, size))
    return x, rng.normal(size=size), rng.integers(1, 9, count).astype(np.float64)


def expected(rule: str, x: Floats, sent: Floats, weights: Floats) -> Floats:
    name, *given = rule.split(":")
    if name == "mean":
        return np.average(x, axis=0, weights=weights)
    if name == "trimmed":
        out = int(np.ceil(float(given[0]) * len(x)))
        return np.array([np.mean(sorted(column)[out : len(x) - out]) for column in x.T])
    if name == "median":
        return np.median(x, axis=0)
    if name == "geometric_median":
        norms = np.linalg.norm(x - sent, axis=1)
        x = sent + (np.median(norms) / norms)[:, None] * (x - sent)
        z = np.average(x, axis=0, weights=weights)
        for _ in range(20000):  # from elsewhere, and to the end
            beta = weights / weights.sum() / np.maximum(1e-6, np.linalg.norm(x - z, axis=1))
            z = beta @ x / beta.sum()
        return z
    f, m = int(given[0]), int(given[1]) if given[1:] else 1
    scores = []
    for i in range(len(x)):
        others = [k for k in range(len(x)) if k != i]
        of_sets = [
            sum(float(np.sum((x[i] - x[k]) ** 2)) for k in closest)
            for closest in itertools.combinations(others, len(x) - f - 2)
        ]
        scores.append(min(of_sets))
    best = sorted(range(len(x)), key=lambda k: (scores[k], k))[:m]
    return np.mean(x[best], axis=0)


def result(rule: str, values: Any, weights: Any, sent: Any = None) -> Any:
    total = aggregator(rule).total(lambda uploads: [None] * 99 if sent is None else tree.leaves(sent))
    total.add(Weighted(value=values, weight=torch.as_tensor(weights)))
    return total.result()


def as_model(x: Any) -> Weights:
    """A vector, or several of them, as the two parameters of a model."""
    x = torch.as_tensor(x)
    return Weights({"a": x[..., :4].reshape(*x.shape[:-1], 2, 2), "b": x[..., 4:]})


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_that_of_its_paper(rule: str, seed: int) -> None:
    x, sent, weights = vectors(seed=seed)
    found = result(rule, as_model(x), weights, as_model(sent))
    flat = torch.cat([t.flatten() for t in tree.leaves(found)]).numpy()
    np.testing.assert_allclose(flat, expected(rule, x, sent, weights), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_an_even_number_of_uploads_too(rule: str) -> None:
    x, sent, weights = vectors(count=10)
    found = torch.cat([t.flatten() for t in tree.leaves(result(rule, as_model(x), weights, as_model(sent)))])
    np.testing.assert_allclose(found.numpy(), expected(rule, x, sent, weights), rtol=1e-12, atol=1e-12)


def test_of_equal_weights_the_geometric_median_has_a_sum_of_unit_vectors_of_zero() -> None:
    x, _, _ = vectors(count=15, size=40, liars=6)
    z = tree.leaves(result("geometric_median", {"w": torch.as_tensor(x)}, np.ones(15)))[0].numpy()
    units = (x - z) / np.linalg.norm(x - z, axis=1, keepdims=True)
    assert np.linalg.norm(units.sum(0)) < 1e-10


def test_the_geometric_median_of_two_halves_of_numbers_is_in_the_middle() -> None:
    for x, weights, middle in (([1.0, 3.0, 9.0, 4.0], [1] * 4, 3.5), ([1.0, 3.0, 9.0], [2, 1, 1], 2.0)):
        found = result("geometric_median", {"n": torch.tensor(x, dtype=torch.float64)}, np.array(weights, np.float64))
        assert float(found["n"]) == middle


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_clients_and_their_stacks_change_nothing(rule: str) -> None:
    x, sent, weights = vectors()
    order = np.random.default_rng(5).permutation(len(x))
    whole = result(rule, as_model(x), weights, as_model(sent))
    again = result(rule, as_model(x[order]), weights[order], as_model(sent))
    total = aggregator(rule).total(lambda uploads: tree.leaves(as_model(sent)))
    for start in range(0, len(x), 4):  # in stacks of at most four
        part = as_model(x[start : start + 4]), torch.as_tensor(weights[start : start + 4])
        total.add(Weighted(value=part[0], weight=part[1]))
    for a, b, c in zip(*map(tree.leaves, (whole, again, total.result())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        assert torch.equal(a, c)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "mean"])
@pytest.mark.parametrize("lie", [1e6, -1e30])
def test_liars_move_it_no_further_than_the_honest_are_apart(rule: str, lie: float) -> None:
    x, sent, _ = vectors(liars=0)
    x[[3, 7]] = lie
    honest = np.delete(x, [3, 7], axis=0)
    found = torch.cat([t.flatten() for t in tree.leaves(result(rule, as_model(x), np.ones(11), as_model(sent)))])
    apart = np.linalg.norm(honest - honest.mean(0), axis=1).max() + np.linalg.norm(honest.mean(0) - sent)
    assert np.linalg.norm(found.numpy() - honest.mean(0)) < apart


@pytest.mark.parametrize(
    ("rule", "weighted"), [("geometric_median", True), ("trimmed:0.2", False), ("median", False),
                           ("krum:2", False), ("multi_krum:2:4", False)]
)  # fmt: skip
def test_weights_count_where_the_page_says_so(rule: str, weighted: bool) -> None:
    x, sent, weights = vectors()
    found, equal = (result(rule, as_model(x), w, as_model(sent)) for w in (weights, np.ones(11)))
    same = all(torch.equal(a, b) for a, b in zip(*map(tree.leaves, (found, equal)), strict=True))
    assert same is not weighted


def model(rows: Floats, statistics: Floats, counter: list[int]) -> Weights:
    buffers = {"mean": torch.as_tensor(statistics), "count": torch.tensor(counter)}
    return Weights({"w": torch.as_tensor(rows)}, buffers)


@pytest.mark.parametrize("rule", RULES)
def test_buffers_are_a_vector_of_their_own(rule: str) -> None:
    x, sent, weights = vectors()
    statistics, before, _ = vectors(seed=9, size=3)
    count = [4, 9, 7, 1, 1, 2, 8, 5, 3, 3, 6]
    found = result(rule, model(x, statistics, count), weights, model(sent, before, count))
    np.testing.assert_allclose(found.params["w"], expected(rule, x, sent, weights), rtol=1e-12, atol=1e-12)
    buffers = expected(rule, statistics, before, weights)
    np.testing.assert_allclose(found.buffers["mean"], buffers, rtol=1e-12, atol=1e-12)
    assert int(found.buffers["count"]) == (9 if rule == "mean" else 4)
    assert found.buffers["count"].dtype == torch.int64


@pytest.mark.parametrize("rule", RULES)
def test_a_number_of_each_client_is_a_vector_too(rule: str) -> None:
    x, sent, weights = vectors(size=1)
    found = result(rule, {"n": torch.as_tensor(x[:, 0])}, weights, {"n": torch.tensor(sent[0])})
    if rule == "geometric_median":  # of all numbers, none is closer

        def far(z: float) -> float:
            return float(weights @ abs(x[:, 0] - z))

        assert far(float(found["n"])) <= min(map(far, x[:, 0])) + 1e-12
        return
    np.testing.assert_allclose(found["n"].numpy(), expected(rule, x, sent, weights)[0], rtol=1e-12, atol=1e-12)


def test_whole_numbers_have_the_lower_median_and_flags_too() -> None:
    flags = torch.tensor([True, True, False, False])
    found = result("median", {"n": torch.tensor([8, 1, 3, 1 << 62]), "flag": flags}, np.ones(4))
    assert int(found["n"]) == 3
    assert found["flag"].dtype == torch.bool
    assert not bool(found["flag"])


@pytest.mark.parametrize("near", [0.0, 1e-6, 1e-2])
def test_who_stays_near_what_was_sent_does_not_hold_the_geometric_median_there(near: float) -> None:
    """Of twelve with a direction each and a small one in common, four upload what they were sent, or nearly."""
    sent, common = np.full(20, 7.0), 0.2
    x = sent + np.eye(12, 20) + common * np.eye(20)[19]
    x[8:] = sent + near * np.random.default_rng(0).normal(size=(4, 20))
    found = result("geometric_median", {"w": torch.as_tensor(x)}, np.ones(12), {"w": torch.as_tensor(sent)})
    assert float(found["w"][19]) - 7 > 0.5 * common
    plain = result("geometric_median", {"w": torch.as_tensor(x)}, np.ones(12))  # as of gradients
    assert abs(float(plain["w"][19]) - 7) < 0.2 * common


def test_if_nobody_moves_the_geometric_median_is_what_was_sent() -> None:
    sent = torch.arange(3, dtype=torch.float64)
    found = result("geometric_median", {"w": sent.expand(4, 3).clone()}, np.ones(4), {"w": sent})
    assert found["w"].tolist() == sent.tolist()


@pytest.mark.parametrize("rule", RULES)
def test_an_upload_that_weighs_nothing_does_not_count(rule: str) -> None:
    x, sent, weights = vectors()
    nothing = np.vstack([x, 1e3 * np.ones(7)]), np.append(weights, 0.0)
    found, without = (
        result(rule, {"w": torch.as_tensor(rows)}, w, {"w": torch.as_tensor(sent)})
        for rows, w in (nothing, (x, weights))
    )
    torch.testing.assert_close(found["w"], without["w"], rtol=1e-12, atol=1e-12)


def test_each_weighted_of_an_upload_is_on_its_own_and_keeps_its_type() -> None:
    x, _, _ = vectors()
    total = aggregator("median").total(lambda uploads: [None, None])
    two = (
        Weighted(value=torch.as_tensor(x).float(), weight=torch.ones(11)),
        Weighted(value={"t": torch.as_tensor(2 * x)}, weight=torch.ones(11)),
    )
    total.add(two)
    a, b = total.result()
    assert a.dtype == torch.float32
    np.testing.assert_allclose(b["t"].numpy(), 2 * np.median(x, axis=0), rtol=1e-12)
    np.testing.assert_allclose(a.numpy(), np.median(x.astype(np.float32), axis=0), rtol=1e-6)


@pytest.mark.parametrize("rule", ["geometric_median", "krum:1"])
def test_equal_uploads_are_what_comes_out(rule: str) -> None:
    same = torch.ones(5, 3, dtype=torch.float64) / 3
    found = result(rule, {"w": same}, np.ones(5), {"w": same[0]})
    torch.testing.assert_close(found["w"], same[0], rtol=1e-15, atol=0)


def test_of_equal_scores_the_first_client_is_chosen() -> None:
    x = torch.tensor([[0.0], [1.0], [0.0], [1.0], [9.0]], dtype=torch.float64)
    assert result("krum:0", {"w": x}, np.ones(5))["w"].tolist() == [0.0]
    assert result("krum:1", {"w": x.flip(0)}, np.ones(5))["w"].tolist() == [1.0]


def test_few_uploads_are_trimmed_to_their_median() -> None:
    x = torch.tensor([[1.0], [2.0], [30.0]], dtype=torch.float64)
    assert result("trimmed:0.45", {"w": x}, np.ones(3))["w"].tolist() == [2.0]
    assert result("trimmed:0.01", {"w": x}, np.ones(3))["w"].tolist() == [2.0]
    assert result("trimmed:0.2", {"w": x[:2]}, np.ones(2))["w"].tolist() == [1.5]


def test_a_share_is_counted_as_it_is_written() -> None:
    x = torch.arange(15.0, dtype=torch.float64)[:, None] ** 3
    found = result("trimmed:0.2", {"w": x}, np.ones(15))["w"]  # 0.2 * 15 is 3.0000000000000004
    assert found.tolist() == [x[3:12].mean().item()]


@pytest.mark.parametrize(("count", "f"), [(3, 0), (4, 0), (5, 1), (10, 3), (11, 4), (20, 8)])
def test_without_a_number_multi_krum_leaves_out_as_many_as_the_uploads_allow(count: int, f: int) -> None:
    x, sent, weights = vectors(count=count)
    bare, named = (
        result(r, as_model(x), weights, as_model(sent)) for r in ("multi_krum", f"multi_krum:{f}:{count - f}")
    )
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(bare), tree.leaves(named), strict=True))
    assert (str(aggregator("multi_krum")), aggregator("multi_krum").needs) == ("'multi_krum'", 3)


def test_too_few_uploads_end_a_round_of_krum() -> None:
    x, sent, _ = vectors(count=6)
    with pytest.raises(NobodyAnswered, match="'krum:2' needs the uploads of 7 clients, got 6"):
        result("krum:2", as_model(x), np.ones(6), as_model(sent))
    assert aggregator("multi_krum:2:9").needs == 11
    assert Krum(1).needs == 5


def test_uploads_of_other_shapes_or_without_weight_are_refused() -> None:
    total = aggregator("median").total(lambda uploads: [None])
    total.add(Weighted(value=torch.ones(2, 3), weight=torch.ones(2)))
    assert total
    with pytest.raises(StackingError, match="uploads of different architectures"):
        total.add(Weighted(value=torch.ones(2, 4), weight=torch.ones(2)))
    with pytest.raises(StackingError, match="made of Weighted"):
        total.add(torch.ones(2, 3))
    with pytest.raises(ValueError, match="weights are all zero"):
        result("median", torch.ones(2, 3), [0.0, 0.0])
    with pytest.raises(ValueError, match="must be finite and not negative"):
        result("median", torch.ones(2, 3), [1.0, -1.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trimmed:0.6", r"aggregator = 'trimmed:0.6': the share that is left out .* below 0.5, got 0.6: write median"),
        ("trimmed:0", "above 0 and below 0.5, got 0"),
        ("trimmed:nan", "is written trimmed:SHARE, got 'trimmed:nan': SHARE is a number"),
        ("trimmed", "this aggregator is written trimmed:SHARE, got 'trimmed'"),
        ("mean:2", "this aggregator is written mean, got 'mean:2'"),
        ("krum", "written krum:F, got 'krum': F is a whole number"),
        ("krum:1.5", "written krum:F, got 'krum:1.5': F is a whole number"),
        ("krum:-1", "0 or more clients lie"),
        ("multi_krum:2:0", "1 or more uploads are averaged"),
        ("multi_krum:2", "written multi_krum or multi_krum:F:M, got 'multi_krum:2': F is a"),
        ("medain", r"unknown aggregator 'medain' \(did you mean 'median'\?\); there are mean, trimmed"),
    ],
)
def test_a_wrong_rule_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        aggregator(text)


def test_a_rule_says_how_many_clients_a_round_must_ask() -> None:
    aggregator("mean").check(1)
    aggregator("krum:4").check(11)
    with pytest.raises(
        SettingError, match="aggregator = 'krum:4' needs the uploads of 11 clients, and a round asks 10"
    ):
        aggregator("krum:4").check(10)
    with pytest.raises(SettingError, match="'multi_krum:1:9' needs the uploads of 10 clients, and a round asks 9"):
        aggregator("multi_krum:1:9").check(9)
    with pytest.raises(SettingError, match="'median' needs the uploads of 3 clients, and a round asks 2"):
        aggregator("median").check(2)


def test_every_rule_is_read_back_from_its_name() -> None:
    assert {text.split(":")[0] for text in RULES} == set(AGGREGATORS)
    for text in RULES:
        assert str(aggregator(text)) == repr(text)


@pytest.mark.parametrize("count", [2, 6, 10, 14, 22])
def test_the_middle_of_equal_weights_is_between_two_numbers(count: int) -> None:
    """Tenths add up to a little less than one half, or to more."""
    shares = torch.full((count,), 1 / count, dtype=torch.float64)
    values = torch.arange(count, dtype=torch.float64) ** 2
    assert float(_weighted_median(values.flip(0), shares)) == (values[count // 2 - 1] + values[count // 2]) / 2
