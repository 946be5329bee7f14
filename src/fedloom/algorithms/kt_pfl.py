"""KT-pFL: parameterised knowledge transfer between clients of different architectures.

Zhang, Guo, Ma, Wang, Xu, Wu. *Parameterized Knowledge Transfer for Personalized Federated Learning.* NeurIPS 2021.
https://arxiv.org/abs/2111.02801, eq. 2 to 7.

    client n      E epochs on its own data (5);   s_n = softmax(z_n / tau) on P public examples
    server        p_n = sum_m C[n, m] s_m
    client n      w <- w - eta2 grad KL(p_n || s(w))                                                     (6)
    server        C <- C - eta3 [ lam sum_n (D_n / D) grad KL(p_n || s_n) + 2 rho (C - 1/N) ]            (7)

C[n, m] is the weight that student n puts on teacher m. There are two exchanges a round. Nothing is averaged, so
architectures may differ. The record of a round has C as `server_coefficients`, row by row, where there are at most 100
clients; `fedloom analyse RUN coefficients` draws it. Experiments: papers/docs/ktpfl.md.

As rho grows, with eta3 = 0.5 / rho, C tends to 1/N like 1 / rho: uniform mixing (`fedmd_kt`). C is then within lam / (2
rho) times its gradient's length of 1/N, row by row.

Down: the public examples' indices [P], with each exchange, and p_n [P, C], one for each. Up: s_n [P, C]. Kept by the
client: its model. There is no value that gives FedAvg (nothing is averaged); a distillation rate of 0 is local-only.

Differences from the paper: C stays on the server, where Algorithm 1 also tells each client its row, of which the client
makes no use; each row of C is projected onto the simplex after its step (the paper leaves it free and p_n then stops
being a distribution); (7) uses the predictions that were sent, not new ones after (6): one upload less; with partial
participation rows are mixed over the clients that answered, at the mass they had, and evenly where they had none. The
paper says nothing of BatchNorm statistics; here they are those of a client's own examples: after distillation its
training batches pass the network once more, E epochs without a step, from the statistics that it had.

Differences from the authors' code: almost everything (it updates C by MSE with a forced step size and a softmax of 5
C).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.func import grad

import fedloom as fl
from fedloom.algorithms.shared.transfer import Transfer, check_pull, mixture, project_simplex

LOGGED = 100  # clients up to which C, N x N numbers, is in every round's record


@dataclass(frozen=True, kw_only=True)
class KTpFL(Transfer[Tensor]):
    """Transfer knowledge between clients by learnt coefficients."""

    lam: fl.NonNegative = 1.0
    """Weight of the distillation in eq. 7; the default is ours: sources are silent."""
    rho: Annotated[fl.NonNegative, fl.Grid(0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0)] = 0.7
    """Pull of the coefficients to uniform mixing in eq. 7, by default that of the released code. A step multiplies what
    C differs from 1/N by 1 - 2 eta3 rho, which no longer shrinks it from `eta3` * `rho` = 1 on: the product must stay
    below."""
    eta3: fl.NonNegative = 0.1
    """Learning rate of the coefficients in eq. 7; the default is ours: sources are silent."""
    coefficient_steps: fl.Count = 1
    """Steps of eq. 7 in each round; the default is ours: sources are silent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pull(self.eta3, self.rho)

    def init(self, model: Mapping[str, fl.Model], key: int, *, num_clients: int) -> Tensor:
        return torch.full((num_clients, num_clients), 1.0 / num_clients)  # row = student

    def round(self, server: Tensor, cohort: fl.Cohort) -> Tensor:
        public, replies = self.collect(cohort)  # (5)
        ids, soft, sizes = replies.ids, replies.value, replies.cohort.sizes.to(server.dtype)  # soft: [K, P, C]
        block = server[ids][:, ids]
        mass = block.sum(1, keepdim=True)
        c = torch.where(mass > 0, block / torch.where(mass > 0, mass, 1.0), 1.0 / len(ids))
        self.teach(replies, public, c)  # (6)
        for _ in range(self.coefficient_steps):
            step = grad(coefficient_loss)(c, soft, sizes / sizes.sum(), self.lam, self.rho, 1.0 / len(ids))
            c = project_simplex(c - self.eta3 * step)  # (7)
        server = server.index_put((ids[:, None], ids[None, :]), c * mass)
        if len(server) <= LOGGED:
            cohort.note(coefficients=server.flatten())
        return server


def coefficient_loss(c: Tensor, soft: Tensor, share: Tensor, lam: float, rho: float, prior: float) -> Tensor:
    """Lam * sum_n share_n * mean_x KL(p_n || s_n) + rho * ||C - prior||^2 (eq. 4).

    `c`: [N, N]; `soft`: [N, P, C]; `share`: D_n / D, [N]; `prior`: 1 / N.
    """
    p = mixture(c, soft).clamp(min=1e-12)
    kl = (p * (p.log() - soft.clamp(min=1e-12).log())).sum(-1).mean(-1)
    return lam * (share * kl).sum() + rho * (c - prior).square().sum()
