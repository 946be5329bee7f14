"""What the papers claim, on problems small enough to solve by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedloom.algorithms import FedAvg, Scaffold
from fedloom.core.batches import Batch
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Local
from fedloom.data import Federation, Partition, from_arrays
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked


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


@pytest.mark.parametrize("engine", [Loop, Stacked])
@pytest.mark.parametrize(("algorithm", "limit"), [(Scaffold, 8.000), (FedAvg, 6.041)])
def test_scaffold_reaches_the_optimum_that_fedavg_misses(algorithm: Any, limit: float, engine: Any) -> None:
    # The optimum of f_0 + f_1 is (1 * 0 + 4 * 10) / (1 + 4) = 8. FedAvg stops where ten local steps of the clients
    # cancel: sum_k (1 - (1 - 0.1 h_k)^10) (w - a_k) = 0.
    pull = 1 - (1 - 0.1 * np.array([1.0, 4.0])) ** 10
    assert limit == pytest.approx(8.0 if algorithm is Scaffold else pull @ [0, 10] / pull.sum(), abs=5e-4)
    examples = from_arrays(np.array([[0.0, 1.0], [10.0, 4.0]]), np.zeros(2, np.int64), num_classes=1)
    federation = Federation(train=examples, partition=Partition.from_lists([[0], [1]]))
    population = Population(federation, {"point": Model(Point)}, task=Quadratic(), dtype=torch.float64)
    local = Local(steps=10, batch_size=1, optimiser=SGD(lr=0.1))
    run = engine(population, algorithm(local=local, aggregation="uniform"))
    server = run.init()
    for t in range(200):
        server = run.round(server, (0, 1), t)
    w = run.algorithm.global_weights(server["point"]).params["w"]
    assert float(w) == pytest.approx(limit, abs=5e-4)
