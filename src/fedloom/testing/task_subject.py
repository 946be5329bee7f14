"""Make the subject of the checks of tasks: random logits and targets of a task, and six clients with such targets."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedloom.core.batch import Batch, Notes
from fedloom.core.task import FitsTargets, TargetMoments, Task, loss_of, notes_of, targets_of
from fedloom.core.task_measures import outputs_of, sums_of
from fedloom.data import Federation
from fedloom.evaluate.accuracy import RowResults
from fedloom.testing.small_networks import FEATURES
from fedloom.testing.subject import federation

ROWS = 24  # examples of a case
OF_CLASSES = ("classes", "tokens", "pixels")  # targets that are numbers of classes, of one place each


@dataclass(frozen=True)
class Case:
    """Logits of some rows, their targets, and what the task notes beside them."""

    task: Task
    logits: Tensor  # [n, outputs]
    y: Tensor  # [n, ...]
    x: Tensor  # [n, 12]
    notes: Notes

    def take(self, rows: list[int]) -> Case:
        """Return these rows, in this order."""
        notes = {name: each[rows] for name, each in self.notes.items()}
        return Case(self.task, self.logits[rows], self.y[rows], self.x[rows], notes)

    @property
    def batch(self) -> Batch:
        real = torch.ones(len(self.y), dtype=torch.bool)
        return Batch(x=self.x, y=self.y, mask=real, key=torch.zeros((), dtype=torch.int64), notes=self.notes)

    def loss(self, logits: Tensor | None = None) -> Tensor:
        return loss_of(self.task, self.logits if logits is None else logits, self.batch)

    def results(self, names: list[str]) -> RowResults:
        sums = sums_of(self.task, names, self.logits, self.y)
        return RowResults(sums, outputs_of(self.task, names, self.logits), self.y, 0.0)

    def measure(self, name: str) -> float:
        return self.results([name]).measured(self.task)[name]


@dataclass(frozen=True)
class TaskSubject:
    """A task under test. `outputs`: logits of an example; `classes`: of a task of classes."""

    task: Task
    outputs: int
    classes: int

    @functools.cached_property
    def fitted(self) -> Task:
        """The task, made for these targets where it is one that is."""
        if not isinstance(self.task, FitsTargets):
            return self.task
        y = self.targets(ROWS, 0).double().reshape(ROWS, -1)
        return self.task.fit(TargetMoments(tuple(y.mean(0).tolist()), tuple(y.std(0, correction=0).tolist())))

    def targets(self, n: int, seed: int) -> Tensor:
        """Return targets of n random examples, of the kind that the task declares."""
        rng = np.random.default_rng(seed)
        if targets_of(self.task) in OF_CLASSES:
            return torch.from_numpy(np.concatenate([np.arange(self.classes), rng.integers(self.classes, size=n)])[:n])
        numbers = torch.from_numpy(5 + 3 * rng.normal(size=(n, self.outputs))).float()
        if targets_of(self.task) == "labels":
            return (numbers > 5).float()
        return numbers[:, 0] if self.outputs == 1 else numbers  # one number of each example is read as [n]

    def case(self, seed: int = 0, n: int = ROWS, y: Tensor | None = None) -> Case:
        """Return logits and targets of n random examples."""
        rng = np.random.default_rng([seed, 1])
        logits, x = (torch.from_numpy(rng.normal(size=(n, width))) for width in (self.outputs, FEATURES))
        y = self.targets(n, seed) if y is None else y
        return Case(self.fitted, logits, y, x, notes_of(self.fitted, y, logits.dtype))

    @property
    def federation(self) -> Federation:
        """Six clients with these targets."""
        tiny = federation()
        classes = self.classes if targets_of(self.task) in OF_CLASSES else self.outputs
        y = self.targets(len(tiny.train), 2)
        train = dataclasses.replace(tiny.train, y=y, num_classes=classes)
        return dataclasses.replace(tiny, train=train, public=None, public_labels=False)
