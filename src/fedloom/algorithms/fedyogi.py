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

from __future__ import annotations

from dataclasses import dataclass

import fedloom as fl
from fedloom.algorithms.fedavg import FedAvg
from fedloom.algorithms.shared.server_optimiser import Beta, ServerOptimiser


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
class FedYogi(ServerYogi, FedAvg):
    """Average models, with Yogi on the server. See `ServerOptimiser` and `Averaging` for the settings."""

    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in the mean: `uniform`, as in Algorithm 2, or its number of `samples`."""
