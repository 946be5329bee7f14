"""FedDyn: dynamic regularisation, which makes the optima of clients and server agree.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. *Federated Learning Based on Dynamic Regularization.*
ICLR 2021. https://arxiv.org/abs/2111.04263, Algorithm 1.

    client   w_k = argmin_u  L_k(u) - <g_k, u> + alpha / 2 ||u - w||^2,     g_k <- g_k - alpha (w_k - w)
    server   h <- h - (alpha / N) sum_k (w_k - w),                          w <- mean_k w_k - h / alpha

g_k becomes the client's gradient at w_k, and h the mean of all clients' g_k. N counts all clients, the sum and the mean
are over those that answered.

Down: the model. Up: the model. Kept by the client: g_k (zero at first). No value of alpha gives FedAvg.
Differences from the paper: the argmin is the run's local training, so g_k is near the gradient only; buffers are
averaged. From the authors' code: it divides alpha by each client's share of the examples, here (as in the paper) all
clients count the same. From the FedNTD authors' code: its mean of w_k is weighted by samples, while h is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedloom.core.algorithm import Algorithm
from fedloom.core.batches import Batch
from fedloom.core.client import Client, on_client
from fedloom.core.cohort import Cohort
from fedloom.core.errors import SettingError
from fedloom.core.fold import minimise
from fedloom.core.losses import task_loss
from fedloom.core.model import Model
from fedloom.core.tree import axpy, dot, sq_norm, sub, zeros_like
from fedloom.core.types import Params, Weighted, Weights, state


@state
class FedDynServer:
    w: Weights
    h: Params  # like w.params


@final
@dataclass(frozen=True, kw_only=True)
class FedDyn(Algorithm[FedDynServer, Params]):
    """`alpha` > 0: weight of the regularisation."""

    alpha: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha <= 0:
            raise SettingError(f"FedDyn needs alpha > 0, got {self.alpha}")

    def init(self, model: Model, key: int, *, num_clients: int) -> FedDynServer:
        w = model.init(key)
        return FedDynServer(w=w, h=zeros_like(w.params))

    def init_client(self, initial: Weights, model: Model, key: int) -> Params:
        return zeros_like(initial.params)

    @on_client
    def local_update(self, client: Client[Params], w: Weights) -> tuple[Params, Weighted[Weights]]:
        plain = task_loss(client.model, client.task)

        def loss(u: Weights, batch: Batch, w: Params, g: Params) -> tuple[Tensor, Weights]:
            value, moved = plain(u, batch)
            return value - dot(g, u.params) + 0.5 * self.alpha * sq_norm(sub(u.params, w)), moved

        g = client.state
        w_k = minimise(loss, w, client.train, self.local.optimiser, w.params, g, lr=client.lr)
        g = axpy(-self.alpha, sub(w_k.params, w.params), g)
        return g, Weighted(value=w_k, weight=torch.ones_like(client.num_examples))

    def round(self, server: FedDynServer, cohort: Cohort) -> FedDynServer:
        replies = cohort.reduce(self.local_update, server.w)
        mean, share = replies.mean, len(replies.cohort.ids) / cohort.num_clients
        h = axpy(-self.alpha * share, sub(mean.params, server.w.params), server.h)
        w = Weights(params=axpy(-1.0 / self.alpha, h, mean.params), buffers=mean.buffers)
        return FedDynServer(w=w, h=h)

    def global_weights(self, server: FedDynServer) -> Weights:
        return server.w
