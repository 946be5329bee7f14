"""What the papers claim, on problems small enough to solve by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from quadratics import quadratics

from fedloom.algorithms import FedAvg, FedDyn, FedNova, Scaffold
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked

# Two quadratics whose sum has its optimum at (1 * 0 + 4 * 10) / (1 + 4) = 8.
A, H = np.array([0.0, 10.0]), np.array([1.0, 4.0])


def limit_of(engine: Any, algorithm: Any, sizes: tuple[int, int] = (1, 1), rounds: int = 200) -> float:
    """Where the global model is after so many rounds of both clients."""
    run = engine(quadratics(A, H, sizes), algorithm)
    server = run.init()
    for t in range(rounds):
        server = run.round(server, (0, 1), t)
    return float(run.algorithm.global_weights(server["point"]).params["w"])


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Loop, Stacked])
@pytest.mark.parametrize(("algorithm", "limit"), [(Scaffold, 8.000), (FedAvg, 6.041)])
def test_scaffold_reaches_the_optimum_that_fedavg_misses(algorithm: Any, limit: float, engine: Any) -> None:
    # FedAvg stops where ten local steps of the clients cancel: sum_k (1 - (1 - 0.1 h_k)^10) (w - a_k) = 0.
    pull = 1 - (1 - 0.1 * H) ** 10
    assert limit == pytest.approx(8.0 if algorithm is Scaffold else pull @ A / pull.sum(), abs=5e-4)
    local = Local(steps=10, batch_size=1, optimiser=SGD(lr=0.1))
    assert limit_of(engine, algorithm(local=local, aggregation="uniform")) == pytest.approx(limit, abs=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Loop, Stacked])
@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_feddyn_reaches_the_optimum_too(alpha: float, engine: Any) -> None:
    local = Local(steps=10, batch_size=1, optimiser=SGD(lr=0.1))
    assert limit_of(engine, FedDyn(alpha=alpha, local=local), rounds=60) == pytest.approx(8.0, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_fednova_tends_to_the_optimum_that_fedavg_misses_when_clients_take_unequal_steps(engine: Any) -> None:
    # 2 and 8 steps a round. FedAvg's clients pull in proportion to their steps, so its error stays; FedNova's goes to 0
    # with the rate, about linearly. FedAvg stops where sum_k (1 - (1 - lr h_k)^tau_k) (w - a_k) = 0, FedNova where the
    # same sum is 0 with each summand divided by tau_k.
    tau, rates = np.array([2, 8]), (0.04, 0.02, 0.01, 0.005, 0.0025)
    errors: dict[Any, list[float]] = {FedNova: [], FedAvg: []}
    for algorithm, found in errors.items():
        for lr in rates:
            local = Local(epochs=2, batch_size=1, optimiser=SGD(lr=lr))
            first, second = (
                limit_of(engine, algorithm(local=local, aggregation="uniform"), sizes=(1, 4), rounds=r) for r in (1, 2)
            )
            ratio = (second - first) / first  # from w = 0, and a round maps w affinely: two of them tell the limit
            assert 0 < ratio < 1
            limit = first / (1 - ratio)
            pull = (1 - (1 - lr * H) ** tau) / (tau if algorithm is FedNova else 1)
            assert limit == pytest.approx(pull @ A / pull.sum(), abs=1e-9)
            found.append(abs(limit - 8.0))
    fednova = np.array(errors[FedNova])
    np.testing.assert_allclose(fednova[:-1] / fednova[1:], 2.0, atol=0.1)
    assert fednova[-1] < 0.06
    assert errors[FedAvg] == sorted(errors[FedAvg])  # it even grows, towards 32 / 34 * 10 - 8 = 1.41
    assert errors[FedAvg][-1] > 1.39
