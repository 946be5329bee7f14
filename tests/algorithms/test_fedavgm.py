"""FedAvgM: its recursion, computed independently on two quadratics, and the authors' mean in its first round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import golden
from quadratics import after, quadratics
from trajectory import flat, setting, unflat

from fedloom.algorithms import FedAvgM
from fedloom.algorithms.fedavgm import Server
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.core.tree import zeros_like
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked

ENGINES = [Loop, Stacked]
COHORTS = ((0, 1), (1,), (0, 1), (0,), (0, 1))


@pytest.mark.some(3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("aggregation", ["samples", "uniform"])
@pytest.mark.parametrize(("momentum", "server_lr"), [(0.7, 1.0), (0.9, 0.3), (0.0, 0.5)])
def test_recursion(momentum: float, server_lr: float, aggregation: Any, engine: Any) -> None:
    a, h, n = np.array([0.0, 10.0]), np.array([1.0, 4.0]), np.array([1, 3])
    local = Local(steps=5, batch_size=4, optimiser=SGD(lr=0.1))
    algorithm = FedAvgM(momentum=momentum, server_lr=server_lr, aggregation=aggregation, local=local)
    run = engine(quadratics(a, h, n), algorithm)
    server, w, v = run.init(), 0.0, 0.0
    for t, cohort in enumerate(COHORTS):
        k = list(cohort)
        mean = np.average(after(w, a, h, 0.1, 5)[k], weights=n[k] if aggregation == "samples" else None)
        v = momentum * v + (w - mean)
        w = w - server_lr * v
        server = run.round(server, cohort, t)
        assert float(server["point"].w.params["w"]) == pytest.approx(w, abs=1e-12)
        assert float(server["point"].v["w"]) == pytest.approx(v, abs=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", ["mom", "plain", "eqmom"])
def test_first_round_is_fedavg(case: str, engine: Any) -> None:
    g = golden(f"fedntd/traj_fedavg_{case}")
    population, local, init = setting(g)
    run = engine(population, FedAvgM(local=local))
    start = unflat(population.models["tiny"], init)
    server = {"tiny": Server(w=start, v=zeros_like(start.params))}
    server = run.round(server, [int(k) for k in g["r0_sampled"]], 0)
    np.testing.assert_allclose(flat(server["tiny"].w.params), g["r0_global"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(flat(server["tiny"].v), init - g["r0_global"], rtol=0, atol=1e-12)


def test_neutral_settings_are_named() -> None:
    with pytest.warns(SettingWarning, match="with momentum = 0, server_lr = 1, server_schedule = constant is FedAvg"):
        FedAvgM(momentum=0.0)


@pytest.mark.parametrize("settings", [{"momentum": -0.1}, {"momentum": 1.0}, {"server_lr": 0.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=r"momentum must be >= 0 and < 1, got|server_lr must be > 0, got"):
        FedAvgM(**settings)


def test_unknown_aggregation_is_refused() -> None:
    with pytest.raises(SettingError, match="aggregation must be one of samples, uniform, got 'mean'"):
        FedAvgM(aggregation="mean")  # type: ignore[arg-type]
