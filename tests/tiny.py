"""A federation that trains in milliseconds."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedloom import SGD, Examples, Federation, Local, Model, federate
from fedloom.data import by_lists
from fedloom.engines.population import Population

CLASSES = 3
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.1))


def examples(n: int, seed: int = 0) -> Examples:
    """Three overlapping clouds in four dimensions."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % CLASSES
    centres = torch.tensor([[2.0, 0, 0, 1], [0, 2, 0, 1], [0, 0, 2, 1]])
    return Examples(centres[y] + torch.randn(n, 4, generator=g), y, CLASSES, name="clouds")


def federation(clients: int = 6, per_client: int = 15, **more: Any) -> Federation:
    """Client k has two of the three classes for the most part; 12 examples to train on, 3 held out."""
    train = examples(clients * per_client)
    order = torch.argsort((train.y + torch.arange(len(train)) % 2) * 1000 + torch.arange(len(train))).tolist()
    lists = [order[k * per_client : (k + 1) * per_client] for k in range(clients)]
    return federate(train, by_lists(lists), **{"test": examples(60, seed=1), **more})


def linear() -> nn.Module:
    return nn.Linear(4, CLASSES)


def mlp(width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, CLASSES))


def population(models: Any = linear, parts: Federation | None = None, **more: Any) -> Population:
    """The clients of that federation, or of `parts`, with one network or with several by name."""
    named = models if isinstance(models, dict) else {"net": models}
    return Population(parts or federation(), {n: Model(m, name=n) for n, m in named.items()}, **more)
