"""Losses of tasks, by hand; tasks that fit no data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedloom as fl
from fedloom.core.batch import Batch, probe
from fedloom.core.random import uniform
from fedloom.core.task import TargetMoments, weight_of

Z = torch.tensor([[0.2, -1.0, 0.5], [1.5, 0.3, -0.2], [0.1, 0.2, 0.9], [9.0, 9.0, 9.0]], dtype=torch.float64)
Y = torch.tensor([2, 0, 1, 0])


def batch(y: torch.Tensor, real: int = 3) -> Batch:
    mask = torch.arange(len(y)) < real
    return Batch(x=torch.zeros(len(y), 1), y=y, mask=mask, key=torch.zeros((), dtype=torch.int64))


def test_class_weights_are_those_of_pytorch() -> None:
    weight = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
    found = fl.Classification(class_weights=(1.0, 3.0, 0.5)).loss(Z, batch(Y))
    torch.testing.assert_close(found, F.cross_entropy(Z[:3], Y[:3], weight=weight))
    with pytest.raises(fl.SettingError, match="one weight for each of the 3 classes, got 2"):
        fl.Classification(class_weights=(1.0, 2.0)).loss(Z, batch(Y))


@pytest.mark.parametrize("smoothing", [0.0, 0.3, 0.9])
def test_weights_of_classes_weigh_the_smoothed_part_too_as_pytorch(smoothing: float) -> None:
    """On a padded batch, and summed over batches by the weights that the task says."""
    weights = (1.0, 2.0, 5.0)
    task = fl.Classification(class_weights=weights, label_smoothing=smoothing)
    own = torch.tensor(weights, dtype=torch.float64)
    want = F.cross_entropy(Z[:3], Y[:3], own, label_smoothing=smoothing)
    torch.testing.assert_close(task.loss(Z, batch(Y)), want)
    parts = [
        (task.loss(Z[rows], one), weight_of(task, one)) for rows in ([0], [1, 2]) for one in [probe(Z[rows], Y[rows])]
    ]
    torch.testing.assert_close(sum(loss * w for loss, w in parts) / sum(w for _, w in parts), want)


def test_smoothing_and_focal_loss() -> None:
    found = fl.Classification(label_smoothing=0.2).loss(Z, batch(Y))
    torch.testing.assert_close(found, F.cross_entropy(Z[:3], Y[:3], label_smoothing=0.2))
    p = Z[:3].softmax(-1)[torch.arange(3), Y[:3]]
    torch.testing.assert_close(fl.Classification(focal=2.0).loss(Z, batch(Y)), (-((1 - p) ** 2) * p.log()).mean())
    with pytest.raises(fl.SettingError, match="focal loss is of the true class alone"):
        fl.Classification(focal=1.0, label_smoothing=0.1)


@pytest.mark.parametrize(("dtype", "mean"), [(torch.float32, 1.6e9), (torch.bfloat16, 2000.0), (torch.float64, 0.0)])
def test_targets_are_standardised_before_they_are_rounded(dtype: torch.dtype, mean: float) -> None:
    y = mean + torch.tensor([-20.0, -10.0, 0.0, 10.0, 20.0], dtype=torch.float64)
    task, z = fl.Regression(centre=(mean,), scale=(200**0.5,)), torch.zeros(5, 1, dtype=dtype)
    found = task.loss(z, probe(z, y))
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert found.item() == pytest.approx(1.0, rel=1e-6)


def test_one_logit() -> None:
    y = torch.tensor([1, 0, 1, 1])
    found = fl.Binary(positive_weight=3.0).loss(Z[:, :1], batch(y))
    each = -3 * y[:3] * Z[:3, 0].sigmoid().log() - (1 - y[:3]) * (1 - Z[:3, 0].sigmoid()).log()
    torch.testing.assert_close(found, each.mean())
    assert fl.Binary(threshold=0.8).predicted(torch.tensor([[1.3], [1.5]])).tolist() == [0, 1]  # ln 4 = 1.386


@pytest.mark.parametrize("error", ["squared", "absolute", "huber"])
def test_regression_learns_standardised_targets(error: Any) -> None:
    y = torch.tensor([[10.0, 1.0], [30.0, 2.0], [20.0, 4.0], [99.0, 9.0]], dtype=torch.float64)
    task = fl.Regression(error=error, delta=0.5).fit(TargetMoments((20.0, 2.0), (10.0, 0.0)))
    assert (task.centre, task.scale) == ((20.0, 2.0), (10.0, 1.0))  # what does not vary keeps its unit
    wanted = (y - torch.tensor([20.0, 2.0])) / torch.tensor([10.0, 1.0])
    losses = {
        "squared": F.mse_loss(Z[:3, :2], wanted[:3]),
        "absolute": F.l1_loss(Z[:3, :2], wanted[:3]),
        "huber": F.huber_loss(Z[:3, :2], wanted[:3], delta=0.5),
    }
    torch.testing.assert_close(task.loss(Z[:, :2], batch(y)), losses[error])
    np.testing.assert_allclose(task.predicted(torch.tensor([[1.0, 1.0]])), [[30.0, 3.0]])
    assert fl.Regression(standardise=False).fit(TargetMoments((20.0,), (10.0,))).centre == ()


def test_several_labels() -> None:
    y = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    found = fl.MultiLabel(positive_weights=(1.0, 2.0, 3.0)).loss(Z, batch(y))
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(found, F.binary_cross_entropy_with_logits(Z[:3], y[:3].double(), pos_weight=weights))


@pytest.mark.parametrize(
    ("task", "y", "outputs", "message"),
    [
        (fl.Classification(), np.random.rand(40).astype(np.float32), 2, "Classification are class numbers"),
        (fl.Regression(), np.arange(40) % 3, 1, "Regression are floating point numbers, got class numbers"),
        (fl.Regression(), np.random.rand(40, 2).astype(np.float32), 1, "got 2 of them and a network with 1 output"),
        (fl.MultiLabel(), np.full((40, 2), 0.5, np.float32), 2, "labels of the task MultiLabel are 0 or 1, got 0.5"),
        (fl.MultiLabel(), np.ones((40, 2), np.float32), 3, "logits are as many as labels"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(task: Any, y: Any, outputs: int, message: str) -> None:
    train = fl.data.Examples(torch.randn(40, 3), torch.from_numpy(y), 3)
    federation = fl.federate(train, fl.data.by_lists(np.array_split(np.arange(40), 4)), seed=0)
    with pytest.raises(fl.SettingError, match=message):
        fl.run(fl.FedAvg(), federation, lambda: torch.nn.Linear(3, outputs), fl.RunSettings(cohort_size=2), task=task)


class Returning(torch.nn.Module):
    """A layer, and what becomes of its outputs."""

    def __init__(self, outputs: int, then: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.then = torch.nn.Linear(3, outputs), then

    def forward(self, x: torch.Tensor) -> Any:
        return self.then(self.layer(x))


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("then", [lambda z: z.squeeze(-1), lambda z: z[:, None]], ids=["one less", "one more"])
def test_the_shape_of_a_regression_is_said(standardise: bool, then: Any) -> None:
    """The rows of a batch are no outputs."""
    train = fl.data.Examples(torch.randn(40, 3), torch.rand(40), 1)
    federation = fl.federate(train, fl.data.by_lists(np.array_split(np.arange(40), 4)), seed=0)
    task, settings = fl.Regression(standardise=standardise), fl.RunSettings(cohort_size=2)
    with pytest.raises(fl.SettingError, match=r"outputs are a column for each target, \(N, D\), got .* \(N, 1\)"):
        fl.run(fl.FedAvg(), federation, lambda: Returning(1, then), settings, task=task)


@pytest.mark.parametrize("kind", [list, tuple])
def test_two_heads_are_no_logits(kind: Any) -> None:
    with pytest.raises(fl.SettingError, match=f"TypeError: logits must be a tensor, not {kind.__name__}"):
        fl.run(fl.FedAvg(), federation(), lambda: Returning(3, lambda z: kind([z, z])), fl.RunSettings(cohort_size=2))


def federation() -> fl.Federation:
    train = fl.data.Examples(torch.randn(40, 3), torch.arange(40) % 3, 3)
    return fl.federate(train, fl.data.by_lists(np.array_split(np.arange(40), 4)), seed=0)


class Mixed(fl.Classification):
    """A loss with noise of a generator that no seed governs."""

    def loss(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        return super().loss(logits, batch) * np.random.uniform(0.5, 1.5)


class Keyed(fl.Classification):
    """The same, by the key of the batch."""

    def loss(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        each = F.cross_entropy(logits, batch.y, reduction="none")
        return batch.mean(each * (1 + uniform(batch.key, 0, each.shape)))


def test_a_loss_that_draws_random_numbers_is_named_as_one() -> None:
    settings = fl.RunSettings(rounds=1, cohort_size=2)
    with pytest.raises(
        fl.SettingError, match=r"Mixed draws random numbers that no seed governs.* fedloom\.core\.random\.normal\("
    ):
        fl.run(fl.FedAvg(), federation(), lambda: torch.nn.Linear(3, 3), settings, task=Mixed(), progress=False)
    fl.run(fl.FedAvg(), federation(), lambda: torch.nn.Linear(3, 3), settings, task=Keyed(), progress=False)


def test_moments_are_those_of_all_clients_training_examples() -> None:
    y = (1e9 + np.arange(50)).astype(np.float32)
    train = fl.data.Examples(torch.randn(50, 3), torch.from_numpy(y), 1)
    federation = fl.federate(train, fl.data.by_lists([range(30), range(30, 50)]), test_fraction=0.2, seed=0)
    rows = np.concatenate([federation.partition.rows(k) for k in range(2)])
    made = fl.run(
        fl.FedAvg(), federation, lambda: torch.nn.Linear(3, 1), fl.RunSettings(rounds=1, cohort_size=2),
        task=fl.Regression(),
    )  # fmt: skip
    task = made.manifest["task"]
    assert task["centre"] == [pytest.approx(y[rows].astype(np.float64).mean(), rel=1e-15)]
    assert task["scale"] == [pytest.approx(y[rows].astype(np.float64).std(), rel=1e-9)]
