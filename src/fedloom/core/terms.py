"""Terms: what an algorithm adds to the task's loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.batches import Batch, Batches
from fedloom.core.losses import distillation, not_true
from fedloom.core.model import Model
from fedloom.core.types import Maybe, Weights


class Term(Protocol):
    """A frozen dataclass of hyper-parameters with two pure functions.

    `received`: the weights from which this round starts. `previous`: the client's own weights after its last round,
    present only where `keeps_previous` is True for some term of the algorithm and the client took part before.
    """

    keeps_previous: ClassVar[bool]

    def annotate(self, model: Model, batches: Batches, received: Weights, previous: Maybe[Weights]) -> Batches:
        """The batches with what frozen models say about them (`batches.annotate`)."""
        ...

    def penalty(
        self, weights: Weights, logits: Tensor, batch: Batch, received: Weights, previous: Maybe[Weights]
    ) -> Tensor:
        """What is added to the loss of this batch, []."""
        ...


@dataclass(frozen=True)
class Proximal:
    """mu/2 * ||w - w_received||^2 over the trained parameters (FedProx, eq. 2)."""

    mu: float
    keeps_previous: ClassVar[bool] = False

    def annotate(self, model: Model, batches: Batches, received: Weights, previous: Maybe[Weights]) -> Batches:
        return batches

    def penalty(
        self, weights: Weights, logits: Tensor, batch: Batch, received: Weights, previous: Maybe[Weights]
    ) -> Tensor:
        return 0.5 * self.mu * tree.sq_norm(tree.sub(weights.params, received.params))


@dataclass(frozen=True)
class NotTrue:
    """beta * tau^2 * KL(received || local) over the not-true classes (FedNTD, eq. 10 and 11)."""

    beta: float
    tau: float
    keeps_previous: ClassVar[bool] = False

    def annotate(self, model: Model, batches: Batches, received: Weights, previous: Maybe[Weights]) -> Batches:
        return batches.annotate("teacher", model, received)

    def penalty(
        self, weights: Weights, logits: Tensor, batch: Batch, received: Weights, previous: Maybe[Weights]
    ) -> Tensor:
        student, teacher = not_true(logits, batch.y), not_true(batch.teacher, batch.y)
        return self.beta * batch.mean(distillation(student, teacher, self.tau))


@dataclass(frozen=True)
class SelfDistillation:
    """lam * T^2 * KL(previous || local): towards the client's own last model (pFedSD, eq. 4 and 5)."""

    lam: float
    T: float
    keeps_previous: ClassVar[bool] = True

    def annotate(self, model: Model, batches: Batches, received: Weights, previous: Maybe[Weights]) -> Batches:
        return batches.annotate("previous", model, previous.value)

    def penalty(
        self, weights: Weights, logits: Tensor, batch: Batch, received: Weights, previous: Maybe[Weights]
    ) -> Tensor:
        kd = batch.mean(distillation(logits, batch.previous, self.T))
        return torch.where(previous.present, self.lam * kd, 0.0)
