"""KT-pFL whose knowledge is weights: rounds against the same arithmetic in NumPy and plain PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_kt_pfl import on_simplex

from fedloom.algorithms.kt_pfl_weights import KTpFLWeights, mixed
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Weights
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from fedloom.testing.small_networks import MLP, Convolutional
from fedloom.testing.subject import federation
from small import clients_of, random_data

SIZES = (5, 17, 9, 12)
COHORTS = ((0, 2, 3), (1, 2), (0, 1, 2, 3))
LAM, RHO, ETA3 = 200.0, 0.3, 0.4  # squared distances are divided by the number of parameters, and small
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.2))


def trained(theta: Any, names: list[str], shapes: list[Any], data: tuple[Any, Any]) -> Any:
    """Plain PyTorch from a flat vector to a flat vector."""
    ends = np.cumsum([0, *(int(np.prod(s)) for s in shapes)])
    module = {
        n: torch.from_numpy(theta[a:b].reshape(s)).requires_grad_()
        for n, s, a, b in zip(names, shapes, ends[:-1], ends[1:], strict=True)
    }
    optimiser = torch.optim.SGD(module.values(), lr=0.2)
    x, y = (torch.from_numpy(a) for a in data)
    for _ in range(LOCAL.epochs):
        for rows in torch.arange(len(y)).split(LOCAL.batch_size):
            optimiser.zero_grad()
            z = torch.tanh(x[rows] @ module["fc1.weight"].T + module["fc1.bias"])
            F.cross_entropy(z @ module["fc2.weight"].T + module["fc2.bias"], y[rows]).backward()
            optimiser.step()
    return np.concatenate([p.detach().numpy().ravel() for p in module.values()])


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", [Loop, Stacked, Messages])
def test_rounds_by_hand(engine: Any) -> None:
    data, N = random_data(SIZES), len(SIZES)
    population = clients_of(data)
    run = engine(population, KTpFLWeights(local=LOCAL, lam=LAM, rho=RHO, eta3=ETA3))
    server = run.init()
    initial = run.fresh(0).params
    names, shapes = list(initial), [tuple(p.shape) for p in initial.values()]
    w = np.stack([np.concatenate([p.numpy().ravel() for p in initial.values()])] * N)
    c, share = np.full((N, N), 1 / N), np.array(SIZES) / sum(SIZES)
    for t, cohort in enumerate(COHORTS):
        server = run.round(server, cohort, t)
        theta = {n: sum(c[n, m] * w[m] for m in range(N)) for n in cohort}
        for n in cohort:
            w[n] = trained(theta[n], names, shapes, data[n])
        moved = c.copy()
        for n in cohort:
            gap = sum(c[n, m] * w[m] for m in range(N)) - w[n]
            slope = np.array([2 * share[n] * (gap @ w[m]) / w.shape[1] for m in range(N)])
            moved[n] = on_simplex(c[n] - ETA3 * (LAM * slope + 2 * RHO * (c[n] - 1 / N)))
        assert abs(moved - c).max() > 0.01
        c = moved
        rows = run.rows("coefficients", range(N))
        np.testing.assert_allclose(rows, c, rtol=1e-8, atol=1e-7)  # begun in float32
        evaluated = run.personal(server, range(N), t)
        for n in range(N):
            got = torch.cat([p.flatten() for p in evaluated[n].params.values()])
            np.testing.assert_allclose(got, w[n], rtol=1e-6, atol=1e-7, err_msg=f"client {n} after round {t}")
    run.close()


def test_counters_are_the_clients_own_and_statistics_are_mixed() -> None:
    models = Weights(
        params={"w": torch.tensor([[1.0], [3.0]])},
        buffers={"running_mean": torch.tensor([[0.0], [4.0]]), "num_batches_tracked": torch.tensor([5, 9])},
    )
    found = mixed(models, torch.tensor([[0.25, 0.75]]), torch.tensor([1]))
    assert found.params["w"].tolist() == [[2.5]]
    assert found.buffers["running_mean"].tolist() == [[3.0]]
    assert found.buffers["num_batches_tracked"].tolist() == [9]


def test_each_architecture_is_mixed_on_its_own() -> None:
    """Of clients 0, 3 (MLP) and 1, 2, ...: rows of coefficients hold nothing of other architectures."""
    models = {"mlp": Model(MLP, name="mlp"), "conv": Model(Convolutional, name="conv")}
    population = Population(federation(), models, assignment=("mlp", "conv", "conv", "mlp", "mlp", "conv"))
    run = Loop(population, KTpFLWeights(local=LOCAL))
    run.round(run.init(), (0, 1, 3), 0)
    rows = run.rows("coefficients", [0, 1, 3])
    np.testing.assert_allclose(rows.sum(1), 1.0, rtol=1e-6)
    assert [(row > 0).nonzero().flatten().tolist() for row in rows] == [[0, 3, 4], [1, 2, 5], [0, 3, 4]]
