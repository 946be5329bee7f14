"""FedNTD and its variants: the received model teaches, by a penalty on logits, in local training."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor

from fedloom.core.averaging import Averaging
from fedloom.core.batch import Batch
from fedloom.core.choices import Grid, NonNegative
from fedloom.core.client import Client, on_client
from fedloom.core.cohort import Cohort
from fedloom.core.requires import Requires
from fedloom.core.types import BatchLoss, Weighted, Weights


@dataclass(frozen=True, kw_only=True)
class TaughtByReceived(Averaging[Weights]):
    """Train by L = CE(q, y) + `penalty`, whose teacher is the model received this round, frozen (abstract)."""

    beta: Annotated[NonNegative, Grid(0.1, 0.3, 1.0, 3.0)] = 1.0
    """Weight of the penalty; 1 is FedNTD's. Its grid is ours: the paper's values are lost."""

    neutral: ClassVar[Mapping[str, Any]] = {"beta": 0}

    @property
    def requires(self) -> Requires:
        return super().requires | Requires(targets=("classes",))

    @abstractmethod
    def penalty(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return what is added to the loss of a batch, []; `batch.teacher`: the teacher's logits, like `logits`."""

    @on_client
    def local_update(self, client: Client[Weights], sent: Weights) -> tuple[Weights, Weighted[Weights]]:
        task_loss, received = client.loss, self.received(client, sent)

        def loss(w: Weights, batch: Batch) -> BatchLoss:
            ce = task_loss(w, batch)
            return ce + self.penalty(ce.logits, batch)

        batches = client.train.annotate("teacher", client.model, received)  # once, on the same inputs
        w_k = self.train(client, received, loss=loss, batches=batches)
        return self.answer(client, w_k)

    def round(self, w: Weights, cohort: Cohort) -> Weights:
        return w.merge(cohort.reduce(self.local_update, self.down(w)).mean)
