"""FedDyn: Algorithm 1, computed independently on quadratics, and the invariant of its two states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import golden
from quadratics import quadratics
from trajectory import setting

from fedloom.algorithms import FedDyn
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked

ENGINES = [Loop, Stacked]


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_algorithm_1(engine: Any) -> None:
    a, h = np.array([0.0, 10.0, -3.0]), np.array([1.0, 4.0, 2.0])
    alpha, lr, steps = 0.5, 0.1, 6
    local = Local(steps=steps, batch_size=4, optimiser=SGD(lr=lr))
    run = engine(quadratics(a, h, (1, 3, 2)), FedDyn(alpha=alpha, local=local))
    server, w, state, g = run.init(), 0.0, 0.0, np.zeros(3)
    for t, cohort in enumerate([(0, 1), (1,), (0, 1, 2), (2,), (0, 2)]):
        ends = []
        for k in cohort:
            u = w
            for _ in range(steps):
                u -= lr * (h[k] * (u - a[k]) - g[k] + alpha * (u - w))
            g[k] -= alpha * (u - w)
            ends.append(u)
        state -= alpha / 3 * sum(u - w for u in ends)
        w = np.mean(ends) - state / alpha
        server = run.round(server, cohort, t)
        assert float(server["point"].w.params["w"]) == pytest.approx(w, abs=1e-12)
        assert float(server["point"].h["w"]) == pytest.approx(state, abs=1e-12)
        for k in cohort:
            assert float(run.states[k]["w"]) == pytest.approx(g[k], abs=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_h_is_the_mean_of_all_clients_states(engine: Any) -> None:
    population, local, _ = setting(golden("fedntd/traj_fedavg_mom"))
    run = engine(population, FedDyn(local=local))
    server = run.init()
    for t, cohort in enumerate([(2, 3), (0, 2), (3, 2)]):  # client 1 never takes part: it counts with zero
        server = run.round(server, cohort, t)
    for name, h in server["tiny"].h.items():
        torch.testing.assert_close(h, sum(g[name] for g in run.states.values()) / 4, rtol=0, atol=1e-14)
    assert float(h.abs().max()) > 1e-4
    assert 1 not in run.states


@pytest.mark.parametrize("alpha", [0.0, -0.1])
def test_alpha_must_be_positive(alpha: float) -> None:
    with pytest.raises(SettingError, match=f"alpha must be > 0, got {alpha}"):
        FedDyn(alpha=alpha)
