"""Optimisers of the server: golden numbers, where v begins, and that they stand before any algorithm that averages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from common_rounds import EXACT, assert_evaluated, begun, local_of, rounds, sampled, watched, weights_of
from common_runs import flatten as flat
from conftest import golden

from fedloom.algorithms import FedAdagrad, FedAdam, FedAvg, FedPer, FedProx, FedYogi, LGFedAvg
from fedloom.algorithms.server_optimisers import Server, ServerAdagrad, ServerAdam, ServerYogi
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.core.types import Params, Weights
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import assert_params, clients_of, random_data

ENGINES = [Loop, Stacked, Messages]
KINDS: dict[str, Any] = {"fedadam_a": FedAdam, "fedyogi_a": FedYogi, "fedadagrad_a": FedAdagrad}
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.1))


def algorithm_of(name: str, g: Any, **settings: Any) -> Any:
    own = {} if KINDS[name] is FedAdagrad else {"beta2": float(g["beta2"])}
    own |= {setting: float(g[setting]) for setting in ("server_lr", "tau", "beta1")}
    return KINDS[name](local=local_of(g), aggregation=str(g["weighting"]), **own, **settings)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", KINDS)
def test_rounds(name: str, engine: Any) -> None:
    g = golden(f"common/{name}")
    assert g["v_init"] == pytest.approx(float(g["tau"]) ** 2, abs=1e-18)
    run = begun(engine, algorithm_of(name, g), g)
    server, seen = run.init(), watched(run)
    np.testing.assert_allclose(flat(server["net"].v), g["v_init"], rtol=1e-12)
    server = {"net": Server(x=weights_of(g, g["init"]), m=server["net"].m, v=server["net"].v)}
    for r in rounds(g):
        before = server["net"].x.params
        server = run.round(server, sampled(g, r), r)
        for k in sampled(g, r):
            np.testing.assert_allclose(flat(seen[k].upload.value.params), g[f"r{r}_k{k}_upload"], **EXACT)
            np.testing.assert_allclose(seen[k].losses[0], g[f"r{r}_k{k}_losses"], **EXACT)
        share = dict(zip(sampled(g, r), g[f"r{r}_weights"], strict=True))
        delta = sum(share[k] * flat(seen[k].upload.value.params - before) for k in share)
        np.testing.assert_allclose(delta, g[f"r{r}_delta"], **EXACT)
        np.testing.assert_allclose(flat(server["net"].m), g[f"r{r}_m"], **EXACT)
        np.testing.assert_allclose(flat(server["net"].v), g[f"r{r}_v"], **EXACT)
        np.testing.assert_allclose(flat(server["net"].x.params), g[f"r{r}_global"], **EXACT)
        assert_evaluated(g, run, server, r)


@pytest.mark.parametrize("name", KINDS)
def test_a_second_moment_that_begins_at_zero(name: str) -> None:
    """The server's rule alone, on the stored changes."""
    g = golden(f"common/{name}")
    run = begun(Loop, algorithm_of(name, g, v_init=0.0), g)
    server = run.init()["net"]
    server = Server(x=weights_of(g, g["init"]), m=server.m, v=server.v)
    for r in rounds(g):
        delta = weights_of(g, g[f"r{r}_delta"]).params
        server = run.algorithm.step(server, Weights(server.x.params + delta), run.algorithm.server_lr)
        np.testing.assert_allclose(flat(server.v), g[f"r{r}_alt_vinit0_v"], **EXACT)
        np.testing.assert_allclose(flat(server.x.params), g[f"r{r}_alt_vinit0_global"], **EXACT)


def test_they_differ_where_squares_grow_and_fall() -> None:
    """v = 1 and Delta^2 = 4: Adam and Yogi move by (1 - beta2) * 3 and * 4, Adagrad by 4; then Delta^2 = 1/4."""
    v, two, half = (Params({"w": torch.tensor([t])}) for t in (1.0, 2.0, 0.5))
    kinds: list[Any] = [FedAdam(beta2=0.5), FedYogi(beta2=0.5), FedAdagrad()]
    assert [float(kind.second_moment(v, two)["w"]) for kind in kinds] == [2.5, 3.0, 5.0]
    assert [float(kind.second_moment(v, half)["w"]) for kind in kinds] == [0.625, 0.875, 1.25]


# ---- before other algorithms


@dataclass(frozen=True, kw_only=True)
class FedProxAdam(ServerAdam, FedProx):
    pass


@dataclass(frozen=True, kw_only=True)
class FedPerYogi(ServerYogi, FedPer):
    pass


@dataclass(frozen=True, kw_only=True)
class LGFedAvgAdagrad(ServerAdagrad, LGFedAvg):
    pass


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("optimised", "plain", "settings"),
    [
        (FedProxAdam, FedProx, {"mu": 0.5, "beta1": 0.5}),
        (FedPerYogi, FedPer, {"personal_layers": "fc2"}),
        (LGFedAvgAdagrad, LGFedAvg, {"global_modules": "fc2", "pretrain_rounds": 1}),
    ],
)
def test_any_algorithm_that_averages_has_one(optimised: Any, plain: Any, settings: Any, engine: Any) -> None:
    """From the same model a round has the mean of the plain algorithm, and the server steps towards it by hand."""
    own = {k: v for k, v in settings.items() if k != "beta1"}
    population = clients_of(random_data([5, 9, 7]))
    ours = engine(population, optimised(local=LOCAL, server_lr=0.1, tau=0.1, **settings))
    theirs = engine(population, plain(local=LOCAL, **own))
    assert ours.algorithm.personalises == theirs.algorithm.personalises == (plain is not FedProx)
    server, beta1 = ours.init()["tiny"], ours.algorithm.beta1
    x, m, v = server.x.params, 0.0 * server.x.params, 0.01 + 0.0 * flat(server.x.params)
    for t, cohort in enumerate([(0, 1), (1, 2), (0, 2)]):
        mean = theirs.round({"tiny": Weights(x)}, cohort, t)["tiny"]
        server = ours.round({"tiny": server}, cohort, t)["tiny"]
        change = mean.params - x
        m = beta1 * m + (1 - beta1) * change
        square = flat(change) ** 2
        if plain is FedProx:
            v = 0.99 * v + 0.01 * square
        elif plain is FedPer:
            v = v - 0.01 * square * np.sign(v - square)
        else:
            v = v + square
        np.testing.assert_allclose(flat(server.x.params), flat(x) + 0.1 * flat(m) / (np.sqrt(v) + 0.1), **EXACT)
        x = server.x.params
        mine, other = (run.personal({"tiny": s}, (0, 1, 2), t) for run, s in ((ours, server), (theirs, Weights(x))))
        for k in (0, 1, 2):
            assert_params(mine[k], other[k], rtol=0, atol=1e-10)
    if plain is FedPer:  # what clients keep has not moved on the server
        first = ours.init()["tiny"].x.params
        assert torch.equal(x["fc2.weight"], first["fc2.weight"])
        assert not torch.equal(x["fc1.weight"], first["fc1.weight"])


@pytest.mark.parametrize("kind", [FedYogi, FedAdagrad])
def test_tends_to_fedavg_as_tau_grows(kind: Any) -> None:
    population = clients_of(random_data([5, 9]))
    optimised = kind(beta1=0.0, server_lr=2e6, tau=1e6, local=LOCAL)
    runs = [Loop(population, a) for a in (optimised, FedAvg(local=LOCAL, aggregation="uniform"))]
    ours, plain = (run.round(run.init(), (0, 1), 0)["tiny"] for run in runs)
    assert_params(ours.x, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"server_lr": 0.0}, "server_lr must be > 0"),
        ({"tau": 0.0}, "tau must be > 0"),
        ({"beta1": 1.0}, "beta1 must be >= 0 and < 1"),
        ({"beta2": -0.1}, "beta2 must be >= 0 and < 1"),
        ({"v_init": -1.0}, "v_init must be >= 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        FedAdam(**settings)
