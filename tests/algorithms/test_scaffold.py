"""SCAFFOLD's step of the server; its trajectories are in test_trajectories.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedloom.algorithms import FedAvg, Scaffold
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from small import clients_of


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", [Loop, Stacked])
@pytest.mark.parametrize("server_lr", [0.5, 1.0, 2.0])
def test_the_servers_rate_is_of_parameters_and_buffers_are_averaged(server_lr: float, engine: Any) -> None:
    rng = np.random.default_rng(0)
    data = [(0.1 * rng.normal(size=(n, 6)), rng.integers(4, size=n)) for n in (40, 24)]
    population = clients_of(data, model=Model(Normed, name="normed"))
    local = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.05))
    averaging, run = (
        engine(population, FedAvg(local=local)),
        engine(population, Scaffold(server_lr=server_lr, local=local)),
    )
    start = averaging.init()["normed"]
    mean = averaging.round({"normed": start}, (0, 1), 0)["normed"]  # all control variates are zero in the first round
    found = run.round(run.init(), (0, 1), 0)["normed"].x
    assert all(torch.equal(found.buffers[n], mean.buffers[n]) for n in mean.buffers)
    want = start.params + server_lr * (mean.params - start.params)
    for n in want:
        np.testing.assert_allclose(found.params[n], want[n], rtol=0, atol=1e-14)
