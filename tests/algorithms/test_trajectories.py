"""Whole trajectories of the FedNTD authors' code: 4 rounds, 2 of 4 clients, on both engines (float64, atol 1e-12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import golden
from fedloom.algorithms.fedavg import FedAvg
from fedloom.algorithms.fedntd import FedNTD
from fedloom.algorithms.scaffold import Scaffold
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Local
from fedloom.core.types import Weights
from fedloom.data import Federation, Partition, from_arrays
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked


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

    def train_batches(self, clients: Any, local: Any, round: int, exchange: int) -> Any:
        batches = super().train_batches(clients, local, round, exchange)
        sizes = self.sizes[list(clients)]
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


CASES = {
    "fedavg_mom": FedAvg,
    "fedavg_plain": FedAvg,
    "fedavg_eqmom": FedAvg,
    "fedntd_t1_b1_mom": FedNTD,
    "fedntd_t1_b1_plain": FedNTD,
    "fedntd_t3_b0.5_plain": lambda local: FedNTD(tau=3.0, beta=0.5, local=local),
    "scaffold_adaptive_mom": Scaffold,
    "scaffold_adaptive_plain": Scaffold,
    "scaffold_plaindiv_mom": lambda local: Scaffold(divisor="steps", local=local),
    "scaffold_plaindiv_plain": lambda local: Scaffold(divisor="steps", local=local),
}


@pytest.mark.parametrize("engine", [Loop, Stacked])
@pytest.mark.parametrize("case", CASES)
def test_trajectory(case: str, engine: Any) -> None:
    g = golden(f"fedntd/traj_{case}")
    population, local, init = setting(g)
    algorithm = CASES[case](local=local)
    run = engine(population, algorithm)
    server = run.init()
    start = unflat(population.models["tiny"], init)
    is_scaffold = isinstance(algorithm, Scaffold)
    if is_scaffold:
        server["tiny"] = type(server["tiny"])(x=start, c={n: torch.zeros_like(p) for n, p in start.params.items()})
    else:
        server["tiny"] = start
    for r in range(int(g["rounds"])):
        sampled = [int(k) for k in g[f"r{r}_sampled"]]
        server = run.round(server, sampled, r)
        state = server["tiny"]
        weights = state.x if is_scaffold else state
        np.testing.assert_allclose(flat(weights.params), g[f"r{r}_global"], rtol=0, atol=1e-12)
        if is_scaffold:
            np.testing.assert_allclose(flat(state.c), g[f"r{r}_c_after"], rtol=0, atol=1e-12)
            for k in sampled:
                np.testing.assert_allclose(flat(run.states[k].c_i), g[f"r{r}_k{k}_ci_after"], rtol=0, atol=1e-12)
        for k in sampled:
            assert run.traffic.losses[k] == pytest.approx(g[f"r{r}_k{k}_step_losses"].mean(), abs=1e-12)
    assert 0 not in run.states  # client 0 never takes part
