"""FedAdam: FedAvg whose server takes Adam's steps along the mean change of its clients' models.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. *Adaptive Federated Optimization.* ICLR 2021.
https://arxiv.org/abs/2003.00295, Algorithm 2.

    Delta = mean_k x_k - x
    m <- beta1 m + (1 - beta1) Delta,    v <- beta2 v + (1 - beta2) Delta^2,    x <- x + server_lr m / (sqrt(v) + tau)

m begins at 0 and v at tau^2. The step has no bias correction, and tau is outside the root. BatchNorm statistics are
averaged. The server's optimiser stands before any algorithm that averages, in a class with the settings of both:

    @dataclass(frozen=True, kw_only=True)
    class FedProxAdam(ServerAdam, fl.FedProx): ...

Down: the model. Up: the model. Kept by the client: nothing. The server keeps m and v. No value gives FedAvg.

Differences from the paper: momentum and weight decay are allowed locally; `aggregation = "samples"` weighs clients by
their examples.

Differences from the code of Flower: that corrects m and v for their bias, and begins with v = 0 (`v_init = 0`).
"""

from __future__ import annotations

from dataclasses import dataclass

import fedloom as fl
from fedloom.algorithms.fedavg import FedAvg
from fedloom.algorithms.shared.server_optimiser import Beta, ServerOptimiser


@dataclass(frozen=True, kw_only=True)
class ServerAdam(ServerOptimiser):
    """Let the server take Adam's steps (a mixin)."""

    beta2: Beta = 0.99
    """Share of the old v in the new one. 0.99 is in commands of the authors' repository, beside beta1 = 0.9 and tau =
    0.001; its page of this paper says 0.999, of Keras, and that it was not tuned."""

    def second_moment(self, v: fl.Params, delta: fl.Params) -> fl.Params:
        return self.beta2 * v + (1 - self.beta2) * (delta * delta)


@dataclass(frozen=True, kw_only=True)
class FedAdam(ServerAdam, FedAvg):
    """Average models, with Adam on the server. See `ServerOptimiser` and `Averaging` for the settings."""

    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in the mean: `uniform`, as in Algorithm 2, or its number of `samples`."""
