"""Measures of tasks, against scikit-learn's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

import fedloom as fl
from fedloom.core.task_measures import added, chosen_measures, impossible, measures_of, outputs_of, scores_of, sums_of
from fedloom.evaluate.accuracy import RowResults

RNG = np.random.default_rng


def measured(task: Any, logits: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    names = list(measures_of(task))
    return RowResults(sums_of(task, names, logits, y), outputs_of(task, names, logits), y, 0.0).measured(task)


def one_hot(said: Any, classes: int) -> Any:
    return np.eye(classes)[said]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("classes", [2, 5])
def test_classification_measures_are_those_of_scikit_learn(seed: int, classes: int) -> None:
    rng = RNG(seed)
    y = np.concatenate([np.arange(classes), rng.integers(0, classes, 200)])
    logits = np.round(rng.normal(size=(len(y), classes)) + one_hot(y, classes), 1)  # with ties
    found = measured(fl.Classification(), torch.from_numpy(logits), torch.from_numpy(y))
    p = torch.from_numpy(logits).softmax(-1).numpy()
    said = p.argmax(1)
    binary = classes == 2
    of_classes: Callable[..., Any] = lambda score: np.mean([score(y == c, p[:, c]) for c in range(classes)])  # noqa: E731
    want = {
        "accuracy": sk.accuracy_score(y, said),
        "balanced_accuracy": sk.balanced_accuracy_score(y, said),
        "macro_f1": sk.f1_score(y, said, average="macro"),
        "auc": sk.roc_auc_score(y, p[:, 1]) if binary else sk.roc_auc_score(y, p, multi_class="ovr"),
        "average_precision": sk.average_precision_score(y, p[:, 1])
        if binary
        else of_classes(sk.average_precision_score),
        "log_loss": sk.log_loss(y, p),
    }
    for name, value in want.items():
        assert found[name] == pytest.approx(value, abs=1e-9), name


def test_the_calibration_error_by_hand() -> None:
    """Two answers of probability 0.9, one of them right, and one of 0.6 that is right: (2 |0.9 - 0.5| + 0.4) / 3."""
    p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
    found = measured(fl.Classification(), p.log(), torch.tensor([0, 1, 1]))
    assert found["calibration_error"] == pytest.approx((2 * 0.4 + 0.4) / 3, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_binary_measures_are_those_of_scikit_learn(seed: int) -> None:
    rng = RNG(seed)
    y = np.concatenate([[0, 1], rng.random(150) < 0.1]).astype(int)
    z = rng.normal(size=len(y)) + y
    found = measured(fl.Binary(threshold=0.3), torch.from_numpy(z[:, None]), torch.from_numpy(y))
    p = 1 / (1 + np.exp(-z))
    said = p > 0.3
    want = {
        "accuracy": sk.accuracy_score(y, said),
        "recall": sk.recall_score(y, said),
        "precision": sk.precision_score(y, said),
        "auc": sk.roc_auc_score(y, p),
        "average_precision": sk.average_precision_score(y, p),
        "log_loss": sk.log_loss(y, p),
    }
    for name, value in want.items():
        assert found[name] == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("seed", range(3))
def test_multi_label_measures_are_those_of_scikit_learn(seed: int) -> None:
    rng = RNG(seed)
    y = (rng.random((120, 4)) < 0.3).astype(np.float32)
    y[0], y[1] = 0, 1
    z = rng.normal(size=y.shape) + y
    found = measured(fl.MultiLabel(), torch.from_numpy(z), torch.from_numpy(y))
    said = z > 0
    want = {
        "label_accuracy": np.mean(said == (y > 0.5)),
        "subset_accuracy": sk.accuracy_score(y, said),
        "macro_f1": sk.f1_score(y, said, average="macro"),
        "auc": sk.roc_auc_score(y, z, average="macro"),
        "average_precision": sk.average_precision_score(y, z, average="macro"),
    }
    for name, value in want.items():
        assert found[name] == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("outputs", [1, 3])
def test_regression_measures_are_those_of_scikit_learn(outputs: int) -> None:
    rng = RNG(outputs)
    y = (1e4 + 50 * rng.normal(size=(80, outputs))).astype(np.float32)
    task = fl.Regression(centre=tuple(y.mean(0).tolist()), scale=tuple(y.std(0).tolist()))
    z = rng.normal(size=(80, outputs))
    found = measured(task, torch.from_numpy(z), torch.from_numpy(y[:, 0] if outputs == 1 else y))
    said, wide = task.predicted(torch.from_numpy(z)).numpy(), y.astype(np.float64)
    each = sk.root_mean_squared_error(wide, said, multioutput="raw_values")
    assert found["rmse"] == pytest.approx(np.mean(each), rel=1e-9)
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(wide, said), rel=1e-9)
    assert found["r2"] == pytest.approx(sk.r2_score(wide, said), abs=1e-9)


def test_a_score_that_is_undefined_is_nan() -> None:
    y = torch.zeros(6, dtype=torch.int64)
    found = measured(fl.Classification(), torch.randn(6, 2, dtype=torch.float64), y)
    assert math.isnan(found["auc"])
    assert math.isnan(found["average_precision"])
    assert math.isnan(measured(fl.Binary(), torch.full((6, 1), -1.0), y)["recall"])
    alike = measured(fl.Regression(), torch.randn(6, 1), torch.full((6,), 3.0))
    assert math.isnan(alike["r2"])
    assert alike["rmse"] > 0


def test_padding_changes_no_score() -> None:
    """Of three sets of unlike size, in one call: what each has alone."""
    rng = RNG(0)
    sizes = (5, 9, 2)
    y, z = torch.zeros(3, 9, dtype=torch.int64), torch.full((3, 9, 2), torch.nan, dtype=torch.float64)
    real, want = torch.zeros(3, 9, dtype=torch.bool), []
    for k, n in enumerate(sizes):
        y[k, :n] = torch.from_numpy(np.append([0, 1], rng.integers(0, 2, n - 2)))
        z[k, :n] = torch.from_numpy(rng.normal(size=(n, 2)))
        real[k, :n] = True
        want.append(sk.roc_auc_score(y[k, :n], z[k, :n, 1]))
    auc: Any = measures_of(fl.Classification())["auc"]
    np.testing.assert_allclose(auc.values(z.nan_to_num(3.0), y, real), want, rtol=0, atol=1e-12)


def test_measures_are_named_by_the_task() -> None:
    assert chosen_measures(fl.Regression(), ["r2"]) == ("rmse", "r2")
    with pytest.raises(fl.SettingError, match=r"some of those of the task Regression, rmse, mae, r2, got 'acuracy'"):
        chosen_measures(fl.Regression(), ["acuracy"])


# ---- what a device may send

TASKS = {
    "classification": (fl.Classification(), lambda rng, n: (rng.normal(size=(n, 3)), rng.integers(0, 3, n))),
    "binary": (fl.Binary(), lambda rng, n: (rng.normal(size=(n, 1)), rng.integers(0, 2, n))),
    "chosen": (fl.Binary("validation"), lambda rng, n: (rng.normal(size=(n, 1)), rng.integers(0, 2, n))),
    "multi_label": (fl.MultiLabel(), lambda rng, n: (rng.normal(size=(n, 4)), rng.integers(0, 2, (n, 4)) * 1.0)),
    "regression": (fl.Regression(), lambda rng, n: (rng.normal(size=(n, 2)), rng.normal(size=(n, 2)))),
    "next_token": (fl.NextToken(), lambda rng, n: (rng.normal(size=(n, 5, 7)), rng.choice([-100, *range(7)], (n, 5)))),
}


def sent(name: str, seed: int, n: int) -> tuple[Any, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return a task, and the sums and scores of a device with so many examples."""
    task, make = TASKS[name]
    logits, y = map(torch.from_numpy, make(RNG(seed), n))
    names = list(measures_of(task))
    sums = {measure: added(rows) for measure, rows in sums_of(task, names, logits, y).items()}
    outputs = {measure: of[None] for measure, of in outputs_of(task, names, logits).items()}
    scores = scores_of(task, outputs, y[None], torch.ones(1, n, dtype=torch.bool))
    return task, sums, {measure: of[0] for measure, of in scores.items()}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("n", [1, 2, 60])
def test_what_examples_add_up_to_is_possible(name: str, n: int) -> None:
    for seed in range(10):
        task, sums, scores = sent(name, seed, n)
        assert impossible(task, sums, scores, n) is None
        nothing = {measure: torch.zeros_like(of) for measure, of in sums.items()}
        assert impossible(task, nothing, {measure: of * math.nan for measure, of in scores.items()}, 0) is None


@pytest.mark.parametrize(
    ("name", "measure", "value"),
    [
        ("classification", "auc", 1.01),
        ("classification", "auc", -0.01),
        ("classification", "auc", math.inf),
        ("classification", "accuracy", 61),
        ("classification", "accuracy", -1),
        ("classification", "log_loss", math.nan),
        ("classification", "calibration_error", 1e9),
        ("binary", "recall", [[30, 30], [20, 40], [30, 30]]),
        ("binary", "precision", [[30, 30], [40, 20], [30, 30]]),
        ("classification", "balanced_accuracy", [[20, 20, 20], [20, 20, 20], [58, 1, 1]]),
        ("classification", "macro_f1", [[20, 20, 20], [58, 1, 1], [20, 20, 20]]),
        ("chosen", "recall", 61),
        ("multi_label", "macro_f1", [[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]),
        ("regression", "rmse", math.inf),
        ("regression", "r2", -math.inf),
        ("next_token", "token_accuracy", [6.0, 5.0]),
        ("next_token", "token_accuracy", [-6.0, -7.0]),
        ("next_token", "perplexity", [5.0, -7.0]),
        ("next_token", "log_loss", [math.inf, 7.0]),
    ],
)
def test_what_no_examples_add_up_to_is_impossible(name: str, measure: str, value: Any) -> None:
    task, sums, scores = sent(name, 0, 60)
    whose = sums if measure in sums else scores
    wrong = torch.zeros_like(whose[measure]) + torch.tensor(value)
    changed = {**whose, measure: wrong.to(whose[measure].dtype)}
    lie = (task, changed, scores) if measure in sums else (task, sums, changed)
    assert impossible(*lie, 60) == measure
