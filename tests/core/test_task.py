"""Tasks whose clients make more small than the loss they are evaluated by; golden numbers are in tests/algorithms."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom import LDAM, SVM, Classification, Hinge
from fedloom.algorithms import MOON, FedAvg
from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.task import check_padding
from fedloom.data import from_arrays
from fedloom.engines.loop import Loop
from fedloom.evaluate import classify
from fedloom.experiments.catalogue import task
from small import assert_params, clients_of

LOCAL = Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.1))


class Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 3), nn.Linear(3, 1)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def two_classes(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 6)), rng.integers(2, size=n)


def test_a_short_batch_counts_by_its_examples() -> None:
    """Sum over a batch of four, then of the three that remain: the second step is as if padding were not there."""
    x, y = two_classes(7)
    model = Model(Features, name="features")
    population = dataclasses.replace(clients_of([(x, y)], model=model, num_classes=2), task=SVM(ridge=0.2))
    run = Loop(population, FedAvg(local=LOCAL))
    start = run.init()
    module = Features().double()
    module.load_state_dict(start["features"].params)
    for rows in (slice(0, 4), slice(4, 7)):
        module.zero_grad()
        margin = (2 * torch.from_numpy(y[rows]) - 1) * module(torch.from_numpy(x[rows]))[:, 0]
        (
            0.2 * sum(layer.weight.square().sum() for layer in (module.body, module.head)) + (1 - margin).relu().sum()
        ).backward()
        with torch.no_grad():
            for p in module.parameters():
                p -= 0.1 * p.grad
    want = dataclasses.replace(start["features"], params={n: p.detach() for n, p in module.named_parameters()})
    assert_params(run.round(start, (0,), 0)["features"], want)


def test_losses_of_other_methods_have_the_objective_too() -> None:
    """MOON's term is the constant mu log 2 where the last model is the one received: its steps are FedAvg's."""
    population = clients_of([two_classes(9)], model=Model(Features, name="features"), num_classes=2)
    population = dataclasses.replace(population, task=SVM())
    once = dataclasses.replace(LOCAL, steps=1)
    plain, moon = (Loop(population, a) for a in (FedAvg(local=once), MOON(local=once, previous="received")))
    start = plain.init()
    assert_params(moon.round(start, (0,), 0)["features"], plain.round(start, (0,), 0)["features"])


def test_an_svm_is_judged_by_the_mean_hinge_loss() -> None:
    x, y = two_classes(9)
    model, data = Model(lambda: nn.Linear(6, 1), name="svm"), from_arrays(x, y, num_classes=2)
    weights = model.init(0, torch.float64)
    found, plain = (classify(model, weights, evaluate, data) for evaluate in (SVM(), Hinge()))
    assert (found.loss, found.accuracy) == (plain.loss, plain.accuracy)


def test_both_forms_have_names() -> None:
    assert task("svm") == SVM(reduction="sum", ridge=0.5)
    assert task("svm_mean") == SVM(reduction="mean", ridge=0.01)
    with pytest.raises(SettingError, match="ridge"):
        SVM(ridge=-1.0)


class Plain(Classification):
    """What a user of PyTorch writes: the mean of the whole batch."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(logits, batch.y, label_smoothing=0.1)


class Reweighted(Classification):
    """A mean by weights, of which those of padding count too."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(logits, batch.y, weight=torch.tensor([1.0, 5.0, 2.0]))


class PlainHinge(Hinge):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.relu(1 - (2.0 * batch.y - 1) * logits.squeeze(-1)).mean()


@dataclass(frozen=True)
class Noted(Classification):
    """Reads notes, and may leave out what is no real row."""

    real: bool

    def notes(self, y: Tensor) -> dict[str, Tensor]:
        return {"weight": torch.ones(len(y), dtype=torch.float64)}

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        each = batch.weight * F.cross_entropy(logits, batch.y, reduction="none")
        return batch.mean(each) if self.real else each.mean()


@pytest.mark.parametrize("begins", [0.0, 0.3])  # a network whose weights begin with zeros gives all rows one loss
@pytest.mark.parametrize(
    ("task", "refused"),
    [
        (Plain(), True),
        (Reweighted(), True),
        (PlainHinge(), True),
        (Noted(False), True),
        (Noted(True), False),
        (Classification(), False),
        (Hinge(), False),
        (SVM(), False),
        (LDAM(), False),
        (LDAM(drw=0.5), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_rows_of_padding_are_no_part_of_a_loss(task: Any, refused: bool, begins: float) -> None:
    y = torch.arange(2 if isinstance(task, Hinge) else 3)
    logits = begins * torch.randn(len(y), 1 if isinstance(task, Hinge) else 3)
    message = rf"task {type(task).__name__} counts .* over the real rows.*batch\.mean"
    with pytest.raises(SettingError, match=message) if refused else nullcontext():
        check_padding(task, logits, torch.ones(len(y), 4), y)
