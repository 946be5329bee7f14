"""FedBN: FedAvg whose clients keep their normalisation layers, against features that differ between clients.

Li, Jiang, Zhang, Kamp, Dou. *FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.* ICLR 2021.
https://arxiv.org/abs/2102.07623, Algorithm 1.

    client       w_k: E epochs of SGD on F_k from (w, own BatchNorm), all together
    server       w <- mean_k w_k, without BatchNorm                                over the clients that answered

A layer is known by its class, whatever its name: by a class name that ends in `Norm`, `Norm1d`, `Norm2d` or `Norm3d`.

Down: all tensors but those of normalisation layers. Up: the same. Kept by the client: its normalisation layers (weight,
bias, running statistics and counter), at first those of the common initial model. On a network without such layers it
is FedAvg, and says so.

Differences from the paper: layers of every kind of normalisation stay, LayerNorm and GroupNorm too.

Differences from the authors' code: the mean is formed in float64; layers are not found by `bn` in a tensor's name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import fedloom as fl
from fedloom.algorithms.fedavg import FedAvg
from fedloom.core import patterns
from fedloom.core.errors import SettingWarning, warn


@dataclass(frozen=True, kw_only=True)
class FedBN(FedAvg):
    """Share all layers but those of normalisation."""

    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in the mean: `uniform`, as in the paper, or its number of `samples`."""
    shared: str = field(init=False, default="* !norm")

    def check_shared(self, model: fl.Model) -> None:
        if patterns.named("norm", model.tensors, model.params, model.kinds):
            super().check_shared(model)
        else:
            warn(
                f"FedBN leaves normalisation layers with clients, and {model.name} has none to train: on it, this is "
                "FedAvg",
                SettingWarning,
            )
