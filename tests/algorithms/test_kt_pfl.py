"""KT-pFL's rounds against the same arithmetic in NumPy and plain PyTorch, without anything of fedloom's core.

Two architectures, clients of unequal sizes, a partial cohort, temperature 2.5, two steps of C: eq. 2 to 7 by hand.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom.algorithms import KTpFL
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Digest, Local
from fedloom.core.types import Weights
from fedloom.data import Federation, Partition, from_arrays
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from small import InOrder

TAU, LAM, RHO, ETA3, STEPS = 2.5, 1.7, 0.3, 0.4, 2
ETA1, ETA2, EPOCHS, BATCH = 0.1, 0.6, 2, 4
SIZES = (5, 17, 9, 12, 8)
PUBLIC = 13
COHORTS = ((0, 2, 3), (1, 2, 4), (0, 1, 2, 3))
LOCAL = Local(epochs=EPOCHS, batch_size=BATCH, optimiser=SGD(lr=ETA1))
# All public examples in one batch: in which order they are drawn does not matter.
DISTILL = Digest(epochs=2, batch_size=PUBLIC, optimiser=SGD(lr=ETA2))


def narrow() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


ARCHITECTURES = {"narrow": narrow, "wide": wide}
ASSIGNMENT = ("narrow", "wide", "wide", "narrow", "wide")


def examples(seed: int, n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 6)), rng.integers(4, size=n)


def modules() -> list[nn.Module]:
    torch.manual_seed(7)
    return [ARCHITECTURES[name]().double() for name in ASSIGNMENT]


def soft_prediction(module: nn.Module, x: torch.Tensor) -> Any:
    """s = exp(z / tau) / sum exp(z / tau), [P, C]."""
    with torch.no_grad():
        z = module(x).numpy() / TAU
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def on_simplex(row: Any) -> Any:
    """The nearest distribution: max(row - theta, 0) with the theta that makes it sum to 1, by bisection."""
    low, high = row.min() - 1, row.max()
    for _ in range(200):
        theta = (low + high) / 2
        low, high = (theta, high) if np.maximum(row - theta, 0).sum() > 1 else (low, theta)
    return np.maximum(row - (low + high) / 2, 0)


def train(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimiser = torch.optim.SGD(module.parameters(), lr=ETA1)
    for _ in range(EPOCHS):
        for rows in torch.arange(len(y)).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(module(x[rows]), y[rows]).backward()
            optimiser.step()


def distil(module: nn.Module, x: torch.Tensor, target: torch.Tensor) -> None:
    optimiser = torch.optim.SGD(module.parameters(), lr=ETA2)
    for _ in range(DISTILL.epochs):
        optimiser.zero_grad()
        log_s = torch.log_softmax(module(x) / TAU, 1)
        (target * (target.log() - log_s)).sum(1).mean().backward()
        optimiser.step()


def reference_round(c: Any, clients: list[nn.Module], cohort: tuple[int, ...], data: Any, public: torch.Tensor) -> Any:
    """One round: `clients` are trained, the new C [N, N] is returned."""
    K, sizes = len(cohort), np.array([SIZES[k] for k in cohort], float)
    for k in cohort:
        train(clients[k], *(torch.from_numpy(a) for a in data[k]))
    s = [soft_prediction(clients[k], public) for k in cohort]
    block = np.array([[c[n, m] for m in cohort] for n in cohort])
    mass = block.sum(1)
    block = block / mass[:, None]
    p = [sum(block[n, m] * s[m] for m in range(K)) for n in range(K)]
    for n, k in enumerate(cohort):
        distil(clients[k], public, torch.from_numpy(p[n]))
    for _ in range(STEPS):
        slope = np.zeros((K, K))
        for n in range(K):
            mixed = sum(block[n, m] * s[m] for m in range(K))
            for m in range(K):  # d/dC[n, m] of D_n / D KL(p_n || s_n), mean over x
                kl = (s[m] * (np.log(mixed / s[n]) + 1)).sum(1).mean()
                slope[n, m] = LAM * sizes[n] / sizes.sum() * kl + 2 * RHO * (block[n, m] - 1 / K)
        block = np.array([on_simplex(row) for row in block - ETA3 * slope])
    c = c.copy()
    for n, k in enumerate(cohort):
        for m, j in enumerate(cohort):
            c[k, j] = block[n, m] * mass[n]
    return c


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_rounds_by_hand(engine: Any) -> None:
    data = [examples(k, n) for k, n in enumerate(SIZES)]
    x_public, y_public = examples(99, PUBLIC)
    ends = np.cumsum([0, *SIZES])
    federation = Federation(
        train=from_arrays(*(np.concatenate([d[i] for d in data]) for i in (0, 1)), num_classes=4),
        partition=Partition.from_lists([np.arange(a, b) for a, b in itertools.pairwise(ends)]),
        public=from_arrays(x_public, y_public, num_classes=4),
    )
    models = {name: Model(build, name=name) for name, build in ARCHITECTURES.items()}
    population = InOrder(federation, models, assignment=ASSIGNMENT, dtype=torch.float64)
    algorithm = KTpFL(
        local=LOCAL, distill=DISTILL, num_public=PUBLIC, tau=TAU, lam=LAM, rho=RHO, eta3=ETA3, coefficient_steps=STEPS
    )
    run, clients = engine(population, algorithm), modules()
    for k, module in enumerate(clients):
        run.states[k] = Weights(params={n: p.detach().clone() for n, p in module.named_parameters()})
    assert bool((run.init()[""] == np.float32(0.2)).all())
    # A C that is not symmetric and whose rows differ, so that no index can be taken for another.
    c = np.random.default_rng(5).dirichlet(np.ones(5), size=5)
    server = {"": torch.from_numpy(c.copy())}
    public = torch.from_numpy(x_public)
    for t, cohort in enumerate(COHORTS):
        server = run.round(server, cohort, t)
        before = c
        c = reference_round(c, clients, cohort, data, public)
        np.testing.assert_allclose(server[""], c, rtol=1e-8, atol=1e-10, err_msg=f"C after round {t}")
        assert abs(c - before).max() > 0.01
        np.testing.assert_allclose(c.sum(1), 1.0, rtol=1e-9)  # a row keeps its mass
        for k, module in enumerate(clients):
            for name, p in module.named_parameters():
                got = run.states[k].params[name]
                np.testing.assert_allclose(
                    got, p.detach(), rtol=1e-8, atol=1e-10, err_msg=f"{name} of {k} after round {t}"
                )
    judged = run.personal(server, range(5), len(COHORTS))
    for k, module in enumerate(clients):
        np.testing.assert_allclose(judged[k].params["0.weight"], module[0].weight.detach(), rtol=1e-8, atol=1e-10)
