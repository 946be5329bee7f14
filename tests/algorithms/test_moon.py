"""MOON: the authors' loss and trajectory, features from the one pass that trains, and never-seen clients."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from torch import Tensor, nn
from torch.func import grad
from trajectory import TinyNet, flat, setting, unflat

from fedloom.algorithms.fedavg import FedAvg
from fedloom.algorithms.moon import MOON, contrast
from fedloom.core.augment import Augment
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.data import Federation, from_arrays, iid
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.models import build
from fedloom.testing.compare import close, differ, same
from small import clients_of

ENGINES = [Loop, Stacked]
STEP = Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.1))


class Featured(TinyNet):
    """The authors' feature: the first linear layer's output after ReLU."""

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.fc(F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_loss(case: str) -> None:
    g = golden("fedntd/moon_loss")
    logits, z, z_prev, z_glob = (torch.from_numpy(g[f"{case}_{n}"]) for n in ("logits", "z", "z_prev", "z_glob"))
    mu, tau = float(g[f"{case}_mu"]), float(g[f"{case}_tau"])

    def con(z: Tensor) -> Tensor:
        return contrast(z, z_glob, z_prev, tau).mean()

    np.testing.assert_allclose(con(z), g[f"{case}_con"], rtol=1e-12)
    np.testing.assert_allclose(mu * grad(con)(z), g[f"{case}_grad_z"], rtol=1e-12, atol=1e-14)
    total = F.cross_entropy(logits, torch.from_numpy(g[f"{case}_labels"])) + mu * con(z)
    np.testing.assert_allclose(total, g[f"{case}_total"], rtol=1e-12)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_trajectory(engine: Any) -> None:
    g = golden("fedntd/traj_moon_plain")
    population, local, init = setting(g)
    network = Featured().double()
    network.load_state_dict(unflat(Model(Featured), init).params)
    population = replace(population, models={"tiny": Model(network)})
    run = engine(population, MOON(mu=float(g["param_mu"]), tau=float(g["param_tau"]), local=local))
    server = run.init()
    for r in range(int(g["rounds"])):
        sampled = [int(k) for k in g[f"r{r}_sampled"]]
        for k in sampled:
            before = run.states[k] if k in run.states else run.runtime.fresh(k)
            np.testing.assert_allclose(flat(before.value.params), g[f"r{r}_k{k}_prev"], rtol=0, atol=1e-12)
        server = run.round(server, sampled, r)
        np.testing.assert_allclose(flat(server["tiny"].params), g[f"r{r}_global"], rtol=0, atol=1e-12)
        for k in sampled:
            np.testing.assert_allclose(flat(run.states[k].value.params), g[f"r{r}_k{k}_local"], rtol=0, atol=1e-12)
            assert run.traffic.losses[k] == pytest.approx(g[f"r{r}_k{k}_step_losses"].mean(), abs=1e-12)
    assert 0 not in run.states  # client 0 never takes part


def test_term_is_stable_where_exponentials_overflow() -> None:
    z, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 0.0]])
    assert contrast(z, other, z, 1e-4).item() == pytest.approx(2e4)
    assert contrast(z, z, other, 1e-4).item() == 0.0
    dead = torch.zeros(1, 2)  # features that ReLU cut off: their cosine is 0, and their gradient finite
    assert contrast(dead, z, other, 0.5).item() == pytest.approx(math.log(2))
    assert bool(grad(lambda z: contrast(z, other, other, 0.5).sum())(dead).isfinite().all())


class Network(nn.Sequential):
    """Layers with names, and no method `features`."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


NETWORK = Model(Network, name="network")


def data(*sizes: int) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(n, 6)), rng.integers(4, size=n)) for n in sizes]


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_conventions_for_a_client_that_never_took_part(engine: Any) -> None:
    """In round 0 the received model is the initial one: no gradient, FedAvg. Later, only `received` has none."""
    ends = {}
    for name in ("initial", "received", "random"):
        algorithm = MOON(previous=name, feature="1", local=STEP)  # type: ignore[arg-type]
        run = engine(clients_of(data(5, 9, 7), model=NETWORK), algorithm)
        fedavg = engine(clients_of(data(5, 9, 7), model=NETWORK), FedAvg(local=STEP))
        server, plain = run.init(), fedavg.init()
        initial = server["network"]
        server, plain = run.round(server, (0, 1), 0), fedavg.round(plain, (0, 1), 0)
        if name != "random":
            torch.testing.assert_close(server["network"].params, plain["network"].params, rtol=0, atol=1e-15)
        fresh = run.fresh(2)
        assert bool(fresh.present) == (name != "received")
        if name == "initial":
            same(fresh.value, initial, name)
        if name == "random":  # of each client another network
            assert differ(fresh.value, run.fresh(1).value)
        plain = fedavg.round(server, (2,), 1)
        server = run.round(server, (2,), 1)
        ends[name] = float((server["network"].params["0.weight"] - plain["network"].params["0.weight"]).norm())
    assert ends["received"] < 1e-15
    assert min(ends["initial"], ends["random"]) > 1e-4
    assert ends["initial"] != ends["random"]


def test_the_constant_of_round_0_is_mu_log_2() -> None:
    losses = []
    for algorithm in (MOON(mu=3.0, feature="1", local=STEP), FedAvg(local=STEP)):
        run = Loop(clients_of(data(5, 9), model=NETWORK), algorithm)
        run.round(run.init(), (0, 1), 0)
        losses.append(np.array([run.traffic.losses[k] for k in (0, 1)]))
    np.testing.assert_allclose(losses[0] - losses[1], 3.0 * math.log(2), rtol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_answer_is_the_next_previous_model(engine: Any) -> None:
    run = engine(clients_of(data(5, 9), model=NETWORK), MOON(feature="1", aggregation="uniform", local=STEP))
    server = run.round(run.init(), (1,), 0)
    same(run.states[1].value, server["network"], "the only client's model is the new global one")


@pytest.mark.slow
def test_augmented_images_are_seen_alike_by_all_three_models() -> None:
    """On both engines; and the traced steps of the first round serve the second."""
    rng = np.random.default_rng(0)
    train = from_arrays(rng.integers(0, 256, (46, 8, 8), dtype=np.uint8), rng.integers(0, 3, 46), num_classes=3)
    train = replace(train, augment=Augment.of(train.normalise, crop=2, cutout=3))
    model = Model(lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(108, 3)))
    federation = Federation(train=train, partition=iid(train.y, 4, 0))
    people = Population(federation=federation, models={"net": model}, dtype=torch.float64)
    algorithm = MOON(feature="1", local=Local(epochs=2, batch_size=5, optimiser=SGD(lr=0.1)))
    loop, stack = Loop(people, algorithm), Stacked(people, algorithm, Options(compilation="trace"))
    ends, traced = [], []
    for engine in (loop, stack):
        server = engine.init()
        for t in range(3):
            server = engine.round(server, [0, 1, 3], t)
            traced.append(len(engine.runtime.programs))
        ends.append(server)
    close(ends[0], ends[1], "engines", 1e-9)
    assert traced[3] == traced[4] == traced[5] > 0


@pytest.mark.parametrize("name", ["fedntd_cnn", "lenet", "mlp", "logistic"])
def test_networks_of_the_package_have_features(name: str) -> None:
    shape = (3, 32, 32) if name != "mlp" else (12,)
    model = Model(lambda: build(name, shape, 10))
    z = model.features(model.init(0), torch.ones(2, *shape))
    assert z.shape == (2, {"fedntd_cnn": 512, "lenet": 84, "mlp": 200, "logistic": 3072}[name])
    MOON(local=STEP).init(model, 0, num_clients=1)


def test_refuses_what_it_cannot_compare() -> None:
    with pytest.raises(SettingError, match=r"network has no method or layer 'features'.*one of its layers, 0, 1, 2"):
        Loop(clients_of(data(5), model=NETWORK), MOON(local=STEP)).init()
    for settings in ({"mu": -1.0}, {"tau": 0.0}):
        with pytest.raises(SettingError, match=r"mu must be >= 0, got -1.0|tau must be > 0, got 0.0"):
            MOON(**settings)
    for bad in ({"previous": "none"}, {"aggregation": "mean"}):
        with pytest.raises(SettingError, match="must be one of"):
            MOON(**bad)  # type: ignore[arg-type]
    module = Model(build("mlp", (12,), 10), name="given")
    with pytest.raises(SettingError, match="cannot draw a random given from a module"):
        MOON(previous="random").init(module, 0, num_clients=1)
