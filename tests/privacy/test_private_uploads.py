"""The kind `local` of the setting privacy: epsilon of each client in the records, noise for a budget, refusals."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.privacy.gaussian_epsilon import epsilon
from fedloom.privacy.local_noise import LocalNoise, LossesStay
from fedloom.privacy.private_uploads import Uploads
from fedloom.testing.in_process import InProcess
from site_devices import members, serve, settings as site_settings, source_of_server, write_sites
from tiny import LOCAL, federation, linear

SETTINGS = fl.RunSettings(rounds=4, cohort_size=2, engine="loop", threads=1)
NOISE = "local:noise=5,delta=1e-5,clip=0.5"


def job(privacy: str = NOISE, **more: Any) -> fl.Job:
    of_job = ("algorithm", "model", "federation", "task", "sampler", "schedule", "new", "parts")
    given = {name: more.pop(name) for name in of_job if name in more}
    given = {"algorithm": fl.FedAvg(local=LOCAL), "model": linear, "federation": federation()} | given
    return fl.Job(settings=dataclasses.replace(SETTINGS, privacy=privacy, **more), **given)


def spent(releases: int, noise: float = 5.0, delta: float = 1e-5) -> float:
    return epsilon(2 * math.sqrt(releases) / noise, delta)


@pytest.mark.some(1)
@pytest.mark.parametrize(("algorithm", "sets"), [(fl.FedAvg(local=LOCAL), 1), (fl.Scaffold(local=LOCAL), 2)])
def test_epsilon_is_of_the_uploads_that_each_client_was_asked_for(algorithm: Any, sets: int, tmp_path: Path) -> None:
    history = job(algorithm=algorithm).run(tmp_path / "whole")
    times = np.zeros(6, int)
    for record in history.metrics:
        times[record.get("clients", [])] += 1
        each = [spent(int(t) * sets) for t in times if t]
        assert record["epsilon"] == pytest.approx(max(each, default=0.0))
        assert record["epsilon_mean"] == pytest.approx(np.mean(each) if each else 0.0)
    assert times.max() > times.min()
    assert history.measures["epsilon"].title == "Epsilon of a simulation"
    job(algorithm=algorithm, rounds=2).run(tmp_path / "part")
    assert job(algorithm=algorithm).run(tmp_path / "part", resume=True).metrics == history.metrics


def test_a_budget_gives_the_noise_that_keeps_it_in_the_rounds_that_ask_a_client() -> None:
    begun = job("local:epsilon=3,delta=1e-5,clip=0.5")
    history = begun.run()
    assert 2.99 < history.metrics[-1]["epsilon"] <= 3
    times = np.bincount([k for record in history.metrics[1:] for k in record["clients"]])
    encoder: Any = begun.begun_parts.encoders[0]
    assert spent(int(times.max()), encoder.noise) <= 3 < spent(int(times.max()), 0.998 * encoder.noise)
    assert times.max() < 4
    everyone = job("local:epsilon=3,delta=1e-5,clip=0.5", sampler=lambda *_: [0, 1])
    other: Any = everyone.begun_parts.encoders[0]
    assert spent(4, other.noise) <= 3 < spent(4, 0.998 * other.noise)
    assert job("local:noise=0,delta=1e-5,clip=0.5").run().metrics[-1]["epsilon"] is None


def test_more_rounds_than_the_noise_is_for_are_refused(tmp_path: Path) -> None:
    privacy = "local:epsilon=3,delta=1e-5,clip=0.5"
    job(privacy, rounds=2, cohort_size=6).run(tmp_path)
    with pytest.raises(SettingError, match=r"fixed.encoders was .*LocalNoise.* Use what it was started with"):
        job(privacy, cohort_size=6).run(tmp_path, resume=True)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_uploads_travel_with_noise_and_a_private_run_learns(engine: str) -> None:
    data = federation(clients=60, per_client=15)
    local = fl.Local(epochs=2, batch_size=4, optimiser=fl.SGD(lr=0.1))
    more: Any = {"federation": data, "algorithm": fl.FedAvg(local=local), "cohort_size": 60, "engine": engine}
    private = job("local:noise=1,delta=1e-4,clip=0.5", **more).run()
    clipped = job("local:noise=0,delta=1e-4,clip=0.5", **more).run()
    moved = [a - b for a, b in zip(tree.leaves(private.server), tree.leaves(clipped.server), strict=True)]
    assert all(t.abs().max() > 0.01 for t in moved), moved
    assert private.metrics[-1]["global_accuracy"] > 0.6, (private.metrics[-1], clipped.metrics[-1])


def test_what_stands_in_the_manifest(tmp_path: Path) -> None:
    job(rounds=1).run(tmp_path)
    (told,) = json.loads((tmp_path / "manifest.json").read_text())["fixed"]["encoders"]
    assert told["clip"] == 0.5
    assert told["noise"] == 5.0
    assert told["entropy"] == "of the run's seed"


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"privacy": "local:noise=1,clip=1"}, "epsilon or noise, and delta and clip, .*write local:noise=1,clip=1,del"),
        ({"privacy": "local:noise=1,clip=0,delta=1e-5"}, "clip of privacy is above 0"),
        ({"privacy": "local:noise=1,clip=1,delta=0.2"}, "delta is below one over the number of clients, 1 / 6"),
        ({"stateless": True}, "what a client keeps has none, got stateless clients: leave one of them out"),
        ({"secure_aggregation": "range=8"}, "seen one by one, and noise may leave .*, got secure_aggregation"),
        ({"schedule": fl.Schedule()}, "each of which asks a client once, got schedule = Schedule"),
        ({"partial_sums": 2}, "counts each upload, got partial_sums = 2: leave one of them out"),
        ({"model": normalised}, "clients of FedAvg upload what depends on their examples beside these .*nn.GroupNorm"),
        ({"algorithm": fl.QFedAvg(local=LOCAL)}, "clients of QFedAvg upload what depends on their examples"),
        ({"algorithm": fl.Centralised(local=LOCAL)}, "all clients in one place"),
        ({"algorithm": fl.LocalOnly(local=LOCAL)}, "LocalOnly fails: LocalNoise encodes .* LocalOnly uploads none"),
    ],
    ids=[
        "delta",
        "clip",
        "large_delta",
        "stateless",
        "masks",
        "schedule",
        "sums",
        "batch_norm",
        "q_fedavg",
        "one",
        "own",
    ],
)
def test_what_noise_in_uploads_does_not_cover_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        job(**more).run()


def test_group_norm_and_what_follows_uploads_go_with_it() -> None:
    model = lambda: nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3))  # noqa: E731
    assert job(model=model, aggregator="median", bound="clip:9", cohort_size=3).run().metrics[-1]["epsilon"] > 0


def test_devices_find_the_noise_and_draw_for_themselves() -> None:
    (rule,) = Uploads.encoders(job().settings)
    assert rule == LocalNoise(clip=0.5, noise=5.0, secret=True)
    (found,) = Uploads.encoders(dataclasses.replace(SETTINGS, privacy="local:epsilon=3,delta=1e-5,clip=0.5"))
    assert spent(4, found.noise) <= 3 < spent(4, 0.998 * found.noise)
    assert Uploads.gradients_of(SETTINGS) == LossesStay()


def serving(folder: Path, privacy: str = NOISE, method: str = "fedavg") -> fl.Job:
    """Return a run of five devices, of which three are asked in a round. The noise is small beside the model."""
    privacy = privacy.replace("clip=0.5", "clip=0.005")
    words = site_settings(
        method, **{"run.rounds": 3, "run.cohort_size": 3, "run.eval_every": 9, "run.privacy": privacy}
    )
    return serve(folder, words, InProcess(members(folder)), source_of_server(folder))


def killed(history: fl.History) -> None:
    """End a process in round 2, which has begun."""
    if len(history.metrics) == 2:
        raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Kiel")
def test_with_devices_draws_are_their_own_and_rounds_that_are_lost_count(tmp_path: Path) -> None:
    write_sites(tmp_path)
    whole = serving(tmp_path).run(tmp_path / "whole")
    assert whole.measures["epsilon"].title == "Epsilon"
    assert "with noise of each device's entropy" in whole.measures["epsilon"].meaning
    assert ", training losses" not in whole.measures["epsilon"].meaning
    assert whole.manifest["fixed"]["encoders"][0]["entropy"] == "of the system"
    assert [record["train_loss"] for record in whole.metrics[1:]] == [None] * 3
    assert not any(record["failed"] for record in whole.metrics[1:])
    with pytest.raises(KeyboardInterrupt):
        serving(tmp_path).run(tmp_path / "out", on_round=killed)
    log, asked = tmp_path / "out/clients_asked.txt", [record["clients"] for record in whole.metrics[1:]]
    log.write_text(log.read_text() + 9 * f"{' '.join(map(str, asked[1]))}\n")  # what processes leave that are killed
    again = serving(tmp_path).run(tmp_path / "out", resume=True)
    assert [record["clients"] for record in again.metrics[1:]] == asked
    assert again.metrics[1]["epsilon"] == whole.metrics[1]["epsilon"] == pytest.approx(spent(1))
    assert again.metrics[2]["epsilon"] == pytest.approx(spent(10 + bool({*asked[0]} & {*asked[1]})))
    for one, other in zip(tree.leaves(again.server), tree.leaves(whole.server), strict=True):
        assert not torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Kiel")
def test_with_devices_no_round_begins_beyond_the_budget(tmp_path: Path) -> None:
    write_sites(tmp_path)
    budget = "local:epsilon=3,delta=1e-5,clip=0.5"
    with pytest.raises(KeyboardInterrupt):
        serving(tmp_path, budget).run(tmp_path / "out", on_round=killed)
    log = tmp_path / "out/clients_asked.txt"
    log.write_text(log.read_text() + 3 * "0 1 2 3 4\n")
    with pytest.raises(SettingError, match=r"round 2 would ask a client to epsilon = .*, beyond the 3 that were asked"):
        serving(tmp_path, budget).run(tmp_path / "out", resume=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Kiel")
def test_devices_keep_states_and_find_no_noise_for_two_uploads(tmp_path: Path) -> None:
    """What a device keeps has no noise, so the digest that it tells is of a secret too."""
    write_sites(tmp_path)
    with pytest.raises(SettingError, match=r"one upload in a round, and Scaffold sends 2 sets .*: write noise="):
        serving(tmp_path, "local:epsilon=3,delta=1e-5,clip=0.5", "scaffold")
    found = serving(tmp_path, method="scaffold").run(tmp_path / "out")
    times = np.bincount([k for record in found.metrics[1:] for k in record["clients"]])
    assert found.metrics[-1]["epsilon"] == pytest.approx(spent(2 * int(times.max())))
    assert not any(record["failed"] for record in found.metrics[1:])
