"""Rounds of the server alone: measured, logged, saved and resumed like any other."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom import Job, RunSettings, run, verify
from fedloom.coordinator.history import History
from fedloom.core.algorithm import Algorithm
from fedloom.core.batch import Batch
from fedloom.core.batches import noise
from fedloom.core.client import Client, on_client
from fedloom.core.errors import NonFiniteError, SettingError
from fedloom.core.fold import minimise
from fedloom.core.local_training import Local
from fedloom.core.losses import soft_target_loss
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Weighted, Weights, state
from fedloom.experiments.nested_settings import with_parts
from tiny import examples, federation, linear

LOCAL = Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.1))


@state
class OneShot:
    w: Weights
    teachers: Weights  # [2, ...]


@dataclass(frozen=True, kw_only=True)
class Distils(Algorithm[OneShot, tuple[()]]):
    """One round of uploads; after it the server learns alone from what two clients say of public examples."""

    rate: float = 0.1

    def init(self, model: Any, key: int, *, num_clients: int) -> OneShot:
        w = model.init(key)
        return OneShot(w=w, teachers=Weights(params={n: torch.stack([t, t]) for n, t in w.params.items()}))

    @on_client
    def learn(self, client: Client[tuple[()]], w: Weights) -> tuple[tuple[()], Weighted[Weights]]:
        return (), client.weigh(self.train(client, w), "samples")

    def round(self, server: OneShot, cohort: Any) -> OneShot:
        if cohort.round == 0:
            replies = cohort.gather(self.learn, server.w)
            return OneShot(w=replies.mean, teachers=replies.value.value)
        model = cohort.model
        batches = cohort.public.shuffled(8, 5, cohort.key("public"))
        said = sum(
            torch.softmax(model(Weights(params={n: t[k] for n, t in server.teachers.params.items()}), batches.x), -1)
            for k in range(2)
        )
        rate = torch.tensor(self.rate, dtype=torch.float64)
        loss = soft_target_loss(model, 1.0)
        w = minimise(loss, server.w, batches.note("target", said / 2), SGD(lr=self.rate), lr=rate)
        return OneShot(w=w, teachers=server.teachers)

    def global_weights(self, server: OneShot) -> Weights:
        return server.w


class Generator(nn.Module):
    """Makes an example of four features from so much noise."""

    def __init__(self, noise: int = 3, width: int = 8) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(noise, width), nn.Tanh(), nn.Linear(width, 4))

    def forward(self, z: Tensor) -> Tensor:
        return self.net(z)


@state
class Inventor:
    w: Weights
    g: Weights  # of the generator


@dataclass(frozen=True, kw_only=True)
class Invents(Algorithm[Inventor, tuple[()]]):
    """After one round of uploads the server trains a network of its own: its examples are to be told apart by w."""

    generator: str = "test_server_rounds:Generator"
    width: int = 8

    def network(self) -> Model:
        return Model.by_name(self.generator, width=self.width)

    def init_pools(self, server: Inventor) -> dict[str, Any]:
        return {"images": torch.zeros(16, 4), "epochs": torch.zeros((), dtype=torch.int64)}

    def init(self, model: Any, key: int, *, num_clients: int) -> Inventor:
        return Inventor(w=model.init(key), g=self.network().init(key))

    @on_client
    def learn(self, client: Client[tuple[()]], w: Weights) -> tuple[tuple[()], Weighted[Weights]]:
        return (), client.weigh(self.train(client, w), "samples")

    def round(self, server: Inventor, cohort: Any) -> Inventor:
        if cohort.round == 0:
            return Inventor(w=cohort.reduce(self.learn, server.w).mean, g=server.g)
        network, model = self.network(), cohort.model

        def unsure(g: Weights, batch: Batch, w: Weights) -> tuple[Tensor, Weights]:
            x, buffers = network.train(g, batch)
            said = torch.log_softmax(model(w, x), -1)
            return -(said.exp() * said).sum(-1).mean(), Weights(params=g.params, buffers=buffers)

        like = next(iter(server.w.params.values()))
        z = noise((3,), batch_size=16, steps=20, key=cohort.key("noise"), like=like)
        rate = torch.tensor(0.05, dtype=torch.float64)
        g = minimise(unsure, server.g, z, SGD(lr=0.05), server.w, lr=rate)
        cohort.append("images", network(g, torch.full((16, 3), float(len(cohort.pool("images"))))))
        cohort.append("images", network(g, torch.zeros(16, 3)))
        cohort.append("epochs", torch.tensor(cohort.round))
        return Inventor(w=server.w, g=g)

    def global_weights(self, server: Inventor) -> Weights:
        return server.w


@pytest.mark.slow
def test_a_server_has_a_network_of_its_own_among_its_settings(tmp_path: Path) -> None:
    def invented(rounds: int = 6, **more: Any) -> History:
        settings = RunSettings(rounds=rounds, cohort_size=3)
        return run(Invents(local=LOCAL), federation(), linear, settings, **more)

    found = invented()
    losses = [m["server_loss"] for m in found.metrics[2:]]
    assert all(b < a for a, b in itertools.pairwise(losses)), losses
    assert [m["clients"] for m in found.metrics[2:]] == [[]] * 5
    invented(3, directory=tmp_path)
    assert invented(directory=tmp_path, resume=True).metrics == found.metrics
    assert Invents(width=5).network().num_params < Invents().network().num_params
    assert Invents().network() is Invents().network()  # one network: what was traced of it is found again


@pytest.mark.slow
def test_pools_grow_and_are_written_once(tmp_path: Path) -> None:
    job = Job(
        algorithm=Invents(local=LOCAL),
        federation=federation(),
        model=linear,
        settings=RunSettings(rounds=4, cohort_size=3),
    )
    job.run(tmp_path / "whole")
    run(Invents(local=LOCAL), federation(), linear, RunSettings(rounds=2, cohort_size=3), directory=tmp_path / "half")
    job.run(tmp_path / "half", resume=True)
    ends = []
    for name in ("whole", "half"):
        engine = job.restore(tmp_path / name).engine
        assert verify(tmp_path / name).whole
        images, epochs = engine.pool("images"), engine.pool("epochs")
        assert (len(images), [int(t) for t in epochs], len(images[1:])) == (6, [1, 2, 3], 5)
        assert not engine.clients
        ends.append([*images])
        folder = tmp_path / name / "checkpoints" / "clients"
        rounds = sorted(int(path.stem.split("-")[1]) for path in folder.iterdir())
        assert rounds == [2, 2, 2, 3, 3, 3, 4, 4, 4]  # each entry in the file of the round that made it
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    with pytest.raises(SettingError, match=r"Invents has pools named \['epochs', 'images'\], got 'pictures'"):
        engine.pool("pictures")


def test_the_network_is_named_in_words() -> None:
    made = with_parts(Invents(local=LOCAL), "invents", {"generator": "torch.nn:Linear", "width": "5"})
    assert (made.generator, made.width) == ("torch.nn:Linear", 5)
    with pytest.raises(SettingError, match=r"network 'torch.nn:Linear' does not take the settings \{'width': 5\}"):
        made.network()


def parts() -> Any:
    return dataclasses.replace(federation(), public=examples(24, seed=3))


def history(rounds: int = 5, **more: Any) -> History:
    rate = more.pop("rate", 0.1)
    settings = RunSettings(rounds=rounds, cohort_size=2, **more.pop("settings", {}))
    return run(Distils(local=LOCAL, rate=rate), parts(), linear, settings, **more)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ["loop", "stacked", "workers"])
def test_a_round_of_the_server_alone_is_measured_and_logged(engine: str) -> None:
    found = history(settings={"engine": engine}).metrics
    assert [len(m["clients"]) for m in found[1:]] == [2, 0, 0, 0, 0]
    assert found[1]["train_loss"] > 0
    assert "server_loss" not in found[1]
    for m in found[2:]:
        assert (m["bytes_up"], m["bytes_down"], m["train_loss"]) == (0, 0, None)
        assert m["server_loss"] > 0
        assert 0 <= m["global_accuracy"] <= 1
    assert len({m["global_loss"] for m in found}) == len(found)  # each of them moves the model
    assert found[-1]["server_loss"] < found[2]["server_loss"]


def test_it_is_saved_and_resumed(tmp_path: Path) -> None:
    whole = history(directory=tmp_path / "whole")
    history(3, directory=tmp_path / "half")
    resumed = history(directory=tmp_path / "half", resume=True)
    assert resumed.metrics == whole.metrics
    assert (tmp_path / "half" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_a_loss_that_is_no_number_is_named_with_its_step() -> None:
    with pytest.raises(NonFiniteError, match=r"the server, round 2, batch \d: the loss is (nan|inf) in its own"):
        history(rate=1e38)
    kept = history(rate=1e38, settings={"on_nonfinite": "refuse"}).metrics
    assert all("in its own training at batch" in m["server_refused"] for m in kept[2:])
    assert not any("server_loss" in m for m in kept)
    assert len({m["global_loss"] for m in kept[1:]}) == 1
