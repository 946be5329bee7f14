"""The tiny network, data and order of batches of the golden trajectories (golden/fedntd/README.md, conventions)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Weights
from fedloom.data import Federation, Partition, from_arrays
from fedloom.engines.population import Population


class TinyNet(nn.Module):
    """golden/fedntd/README.md, conventions"""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.fc = nn.Linear(48, 6)
        self.classifier = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)
        return self.classifier(F.relu(self.fc(z)))


@dataclass(frozen=True)
class StoredOrder(Population):
    """The golden runs visit the examples in stored order."""

    def train_batches(self, request: Any, local: Any) -> Any:
        batches = super().train_batches(request, local)
        sizes = self.sizes[list(request.clients)]
        per_epoch = -(-sizes // local.batch_size)
        order = torch.zeros_like(batches.order)
        for i, (n, steps) in enumerate(zip(sizes, per_epoch, strict=True)):
            order[i, : steps * local.epochs] = torch.arange(n).reshape(steps, -1).repeat(local.epochs, 1)
        from fedloom.core.types import replace

        return replace(batches, order=order)


def flat(params: dict[str, torch.Tensor]) -> np.ndarray:
    return torch.cat([p.flatten() for p in params.values()]).numpy()


def unflat(model: Model, vector: np.ndarray) -> Weights:
    like, out, at = model.init(0, torch.float64), {}, 0
    for name, p in like.params.items():
        out[name] = torch.from_numpy(vector[at : at + p.numel()]).reshape(p.shape).clone()
        at += p.numel()
    return Weights(params=out)


def setting(g: dict[str, Any]) -> tuple[Population, Local, np.ndarray]:
    x = np.concatenate([g[f"data_x{k}"] for k in range(4)])
    y = np.concatenate([g[f"data_y{k}"] for k in range(4)])
    ends = np.cumsum([0, *g["sizes"]])
    partition = Partition(indptr=ends, indices=np.arange(len(y)), name="golden", seed=None)
    federation = Federation(train=from_arrays(x, y, num_classes=4), partition=partition)
    population = StoredOrder(federation=federation, models={"tiny": Model(TinyNet)}, dtype=torch.float64)
    optimiser = SGD(lr=float(g["lr0"]), momentum=float(g["momentum"]), weight_decay=float(g["weight_decay"]))
    local = Local(epochs=int(g["local_epochs"]), batch_size=4, optimiser=optimiser, decay=float(g["gamma"]))
    return population, local, g["init"]
