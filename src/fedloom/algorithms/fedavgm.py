"""FedAvgM: FedAvg with momentum on the server.

Hsu, Qi, Brown. *Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification.* 2019.
https://arxiv.org/abs/1909.06335.

    v <- momentum v + (w - sum_k (n_k / n) w_k)        over the clients that answered
    w <- w - server_lr v

Down: the model. Up: the model. Kept by the client: nothing. momentum = 0 with server_lr = 1 is FedAvg.
Differences from the paper: server_lr (its value there is 1); momentum and weight decay are allowed locally. Buffers are
averaged, without momentum. From the FedNTD authors' code: none for networks without buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from fedloom.core.algorithm import Algorithm
from fedloom.core.client import Aggregation, Client, on_client
from fedloom.core.cohort import Cohort
from fedloom.core.errors import SettingError
from fedloom.core.fold import minimise
from fedloom.core.losses import task_loss
from fedloom.core.model import Model
from fedloom.core.tree import axpy, sub, zeros_like
from fedloom.core.types import Params, Weighted, Weights, state


@state
class FedAvgMServer:
    w: Weights
    v: Params  # like w.params


@final
@dataclass(frozen=True, kw_only=True)
class FedAvgM(Algorithm[FedAvgMServer, tuple[()]]):
    """`momentum` in [0, 1): of the server. `server_lr` > 0: its step. `aggregation`: by `samples` or `uniform`."""

    momentum: float = 0.7
    server_lr: float = 1.0
    aggregation: Aggregation = "samples"

    neutral: ClassVar[Mapping[str, Any]] = {"momentum": 0, "server_lr": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1 or self.server_lr <= 0:
            raise SettingError(
                f"FedAvgM needs momentum in [0, 1) and server_lr > 0, got {self.momentum}, {self.server_lr}"
            )

    def init(self, model: Model, key: int, *, num_clients: int) -> FedAvgMServer:
        w = model.init(key)
        return FedAvgMServer(w=w, v=zeros_like(w.params))

    @on_client
    def local_update(self, client: Client[tuple[()]], w: Weights) -> tuple[tuple[()], Weighted[Weights]]:
        w_k = minimise(task_loss(client.model, client.task), w, client.train, self.local.optimiser, lr=client.lr)
        weight = client.weight(self.aggregation)
        return (), Weighted(value=w_k, weight=weight)

    def round(self, server: FedAvgMServer, cohort: Cohort) -> FedAvgMServer:
        replies = cohort.reduce(self.local_update, server.w)
        w, mean, step = server.w.params, replies.mean, self.server_lr
        change = sub(w, mean.params)
        reached = mean.params if step == 1.0 else axpy(-step, change, w)  # the mean itself: FedAvg to the last bit
        params = axpy(-step * self.momentum, server.v, reached)  # w - step * (momentum v + change)
        return FedAvgMServer(w=Weights(params=params, buffers=mean.buffers), v=axpy(self.momentum, server.v, change))

    def global_weights(self, server: FedAvgMServer) -> Weights:
        return server.w
