"""KT-pFL whose knowledge is weights: each client starts from its own mixture of all models, of one architecture.

Zhang, Guo, Ma, Wang, Xu, Wu. *Parameterized Knowledge Transfer for Personalized Federated Learning.* NeurIPS 2021.
https://arxiv.org/abs/2111.02801, where knowledge may be parameters instead of soft predictions, in its comparison of
equal architectures. No code was released, and how is not said: what follows is ours.

    server     theta_n = sum_m C[n, m] w_m
    client n   w_n: E epochs on its own data from theta_n
    server     C <- C - eta3 [ lam sum_n (D_n / D) grad ||w_n - theta_n||^2 / d + 2 rho (C - 1/N) ],  d parameters  (7)

theta_n mixes BatchNorm statistics too; counters are those of w_n. A client is evaluated by w_n, the model that it has
trained. Before its first training w_n is the common initial model. Rows of C are projected onto the simplex. There are
no public data. A client that is not selected keeps its model, by which others go on learning, and its row.

Down: theta_n. Up: w_n. Kept by the client: w_n. Kept by the server: every client's last model, and its row of C. There
is no value that gives FedAvg: as rho grows with eta3 * rho = 0.5, all cohorts are full and clients of one size, theta_n
tends to its model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import fedloom as fl
from fedloom.algorithms.shared.transfer import check_pull, project_simplex


@dataclass(frozen=True, kw_only=True)
class KTpFLWeights(fl.Algorithm[tuple[()], fl.Weights]):
    """Mix models of one architecture by learnt coefficients."""

    lam: fl.NonNegative = 1.0
    """Weight of the distance in eq. 7. Squared distances divided by d are small, so with 1 the coefficients stay near
    uniform."""
    rho: fl.NonNegative = 0.7
    """Pull of the coefficients to uniform mixing in eq. 7, as in `kt_pfl`; `eta3` * `rho` < 1."""
    eta3: fl.NonNegative = 0.1
    """Learning rate of the coefficients in eq. 7, as in `kt_pfl`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pull(self.eta3, self.rho)

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> tuple[()]:
        return ()

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Weights:
        return initial

    def init_rows(self, initial: fl.Weights, model: fl.Model, *, num_clients: int) -> dict[str, Any]:
        return {"model": initial, "coefficients": torch.full((num_clients,), 1.0 / num_clients)}

    @fl.on_client
    def local_update(self, client: fl.Client[fl.Weights], theta: fl.Weights) -> tuple[fl.Weights, fl.Weights]:
        w = self.train(client, theta)
        return w, w

    def round(self, server: tuple[()], cohort: fl.Cohort) -> tuple[()]:
        everyone, n = cohort.everyone.ids, cohort.num_clients
        models: fl.Weights = cohort.everyone.rows("model")  # [N, ...]

        def rows(clients: Tensor) -> tuple[Tensor, Tensor]:
            """C of some clients [k, N], and at which of the N each of them stands."""
            c = cohort.rows("coefficients", clients)[:, everyone]
            return c / c.sum(1, keepdim=True), torch.searchsorted(everyone, clients)

        replies = cohort.gather(self.local_update, scatter=lambda clients: (mixed(models, *rows(clients)),))
        replies.cohort.keep("model", replies.value)
        c, at = rows(replies.ids)
        w = flat(models.params).index_copy(0, at, flat(replies.value.params))  # [N, d]
        sizes = cohort.everyone.sizes
        share = (sizes[at] / sizes.sum()).to(c.dtype)[:, None]
        slope = 2 * share * (c @ w - w[at]) @ w.T / w.shape[1]
        c = project_simplex(c - self.eta3 * (self.lam * slope + 2 * self.rho * (c - 1 / n)))
        kept = torch.zeros_like(cohort.rows("coefficients", replies.ids)).index_copy(1, everyone, c)
        replies.cohort.keep("coefficients", kept)
        return server

    def personal(self, client: fl.Client[fl.Weights], sent: tuple[()]) -> fl.Weights:
        return client.state


def mixed(models: fl.Weights, c: Tensor, own: Tensor) -> fl.Weights:
    """theta_n = sum_m C[n, m] w_m. `models`: [N, ...], `c`: [k, N], `own` [k]: whose counters -> [k, ...]."""

    def mix(t: Tensor) -> Tensor:
        return torch.tensordot(c.to(t.dtype), t, 1) if t.is_floating_point() else t[own]

    found: fl.Weights = fl.tree.map_tree(mix, models)
    return found


def flat(params: fl.Params) -> Tensor:
    """All parameters of N models, [N, d]."""
    return torch.cat([t.flatten(1) for t in params.values()], 1)
