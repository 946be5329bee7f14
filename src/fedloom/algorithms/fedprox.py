"""FedProx: a proximal term that holds the local model near the one received.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. *Federated Optimization in Heterogeneous Networks.* MLSys 2020.
https://arxiv.org/abs/1812.06127, eq. 2.

    L = CE(w) + mu / 2 * ||w - w_received||^2      over all trained parameters

Down: the model. Up: the model. Kept by the client: nothing. mu = 0 is FedAvg.
Differences from the paper: the local solver is the run's (momentum included, as in the comparisons of FedNTD), not
plain gradient descent; stragglers are lost and do not send partial work. `sampler = "by_size"` with
`aggregation = "uniform"` is the sampling of the paper's analysis. From FedNTD's code: none (its
table says mu = 0.1, its configuration file 1.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedloom.core.averaging import Averaging
from fedloom.core.batches import Batch
from fedloom.core.choices import NonNegative
from fedloom.core.client import Client, on_client
from fedloom.core.cohort import Cohort
from fedloom.core.types import BatchLoss, Weighted, Weights


@dataclass(frozen=True, kw_only=True)
class FedProx(Averaging[Weights]):
    """`mu` >= 0: weight of the proximal term."""

    mu: NonNegative = 0.1

    neutral: ClassVar[Mapping[str, Any]] = {"mu": 0}

    @on_client
    def local_update(self, client: Client[Weights], sent: Weights) -> tuple[Weights, Weighted[Weights]]:
        task_loss, received = client.loss, self.received(client, sent)

        def loss(w: Weights, batch: Batch, received: Weights) -> BatchLoss:
            return task_loss(w, batch) + self.mu / 2 * (w.params - received.params).sq_norm()  # (2)

        w_k = self.train(client, received, received, loss=loss)
        return self.own(w_k), client.weigh(self.up(w_k), self.aggregation)

    def round(self, w: Weights, cohort: Cohort) -> Weights:
        return w.merge(cohort.reduce(self.local_update, self.down(w)).mean)
