"""Clients whose losses are quadratics of one number: small enough to follow by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.core.batch import Batch
from fedloom.core.model import Model
from fedloom.data import Federation, Partition, from_arrays
from fedloom.engines.population import Population


class Point(nn.Module):
    """One number."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.w.expand(len(x), 1)


@dataclass(frozen=True)
class Quadratic:
    """f(w) = h/2 (w - a)^2, where an example is (a, h)."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        a, h = batch.x.unbind(-1)
        return batch.mean(0.5 * h * (logits[:, 0] - a).square())

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        return y == 0


def quadratics(a: Any, h: Any, sizes: Sequence[int] = (1, 1)) -> Population:
    """Clients of f_k(w) = h_k/2 (w - a_k)^2; client k holds `sizes[k]` copies of its one example. They start at 0."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    x = np.stack([np.asarray(a, float), np.asarray(h, float)], 1)[owner]
    federation = Federation(
        train=from_arrays(x, np.zeros(len(x), np.int64), num_classes=1),
        partition=Partition.from_lists([np.flatnonzero(owner == k) for k in range(len(sizes))]),
    )
    return Population(federation, {"point": Model(Point)}, task=Quadratic(), dtype=torch.float64)


def after(w: float, a: Any, h: Any, lr: float, steps: Any) -> Any:
    """Where plain gradient steps from w lead, [N]."""
    return a + (1 - lr * h) ** steps * (w - a)
