"""KT-pFL: parameterised knowledge transfer between clients of different architectures.

Zhang, Guo, Ma, Wang, Xu, Wu. *Parameterized Knowledge Transfer for Personalized Federated Learning.* NeurIPS 2021.
https://arxiv.org/abs/2111.02801, eq. 2 to 7.

    client n      E epochs on its own data (5); s_n = softmax(z_n / tau) on P public examples
    server        p_n = sum_m C[n, m] s_m;  client n distils: w <- w - eta2 grad KL(p_n || s(w))           (6)
    server        C <- C - eta3 [ lam sum_n (D_n / D) grad KL(p_n || s_n) + 2 rho (C - 1/N) ]              (7)

Down: the public examples' indices [P], with each exchange, and p_n [P, C], one for each. Up: s_n [P, C].
Kept by the client: its model.
There is no value that gives FedAvg (nothing is averaged); rho -> infinity gives uniform mixing, a distillation rate of
0 local-only.
Differences from the paper: each row of C is projected onto the simplex after its step (the paper leaves it free and p_n
then stops being a distribution); (7) uses the predictions that were sent, not new ones after (6): one upload less;
with partial participation rows are mixed over the clients that answered, at the mass they had. From the authors' code:
almost everything (it updates C by MSE with a forced step size and a softmax of 5 C; see docs/papers.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.func import grad

from fedloom.core.algorithm import Algorithm
from fedloom.core.choices import Count, NonNegative, Positive
from fedloom.core.client import Client, on_client
from fedloom.core.cohort import Cohort
from fedloom.core.fold import minimise
from fedloom.core.losses import soft_prediction, soft_target_loss
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Digest
from fedloom.core.types import Weights


@dataclass(frozen=True, kw_only=True)
class KTpFL(Algorithm[Tensor, Weights]):
    """`num_public`: P of a round. `tau`: temperature. `lam`, `rho`, `eta3`, `coefficient_steps`: of eq. 7.

    `distill`: how the public examples are learnt.
    """

    distill: Digest = field(default_factory=lambda: Digest(epochs=1, batch_size=256, optimiser=SGD(lr=0.02)))
    num_public: Count = 3000
    tau: Positive = 1.0
    lam: NonNegative = 1.0
    rho: NonNegative = 0.7
    eta3: NonNegative = 0.1
    coefficient_steps: Count = 1

    mixed: ClassVar[bool] = True
    needs_public: ClassVar[bool] = True

    def init(self, model: Mapping[str, Model], key: int, *, num_clients: int) -> Tensor:
        return torch.full((num_clients, num_clients), 1.0 / num_clients)  # row = student

    def init_client(self, initial: Weights, model: Model, key: int) -> Weights:
        return model.init(key)

    @on_client
    def local_update(
        self, client: Client[Weights], public: Annotated[Tensor, "control"]
    ) -> tuple[Weights, Annotated[Tensor, "predictions"]]:
        weights = self.train(client, client.state, loss=client.loss)  # (5)
        batches = client.public.rows(public, self.distill.batch_size)
        return weights, batches.predict(soft_prediction(client.model, self.tau), weights)

    @on_client
    def digest(
        self,
        client: Client[Weights],
        public: Annotated[Tensor, "control"],
        target: Annotated[Tensor, "predictions"],
    ) -> tuple[Weights, tuple[()]]:
        weights, loss = client.state, soft_target_loss(client.model, self.tau)
        batches = client.public.rows(public, self.distill.batch_size).note("target", target)
        rate = torch.full_like(client.lr, self.distill.optimiser.lr)
        for _ in range(self.distill.epochs):
            weights = minimise(loss, weights, batches, self.distill.optimiser, lr=rate)  # (6)
        return weights, ()

    def round(self, server: Tensor, cohort: Cohort) -> Tensor:
        rng = torch.Generator().manual_seed(cohort.key("public"))
        public = torch.randperm(cohort.num_public, generator=rng)[: self.num_public].to(server.device)
        replies = cohort.gather(self.local_update, public)
        ids, soft, sizes = replies.ids, replies.value, replies.cohort.sizes.to(server.dtype)  # soft: [K, P, C]
        block = server[ids][:, ids]
        mass = block.sum(1, keepdim=True)
        c = block / mass
        replies.cohort.gather(self.digest, public, scatter=(mixture(c, soft),), at_least=0)
        for _ in range(self.coefficient_steps):
            step = grad(coefficient_loss)(c, soft, sizes / sizes.sum(), self.lam, self.rho, 1.0 / len(ids))
            c = project_simplex(c - self.eta3 * step)
        return server.index_put((ids[:, None], ids[None, :]), c * mass)

    def personal(self, client: Client[Weights], sent: tuple[()]) -> Weights:
        return client.state


def mixture(c: Tensor, soft: Tensor) -> Tensor:
    """p_n = sum_m C[n, m] s_m. `c`: [N, N], `soft`: [N, P, C] -> [N, P, C]."""
    return torch.einsum("nm,mpc->npc", c, soft)


def coefficient_loss(c: Tensor, soft: Tensor, share: Tensor, lam: float, rho: float, prior: float) -> Tensor:
    """lam * sum_n share_n * mean_x KL(p_n || s_n) + rho * ||C - prior||^2 (eq. 4).

    `c`: [N, N]; `soft`: [N, P, C]; `share`: D_n / D, [N]; `prior`: 1 / N.
    """
    p = mixture(c, soft).clamp(min=1e-12)
    kl = (p * (p.log() - soft.clamp(min=1e-12).log())).sum(-1).mean(-1)
    return lam * (share * kl).sum() + rho * (c - prior).square().sum()


def project_simplex(c: Tensor) -> Tensor:
    """Each row of [..., N] projected onto the probability simplex (Duchi et al., ICML 2008)."""
    n = c.shape[-1]
    ordered = c.sort(dim=-1, descending=True).values
    excess = ordered.cumsum(-1) - 1.0
    count = torch.arange(1, n + 1, device=c.device, dtype=c.dtype)
    support = (ordered - excess / count > 0).sum(-1, keepdim=True)
    return (c - excess.gather(-1, support - 1) / support).clamp(min=0.0)
