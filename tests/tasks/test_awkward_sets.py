"""Measures on awkward sets, against scikit-learn's: absent classes, ties, extremes, and models that say nothing."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn import metrics as sk
from test_task_measures import TASKS, measured, sent

import fedloom as fl
from fedloom.core.task import TargetMoments
from fedloom.core.task_measures import SILENT, added, impossible, measures_of, sums_of, values_of_sums
from fedloom.evaluate.bootstrap import intervals
from fedloom.testing.task_subject import Case

Array = npt.NDArray[Any]
SEEDS = st.integers(0, 2**32 - 1)
SPREADS = st.sampled_from((0.0, 1.0, 5.0, 60.0, 1000.0))  # of logits: all alike, and probabilities of 0 and 1


@pytest.fixture(autouse=True)
def _scikit_learn_may_warn() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="sklearn")
        yield


def of_classes(y: Array, said: Array, p: Array, ranks: Array) -> dict[str, float]:
    """The measures of a task of classes by scikit-learn, NaN where these are undefined; `ranks`: [N, C]."""
    classes = range(p.shape[1])
    columns = [1] if p.shape[1] == 2 else classes
    known = np.union1d(y, said)

    def mean(values: list[float]) -> float:
        return float(np.mean(values)) if values else math.nan

    return {
        "accuracy": sk.accuracy_score(y, said),
        "balanced_accuracy": mean([float((said[y == c] == c).mean()) for c in classes if (y == c).any()]),
        "macro_f1": sk.f1_score(y, said, labels=known, average="macro", zero_division=0),
        "auc": mean([sk.roc_auc_score(y == c, ranks[:, c]) for c in columns if len(set(y == c)) == 2]),
        "average_precision": mean([sk.average_precision_score(y == c, ranks[:, c]) for c in columns if (y == c).any()]),
        "log_loss": sk.log_loss(y, p, labels=[*classes]),
    }


def check(found: dict[str, float], want: dict[str, float]) -> None:
    for name, value in want.items():
        assert found[name] == pytest.approx(value, abs=1e-9, nan_ok=True), name


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(SEEDS, st.integers(1, 12), st.integers(2, 5), st.sets(st.integers(0, 4), min_size=1), SPREADS, st.booleans())
def test_classes_that_are_absent_tied_or_sure(
    seed: int, n: int, classes: int, there: set[int], spread: float, ties: bool
) -> None:
    rng = np.random.default_rng(seed)
    y = rng.choice(sorted({c % classes for c in there}), n)
    logits = spread * rng.normal(size=(n, classes))
    logits = logits.round() if ties else logits
    p = torch.from_numpy(logits).softmax(-1).numpy()
    found = measured(fl.Classification(), torch.from_numpy(logits), torch.from_numpy(y))
    check(found, of_classes(y, p.argmax(1), p, p))


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(SEEDS, st.integers(1, 12), st.sampled_from(((0,), (1,), (0, 1))), SPREADS, st.floats(0.01, 0.99))
def test_one_logit_ranks_by_the_logit(
    seed: int, n: int, there: tuple[int, ...], spread: float, threshold: float
) -> None:
    rng = np.random.default_rng(seed)
    y, z = rng.choice(there, n), (spread * rng.normal(size=n)).round(1)
    p = torch.from_numpy(z).sigmoid().numpy()
    said = (z > math.log(threshold / (1 - threshold))).astype(int)
    found = measured(fl.Binary(threshold=threshold), torch.from_numpy(z[:, None]), torch.from_numpy(y))
    want = of_classes(y, said, np.stack([1 - p, p], 1), np.stack([-z, z], 1))
    want["recall"] = sk.recall_score(y, said) if y.any() else math.nan
    want["precision"] = sk.precision_score(y, said) if said.any() else math.nan
    check(found, want)
    margins = measured(fl.Hinge(), torch.from_numpy(z[:, None]), torch.from_numpy(y))
    check(margins, {name: want[name] for name in ("auc", "average_precision")})


def test_logits_whose_probabilities_are_all_one_are_still_ranked() -> None:
    y = torch.tensor([0, 1, 1, 0])
    for logits in ([40.0, 50.0, 60.0, -1.0], [400.0, 500.0, math.inf, -math.inf]):
        column = torch.tensor(logits)[:, None]
        for task, targets in ((fl.Binary(), y), (fl.Hinge(), y), (fl.MultiLabel(), y[:, None].double())):
            found = measured(task, column, targets)
            assert found["auc"] == 1.0
            assert found["average_precision"] == 1.0


def test_rows_that_are_infinitely_high_tie_with_each_other_and_not_with_padding() -> None:
    """Of two sets in one computation, the shorter has two rows at plus infinity, and two that are not real."""
    task, high = fl.Binary(), math.inf
    auc: Any = measures_of(task)["auc"]
    z = torch.tensor([[1.0, high, high, 9.0, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0]], dtype=torch.float64)
    y = torch.tensor([[0, 1, 0, 1, 1], [0, 0, 1, 1, 1]])
    real = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    found = auc.values(torch.stack([-z, z], -1), y, real).tolist()
    assert found == [0.75, 1.0]


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(SEEDS, st.integers(1, 10), st.integers(1, 4), st.floats(0, 1), SPREADS)
def test_labels_that_are_few_absent_or_everywhere(seed: int, n: int, labels: int, share: float, spread: float) -> None:
    rng = np.random.default_rng(seed)
    y, z = rng.random((n, labels)) < share, (spread * rng.normal(size=(n, labels))).round(1)
    said, columns = z > 0, range(labels)
    found = measured(fl.MultiLabel(), torch.from_numpy(z), torch.from_numpy(y).float())
    known = [c for c in columns if y[:, c].any() or said[:, c].any()]
    both = [sk.roc_auc_score(y[:, c], z[:, c]) for c in columns if len(set(y[:, c])) == 2]
    precise = [sk.average_precision_score(y[:, c], z[:, c]) for c in columns if y[:, c].any()]
    f1 = [sk.f1_score(y[:, c], said[:, c], zero_division=0) for c in known]
    mean = lambda values: float(np.mean(values)) if values else math.nan  # noqa: E731
    check(
        found,
        {
            "label_accuracy": float((said == y).mean()), "subset_accuracy": float((said == y).all(1).mean()),
            "macro_f1": mean(f1), "auc": mean(both), "average_precision": mean(precise),
        },
    )  # fmt: skip


@settings(deadline=None, max_examples=50)
@given(SEEDS, st.integers(1, 8), st.integers(2, 5), st.integers(0, 6))
def test_places_that_do_not_count_weigh_nothing(seed: int, n: int, vocabulary: int, counted: int) -> None:
    """What a network says where nothing counts may be anything, also no number."""
    rng = np.random.default_rng(seed)
    y, z = rng.integers(0, vocabulary, (n, 5)), 10 * rng.normal(size=(n, 5, vocabulary))
    out = rng.permutation(n * 5) >= counted
    y[out.reshape(n, 5)], z[out.reshape(n, 5)] = -100, np.nan
    found = measured(fl.NextToken(), torch.from_numpy(z), torch.from_numpy(y))
    flat, logits = y[y != -100], z[y != -100]
    if not len(flat):
        assert all(math.isnan(value) for value in found.values())
        return
    p = torch.from_numpy(logits).softmax(-1).numpy()
    loss = -np.log(p[np.arange(len(flat)), flat]).mean()
    check(found, {"token_accuracy": float((p.argmax(1) == flat).mean()), "log_loss": loss})
    assert found["perplexity"] == pytest.approx(math.exp(loss), rel=1e-9)


def test_a_perplexity_that_no_float_holds_is_infinite() -> None:
    """Undefined, a mean over clients would leave it out, and be the better for it."""
    logits = torch.tensor([[[0.0, 2000.0]]])
    assert measured(fl.NextToken(), logits, torch.tensor([[0]]))["perplexity"] == math.inf
    assert measured(fl.NextToken(), logits / 2.83, torch.tensor([[0]]))["perplexity"] == pytest.approx(
        math.exp(2000 / 2.83), rel=1e-4
    )


@settings(deadline=None, max_examples=50)
@given(
    SEEDS,
    st.integers(2, 30),
    st.sampled_from((0.0, 1.0, -1e3, 1e4, 1e6, 1e7)),
    st.sampled_from((1.0, 1e-2, 1e3)),
    st.booleans(),
)
def test_targets_far_from_zero_lose_no_digits(
    seed: int, n: int, centre: float, spread: float, standardise: bool
) -> None:
    rng = np.random.default_rng(seed)
    y = centre + spread * rng.normal(size=(n, 2))
    z = y + 0.3 * spread * rng.normal(size=(n, 2))
    task = fl.Regression(standardise=standardise)
    if standardise:
        task = task.fit(TargetMoments(tuple(y.mean(0).tolist()), tuple(y.std(0).tolist())))
        z = (z - y.mean(0)) / y.std(0)
    found = measured(task, torch.from_numpy(z), torch.from_numpy(y))
    said = task.predicted(torch.from_numpy(z)).numpy()
    assert found["r2"] == pytest.approx(sk.r2_score(y, said), rel=1e-6, abs=1e-6)
    each = sk.root_mean_squared_error(y, said, multioutput="raw_values")
    check(found, {"rmse": float(np.mean(each)), "mae": sk.mean_absolute_error(y, said)})


def test_sums_of_far_targets_are_the_same_in_any_order_to_the_last_bit() -> None:
    rng, task = np.random.default_rng(0), fl.Regression(standardise=False)
    y = torch.from_numpy(1e6 + rng.normal(size=5000))
    rows = sums_of(task, ["r2"], torch.zeros(5000, 1, dtype=torch.float64), y)["r2"][:, 1:]
    whole = added(rows)
    for seed in range(3):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(5000))
        parts = [added(part) for part in rows[order].split(37)]
        assert torch.equal(sum(parts[1:], parts[0]), whole)


@pytest.mark.parametrize("value", [0.0, 3.1, -1e-7, 1e5 + 0.1, 1e15, 1e30])
@pytest.mark.parametrize("n", [1, 2, 50])
def test_a_target_that_does_not_vary_has_no_r2(value: float, n: int) -> None:
    """Also beside one that does: their mean would be of the other alone."""
    task, varied = fl.Regression(standardise=False), torch.arange(n, dtype=torch.float64)
    y = torch.full((n,), value, dtype=torch.float64)
    z = torch.randn(n, 2, dtype=torch.float64)
    assert math.isnan(measured(task, z[:, :1], y)["r2"])
    assert math.isnan(measured(task, z, torch.stack([varied, y], 1))["r2"])
    assert math.isnan(measured(task, z[:, :1], varied)["r2"]) == (n == 1)


def test_targets_beyond_all_measure_have_no_r2_and_raise_nothing() -> None:
    rows = {"r2": torch.full((19, 1), 1e308, dtype=torch.float64)}
    assert math.isnan(values_of_sums(fl.Regression(standardise=False), rows, 3)["r2"])
    y = torch.tensor([1e200, -1e200, 3.0], dtype=torch.float64)
    assert math.isnan(measured(fl.Regression(standardise=False), torch.zeros(3, 1, dtype=torch.float64), y)["r2"])


def test_a_centre_that_the_user_has_set_stays() -> None:
    task = fl.Regression(centre=(5.0,), scale=(2.0,))
    assert task.fit(TargetMoments((7.0,), (3.0,))) is task
    found = measured(task, torch.tensor([[1.0], [0.0]]), torch.tensor([7.0, 6.0]))
    assert found["mae"] == pytest.approx(0.5)


@settings(deadline=None, max_examples=50)
@given(SEEDS, st.integers(1, 40), st.integers(2, 4), SPREADS)
def test_calibration_error_by_an_independent_loop(seed: int, n: int, classes: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    y, logits = rng.integers(0, classes, n), torch.from_numpy(spread * rng.normal(size=(n, classes)))
    p = logits.softmax(-1).numpy()
    said, sure = p.argmax(1), p.max(1)
    bins = np.clip(np.ceil(sure * 15), 1, 15)
    want = sum(abs(sure[bins == b].sum() - (said == y)[bins == b].sum()) for b in set(bins)) / n
    assert measured(fl.Classification(), logits, torch.from_numpy(y))["calibration_error"] == pytest.approx(
        float(want), abs=1e-12
    )


# ---- models that say nothing

BAD = {
    "classification": (math.nan, math.inf),
    "binary": (math.nan,),
    "chosen": (math.nan,),
    "multi_label": (math.nan,),
    "regression": (math.nan, math.inf, -math.inf),
    "next_token": (math.nan, math.inf),
}


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, of in BAD.items() for bad in of])
@pytest.mark.parametrize("row", [0, 7])
def test_one_output_that_is_no_number_leaves_every_measure_undefined(name: str, bad: float, row: int) -> None:
    task, make = TASKS[name]
    logits, y = map(torch.from_numpy, make(np.random.default_rng(3), 20))
    if name == "next_token":
        y[row, 0] = 1  # a place that counts
    before = measured(task, logits, y)
    logits[row].reshape(-1)[0] = bad
    case = Case(task, logits, y, torch.zeros(20, 1), {})
    results = case.results(list(measures_of(task)))
    found = results.measured(task)
    assert found.keys() == before.keys()
    assert all(math.isnan(value) for value in found.values()), found
    others = np.delete(np.arange(20), row)
    without = measured(task, logits[others], y[others])
    assert results.select(others).measured(task) == pytest.approx(without, nan_ok=True)
    assert any(not math.isnan(value) for value in without.values())
    for interval in intervals(results, task, resamples=40).values():
        assert math.isnan(interval.value)
        assert math.isnan(interval.low)
        assert interval.defined == 0


@pytest.mark.parametrize("name", [n for n in TASKS if n not in ("regression", "next_token")])
def test_a_score_of_a_set_with_no_number_is_undefined_beside_one_that_is_not(name: str) -> None:
    task, make = TASKS[name]
    logits, y = map(torch.from_numpy, make(np.random.default_rng(1), 20))
    for m in (measures_of(task)[n] for n in ("auc", "average_precision")):
        outputs = m.outputs(logits)[None].repeat(3, 1, 1)
        real = torch.ones(3, 20, dtype=torch.bool)
        outputs[0, 4, 0] = math.nan
        outputs[1, 19], real[1, 19] = math.nan, False  # where no row is
        found = m.values(outputs, y[None].repeat(3, *[1] * y.ndim), real)
        assert found.isnan().tolist() == [True, False, False]


def test_all_classes_but_one_may_be_ruled_out() -> None:
    """Minus infinity is the logit of a class that cannot be; of all classes it says nothing."""
    logits = torch.tensor([[0.0, -math.inf, 1.0], [-math.inf, 2.0, -math.inf]])
    y = torch.tensor([2, 1])
    assert measured(fl.Classification(), logits, y)["accuracy"] == 1.0
    assert math.isnan(measured(fl.Classification(), logits - math.inf, y)["accuracy"])


@pytest.mark.parametrize("name", TASKS)
def test_a_device_may_say_that_its_model_says_nothing(name: str) -> None:
    task, make = TASKS[name]
    logits, y = map(torch.from_numpy, make(np.random.default_rng(3), 20))
    logits[:5] = math.nan
    if name == "next_token":
        y[:5] = 1
    sums = {n: added(rows) for n, rows in sums_of(task, list(measures_of(task)), logits, y).items()}
    assert sums[SILENT] == 5
    assert impossible(task, sums, {}, 20) is None
    assert impossible(task, sums | {SILENT: torch.tensor(21)}, {}, 20) == SILENT
    assert impossible(task, sums | {SILENT: torch.tensor(-1)}, {}, 20) == SILENT


def test_sums_of_fewer_examples_than_answered_are_no_devices() -> None:
    """Examples without an answer add nothing: who says nothing on 59 of 60 cannot be right on 30."""
    task, sums, scores = sent("classification", 0, 60)
    assert impossible(task, sums | {SILENT: torch.tensor(59)}, scores, 60) is not None


def test_a_task_of_ones_own_may_say_which_outputs_count() -> None:
    class Mine(fl.Classification):
        def silent(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return logits[:, 0].isnan()

    logits = torch.tensor([[1.0, math.nan], [1.0, 0.0]], dtype=torch.float64)
    assert measured(Mine(), logits, torch.tensor([0, 0]))["balanced_accuracy"] >= 0
    logits[0, 0] = math.nan
    assert math.isnan(measured(Mine(), logits, torch.tensor([0, 0]))["accuracy"])


def test_a_task_with_correct_alone_is_undefined_too() -> None:
    class Old:
        def loss(self, logits: torch.Tensor, batch: Any) -> torch.Tensor:
            return batch.mean(logits[:, 0])

        def correct(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return logits.argmax(-1) == y

    y, logits = torch.tensor([0, 1]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert measured(Old(), logits, y) == {"accuracy": 1.0}
    logits[1, 0] = math.nan
    assert math.isnan(measured(Old(), logits, y)["accuracy"])
