"""Bootstrap intervals, against a plain loop over resamples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, r2_score, roc_auc_score, root_mean_squared_error

import fedloom as fl
from fedloom.core.task import TargetMoments
from fedloom.core.task_measures import measures_of, outputs_of, sums_of
from fedloom.evaluate import bootstrap
from fedloom.evaluate.accuracy import RowResults
from fedloom.evaluate.bootstrap import Interval, intervals

N, RNG = 40, np.random.default_rng(3)
LOGITS = torch.from_numpy(RNG.normal(size=(N, 3)))
Y = torch.from_numpy(np.concatenate([np.arange(3), RNG.integers(0, 3, N - 3)]))
P, SAID = LOGITS.softmax(-1).numpy(), LOGITS.argmax(-1).numpy()


def results(task: Any, logits: torch.Tensor, y: torch.Tensor) -> RowResults:
    names = tuple(measures_of(task))
    return RowResults(sums_of(task, names, logits, y), outputs_of(task, names, logits), y, 0.0)


def by_a_loop(measure: Callable[[npt.NDArray[np.int64]], float], resamples: int, seed: int) -> tuple[float, float]:
    """The plain percentile interval of a measure of rows."""
    rng = np.random.default_rng(seed)
    each = [measure(rng.integers(0, N, N)) for _ in range(resamples)]
    low, high = np.quantile(each, (0.025, 0.975))
    return float(low), float(high)


def near(found: Interval, value: float, interval: tuple[float, float]) -> None:
    np.testing.assert_allclose((found.value, found.low, found.high), (value, *interval), rtol=1e-9)


@pytest.mark.slow
def test_intervals_of_classes_are_those_of_a_loop() -> None:
    task, y, everything = fl.Classification(), Y.numpy(), np.arange(N)
    found = intervals(results(task, LOGITS, Y), task, resamples=80, seed=5)
    assert list(found) == [m for m in measures_of(task) if m in found]
    for name, measure in {
        "accuracy": lambda r: accuracy_score(y[r], SAID[r]),
        "macro_f1": lambda r: f1_score(y[r], SAID[r], average="macro"),
        "log_loss": lambda r: log_loss(y[r], P[r], labels=[0, 1, 2]),
        "auc": lambda r: roc_auc_score(y[r], P[r], multi_class="ovr"),
    }.items():
        near(found[name], measure(everything), by_a_loop(measure, 80, 5))
        assert found[name].defined == 80
    assert intervals(results(task, LOGITS, Y), task, resamples=80, seed=6)["auc"] != found["auc"]


def test_intervals_of_numbers_are_those_of_a_loop() -> None:
    task = fl.Regression().fit(TargetMoments((10.0,), (4.0,)))
    y = 10 + 4 * LOGITS[:, :1] + torch.from_numpy(RNG.normal(size=(N, 1)))
    said, true = (10 + 4 * LOGITS[:, 0]).numpy(), y[:, 0].numpy()
    found = intervals(results(task, LOGITS[:, :1], y[:, 0]), task, resamples=60)
    for name, score in {"rmse": root_mean_squared_error, "r2": r2_score}.items():
        near(found[name], score(true, said), by_a_loop(lambda r, score=score: score(true[r], said[r]), 60, 0))  # type: ignore[misc]


def test_how_many_resamples_are_computed_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    task = fl.Classification()
    whole = intervals(results(task, LOGITS, Y), task, resamples=30)
    monkeypatch.setattr(bootstrap, "_AT_ONCE", 1)
    assert intervals(results(task, LOGITS, Y), task, resamples=30) == whole


def test_resamples_without_a_measure_are_left_out_and_counted() -> None:
    task, y = fl.Classification(), torch.zeros(N, dtype=torch.int64)
    y[0] = 1
    found = intervals(results(task, LOGITS[:, :2], y), task, resamples=100)["auc"]
    rng = np.random.default_rng(0)
    assert found.defined == sum(0 in rng.integers(0, N, N) for _ in range(100)) < 100
    assert 0 <= found.low <= found.high <= 1
    y[0] = 0
    found = intervals(results(task, LOGITS[:, :2], y), task, resamples=20)["auc"]
    assert np.isnan([found.value, found.low, found.high]).all()
    assert found.defined == 0
