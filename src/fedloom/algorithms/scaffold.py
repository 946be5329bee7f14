"""SCAFFOLD: control variates against client drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.*
ICML 2020. https://arxiv.org/abs/1910.06378, Algorithm 1, option II.

    local step   y <- y - lr (g(y) - c_i + c)
    client       c_i+ = c_i - c + (x - y) / (A lr)
    server       x <- x + server_lr * (mean y - x),   c <- c + (|S| / N) mean(c_i+ - c_i)

Down: x and c. Up: y and c_i+ - c_i. Kept by the client: c_i (zero at first). With c and all c_i zero (the first round)
and server_lr = 1 it is FedAvg.
Differences from the paper: the mean of y is weighted by samples by default (`aggregation = "uniform"` is the paper's);
`divisor = "adaptive"` (default, the FedNTD authors') divides by A = the steps that momentum amounts to, "steps" by the
number of steps; without momentum both are the same; Nesterov's momentum counts like heavy-ball momentum; Adam, whose
steps are no sum of gradients, is refused. Buffers are averaged, whatever server_lr. From the authors' code: |S| / N is
formed from the clients that answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch

from fedloom.core.algorithm import Algorithm
from fedloom.core.client import Aggregation, Client, on_client
from fedloom.core.cohort import Cohort
from fedloom.core.errors import SettingError
from fedloom.core.fold import minimise
from fedloom.core.losses import task_loss
from fedloom.core.model import Model
from fedloom.core.tree import add, axpy, scale, sub, zeros_like
from fedloom.core.types import Params, Weighted, Weights, state


@state
class ScaffoldServer:
    x: Weights
    c: Params  # like x.params


@state
class ScaffoldClient:
    c_i: Params


@state
class ScaffoldUpload:
    y: Weighted[Weights]
    dc: Weighted[Params]


@final
@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm[ScaffoldServer, ScaffoldClient]):
    """`server_lr` > 0: the server's step. `aggregation`, `divisor`: see above."""

    server_lr: float = 1.0
    aggregation: Aggregation = "samples"
    divisor: Literal["adaptive", "steps"] = "adaptive"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server_lr <= 0:
            raise SettingError(f"SCAFFOLD needs server_lr > 0, got {self.server_lr}")
        self.local.optimiser.effective_steps(torch.ones(()))  # l. 12 is a mean gradient for plain SGD steps alone

    def init(self, model: Model, key: int, *, num_clients: int) -> ScaffoldServer:
        x = model.init(key)
        return ScaffoldServer(x=x, c=zeros_like(x.params))

    def init_client(self, initial: Weights, model: Model, key: int) -> ScaffoldClient:
        return ScaffoldClient(c_i=zeros_like(initial.params))

    @on_client
    def local_update(
        self, client: Client[ScaffoldClient], x: Weights, c: Params
    ) -> tuple[ScaffoldClient, ScaffoldUpload]:
        c_i, optimiser = client.state.c_i, self.local.optimiser
        drift = sub(c, c_i)
        loss = task_loss(client.model, client.task)
        y = minimise(loss, x, client.train, optimiser, drift, lr=client.lr, correct=add)  # Alg. 1, l. 10
        n = client.train.num_steps
        steps = optimiser.effective_steps(n) if self.divisor == "adaptive" else n.double()
        dc = axpy(-1.0, c, scale(1.0 / (steps * client.lr), sub(x.params, y.params)))  # l. 12: c_i+ - c_i
        weight = client.weight(self.aggregation)
        up = ScaffoldUpload(y=Weighted(value=y, weight=weight), dc=Weighted(value=dc, weight=torch.ones_like(weight)))
        return ScaffoldClient(c_i=add(c_i, dc)), up

    def round(self, server: ScaffoldServer, cohort: Cohort) -> ScaffoldServer:
        replies = cohort.reduce(self.local_update, server.x, server.c)
        y, dc, x = replies.mean.y, replies.mean.dc, server.x.params
        x = y.params if self.server_lr == 1.0 else axpy(self.server_lr, sub(y.params, x), x)  # l. 16
        c = axpy(len(replies.cohort.ids) / cohort.num_clients, dc, server.c)  # l. 17
        return ScaffoldServer(x=Weights(params=x, buffers=y.buffers), c=c)

    def global_weights(self, server: ScaffoldServer) -> Weights:
        return server.x
