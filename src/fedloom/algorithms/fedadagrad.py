"""FedAdagrad: FedAdam whose second moment is the sum of all squares, so that steps get smaller and smaller.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. *Adaptive Federated Optimization.* ICLR 2021.
https://arxiv.org/abs/2003.00295, Algorithm 2.

    v <- v + Delta^2;    all else as `fedadam`

Down: the model. Up: the model. Kept by the client: nothing. The server keeps m and v. No value gives FedAvg;
with beta1 = 0 and server_lr = 2 tau the step tends to FedAvg's as tau grows.

Differences from the paper: those of `fedadam`.

Differences from the code of Flower: that begins with v = 0 (`v_init = 0`).
"""

from __future__ import annotations

from dataclasses import dataclass

import fedloom as fl
from fedloom.algorithms.fedavg import FedAvg
from fedloom.algorithms.shared.server_optimiser import Beta, ServerOptimiser


@dataclass(frozen=True, kw_only=True)
class ServerAdagrad(ServerOptimiser):
    """Let the server take Adagrad's steps (a mixin)."""

    beta1: Beta = 0.0
    """Momentum: share of the old m in the new one; 0, none, is in the paper's experiments."""

    def second_moment(self, v: fl.Params, delta: fl.Params) -> fl.Params:
        return v + delta * delta


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(ServerAdagrad, FedAvg):
    """Average models, with Adagrad on the server. See `ServerOptimiser` and `Averaging` for the settings."""

    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in the mean: `uniform`, as in Algorithm 2, or its number of `samples`."""
