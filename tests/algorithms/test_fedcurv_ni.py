"""FedCurv as APFL's comparison has it: rounds by hand, importance of the last round alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from fedloom.algorithms import FedAvg, FedCurvNi
from fedloom.core import tree
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.core.types import Params, Weights
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import TINY, assert_params, clients_of, random_data

ENGINES = [Loop, Stacked, Messages]
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.3))


def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(TINY(Weights(params), x), y)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_rounds_by_hand(engine: Any) -> None:
    """Three rounds: F is (sum p_k g_k^2) of the round before, at the model received there, of its cohort alone."""
    data = [tuple(map(torch.from_numpy, part)) for part in random_data([9, 6, 13])]
    run = engine(clients_of(data), FedCurvNi(mu=2.0, local=LOCAL))
    server = run.init()
    w = server["tiny"].w.params
    fisher = 0.0 * w
    for t, cohort in enumerate([(0, 2), (1,), (0, 1, 2)]):
        server = run.round(server, cohort, t)
        total, ends, squares = sum(len(data[k][1]) for k in cohort), 0.0 * w, 0.0 * w
        for k in cohort:
            x, y = data[k]
            whole, u = grad(loss)(w, x, y), w
            for rows in [r for _ in range(2) for r in torch.arange(len(y)).split(4)]:
                u = u - 0.3 * (grad(loss)(u, x[rows], y[rows]) + 2.0 * (fisher * (u - w)))
            ends, squares = ends + len(y) / total * u, squares + len(y) / total * (whole * whole)
        w, fisher = ends, squares
        assert_params(server["tiny"].w, Weights(w))
        assert_params(Weights(server["tiny"].F), Weights(fisher))


def test_the_first_round_is_fedavgs() -> None:
    population = clients_of(random_data([9, 6]), dtype=torch.float32)
    mine, plain = (Loop(population, kind(local=LOCAL)) for kind in (FedCurvNi, FedAvg))
    first, theirs = mine.round(mine.init(), (0, 1), 0), plain.round(plain.init(), (0, 1), 0)
    assert all(
        torch.equal(a, b) for a, b in zip(tree.leaves(first["tiny"].w), tree.leaves(theirs["tiny"]), strict=True)
    )
