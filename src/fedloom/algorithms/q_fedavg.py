"""q-FedAvg: clients whose loss is high count more, so that accuracy is more even over clients.

Li, Sanjabi, Beirami, Smith. *Fair Resource Allocation in Federated Learning.* ICLR 2020.
https://arxiv.org/abs/1905.10497, Algorithm 2, for the objective q-FFL: min_w sum_k p_k F_k(w)^(q + 1) / (q + 1).

    client  d_k     = (w - w_k) / lr                                 F_k: mean loss of w on all of its examples
            Delta_k = F_k^q d_k
            h_k     = q F_k^(q - 1) ||d_k||^2 + F_k^q / lr
    server  w      <- w - sum_k Delta_k / sum_k h_k                  over the clients that answered

1 / lr, with the learning rate of the round, stands for the paper's Lipschitz constant L of grad F_k. h_k bounds that of
F_k^(q + 1) / (q + 1), so a rate tuned for q = 0 serves every q. Momentum makes d_k longer, and so steps shorter.
The server's step is computed as one from w towards the mean of the w_k with weights F_k^q. F_k is taken in evaluation
mode, before training. BatchNorm statistics have these weights, too.

Down: the model. Up: the model, weighted by F_k^q, and the numbers F_k^q and lr h_k. Kept by the client: nothing. q = 0
is FedAvg.

Differences from the paper: momentum and weight decay are allowed locally; Adam, whose steps are no sum of gradients, is
refused; `aggregation = "samples"` weighs all sums by examples. The p_k of the paper are the probabilities with which
clients are selected: `sampler = "by_size"`.

Differences from the authors' code: none but these; 1e-10 is added to F_k, as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

import fedloom as fl
from fedloom.algorithms.shared.gradient_sums import SumsGradients

Numbers = Annotated[tuple[Tensor, Tensor], "control"]


@dataclass(frozen=True, kw_only=True)
class QFedAvg(SumsGradients[fl.Weights, tuple[()]]):
    """Average models with weights that grow with the clients' losses."""

    q: Annotated[fl.NonNegative, fl.Grid(0.001, 0.01, 0.1, 1.0, 5.0)] = 1.0
    """Fairness: the larger, the more clients with a high loss count. The authors' demo has 5; default and grid are
    ours."""
    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in the sums, beside F_k^q: `uniform`, the paper's, or its number of `samples`."""

    neutral = {"q": 0}

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        return model.init(key)

    @fl.on_client
    def local_update(
        self, client: fl.Client[tuple[()]], w: fl.Weights
    ) -> tuple[tuple[()], tuple[fl.Weighted[fl.Weights], fl.Weighted[Numbers]]]:
        F = fl.mean_loss(client.model, client.task, w, client.train.whole()) + 1e-10
        w_k = self.train(client, w, loss=client.loss)
        moved = (w.params - w_k.params).sq_norm().double()
        F_q = F**self.q
        h = self.q * F ** (self.q - 1) * moved / client.lr + F_q  # lr h_k
        numbers = client.weigh((F_q, h), self.aggregation)
        return (), (fl.Weighted(w_k, numbers.weight * F_q), numbers)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        mean, (F_q, h) = cohort.reduce(self.local_update, w).mean
        return w.towards(mean, float(F_q / h))

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server
