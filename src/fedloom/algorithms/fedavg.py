"""FedAvg: local training, then the mean.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. *Communication-Efficient Learning of Deep Networks from Decentralized
Data.* AISTATS 2017. https://arxiv.org/abs/1602.05629, Algorithm 1.

    w <- sum_k (n_k / n) w_k        over the clients that answered

Down: the model. Up: the model. Kept by the client: nothing.

Differences from the paper: momentum and weight decay are allowed locally; `aggregation = "uniform"` gives the plain
mean.

Differences from the FedNTD authors' code: weights n_k / n are formed in float64 (theirs in float32).
"""

from __future__ import annotations

from dataclasses import dataclass

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class FedAvg(fl.Averaging[fl.Weights]):
    """Federated averaging: see `Averaging` for its settings."""

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Weights], sent: fl.Weights
    ) -> tuple[fl.Weights, fl.Weighted[fl.Weights]]:
        w_k = self.train(client, self.received(client, sent), loss=client.loss)
        return self.answer(client, w_k)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        return w.merge(cohort.reduce(self.local_update, self.down(w)).mean)  # sum_k (n_k / n) w_k
