"""Optimisers of the server: FedAvg whose server takes steps of Adam, Yogi or Adagrad along the clients' mean change.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. *Adaptive Federated Optimization.* ICLR 2021.
https://arxiv.org/abs/2003.00295, Algorithm 2.

    Delta = mean_k x_k - x           of the tensors that are shared; what stays with clients moves by their own training
    m <- beta1 m + (1 - beta1) Delta
    v <- what the optimiser makes of v and Delta^2
    x <- x + server_lr m / (sqrt(v) + tau)

Each stands before any algorithm that averages, in a class with the settings of both:

    @dataclass(frozen=True, kw_only=True)
    class FedProxAdam(ServerAdam, fl.FedProx): ...
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch

import fedloom as fl
from fedloom.algorithms.fedavg import FedAvg
from fedloom.core.rate_schedules import by_rounds, factor_at

Beta = Annotated[float, fl.Ge(0), fl.Lt(1)]

if TYPE_CHECKING:
    _Averaging = fl.Averaging[Any]
else:  # derived from it, what stands before an algorithm would bring back the defaults that this one has changed
    _Averaging = object


@fl.state
class Server:
    """Model and moments of a server that has an optimiser."""

    x: fl.Weights
    m: fl.Params  # like x.params
    v: fl.Params


@dataclass(frozen=True, kw_only=True)
class ServerOptimiser(_Averaging):
    """Let the server take a step of its own along the mean change of its clients' models (abstract, a mixin)."""

    server_lr: Annotated[fl.Positive, fl.Grid(0.001, 0.01, 0.1, 1.0)] = 0.01
    """Step of the server, eta. The authors' code says which were best in six tasks: 0.003 to 1 with Adam and Yogi, 0.03
    to 10 with Adagrad. Default and grid are ours."""
    server_schedule: str = "constant"
    """[Schedule](settings.md#schedules) of the server's step, by rounds."""
    tau: fl.Positive = 1e-3
    """Degree of adaptivity, which is added to the root of v: the smaller, the more alike are the steps of all
    parameters. The authors' code recommends 0.001; in its six tasks 0.00001 to 0.1 were best."""
    beta1: Beta = 0.9
    """Momentum: share of the old m in the new one."""
    v_init: fl.NonNegative | None = None
    """Value of v before round 0. None: tau^2, as in the paper. Several libraries begin at 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        by_rounds("server_schedule", self.server_schedule)

    @abstractmethod
    def second_moment(self, v: fl.Params, delta: fl.Params) -> fl.Params:
        """Return the new v."""

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> Any:
        x = super().init(model, key, num_clients=num_clients)
        begin = self.tau**2 if self.v_init is None else self.v_init
        v = fl.tree.map_tree(lambda t: torch.full_like(t, begin, dtype=torch.float64), x.params)  # the run casts it
        return Server(x=x, m=fl.tree.zeros_like(x.params), v=v)

    def round(self, server: Any, cohort: fl.Cohort) -> Any:
        rate = self.server_lr * factor_at(self.server_schedule, cohort.round)
        return self.step(server, super().round(server.x, cohort), rate)  # type: ignore[safe-super]

    def step(self, server: Server, mean: fl.Weights, rate: float) -> Server:
        """Return the server after its step of a `rate` towards the `mean`, with the buffers of that."""
        x, delta = server.x.params, mean.params - server.x.params
        m = self.beta1 * server.m + (1 - self.beta1) * delta
        v = self.second_moment(server.v, delta)
        moved = fl.tree.map_tree(lambda x, m, v: x + rate * m / (v.sqrt() + self.tau), x, m, v)
        return Server(x=fl.Weights(moved, mean.buffers), m=m, v=v)

    def model_of(self, server: Any) -> fl.Weights:
        return server.x  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class ServerAdam(ServerOptimiser):
    """Let the server take Adam's steps (a mixin)."""

    beta2: Beta = 0.99
    """Share of the old v in the new one. 0.99 is in commands of the authors' repository, beside beta1 = 0.9 and tau =
    0.001; its page of this paper says 0.999, of Keras, and that it was not tuned."""

    def second_moment(self, v: fl.Params, delta: fl.Params) -> fl.Params:
        return self.beta2 * v + (1 - self.beta2) * (delta * delta)


@dataclass(frozen=True, kw_only=True)
class ServerYogi(ServerOptimiser):
    """Let the server take Yogi's steps (a mixin)."""

    beta2: Beta = 0.99
    """1 minus the share of Delta^2 by which v moves; 0.99 as that of
    `ServerAdam`."""

    def second_moment(self, v: fl.Params, delta: fl.Params) -> fl.Params:
        square = delta * delta
        towards: fl.Params = fl.tree.map_tree(lambda t: t.sign(), square - v)
        return v + (1 - self.beta2) * (square * towards)


@dataclass(frozen=True, kw_only=True)
class ServerAdagrad(ServerOptimiser):
    """Let the server take Adagrad's steps (a mixin)."""

    beta1: Beta = 0.0
    """Momentum: share of the old m in the new one; 0, none, is in the paper's experiments."""

    def second_moment(self, v: fl.Params, delta: fl.Params) -> fl.Params:
        return v + delta * delta


@dataclass(frozen=True, kw_only=True)
class FedAdam(ServerAdam, FedAvg):
    """FedAdam: FedAvg whose server takes Adam's steps along the mean change of its clients' models.

    Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. *Adaptive Federated Optimization.* ICLR 2021.
    https://arxiv.org/abs/2003.00295, Algorithm 2.

        Delta = mean_k x_k - x
        m <- beta1 m + (1 - beta1) Delta,    v <- beta2 v + (1 - beta2) Delta^2
        x <- x + server_lr m / (sqrt(v) + tau)

    m begins at 0 and v at tau^2. The step has no bias correction, and tau is outside the root. BatchNorm statistics are
    averaged. The server's optimiser stands before any algorithm that averages, in a class with the settings of both:

        @dataclass(frozen=True, kw_only=True)
        class FedProxAdam(ServerAdam, fl.FedProx): ...

    Down: the model. Up: the model. Kept by the client: nothing. The server keeps m and v. No value gives FedAvg.

    Differences from the paper: momentum and weight decay are allowed locally; `aggregation = "samples"` weighs clients
    by their examples.

    Differences from the code of Flower: that corrects m and v for their bias, and begins with v = 0 (`v_init = 0`).
    """

    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in the mean: `uniform`, as in Algorithm 2, or its number of `samples`."""


@dataclass(frozen=True, kw_only=True)
class FedYogi(ServerYogi, FedAvg):
    """FedYogi: FedAdam whose second moment moves by amounts of fixed size, towards the newest square.

    Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. *Adaptive Federated Optimization.* ICLR 2021.
    https://arxiv.org/abs/2003.00295, Algorithm 2.

        v <- v - (1 - beta2) Delta^2 sign(v - Delta^2);    all else as `fedadam`

    After a round with large changes v falls slowly, where that of Adam falls by a share of itself.

    Down: the model. Up: the model. Kept by the client: nothing. The server keeps m and v. No value gives FedAvg;
    with beta1 = 0 and server_lr = 2 tau the step tends to FedAvg's as tau grows.

    Differences from the paper: those of `fedadam`.

    Differences from the code of Flower: that begins with v = 0 (`v_init = 0`).
    """

    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in the mean: `uniform`, as in Algorithm 2, or its number of `samples`."""


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(ServerAdagrad, FedAvg):
    """FedAdagrad: FedAdam whose second moment is the sum of all squares, so that steps get smaller and smaller.

    Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. *Adaptive Federated Optimization.* ICLR 2021.
    https://arxiv.org/abs/2003.00295, Algorithm 2.

        v <- v + Delta^2;    all else as `fedadam`

    Down: the model. Up: the model. Kept by the client: nothing. The server keeps m and v. No value gives FedAvg;
    with beta1 = 0 and server_lr = 2 tau the step tends to FedAvg's as tau grows.

    Differences from the paper: those of `fedadam`.

    Differences from the code of Flower: that begins with v = 0 (`v_init = 0`).
    """

    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in the mean: `uniform`, as in Algorithm 2, or its number of `samples`."""
