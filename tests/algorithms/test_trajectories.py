"""Whole trajectories of the FedNTD authors' code: 4 rounds, 2 of 4 clients, on both engines (float64, atol 1e-12)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import golden
from trajectory import flat, setting, unflat

from fedloom.algorithms.fedavg import FedAvg
from fedloom.algorithms.fedntd import FedNTD
from fedloom.algorithms.fedprox import FedProx
from fedloom.algorithms.scaffold import Scaffold
from fedloom.core.tree import zeros_like
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked

CASES = {
    "fedavg_mom": FedAvg,
    "fedavg_plain": FedAvg,
    "fedavg_eqmom": FedAvg,
    "fedprox_mu1_mom": lambda local: FedProx(mu=1.0, local=local),
    "fedprox_mu1_plain": lambda local: FedProx(mu=1.0, local=local),
    "fedprox_mu0.1_plain": FedProx,
    "fedntd_t1_b1_mom": FedNTD,
    "fedntd_t1_b1_plain": FedNTD,
    "fedntd_t3_b0.5_plain": lambda local: FedNTD(tau=3.0, beta=0.5, local=local),
    "scaffold_adaptive_mom": Scaffold,
    "scaffold_adaptive_plain": Scaffold,
    "scaffold_plaindiv_mom": lambda local: Scaffold(divisor="steps", local=local),
    "scaffold_plaindiv_plain": lambda local: Scaffold(divisor="steps", local=local),
}


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", [Loop, Stacked])
@pytest.mark.parametrize("case", CASES)
def test_trajectory(case: str, engine: Any) -> None:
    g = golden(f"fedntd/traj_{case}")
    population, local, init = setting(g)
    algorithm = CASES[case](local=local)
    run = engine(population, algorithm)
    server = run.init()
    start = unflat(population.models["tiny"], init)
    sent: dict[int, Any] = {}
    run.watch = lambda exchange: sent.update({exchange.client: exchange.upload})
    is_scaffold = isinstance(algorithm, Scaffold)
    if is_scaffold:
        server["tiny"] = type(server["tiny"])(x=start, c=zeros_like(start.params))
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
                np.testing.assert_allclose(flat(run.states[k]), g[f"r{r}_k{k}_ci_after"], rtol=0, atol=1e-12)
        for k in sampled:
            upload = sent[k][0] if is_scaffold else sent[k]
            np.testing.assert_allclose(flat(upload.value.params), g[f"r{r}_k{k}_local"], rtol=0, atol=1e-12)
            assert run.traffic.losses[k] == pytest.approx(g[f"r{r}_k{k}_step_losses"].mean(), abs=1e-12)
    assert 0 not in run.states  # client 0 never takes part
