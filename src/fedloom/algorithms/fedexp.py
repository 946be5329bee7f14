"""FedExP: FedAvg whose server steps beyond the mean, the farther the more its clients' changes cancel out.

Jhunjhunwala, Wang, Joshi. *FedExP: Speeding Up Federated Averaging via Extrapolation.* ICLR 2023.
https://arxiv.org/abs/2301.09604

    Delta_k = w - w_k                  Delta = mean_k Delta_k, over the M clients that answered
    eta_g   = max(1, sum_k ||Delta_k||^2 / (2 M (||Delta||^2 + eps)))
    w      <- w - eta_g Delta

Norms are over all trained parameters. eta_g is in the record of each round, as `server_eta_g`. BatchNorm statistics are
averaged, without the step.

Down: the model. Up: the model and the number ||Delta_k||^2. Kept by the client: nothing. No value gives FedAvg; in a
round where eta_g is 1, which a large eps gives in every round, it is FedAvg with `aggregation = "uniform"`.

Differences from the paper: momentum is allowed locally; `aggregation = "samples"` weighs both means by examples.

Differences from the authors' code: it has M eps in the place of eps, lets eps fall with the square of the learning
rate, weighs both means by examples, and evaluates the mean of the last two models, between which long steps swing; here
the last one is evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class FedExP(fl.Algorithm[fl.Weights, tuple[()]]):
    """Extrapolate the mean of the clients' models."""

    eps: Annotated[fl.Positive, fl.Grid(0.001, 0.01, 0.1)] = 0.001
    """Number that keeps the step from growing without bound where changes cancel out. The authors' code has 0.001, and
    0.1 for EMNIST; the grid is ours."""
    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in both means: `uniform`, the paper's, or its number of `samples`, as in the authors' code."""

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        return model.init(key)

    @fl.on_client
    def local_update(
        self, client: fl.Client[tuple[()]], w: fl.Weights
    ) -> tuple[tuple[()], fl.Weighted[tuple[fl.Weights, Annotated[Tensor, "control"]]]]:
        w_k = self.train(client, w, loss=client.loss)
        return (), client.weigh((w_k, (w.params - w_k.params).sq_norm()), self.aggregation)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        mean, square = cohort.reduce(self.local_update, w).mean
        of_mean = (w.params - mean.params).sq_norm()
        eta_g = max(1.0, float(square / (2 * (of_mean + self.eps))))
        cohort.note(eta_g=eta_g)
        return w.towards(mean, eta_g)

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server
