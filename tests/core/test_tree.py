"""Arithmetic on trees, and the weighted mean."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.func import functional_call, grad, vmap

from fedloom.core import tree
from fedloom.core.errors import StackingError
from fedloom.core.types import BatchLoss, Maybe, Params, Weighted, Weights
from fedloom.storage.codec import decode, encode


def weights(*values: float, count: int = 3) -> Weights:
    params = {f"p{i}": torch.full((2, i + 1), v, dtype=torch.float64) for i, v in enumerate(values)}
    return Weights(params=params, buffers={"mean": torch.tensor([values[0]]), "count": torch.tensor(count)})


def test_arithmetic_leaves_integers_alone() -> None:
    x, y = weights(1.0, 2.0, count=3), weights(10.0, 20.0, count=7)
    assert (x + y).params["p1"].tolist() == torch.full((2, 2), 22.0).tolist()
    assert (y - x).buffers["mean"].tolist() == [9.0]
    for two in (2.0, 2, np.float64(2.0), torch.tensor(2.0), torch.tensor(2.0, dtype=torch.float64), torch.tensor(2)):
        for doubled in (two * y, y * two, y + y):
            assert type(doubled) is Weights
            assert doubled.params["p0"].tolist() == [[20.0], [20.0]]
            assert (int(doubled.buffers["count"]), doubled.buffers["mean"].dtype) == (7, torch.float32)
        assert (y / two).params["p0"].tolist() == [[5.0], [5.0]]
    assert (-y).params["p0"].tolist() == [[-10.0], [-10.0]]
    assert (x.params * y.params)["p1"].tolist() == [[40.0, 40.0]] * 2
    assert [int((x + y).buffers["count"]), int((y + 2.0 * x).buffers["count"]), int((-y).buffers["count"])] == [3, 7, 7]


def test_weights_go_towards_others() -> None:
    x, y = weights(1.0, 2.0, count=3), weights(0.1, 20.0, count=7)
    assert x.towards(y, 0.5).params["p0"].tolist() == [[1.0 + 0.5 * (0.1 - 1.0)]] * 2
    for rate in (0.5, 1.0):
        assert all(torch.equal(t, y.buffers[n]) for n, t in x.towards(y, rate).buffers.items())
    assert all(torch.equal(t, y.params[n]) for n, t in x.towards(y, 1.0).params.items())
    assert float(x.params["p0"][0] + (y.params["p0"][0] - x.params["p0"][0])) != 0.1  # which is why


def test_params_are_a_tree_of_their_own() -> None:
    x, y = weights(1.0, 2.0), weights(10.0, 20.0)
    assert type(Weights(params={"w": torch.ones(2)}).params) is Params
    assert list((y.params - x.params).items())[1][0] == "p1"
    assert type(tree.map_tree(torch.zeros_like, x).params) is type(copy.deepcopy(x).params) is Params
    assert {k: v.tolist() for k, v in decode(encode(x.params), y.params).items()} == {
        k: v.tolist() for k, v in x.params.items()
    }
    slope = grad(lambda p: (p - y.params).sq_norm())(x.params)
    assert slope["p0"].tolist() == [[-18.0], [-18.0]]
    both = vmap(lambda p: 2.0 * p - p)(tree.stack([x.params, y.params]))
    assert tree.take(both, 1)["p0"].tolist() == y.params["p0"].tolist()
    linear = torch.nn.Linear(2, 1)
    made = functional_call(linear, Params({n: torch.ones_like(t) for n, t in linear.named_parameters()}), torch.ones(2))
    assert made.tolist() == [3.0]


def test_the_loss_of_a_batch_is_a_number_with_company() -> None:
    loss = BatchLoss(value=torch.tensor(2.0), logits=torch.ones(3, 2), weights=weights(1.0))
    for made, want in ((loss + 1.0, 3.0), (1.0 + loss, 3.0), (loss - torch.tensor(1.0), 1.0), (2 * loss, 4.0),
                       (loss * 2, 4.0), (loss / 4, 0.5), (torch.tensor(1.0) + loss, 3.0)):  # fmt: skip
        assert float(made.value) == want
        assert made.logits is loss.logits
        assert made.weights is loss.weights


def test_norm_and_inner_product() -> None:
    x, y = weights(1.0, 2.0), weights(10.0, -1.0)
    flat = [torch.cat([t.flatten().double() for t in tree.leaves(w) if t.is_floating_point()]) for w in (x, y)]
    assert float(x.sq_norm()) == float(flat[0] @ flat[0])
    assert float(x.dot(y)) == float(flat[0] @ flat[1])


def test_stack_take_and_cat_undo_each_other() -> None:
    trees = [weights(float(i), count=i) for i in range(4)]
    stacked = tree.stack(trees)
    assert stacked.params["p0"].shape == (4, 2, 1)
    for i, one in enumerate(trees):
        assert tree.same_structure(tree.take(stacked, i), one)
        assert int(tree.take(stacked, i).buffers["count"]) == i
    halves = [tree.take(stacked, slice(0, 1)), tree.take(stacked, slice(1, 4))]
    assert torch.equal(tree.cat(halves).params["p0"], stacked.params["p0"])


def test_each_of_stacked_clients_picks_its_own_tree() -> None:
    trees, chosen = [weights(1.0, 2.0), weights(3.0, 4.0), weights(5.0, 6.0)], torch.tensor([2, 0, 1, 2])
    found = vmap(lambda j: tree.pick(trees, j))(chosen)
    for k, j in enumerate(chosen.tolist()):
        for a, b in zip(tree.leaves(tree.take(found, k)), tree.leaves(trees[j]), strict=True):
            assert torch.equal(a, b)


def test_same_structure_sees_every_difference() -> None:
    x = weights(1.0)
    assert tree.same_structure(x, weights(2.0))
    assert not tree.same_structure(x, weights(1.0, 2.0))
    assert not tree.same_structure(x, tree.map_tree(lambda t: t[None], x))
    assert not tree.same_structure(x, tree.cast(x, dtype=torch.float32))
    assert not tree.same_structure([x], (x,))


def test_cast_keeps_integers() -> None:
    cast = tree.cast(weights(1.0), dtype=torch.float16)
    assert {n: t.dtype for n, t in cast.buffers.items()} == {"mean": torch.float16, "count": torch.int64}


def test_bytes_of_a_payload() -> None:
    value = {"w": torch.ones(10), "m": Maybe.none(torch.ones(100)), "n": Maybe.some(Maybe.none(torch.ones(5)))}
    assert tree.nbytes(value) == 40 + 1 + 1 + 1
    assert tree.nbytes({**value, "m": Maybe.some(torch.ones(100))}) == 40 + 401 + 2


def test_bytes_of_stacked_payloads() -> None:
    each = [{"w": torch.ones(10), "m": m(torch.ones(100))} for m in (Maybe.some, Maybe.none, Maybe.some)]
    assert tree.nbytes_each(tree.stack(each), 3) == [tree.nbytes(one) for one in each] == [441, 41, 441]


def uploads(values: Any, weight: Any, count: Any) -> Weighted[Weights]:
    value = Weights(params={"w": torch.tensor(values)}, buffers={"count": torch.tensor(count)})
    return Weighted(value=value, weight=torch.tensor(weight))


def test_weighted_mean_of_weights_and_of_each_part() -> None:
    total = tree.WeightedMean()
    upload = (uploads([[1.0], [4.0]], [1, 3], [5, 9]), Weighted(value=torch.tensor([2.0, 6.0]), weight=torch.ones(2)))
    total.add(upload)
    total.add((uploads([[8.0]], [4], [2]), Weighted(value=torch.tensor([7.0]), weight=torch.ones(1))))
    weights, plain = total.result()
    assert weights.params["w"].tolist() == [(1 + 12 + 32) / 8]
    assert weights.params["w"].dtype == torch.float32
    assert int(weights.buffers["count"]) == 9  # counters: the largest
    assert float(plain) == 5.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 50)), min_size=1, max_size=8), st.integers(1, 8))
def test_chunks_do_not_matter(pairs: list[tuple[float, int]], chunk: int) -> None:
    total = tree.WeightedMean()
    for i in range(0, len(pairs), chunk):
        part = pairs[i : i + chunk]
        value = torch.tensor([[v] for v, _ in part], dtype=torch.float64)
        total.add(Weighted(value=value, weight=torch.tensor([w for _, w in part])))
    want = np.average([v for v, _ in pairs], weights=[w for _, w in pairs])
    assert float(total.result()) == pytest.approx(want, abs=1e-12)


def test_mean_is_formed_in_float64() -> None:
    big = torch.tensor([[2.0**24], [1.0], [1.0]])  # in float32, 2^24 + 1 is 2^24
    total = tree.WeightedMean()
    total.add(Weighted(value=big, weight=torch.ones(3)))
    assert float(total.result()) == float(torch.tensor((2**24 + 2) / 3))


def test_mean_refuses_what_it_cannot_weigh() -> None:
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite and not negative"):
            tree.WeightedMean().add(Weighted(value=torch.ones(1, 2), weight=torch.tensor([bad])))
    total = tree.WeightedMean()
    total.add(Weighted(value=torch.ones(2, 2), weight=torch.zeros(2)))
    with pytest.raises(ValueError, match="all zero"):
        total.result()
    with pytest.raises(StackingError, match="Weighted"):
        tree.WeightedMean().add({"w": torch.ones(2)})
    assert not tree.WeightedMean()


def test_select_and_merge() -> None:
    w = Weights(params={"a": torch.ones(1), "b": torch.ones(2)}, buffers={"a.mean": torch.ones(1)})
    part = w.select(lambda name: name.startswith("a"))
    assert (list(part.params), list(part.buffers)) == (["a"], ["a.mean"])
    merged = w.merge(2.0 * part)
    assert list(merged.params) == ["a", "b"]
    assert [float(t.max()) for t in tree.leaves(merged)] == [2.0, 1.0, 2.0]


def test_maybe_otherwise() -> None:
    one, two = {"w": torch.ones(2)}, {"w": torch.full((2,), 2.0)}
    assert Maybe.some(one).otherwise(two)["w"].tolist() == [1, 1]
    assert Maybe.none(one).otherwise(two)["w"].tolist() == [2, 2]
