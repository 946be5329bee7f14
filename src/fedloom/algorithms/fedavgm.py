"""FedAvgM: FedAvg with momentum on the server.

Hsu, Qi, Brown. *Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification.* 2019.
https://arxiv.org/abs/1909.06335.

    v <- momentum v + (w - sum_k (n_k / n) w_k)        over the clients that answered
    w <- w - server_lr v

Down: the model. Up: the model. Kept by the client: nothing. momentum = 0 with server_lr = 1 is FedAvg. The server keeps
v. BatchNorm statistics are averaged, without momentum.

Differences from the paper: `server_lr`; momentum and weight decay are allowed locally.

Differences from the FedNTD authors' code: none for networks without buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Lt

import fedloom as fl
from fedloom.core.rate_schedules import by_rounds, factor_at


@fl.state
class Server:
    w: fl.Weights
    v: fl.Params  # like w.params


@dataclass(frozen=True, kw_only=True)
class FedAvgM(fl.Algorithm[Server, tuple[()]]):
    """Average models with momentum on the server."""

    momentum: Annotated[float, Ge(0), Lt(1), fl.Grid(0.0, 0.7, 0.9, 0.97, 0.99, 0.997)] = 0.7
    """Momentum of the server, as in the FedNTD authors' repository. The paper tries 0 to 0.997. In the long run a
    change of the mean acts 1 / (1 - momentum) times, so large values need a smaller learning rate."""
    server_lr: fl.Positive = 1.0
    """Step of the server; 1 as in the paper, which subtracts v whole."""
    server_schedule: str = "constant"
    """[Schedule](settings.md#schedules) of the server's step, by rounds."""
    aggregation: fl.Aggregation = "samples"
    """Weight of a client in the mean: its number of `samples`, or `uniform`."""

    neutral: ClassVar[Mapping[str, Any]] = {"momentum": 0, "server_lr": 1, "server_schedule": "constant"}

    def __post_init__(self) -> None:
        super().__post_init__()
        by_rounds("server_schedule", self.server_schedule)

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> Server:
        w = model.init(key)
        return Server(w=w, v=fl.tree.zeros_like(w.params))

    @fl.on_client
    def local_update(self, client: fl.Client[tuple[()]], w: fl.Weights) -> tuple[tuple[()], fl.Weighted[fl.Weights]]:
        return (), client.weigh(self.train(client, w, loss=client.loss), self.aggregation)

    def round(self, server: Server, cohort: fl.Cohort) -> Server:
        w, v = server.w, server.v
        mean = cohort.reduce(self.local_update, w).mean
        rate = self.server_lr * factor_at(self.server_schedule, cohort.round)
        reached = w.towards(mean, rate)  # w - server_lr (w - mean)
        params = reached.params - rate * self.momentum * v
        return Server(w=fl.Weights(params, reached.buffers), v=self.momentum * v + (w.params - mean.params))

    def global_weights(self, server: Server) -> fl.Weights:
        return server.w
