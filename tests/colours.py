"""A federation of small images, and runs of one-shot methods on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.data import Examples
from fedloom.engines.engine import Engine

LOCAL = Local(epochs=3, batch_size=8, optimiser=SGD(lr=0.05, momentum=0.9))


class Vectors(nn.Module):
    """A generator that makes no images."""

    def __init__(self, nz: int, ngf: int, channels: int, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(nz, channels)

    def forward(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.layer(z))


def examples(n: int, seed: int, num_classes: int = 4, size: int = 8) -> Examples:
    """Images [3, size, size] in [0, 1] of four classes: which colour is bright, or that none is."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 4
    x = 0.3 + 0.1 * torch.randn((n, 3, size, size), generator=g)
    bright = torch.cat([torch.eye(3), torch.zeros(1, 3)])[y]
    return Examples((x + 0.35 * bright[:, :, None, None]).clamp(0, 1), y, num_classes, name="colours")


def federation(num_classes: int = 4, size: int = 8) -> fl.Federation:
    """Three clients with 24 examples of all classes each."""
    lists = [range(24 * k, 24 * (k + 1)) for k in range(3)]
    train, test = (examples(n, seed, num_classes, size) for seed, n in enumerate((72, 200)))
    return fl.Federation(train=train, partition=fl.Partition.from_lists(lists), test=test)


def clouds(n: int, seed: int) -> Examples:
    """Points [8] in [0, 1] of four classes, each of which is two clouds."""
    g, y, half = torch.Generator().manual_seed(seed), torch.arange(n) % 4, torch.arange(n) // 4 % 2
    centres = torch.rand((4, 2, 8), generator=torch.Generator().manual_seed(7))
    return Examples((centres[y, half] + 0.12 * torch.randn((n, 8), generator=g)).clamp(0, 1), y, 4, name="clouds")


def skewed() -> fl.Federation:
    """Four clients with two of the classes, each of which two have."""
    train = clouds(400, 0)
    by_class = [np.flatnonzero(train.y.numpy() == c) for c in range(4)]
    lists = [np.concatenate([by_class[k][::2], by_class[(k + 1) % 4][1::2]]) for k in range(4)]
    return fl.Federation(train=train, partition=fl.Partition.from_lists(lists), test=clouds(400, 1))


def mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU()),
        *(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)),
    )


def job(
    algorithm: Any, model: Any, *, rounds: int, parts: fl.Federation | None = None, settings: Any = None, **more: Any
) -> fl.Job:
    """A run whose sampler would ask one client a round."""
    chosen = fl.RunSettings(**{"rounds": rounds, "cohort_size": 1, "engine": "loop", **(settings or {})})
    return fl.Job(algorithm=algorithm, federation=parts or federation(), model=model, settings=chosen, **more)


def one_shot(algorithm: Any, model: Any, *, directory: Any = None, resume: bool = False, **more: Any) -> fl.History:
    """What such a run has measured."""
    return job(algorithm, model, **more).run(directory, resume=resume)


def rounds(engine: Engine, count: int) -> list[dict[str, Any]]:
    """The server states after so many rounds, for which all three clients are there."""
    server, out = engine.init(), []
    for t in range(count):
        server = engine.round(server, range(3), t)
        out.append(server)
    return out
