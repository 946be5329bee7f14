"""Optimisers of the server, to stand before any algorithm that averages: `class Mine(ServerAdam, fl.FedProx)`.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. *Adaptive Federated Optimization.* ICLR 2021.
https://arxiv.org/abs/2003.00295, Algorithm 2.

    Delta = mean_k x_k - x           of the tensors that are shared; what stays with clients moves by their own training
    m <- beta1 m + (1 - beta1) Delta
    v <- what the optimiser makes of v and Delta^2
    x <- x + server_lr m / (sqrt(v) + tau)
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Ge, Lt

from fedloom.core.averaging import Averaging
from fedloom.core.choices import Grid, NonNegative, Positive
from fedloom.core.cohort import Cohort
from fedloom.core.model import Model
from fedloom.core.tree import map_tree, zeros_like
from fedloom.core.types import Params, Weights, state

Beta = Annotated[float, Ge(0), Lt(1)]

if TYPE_CHECKING:
    _Averaging = Averaging[Any]
else:  # as `KeepsModel`: derived from it, what stands before an algorithm would bring back defaults
    _Averaging = object


@state
class Server:
    """Model and moments of a server that has an optimiser."""

    x: Weights
    m: Params  # like x.params
    v: Params


@dataclass(frozen=True, kw_only=True)
class ServerOptimiser(_Averaging):
    """Let the server take a step of its own along the mean change of its clients' models (abstract, a mixin)."""

    server_lr: Annotated[Positive, Grid(0.001, 0.01, 0.1, 1.0)] = 0.01
    """Step of the server, eta. The authors' code says which were best in six tasks: 0.003 to 1 with Adam and Yogi, 0.03
    to 10 with Adagrad. Default and grid are ours."""
    tau: Positive = 1e-3
    """Degree of adaptivity, which is added to the root of v: the smaller, the more alike are the steps of all
    parameters. The authors' code recommends 0.001; in its six tasks 0.00001 to 0.1 were best."""
    beta1: Beta = 0.9
    """Momentum: share of the old m in the new one."""
    v_init: NonNegative | None = None
    """Value of v before round 0. None: tau^2, as in the paper. Several libraries begin at 0."""

    @abstractmethod
    def second_moment(self, v: Params, delta: Params) -> Params:
        """Return the new v."""

    def init(self, model: Model, key: int, *, num_clients: int) -> Any:
        x = super().init(model, key, num_clients=num_clients)
        begin = self.tau**2 if self.v_init is None else self.v_init
        v = map_tree(lambda t: torch.full_like(t, begin, dtype=torch.float64), x.params)  # the run casts it
        return Server(x=x, m=zeros_like(x.params), v=v)

    def round(self, server: Any, cohort: Cohort) -> Any:
        return self.step(server, super().round(server.x, cohort))  # type: ignore[safe-super]

    def step(self, server: Server, mean: Weights) -> Server:
        """Return the server after its step towards the `mean`, with the buffers of that."""
        x, delta = server.x.params, mean.params - server.x.params
        m = self.beta1 * server.m + (1 - self.beta1) * delta
        v = self.second_moment(server.v, delta)
        moved = map_tree(lambda x, m, v: x + self.server_lr * m / (v.sqrt() + self.tau), x, m, v)
        return Server(x=Weights(moved, mean.buffers), m=m, v=v)

    def model_of(self, server: Any) -> Weights:
        return server.x  # type: ignore[no-any-return]
