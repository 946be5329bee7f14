"""FedLC: each client's logits are calibrated by how many examples it has of each class, the rare ones the most.

Zhang, Li, Li, Xu, Wu, Ding, Wu. *Federated Learning with Label Distribution Skew via Logits Calibration.* ICML 2022.
https://arxiv.org/abs/2209.00189

    L = -log( exp(z_y - tau n_y^(-1/4)) / sum_c exp(z_c - tau n_c^(-1/4)) )      n_c: the client's examples of class c
    w <- sum_k (n_k / n) w_k                                                     as `fedavg`

Logits of a class that the client lacks are infinitely far below: the class drops out of the sum, and its row of the
last layer has no gradient. The margins are in local training alone, not in what is evaluated. The loss of the task is
taken of calibrated logits, so a task other than cross-entropy is calibrated in the same way.

Down: the model. Up: the model. Kept by the client: nothing. tau = 0 is FedAvg.

Differences from the paper: as we remember it, its sum leaves out c = y, and so does a part of PFLlib that is not used.
Then the loss has no lower bound, and tau = 0 is not cross-entropy. The sum here, over all classes, is that which PFLlib
and FL-bench compute.

Differences from public code: FL-bench counts 1e-8 examples of a class that a client lacks, a margin of 100 tau.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

import fedloom as fl
from fedloom.algorithms.shared.class_counts import CountsClasses


@dataclass(frozen=True, kw_only=True)
class FedLC(CountsClasses, fl.Averaging[fl.Weights]):
    """Calibrate logits by the client's numbers of examples of each class."""

    tau: Annotated[fl.NonNegative, fl.Grid(0.1, 0.5, 1.0)] = 1.0
    """Strength of the calibration. Default and grid are ours, of values that public code has."""

    neutral = {"tau": 0}

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Weights], sent: fl.Weights
    ) -> tuple[fl.Weights, fl.Weighted[fl.Weights]]:
        model, task = client.model, client.task

        def loss(w: fl.Weights, batch: fl.Batch, margin: Tensor) -> fl.BatchLoss:
            logits, buffers = model.train(w, batch)
            value = fl.objective(task, logits - margin.type_as(logits), batch, w.params)
            return fl.BatchLoss(value, logits, fl.Weights(w.params, buffers))

        n = self.class_counts(client)
        margin = self.tau * n**-0.25 if self.tau else 0 * n  # of an absent class inf
        w_k = self.train(client, self.received(client, sent), margin, loss=loss)
        return self.answer(client, w_k)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        return w.merge(cohort.reduce(self.local_update, self.down(w)).mean)
