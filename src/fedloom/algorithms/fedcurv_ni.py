"""FedCurv as the comparison of APFL has it: elastic weight consolidation towards the global model of the last round.

Ni, Shen, Zhang. *Adaptive personalised federated learning by parameter decomposition and continual learning* (in
Chinese). Sci Sin Inform 52, 2022, https://doi.org/10.1360/SSI-2021-0152, which describes FedCurv (Shoham et al., 2019;
`fedcurv`) so: importance of the last round alone, twice the communication of FedAvg.

    L_k(u) = CE(u) + mu / 2 * sum_j F_j (u_j - w_j)^2              w: the global model that the client receives
    F <- sum_k (n_k / n) (grad F_k(w))^2                           F_k: the client's mean loss over all its examples

F is that of the round before: 0 in the first round, which is FedAvg's. It is `apfl_ni` without decomposition, which
measures importance anew in every round and keeps nothing of it.

Down: the model and F. Up: the model and the squared gradient. Kept by the client: nothing. mu = 0 is FedAvg.

Differences from the paper: none known; its words leave the formula open, which is the one of APFL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import fedloom as fl


@fl.state
class Server:
    w: fl.Weights
    F: fl.Params


@dataclass(frozen=True, kw_only=True)
class FedCurvNi(fl.Algorithm[Server, tuple[()]]):
    """Hold local weights near the last global model, by the mean Fisher information."""

    mu: Annotated[fl.NonNegative, fl.Grid(0.01, 0.1, 1.0, 10.0)] = 1.0
    """Weight of the penalty; 1 as in the paper. The pull is stable only while lr * mu * max(F) < 2. Its grid is
    ours."""
    aggregation: fl.Aggregation = "samples"
    """Weight of a client in the mean: its number of `samples`, or `uniform`."""

    neutral: ClassVar[Mapping[str, Any]] = {"mu": 0}

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> Server:
        w = model.init(key)
        return Server(w=w, F=fl.tree.zeros_like(w.params))

    @fl.on_client
    def local_update(
        self, client: fl.Client[tuple[()]], w: fl.Weights, F: Annotated[fl.Params, "fisher"]
    ) -> tuple[tuple[()], tuple[fl.Weighted[fl.Weights], Annotated[fl.Weighted[fl.Params], "fisher"]]]:
        task_loss = client.loss

        def loss(u: fl.Weights, batch: fl.Batch, w: fl.Weights, F: fl.Params) -> fl.BatchLoss:
            moved = u.params - w.params
            return task_loss(u, batch) + self.mu / 2 * (F * moved).dot(moved)

        g = fl.mean_gradient(client.model, client.task, w, client.train.whole())
        w_k = self.train(client, w, w, F, loss=loss)
        return (), (client.weigh(w_k, self.aggregation), client.weigh(g * g, self.aggregation))

    def round(self, server: Server, cohort: fl.Cohort) -> Server:
        w, F = cohort.reduce(self.local_update, server.w, server.F).mean
        return Server(w=w, F=F)

    def global_weights(self, server: Server) -> fl.Weights:
        return server.w
