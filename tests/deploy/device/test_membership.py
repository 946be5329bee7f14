"""Devices come to a run at ranks, are asked, are late, and leave; all in one process."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import fedloom
import site_devices
from fedloom import privacy
from fedloom.coordinator.history import History
from fedloom.core.errors import RankError, RefusedError, SettingError, SettingWarning, StorageError
from fedloom.data import Examples, LabelDrift, Normalise, Window, from_arrays
from fedloom.deploy import registration
from fedloom.deploy.device import DataManager, Membership, membership, take_part
from fedloom.deploy.device.membership import device_id
from fedloom.deploy.device.public_examples import read_public
from fedloom.deploy.participation import FIRST
from fedloom.deploy.registration import versions
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.device_registry import Registry
from fedloom.deploy.server.devices import Devices
from fedloom.deploy.server.fleet import NoResponse, RankFleet
from fedloom.deploy.server.joining import register_devices, send_public
from fedloom.engines.engine_options import Options
from fedloom.engines.message_bytes import pack, unpack, with_checksum
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_sections import DataSettings
from fedloom.ranks.communication import CLOSED, CommunicationManager
from fedloom.testing.in_process import InProcess
from hospitals import SIZES, write_hospitals
from site_devices import members as site_members, serve, settings as site_settings, source_of_server, write_sites

Device = Callable[[bytes], bytes | None]


def npz(folder: Path, labels: list[int], name: str = "mine.npz", features: int = 4) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    y = np.resize(labels, 12)
    x = np.random.default_rng(0).normal(size=(12, features)).astype(np.float32)
    np.savez(folder / name, x_train=x[:9], y_train=y[:9], x_test=x[9:], y_test=y[9:])
    return folder


def settings(**more: Any) -> dict[str, Any]:
    words: dict[str, Any] = {"algorithm": "fedavg", "model": "logistic", "data.classes": 3, "run.engine": "devices"}
    return Experiment().with_all(words | more).described()


def members(folder: Path, count: int = 2, **more: Any) -> list[Membership]:
    return [Membership(str(npz(folder / f"data{k}", [0, 1])), folder / f"state{k}", **more) for k in range(count)]


def fleet_of(devices: list[Device], folder: Path) -> RankFleet:
    return RankFleet(InProcess(devices), Audit(folder / "audit.jsonl"))


def ended(fleet: RankFleet) -> list[str]:
    assert isinstance(fleet.manager, InProcess)
    return [*fleet.manager.failures.values()]


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


# ---- joining


def test_a_device_does_to_its_uploads_what_the_settings_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Keeps(fedloom.Encoder):
        def init(self, params: fedloom.Params) -> fedloom.Params:
            return 0.0 * params

    told = []
    monkeypatch.setattr(membership, "encoders_of", lambda run: told.append(run.rounds) or (Keeps(),))
    (one,) = members(tmp_path, 1)
    register_devices(fleet_of([one], tmp_path), tmp_path / "d.json", settings(**{"run.rounds": 7}), ["logistic"])
    assert one.controller is not None
    assert one.controller.models is not None
    assert one.controller.runtime.encoders is not None
    assert told == [7]
    assert one.controller.models.has_state  # of which FedAvg has none
    (kept,) = one.controller.models.first.kept["local_update"]
    assert kept[0].keys() == one.controller.runtime.initial("logistic").params.keys()


def test_devices_join_once_by_their_own_ids(tmp_path: Path) -> None:
    ours = members(tmp_path)
    fleet = fleet_of([*ours], tmp_path)
    registry = register_devices(fleet, tmp_path / "devices.json", settings(), ["logistic"])
    assert set(fleet.connected()) == {m.id for m in ours} == set(registry.names)
    assert [sum(d.train) for d in registry.devices] == [9, 9]
    assert [sum(d.test) for d in registry.devices] == [3, 3]
    for rank, member in enumerate(ours, 1):
        assert fleet.ranks[member.id] == rank
        assert member.controller is not None
        assert member.controller.runtime.population.first == registry.names.index(member.id)
    assert len(set(fleet.tokens.values())) == 2
    fleet.close()
    assert all(member.is_over for member in ours)
    # again, with the ranks exchanged
    again = [Membership(m.source, m.folder) for m in reversed(ours)]
    fleet = fleet_of([*again], tmp_path)
    assert register_devices(fleet, tmp_path / "devices.json", settings(), ["logistic"]) == registry
    assert fleet.ranks == {m.id: rank for rank, m in enumerate(again, 1)}
    assert [line["event"] for line in log(tmp_path)] == ["joined"] * 4


def test_who_is_refused_hears_why_and_the_others_go_on(tmp_path: Path) -> None:
    good, other = members(tmp_path)
    twin = Membership(good.source, good.folder)

    def hangs_up(message: bytes) -> bytes:
        raise EOFError

    said: list[bytes] = []

    def stranger(message: bytes) -> bytes:
        said.append(message)
        return json.dumps({"id": "me", "versions": versions()}).encode()

    fleet = fleet_of([good, twin, hangs_up, stranger, lambda message: b"\xff" * 9], tmp_path)
    registry = register_devices(fleet, tmp_path / "devices.json", settings(), ["logistic"], wait=0.2, min_devices=1)
    assert registry.names == (good.id,)
    refused = [line["why"] for line in log(tmp_path) if line["event"] == "refused"]
    assert [why.partition(" ")[0] for why in refused] == ["a", "it", "device"]  # who hangs up may come again
    assert refused[2] == f"device {good.id} has joined at another rank"
    assert [line["device"] for line in log(tmp_path) if line["event"] == "refused"] == ["me", "nameless", good.id]
    assert "a device registers with an id" in json.loads(said[1])["refused"]
    assert [end for end in ended(fleet) if end] == [f"the server does not take this device: {refused[2]}"]
    late = fleet_of([other], tmp_path)
    register_devices(late, tmp_path / "devices.json", settings(), ["logistic"])
    assert [each.id for each in late.waiting.values()] == [other.id]


@pytest.mark.parametrize(
    ("name", "there", "words"),
    [
        ("messages", "2", "messages of version 2, and the server fedloom 0.3.0 with messages of version 1"),
        ("PyTorch", "1", "PyTorch 1, and the server fedloom 0.3.0 with PyTorch 2"),
    ],
)
def test_a_device_with_another_version_is_refused_at_once_and_both_are_named(
    name: str, there: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it looks at the settings, which its version may not know; the run goes on."""
    good, other = members(tmp_path)
    ours = {"fedloom": "0.3.0", "messages": "1", "PyTorch": "2"}
    monkeypatch.setattr(registration, "versions", lambda: ours)
    theirs = ours | {name: there}

    def device(data: bytes) -> bytes:
        with monkeypatch.context() as patch:
            patch.setattr(registration, "versions", lambda: theirs)
            patch.setattr(membership, "versions", lambda: theirs)
            patch.setattr(other, "_prepare", lambda message: pytest.fail("it looks at the settings"))
            return other(data)

    fleet = fleet_of([good, device], tmp_path)
    monkeypatch.setattr(membership, "versions", lambda: ours)
    began = time.monotonic()
    registry = register_devices(fleet, tmp_path / "devices.json", settings(), ["logistic"], wait=60.0)
    assert time.monotonic() - began < 30  # the other is not waited for
    assert registry.names == (good.id,)
    (line,) = (line for line in log(tmp_path) if line["event"] == "refused")
    assert line["device"] == other.id
    assert line["why"].startswith(f"this device has fedloom 0.3.0 with {words}")
    assert [end for end in ended(fleet) if end] == [f"the server does not take this device: {line['why']}"]


def test_a_device_that_was_updated_is_the_same_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = members(tmp_path)
    registry = register_devices(fleet_of([*ours], tmp_path), tmp_path / "devices.json", settings(), ["logistic"])
    monkeypatch.setattr(membership, "versions", lambda: versions() | {"fedloom": "9.1"})
    fleet = fleet_of([Membership(m.source, m.folder) for m in ours], tmp_path)
    assert register_devices(fleet, tmp_path / "devices.json", settings(), ["logistic"]) == registry
    assert (fleet.waiting, {*fleet.versions.values()}) == ({}, {"9.1"})
    assert [line["fedloom"] for line in log(tmp_path)] == [fedloom.__version__] * 2 + ["9.1"] * 2


def test_a_device_joins_no_server_that_does_not_say_its_version(tmp_path: Path) -> None:
    """One of an earlier version would not refuse it."""
    (one,) = members(tmp_path, 1)
    words = (
        r"the server has fedloom of a version that it does not say with messages of a version .*: both sides need the"
    )
    with pytest.raises(RefusedError, match=words):
        one(json.dumps({"run": "a" * 32, "settings": settings()}).encode())


class Keyed(InProcess):
    """Ranks whose keys are registered with names, as over Flower and NATS."""

    keys: ClassVar[dict[int, str]] = {}

    def name_of(self, rank: int) -> str | None:
        return self.keys.get(rank)


def test_a_device_has_the_name_of_its_key(tmp_path: Path) -> None:
    """One that says none has it; one that says another is refused, also when it joins again; so is a revoked key."""
    ours = members(tmp_path, 4)
    ours[1].name, ours[2].name = "Jena", "Kiel"
    manager = Keyed([*ours])
    manager.keys = {1: "Kiel", 2: "Jena", 3: "Ulm", 4: ""}  # type: ignore[misc]
    fleet = RankFleet(manager, Audit(tmp_path / "audit.jsonl"))
    registry = register_devices(fleet, tmp_path / "devices.json", settings(), ["logistic"])
    assert {device.id: device.name for device in registry.devices} == {ours[0].id: "Kiel", ours[1].id: "Jena"}
    why = "the key of this device is registered with the name 'Ulm', and it says 'Kiel': join with --name Ulm"
    assert [(line["device"], line["why"]) for line in log(tmp_path) if line["event"] == "refused"] == [
        ("Ulm", why),
        (ours[3].id, f"device {ours[3].id} has no key that is registered any more: register it again"),
    ]
    assert [line.get("key") for line in log(tmp_path) if line["event"] == "refused"] == ["Ulm", None]
    ours[1].name = "Kiel"
    fleet.ranks.clear()
    assert fleet.admit is not None
    manager.keys = {1: "Kiel", manager.come(ours[1]): "Jena"}  # type: ignore[misc]
    fleet.admit(5, ours[1]._register(ours[1]._offer))
    assert log(tmp_path)[-1]["why"].endswith("and it says 'Kiel': join with --name Jena")
    manager.keys |= {manager.come(ours[1]): "Kiel", manager.come(ours[1]): "Jena"}
    fleet.admit(6, ours[1]._register(ours[1]._offer))  # who has the folder of Jena, and the key of Kiel
    why = "has begun this run with the key of 'Jena', and this is that of 'Kiel'"
    assert why in log(tmp_path)[-1]["why"]
    ours[1].name = ""
    fleet.admit(7, ours[1]._register(ours[1]._offer))
    assert log(tmp_path)[-1]["event"] == "joined"


class Listed(Keyed):
    """Ranks whose keys are registered until they are removed."""

    keys: ClassVar[dict[int, str]] = dict(enumerate(SIZES, 1))
    remaining: ClassVar[set[str]] = {*SIZES}

    def listed(self) -> set[str]:
        return self.remaining


@pytest.mark.filterwarnings("ignore:.*with nothing here, which the other rows fill")
@pytest.mark.some(1)
@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
def test_a_device_that_is_removed_is_drawn_no_more(algorithm: str, tmp_path: Path) -> None:
    """Rounds are as large as before, and no line says again that it is lost. Where all are, one is waited for."""
    write_sites(tmp_path)
    manager = Listed(site_members(tmp_path))
    manager.remaining = {*SIZES}  # type: ignore[misc]
    words = site_settings(algorithm, **{"run.rounds": 4, "run.cohort_size": 4})
    job = serve(tmp_path, words, manager, source_of_server(tmp_path))
    gone = next(k for k, device in enumerate(SIZES) if device == "Kiel")

    def remove(history: History) -> None:
        if len(history.metrics) == 3:  # round 0 is one of them
            manager.remaining = {*SIZES} - {"Kiel"}  # type: ignore[misc]

    history = job.run(tmp_path / "out", on_round=remove)
    asked = [record["clients"] for record in history.metrics[1:]]
    assert [len(clients) for clients in asked] == [4] * 4
    assert any(gone in clients for clients in asked[:2])
    assert not any(gone in clients for clients in asked[2:])
    assert [record["failed"] for record in history.metrics[1:]] == [{}] * 4
    assert "lost" not in {line["event"] for line in log(tmp_path)}
    manager.remaining = set()  # type: ignore[misc]
    assert job.fleet is not None
    assert len(job.fleet.removed()) == len(SIZES)
    devices = Devices(job.population, job.algorithm, Options())
    devices.fleet = job.fleet
    assert not devices.removed()


def test_no_more_examples_count_than_are_allowed(tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    registry = register_devices(fleet_of([one], tmp_path), tmp_path / "devices.json", settings(), ["logistic"], cap=4)
    assert sum(registry.devices[0].train) == 4
    assert "it holds 9 examples, of which 4 count" in [line.get("why") for line in log(tmp_path)]
    with pytest.raises(SettingError, match="--most-examples must be at least 1, got 0: raise it"):
        register_devices(fleet_of([one], tmp_path), tmp_path / "none.json", settings(), ["logistic"], cap=0)


def test_who_registers_a_million_examples_counts_as_ten_others(tmp_path: Path) -> None:
    ours, path = members(tmp_path, 4), tmp_path / "devices.json"

    def boasts(message: bytes) -> bytes | None:
        answer = ours[3](message)
        said = json.loads(answer)
        return json.dumps({**said, "train": [600_000, 400_000, 0]}).encode() if "train" in said else answer

    registry = register_devices(fleet_of([*ours[:3], boasts], tmp_path), path, settings(), ["logistic"])
    sizes = {device.id: sum(device.train) for device in registry.devices}
    assert (registry.cap, sizes.pop(ours[3].id), set(sizes.values())) == (90, 90, {9})
    assert "it holds 1000000 examples, of which 90 count" in [line.get("why") for line in log(tmp_path)]
    again = [Membership(m.source, m.folder) for m in ours[:2]]  # the number of before, whoever is there
    assert register_devices(fleet_of([*again], tmp_path), path, settings(), ["logistic"]).cap == 90


def test_a_run_goes_on_with_as_many_examples_as_it_began(tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    path = tmp_path / "devices.json"
    registry = register_devices(fleet_of([one], tmp_path), path, settings(), ["logistic"], cap=4)
    for cap in (None, 4):
        again = Membership(one.source, one.folder)
        assert register_devices(fleet_of([again], tmp_path), path, settings(), ["logistic"], cap=cap) == registry
        assert again.controller is not None
    with pytest.raises(SettingError, match=r"--most-examples must stay 4, with which .*, got 5: leave it out"):
        register_devices(fleet_of([one], tmp_path), path, settings(), ["logistic"], cap=5)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cap": "4"}))
    with pytest.raises(StorageError, match="cap is a whole number, got '4'"):
        Registry.read(path)


@pytest.mark.parametrize(("began", "words"), [("a.npz", "--test must stay a.npz,"), ("", "--test must stay away,")])
def test_a_run_goes_on_with_the_test_examples_with_which_it_began(began: str, words: str, tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    path = tmp_path / "devices.json"
    registry = register_devices(fleet_of([one], tmp_path), path, settings(), ["logistic"], test=began)
    for test in ("", began):
        again = Membership(one.source, one.folder)
        assert register_devices(fleet_of([again], tmp_path), path, settings(), ["logistic"], test=test) == registry
    with pytest.raises(SettingError, match=rf"{words} as when this run began, got b.npz: leave it out"):
        register_devices(fleet_of([one], tmp_path), path, settings(), ["logistic"], test="b.npz")


def test_devices_hear_why_a_run_does_not_begin(tmp_path: Path) -> None:
    """And nothing stays that would be in the way of the next try."""
    ours, path = members(tmp_path), tmp_path / "devices.json"

    def unfit() -> None:
        assert sorted(Registry.read(path).names) == sorted(member.id for member in ours)
        raise SettingError("cohort_size = 3 is larger")

    fleet = fleet_of([*ours], tmp_path)
    with pytest.raises(SettingError, match="cohort_size = 3 is larger"):
        register_devices(fleet, path, settings(), ["logistic"], check_fit=unfit)
    why = "the server does not take this device: the run does not begin: cohort_size = 3 is larger"
    assert ended(fleet) == [why, why]
    assert not path.exists()

    wide = Membership(str(npz(tmp_path / "wide", [0, 1], features=5)), tmp_path / "state")
    fleet = fleet_of([Membership(ours[0].source, ours[0].folder), wide], tmp_path)
    with pytest.raises(SettingError, match="examples must have the same shape, got"):
        register_devices(fleet, path, settings(), ["logistic"])
    assert all("the run does not begin: examples must have the same shape" in end for end in ended(fleet))
    assert len(ended(fleet)) == 2

    register_devices(fleet_of([Membership(m.source, m.folder) for m in ours], tmp_path), path, settings(), ["logistic"])
    before = path.read_bytes()
    fleet = fleet_of([Membership(m.source, m.folder) for m in ours], tmp_path)
    with pytest.raises(SettingError, match="cohort_size"):
        register_devices(fleet, path, settings(), ["logistic"], check_fit=unfit)
    assert path.read_bytes() == before  # that of a run which has begun


def test_fuzzed_registrations_never_join(tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    sound, rng = one(json.dumps({"run": "a" * 32, "versions": versions(), "settings": settings()}).encode()), Random(4)
    for number in range(300):
        data = bytearray(sound)
        for _ in range(rng.choice((1, 2, 8))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path = tmp_path / f"{number}.json"
        try:
            registry = register_devices(fleet_of([lambda m, d=bytes(data): d], tmp_path), path, {}, ["logistic"])
        except SettingError:
            continue
        (found,) = registry.devices  # what still is a registration is one
        assert found == Registry.read(path).devices[0]


@pytest.mark.parametrize(
    "named",
    [{key: "os:system"} for key in ("algorithm", "task", "model")]
    + [{"model": "mlp,os:system"}, {"algorithm": "dense", "dense": {"generator": "os:system"}}],
)
def test_a_device_imports_nothing_that_a_server_names(named: dict[str, Any], tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    named = {**settings(), **named}
    with pytest.raises(SettingError, match=r"a device imports no code that a server names, .* 'os:system'"):
        one(json.dumps({"run": "a" * 32, "versions": versions(), "settings": named}).encode())


@pytest.mark.parametrize(
    "said",
    [
        [], 5, {}, None, "x", {"run": "a" * 32}, {"settings": {}}, {"run": "a" * 32, "settings": None},
        {"run": "a" * 32, "settings": []}, {"run": 3, "settings": {}}, {"client": 0}, {"refused": 5},
        {"client": 0, "token": "t"}, {"client": True, "model": "logistic", "token": "t"},
        {"client": -1, "model": "logistic", "token": "t"}, {"client": 1 << 50, "model": "logistic", "token": "t"},
        {"client": 0, "model": [], "token": "t"}, {"client": 0, "model": "logistic", "token": "t", "public": 1},
    ],
)  # fmt: skip
def test_what_no_server_says_is_refused_in_words(said: Any, tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    with pytest.raises(RefusedError, match=r"not a message of a fedloom server: .*(; install .* version|is needed)"):
        one(json.dumps(said).encode())


@pytest.mark.parametrize(
    "data",
    [b"\xff" * 9, b'{"client": 1e400, "model": "logistic", "token": "t"}', b'{"run": "a", "run": "b"}',
     b'{"settings": ' + b"[" * 100_000, b'{"settings": ' + b'{"a":' * 900 + b"1" + b"}" * 901, b" " * (FIRST + 1)],
)  # fmt: skip
def test_what_is_no_json_of_a_server_is_refused_in_words(data: bytes, tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    with pytest.raises(RefusedError, match="not a message of a fedloom server"):
        one(data)


def test_a_welcome_comes_after_settings_and_names_a_model_of_these(tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    welcome = json.dumps({"client": 0, "model": "logistic", "token": "t"}).encode()
    with pytest.raises(RefusedError, match="welcomes a device before it has sent settings"):
        one(welcome)
    one(json.dumps({"run": "a" * 32, "versions": versions(), "settings": settings()}).encode())
    with pytest.raises(RefusedError, match="the server gives the architecture 'mlp', and its settings have none such"):
        one(welcome.replace(b"logistic", b"mlp"))


def test_what_a_welcome_breaks_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any) -> None:
        raise RuntimeError("can't allocate memory")

    (one,) = members(tmp_path, 1)
    one(json.dumps({"run": "a" * 32, "versions": versions(), "settings": settings()}).encode())
    monkeypatch.setattr("fedloom.deploy.device.membership.catalogue.algorithm", no_memory)
    with pytest.raises(RefusedError, match=r"settings of the server cannot be run here: .*can't allocate memory"):
        one(json.dumps({"client": 0, "model": "logistic", "token": "t"}).encode())


@pytest.mark.parametrize(
    "wrong",
    [
        {"algorithm": 5},
        {"model": ["mlp"]},
        {"run": 5},
        {"local": {"optimiser": {"kind": 5}}},
        {"data": {"classes": []}},
        {"data": {"classes": 1 << 31}},
        {"algorithm": "dense", "dense": {"ngf": 65_535}},
    ],
)
def test_settings_of_a_server_that_cannot_be_read_are_refused_in_words(wrong: Any, tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    with pytest.raises((RefusedError, SettingError)):
        one(json.dumps({"run": "a" * 32, "versions": versions(), "settings": {**settings(), **wrong}}).encode())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"local.epochs": 10**9}, r"asks for 1,000,000,000 training steps in a request, and this device takes at most"),
        ({"local.steps": 100_001}, r"asks for 100,001 training steps .* 100,000: join with --most-steps 100001"),
        (
            {"local.batch_size": 10**9},
            r"beyond 100,000 \(--most-steps\), and the server's settings say local.batch_size",
        ),
        ({"algorithm": "pfedme", "pfedme.K": 10**9}, r"the server's settings say pfedme.K = 1000000000"),
    ],
)
def test_a_device_takes_so_much_work_and_no_more(wrong: dict[str, Any], words: str, tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    with pytest.raises(SettingError, match=words):
        one(json.dumps({"run": "a" * 32, "versions": versions(), "settings": settings(**wrong)}).encode())
    sound = json.dumps(
        {"run": "a" * 32, "versions": versions(), "settings": settings(**{"local.steps": 100_000})}
    ).encode()
    assert "train" in json.loads(one(sound))
    with pytest.raises(SettingError, match="a device takes at least 1 training step, got 0: raise --most-steps"):
        Membership(one.source, one.folder, steps=0)


def test_a_device_that_cannot_mask_says_so_before_it_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    monkeypatch.delitem(sys.modules, "fedloom.privacy.mask_secrets", raising=False)
    monkeypatch.delattr(privacy, "mask_secrets", raising=False)
    (one,) = members(tmp_path, 1)
    asked = settings(**{"run.secure_aggregation": "range=8"})
    with pytest.raises(
        SettingError, match=r"masks are made by cryptography \(.*\): pip install '<PATH>\[privacy\]', where"
    ):
        one(json.dumps({"run": "a" * 32, "versions": versions(), "settings": asked}).encode())


def test_a_server_names_no_folder(tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    one(json.dumps({"run": "../../elsewhere", "versions": versions(), "settings": settings()}).encode())
    with pytest.raises(RefusedError, match=r"the id of a run is 32 hexadecimal digits, got '../../elsewhere'"):
        one(json.dumps({"client": 0, "model": "logistic", "token": "t"}).encode())


def test_public_examples_come_when_a_device_has_joined(tmp_path: Path) -> None:
    ours = members(tmp_path)
    fleet = fleet_of([*ours], tmp_path)
    register_devices(fleet, tmp_path / "devices.json", settings(), ["logistic"], public=True)
    assert [member.controller for member in ours] == [None, None]
    rng = np.random.default_rng(0)
    given = from_arrays(
        rng.normal(size=(7, 4)).astype(np.float32), np.arange(7) % 3, normalise=Normalise((0.5,), (2.0,))
    )
    send_public(fleet, given, labels=False)
    assert not ended(fleet)
    for member in ours:
        assert member.controller is not None
        f = member.controller.runtime.population.federation
        assert f.public is not None
        assert torch.equal(f.public.x, given.x)
        assert f.public.y.tolist() == [0] * 7  # nobody is told
        assert (f.public.normalise, f.public_labels) == (given.normalise, False)
    assert set(unpack(sent(given, labels=False)).parts) == {"x"}
    known, labels = read_public(sent(given, labels=True), ours[0].data.federation.train)
    assert labels
    assert known.y.tolist() == given.y.tolist()


def sent(public: Examples, *, labels: bool) -> bytes:
    """What a device would get."""
    said = list[bytes]()

    class Heard:
        ranks: ClassVar[dict[str, int]] = {"one": 1}

        def settle(self) -> None:
            pass

        def send_notice(self, rank: int, message: bytes) -> None:
            said.append(message)

    send_public(Heard(), public, labels=labels)  # type: ignore[arg-type]
    return said[0]


def test_public_examples_are_like_the_devices_own() -> None:
    x, y = np.zeros((3, 4), np.float32), np.arange(3)
    like = from_arrays(x, y)
    for other in (from_arrays(x[:, :3], y), from_arrays(x.astype(np.float64), y)):
        with pytest.raises(
            RefusedError, match=r"no public examples for this device: they must be torch.float32 of \(4,\)"
        ):
            read_public(sent(other, labels=False), like)
    with pytest.raises(RefusedError, match=r"no public examples for this device: class labels must be in 0..2"):
        read_public(sent(from_arrays(x, y + 1, num_classes=4), labels=True), like)
    sound = sent(like, labels=True)
    with pytest.raises(RefusedError, match=r"a message of .* at most 10 are taken"):
        read_public(sound, like, limit=10)
    for data in (b"", b"{}", pack({}, {}), pack({"normalise": 5, "labels": False}, {"x": torch.zeros(3, 4)})):
        with pytest.raises(RefusedError, match="these are no public examples"):
            read_public(data, like)
    rng = Random(0)
    for _ in range(500):
        data = bytearray(sound[4:])
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        with contextlib.suppress(RefusedError):
            assert read_public(with_checksum(bytes(data)), like)[0].shape == (4,)


def test_an_id_is_drawn_once(tmp_path: Path) -> None:
    assert device_id(tmp_path) == device_id(tmp_path) != device_id(tmp_path / "other")
    (tmp_path / "id").write_text("mine")
    with pytest.raises(RefusedError, match="the id of a device is 32 hexadecimal digits, got 'mine'"):
        device_id(tmp_path)


# ---- data


def test_the_test_examples_of_a_source_judge_its_device(tmp_path: Path) -> None:
    f = DataManager(str(npz(tmp_path, [0, 1])), DataSettings(classes=3), 0).federation
    assert (f.num_clients, f.num_classes, f.test) == (1, 3, None)
    assert f.partition.rows(0).tolist() == list(range(9))
    assert f.local_test is not None
    assert f.local_test.rows(0).tolist() == [9, 10, 11]
    validated = DataManager(str(tmp_path), DataSettings(classes=3, val_fraction=0.25), 0).federation
    assert validated.local_val is not None
    assert int(validated.local_val.sizes[0]) == 2
    assert DataManager(str(tmp_path), DataSettings(classes=2), 0).registration("a" * 32).train == (5, 4)


def test_a_device_changes_its_data_by_the_rules_of_the_server(tmp_path: Path) -> None:
    settings = DataSettings(classes=3, arrives="window:0.4:5", drift="labels:2:0.5")
    f = DataManager(str(npz(tmp_path, [0, 1])), settings, 7).federation
    assert f.arrives == Window(0.4, 5, seed=7)
    assert f.drift == LabelDrift(2, share=0.5, seed=7)


def test_a_folder_holds_one_file(tmp_path: Path) -> None:
    npz(npz(tmp_path, [0, 1]), [0, 1], "more.npz")
    with pytest.raises(SettingError, match=r"holds mine.npz, more.npz: name one of them with --data"):
        DataManager(str(tmp_path), DataSettings(), 0)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="train/<class>/ with images"):
        DataManager(str(empty), DataSettings(), 0)


def test_a_device_holds_the_table_of_one_site(tmp_path: Path) -> None:
    write_hospitals(tmp_path)
    with pytest.raises(SettingError, match=r"a device holds the table of one site, got .*: name one file"):
        DataManager(f"{tmp_path}/*.csv?label=readmitted", DataSettings(), 0)


def test_a_wrong_name_shows_before_a_device_has_joined(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match=r"--data takes a file, a folder or a name of data, and there is no .*nowhere: name"
    ):
        Membership(str(tmp_path / "nowhere"), tmp_path / "state")
    with pytest.raises(ValueError, match="unknown data 'nowhere'"):
        Membership("nowhere", tmp_path / "state")


def test_a_table_is_split_for_its_device(tmp_path: Path) -> None:
    rows = [f"{i},{-i},{i % 2},{'test' if i < 3 else 'train'}\n" for i in range(20)]
    (tmp_path / "mine.csv").write_text("".join(["a,b,label,part\n", *rows]))
    for fraction, test in ((0.2, 4), (0.5, 10), (0.0, 0)):
        manager = DataManager(f"{tmp_path}/mine.csv?drop=part", DataSettings(test_fraction=fraction), 0)
        found = manager.registration("a" * 32)
        assert (sum(found.train), sum(found.test), found.shape) == (20 - test, test, (2,))
        assert (found.classes, found.columns) == ((), ("a", "b"))
        assert manager.federation.train.x[:, 0].tolist() == list(range(20))
    f = DataManager(f"{tmp_path}/mine.csv?split=part", DataSettings(test_fraction=0.5), 0).federation
    assert f.local_test is not None
    assert sorted(f.train.x[f.local_test.indices.copy(), 0].tolist()) == [0, 1, 2]


def table(folder: Path, labels: list[Any], name: str = "mine.csv") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("a,label\n" + "".join(f"{i},{labels[i % len(labels)]}\n" for i in range(12)))
    return str(folder)


@pytest.mark.parametrize(
    ("labels", "count", "train", "classes"),
    [
        ([0, 1], 0, (6, 6), ()),
        ([1, 2], 0, (6, 6), ("1", "2")),
        ([0, 1], 3, (6, 6, 0), ()),
        ([1, 2], 3, (0, 6, 6), ()),
        ([0, 2], 3, (6, 0, 6), ()),
        ([2], 3, (0, 0, 12), ()),
        (["dog", "cat"], 2, (6, 6), ("cat", "dog")),
        (["dog", "cat", "fox"], 2, (4, 4), ("cat", "dog")),  # the first classes alone, as in a simulation
    ],
)
def test_labels_that_are_numbers_are_the_classes_of_these_numbers(
    labels: list[Any], count: int, train: tuple[int, ...], classes: tuple[str, ...], tmp_path: Path
) -> None:
    found = DataManager(table(tmp_path, labels), DataSettings(classes=count, test_fraction=0), 0)
    registration = found.registration("a" * 32)
    assert (registration.train, registration.classes) == (train, classes)
    if classes == () and labels != [0, 1]:
        assert found.federation.train.y.tolist() == [labels[i % len(labels)] for i in range(12)]


@pytest.mark.parametrize(
    ("labels", "count", "words"),
    [
        (
            [1, 3],
            3,
            r"the classes are '0', '1', '2', got '3' in mine: name or number .* or set data.classes to how many",
        ),
        ([0, 1, 2], 2, "the classes are '0', '1', got '2' in mine"),
        (["cat", "dog"], 3, r"each class, and data.classes = 3, got 2 in mine, 'cat', 'dog': name all .* from 0"),
    ],
)
def test_labels_that_are_not_those_of_all_devices_are_refused(
    labels: list[Any], count: int, words: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=words):
        DataManager(table(tmp_path, labels), DataSettings(classes=count), 0)


def test_folders_of_images_are_numbered_by_their_names(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("0", "2"):
        (tmp_path / "train" / name).mkdir(parents=True)
        image.new("L", (2, 2)).save(tmp_path / "train" / name / "a.png")
    assert DataManager(str(tmp_path), DataSettings(classes=3), 0).registration("a" * 32).train == (1, 0, 1)
    assert DataManager(str(tmp_path), DataSettings(), 0).registration("a" * 32).classes == ("0", "2")


def test_devices_that_number_their_labels_otherwise_are_told_apart(tmp_path: Path) -> None:
    for one, other, words in (
        ([0, 1], [1, 2], r"got ('0', '1'|'1', '2') on .*, ('0', '1'|'1', '2') on .*data.classes"),
        (["cat", "dog"], ["dog", "fox"], "classes must have the same names in the same order, got"),
    ):
        folder = tmp_path / str(one[0])
        ours = [Membership(table(folder / f"d{k}", labels), folder / f"s{k}") for k, labels in enumerate((one, other))]
        with pytest.raises(SettingError, match=words):
            register_devices(
                fleet_of([*ours], folder), folder / "devices.json", settings(**{"data.classes": 0}), ["logistic"]
            )
        assert not (folder / "devices.json").exists()
    folder = tmp_path / "numbers"
    ours = [Membership(table(folder / f"d{k}", labels), folder / f"s{k}") for k, labels in enumerate(([0, 1], [1, 2]))]
    said = settings(**{"data.test_fraction": 0.0})
    registry = register_devices(fleet_of([*ours], folder), folder / "devices.json", said, ["logistic"])
    assert {d.train for d in registry.devices} == {(6, 6, 0), (0, 6, 6)}


def test_columns_of_prepared_tables_are_told_apart(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    ours = []
    for k, towns in enumerate((("Bonn", "Kiel"), ("Kiel", "Ulm"))):
        path = tmp_path / f"{k}.csv"
        path.write_text("age,town,label\n" + "".join(f"{30 + i},{towns[i // 2 % 2]},{i % 2}\n" for i in range(12)))
        with pytest.warns(SettingWarning, match=r"each table is prepared by its own rows alone, .*leave prepare out"):
            ours.append(Membership(f"{path}?prepare=standard", tmp_path / f"state{k}"))
    with pytest.raises(
        SettingError, match=r"columns must have the same names .* from number 1 on, 'town_(Bonn|Kiel)', "
    ):
        register_devices(
            fleet_of([*ours], tmp_path), tmp_path / "devices.json", settings(**{"data.classes": 0}), ["logistic"]
        )


def test_names_that_no_server_takes_show_on_the_device(tmp_path: Path) -> None:
    found = DataManager(table(tmp_path, ["a", "b" * 1001]), DataSettings(), 0)
    with pytest.raises(RefusedError, match="the names of classes have at most 1000 characters, got 1001: rename 'bbb"):
        found.registration("a" * 32)


# ---- what the server evaluates the global model on


def served(folder: Path, labels: list[Any], test: str, **more: Any) -> Any:
    """The server's federation, of one device that has these labels."""
    ours = Membership(table(folder / "data", labels), folder / "state")
    said = settings(**({"data.classes": 0} | more))
    path = folder / "devices.json"
    register_devices(fleet_of([ours], folder), path, said, ["logistic"], test=test)
    return Experiment.of(said).changed("data.source", f"devices:{path}").federation()


def test_the_server_judges_by_all_rows_of_its_table(tmp_path: Path) -> None:
    source = table(tmp_path, ["no", "yes"], "test.csv") + "/test.csv"
    federation = served(tmp_path, ["no", "yes"], source)
    assert federation.test.x[:, 0].tolist() == list(range(12))
    rows = [f"{i},{i % 2},{'test' if i % 3 == 0 else 'train'}\n" for i in range(12)]
    (tmp_path / "parts.csv").write_text("".join(["a,label,part\n", *rows]))
    federation = served(tmp_path / "parts", [0, 1], f"{tmp_path}/parts.csv?split=part")
    assert federation.test.x[:, 0].tolist() == [0, 3, 6, 9]


def test_classes_of_the_test_examples_are_those_of_the_devices(tmp_path: Path) -> None:
    """Some may be missing there; none may be another."""
    some = table(tmp_path, ["yes"], "some.csv") + "/some.csv"
    test = served(tmp_path / "a", ["no", "yes"], some).test
    assert (test.y.tolist(), test.classes) == ([1] * 12, ("no", "yes"))
    some = table(tmp_path, [2], "some.csv") + "/some.csv"
    assert served(tmp_path / "b", [1, 2], some).test.y.tolist() == [1] * 12
    assert served(tmp_path / "c", [0, 1], some, **{"data.classes": 3}).test.y.tolist() == [2] * 12
    with pytest.raises(SettingError, match="on all devices the classes are '0', '1', got '2' in some"):
        served(tmp_path / "d", [0, 1], some)
    (tmp_path / "other.csv").write_text("b,label\n1,0\n2,1\n")
    with pytest.raises(
        SettingError,
        match=r"test examples are as those of the devices: columns .* got 'a' on .*, 'b' in other: give",
    ):
        served(tmp_path / "e", [0, 1], f"{tmp_path}/other.csv")


# ---- being asked


def test_who_is_late_is_not_asked_and_its_answer_is_dropped(tmp_path: Path) -> None:
    answers: list[bytes | None] = [None]
    fleet = fleet_of([lambda message: answers[0], lambda message: message.upper()], tmp_path)
    fleet.ranks = {"slow": 1, "quick": 2}
    requests = {"slow": b"one", "quick": b"two", "away": b"three"}
    found = dict(fleet.ask(requests.items(), 0.01))
    assert found == {
        "slow": NoResponse("no answer within 0.01 s"),
        "quick": b"TWO",
        "away": NoResponse("it is not there"),
    }
    assert fleet.connected() == ["quick"]
    assert dict(fleet.ask({"slow": b"again"}.items(), 0.01)) == {
        "slow": NoResponse("it is still busy with an earlier request")
    }
    wires = fleet.manager
    assert isinstance(wires, InProcess)
    wires.answers[1].append(b"late")
    answers[0] = b"new"
    assert dict(fleet.ask({"slow": b"again"}.items(), 0.01)) == {"slow": b"new"}
    assert [(line["event"], line["device"]) for line in log(tmp_path)] == [("late", "slow")]


def test_who_is_slow_to_join_is_asked_all_the_same(tmp_path: Path) -> None:
    """What it says to its welcome comes when nobody waits for it any more, and is no answer to the first request."""
    late = dict[int, list[bytes]]()

    def slow(rank: int) -> Device:
        def answer(message: bytes) -> bytes | None:
            if message == b"welcome":
                late[rank] = [b"{}"]
                return None
            assert isinstance(wires, InProcess)
            wires.answers[rank].extend(late.pop(rank, []))  # once it is ready, in the order in which it was asked
            return message.upper()

        return answer

    fleet = fleet_of([slow(1), slow(2)], tmp_path)
    wires = fleet.manager
    assert isinstance(wires, InProcess)
    fleet.ranks = {"slow": 1, "slower": 2}
    for rank in (1, 2):
        fleet.send_notice(rank, b"welcome")
    assert set(fleet.connected()) == {"slow", "slower"}
    for _ in range(2):
        assert dict(fleet.ask({"slow": b"one", "slower": b"two"}.items(), 0.01)) == {"slow": b"ONE", "slower": b"TWO"}
    fleet.send_notice(1, b"welcome")
    wires.answers[1].extend(late.pop(1))  # before it is asked
    assert dict(fleet.ask({"slow": b"three"}.items(), 0.01)) == {"slow": b"THREE"}
    assert not (tmp_path / "audit.jsonl").exists()


def test_who_is_slow_to_join_and_then_late_is_asked_again(tmp_path: Path) -> None:
    answers: list[bytes | None] = [None]
    fleet = fleet_of([lambda message: answers[0]], tmp_path)
    fleet.ranks = {"one": 1}
    fleet.send_notice(1, b"welcome")
    assert dict(fleet.ask({"one": b"first"}.items(), 0.01)) == {"one": NoResponse("no answer within 0.01 s")}
    wires = fleet.manager
    assert isinstance(wires, InProcess)
    wires.answers[1].append(b"{}")  # of the welcome: the late answer is still to come
    assert dict(fleet.ask({"one": b"second"}.items(), 0.01)) == {
        "one": NoResponse("it is still busy with an earlier request")
    }
    wires.answers[1].append(b"late")
    answers[0] = b"new"
    assert dict(fleet.ask({"one": b"third"}.items(), 0.01)) == {"one": b"new"}
    assert [line["event"] for line in log(tmp_path)] == ["late"]


def test_who_is_gone_is_not_there(tmp_path: Path) -> None:
    def gone(message: bytes) -> bytes:
        raise EOFError

    fleet = fleet_of([gone], tmp_path)
    fleet.ranks = {"one": 1}
    assert dict(fleet.ask({"one": b"m"}.items(), None)) == {
        "one": NoResponse("its connection ended, or it sent too much")
    }
    assert dict(fleet.ask({"one": b"m"}.items(), None)) == {"one": NoResponse("it is not there")}
    assert [line["event"] for line in log(tmp_path)] == ["left"]


# ---- leaving


class Rank(CommunicationManager):
    """A device's end: what it receives comes from a queue."""

    def __init__(self) -> None:
        self.coming: queue.Queue[bytes | None] = queue.Queue()
        self.answered = list[bytes]()
        self.rank, self.size = 1, 2

    def receive(self) -> memoryview:
        message = self.coming.get()
        if message is None:
            raise EOFError
        return memoryview(message)

    def answer(self, message: bytes) -> None:
        self.answered.append(message)

    post = wait = take = arrivals = None  # type: ignore[assignment]


def joined(folder: Path) -> tuple[Rank, Membership]:
    rank, (one,) = Rank(), members(folder, 1)
    rank.coming.put(json.dumps({"run": "a" * 32, "versions": versions(), "settings": settings()}).encode())
    rank.coming.put(json.dumps({"client": 0, "model": "logistic", "token": "t"}).encode())
    return rank, one


def test_a_device_leaves_when_the_server_is_done(tmp_path: Path) -> None:
    rank, one = joined(tmp_path)
    rank.coming.put(CLOSED)
    threads = torch.get_num_threads()
    assert take_part(rank, one) is False
    assert rank.answered[-1] == CLOSED
    assert torch.get_num_threads() == threads


def test_a_device_whose_server_is_gone_says_so(tmp_path: Path) -> None:
    rank, one = joined(tmp_path)
    rank.coming.put(None)
    with pytest.raises(RankError, match="the server is gone: start it with --resume, and start this device again"):
        take_part(rank, one)


def test_sigterm_leaves(tmp_path: Path) -> None:
    rank, one = joined(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def ask_once_it_listens() -> None:  # before that, the signal would end the tests
        while signal.getsignal(signal.SIGTERM) is before:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask_once_it_listens, daemon=True).start()
    assert take_part(rank, one) is True
    assert signal.getsignal(signal.SIGTERM) is before
    rank.coming.put(None)  # the thread that waits


# ---- late, mute, gone and back


def mute(message: bytes) -> None:
    """Who has connected and says nothing."""


def test_who_is_mute_holds_nobody_up_for_longer_than_is_said(tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    fleet, before = fleet_of([mute, one], tmp_path), time.monotonic()
    with pytest.raises(
        SettingError, match=r"a run begins with at least 2 devices, got 1 within 0.1 s: .*, or .* \(--least 1\)"
    ):
        register_devices(fleet, tmp_path / "devices.json", settings(), ["logistic"], wait=0.1)
    assert "the run does not begin: a run begins with at least 2 devices, got 1" in ended(fleet)[0]
    assert not (tmp_path / "devices.json").exists()
    again = Membership(one.source, one.folder)
    fleet = fleet_of([mute, again], tmp_path)
    registry = register_devices(fleet, tmp_path / "devices.json", settings(), ["logistic"], wait=0.1, min_devices=1)
    assert registry.names == (one.id,)
    assert list(fleet.connected()) == [one.id]
    assert time.monotonic() - before < 15


def test_nobody_is_waited_for_once_all_are_there(tmp_path: Path) -> None:
    before = time.monotonic()
    register_devices(
        fleet_of([*members(tmp_path)], tmp_path), tmp_path / "devices.json", settings(), ["logistic"], wait=60
    )
    assert time.monotonic() - before < 30


def test_who_was_gone_is_let_in_again_and_nobody_else_by_its_name(tmp_path: Path) -> None:
    ours = members(tmp_path)
    dead = [False]

    def dies(message: bytes) -> bytes:
        if dead[0]:
            raise EOFError
        return ours[0](message)

    fleet = fleet_of([dies, ours[1]], tmp_path)
    registry = register_devices(fleet, tmp_path / "devices.json", settings(), ["logistic"])
    wires = fleet.manager
    assert isinstance(wires, InProcess)
    twin = Membership(ours[1].source, ours[1].folder)
    wires.come(twin)  # a second machine with the id of one that is connected
    fleet.admit_arrivals()
    assert f"device {ours[1].id} has joined at another rank" in wires.failures[3]
    dead[0] = True
    wires.failures[1] = "killed"
    fleet.admit_arrivals()
    assert list(fleet.connected()) == [ours[1].id]
    back = Membership(ours[0].source, ours[0].folder)
    rank = wires.come(back)
    fleet.admit_arrivals()
    assert set(fleet.connected()) == set(registry.names)
    assert fleet.ranks[ours[0].id] == rank
    assert back.controller is not None
    assert back.controller.token == fleet.tokens[ours[0].id]
    stranger = Membership(str(npz(tmp_path / "more", [0, 1])), tmp_path / "state of more")
    wires.come(stranger)
    fleet.admit_arrivals()
    assert fleet.waiting[5].id == stranger.id
    assert [line["event"] for line in log(tmp_path)] == ["joined"] * 2 + ["refused", "left", "joined", "waits"]


def test_who_comes_back_is_sent_public_examples_as_well(tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    fleet = fleet_of([one], tmp_path)
    given = from_arrays(np.zeros((3, 4), np.float32), np.arange(3))
    register_devices(fleet, tmp_path / "devices.json", settings(), ["logistic"], public=True)
    send_public(fleet, given, labels=False)
    wires = fleet.manager
    assert isinstance(wires, InProcess)
    wires.failures[1] = "killed"
    back = Membership(one.source, one.folder)
    wires.come(back)
    fleet.admit_arrivals()
    assert back.controller is not None
    assert back.controller.runtime.population.federation.public is not None


def test_where_nobody_is_left_the_run_waits_and_then_stops(tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    fleet = fleet_of([one], tmp_path)
    register_devices(fleet, tmp_path / "devices.json", settings(), ["logistic"], wait=0.1)
    wires = fleet.manager
    assert isinstance(wires, InProcess)
    wires.failures[1] = "killed"
    with pytest.raises(RankError, match=r"no device is connected, and none returned within 0.1 s: continue with --"):
        fleet.admit_arrivals()
    fleet.wait = None
    threading.Timer(0.2, wires.come, [Membership(one.source, one.folder)]).start()
    fleet.admit_arrivals()
    assert list(fleet.connected()) == [one.id]


def test_who_comes_at_the_end_hears_that_it_is_over(tmp_path: Path) -> None:
    ours = members(tmp_path)
    fleet = fleet_of([*ours], tmp_path)
    register_devices(fleet, tmp_path / "devices.json", settings(), ["logistic"])
    wires = fleet.manager
    assert isinstance(wires, InProcess)
    wires.failures[1] = "killed"
    back = Membership(ours[0].source, ours[0].folder)
    wires.come(back)
    fleet.close()
    assert back.is_over
    assert ours[1].is_over
    rank, late = Rank(), Membership(ours[0].source, ours[0].folder)
    rank.coming.put(CLOSED)
    assert take_part(rank, late) is False


def test_a_server_that_goes_once_it_has_said_that_it_is_over_is_not_gone(tmp_path: Path) -> None:
    class Gone(Rank):
        def answer(self, message: bytes) -> None:
            raise EOFError("rank 0 is gone")

    rank, (one,) = Gone(), members(tmp_path, 1)
    rank.coming.put(CLOSED)
    assert take_part(rank, one) is False


# ---- networks, of which a device has one


TEACH: dict[str, dict[str, Any]] = {
    "dense": {"T_G": 2, "ngf": 4, "nz": 4, "synthesis.batch_size": 8},
    "fed_dafl": {"steps": 2, "ngf": 4, "nz": 4, "synthesis.batch_size": 8},
    "fed_adi": {"steps": 2, "synthesis.batch_size": 8},
    "feddf": {"steps": 2},
    "pfedsd": {"teacher_store": "soft_predictions"},
}


def images(file: Path, count: int, classes: int) -> str:
    """Write some images, of the first classes alone, two thirds of them to train on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    x = np.random.default_rng(count).normal(size=(count, 1, 8, 8)).astype(np.float32)
    y, cut = np.arange(count) % classes, 2 * count // 3
    np.savez(file, x_train=x[:cut], y_train=y[:cut], x_test=x[cut:], y_test=y[cut:])
    return str(file)


def taught(folder: Path, algorithm: str, **more: Any) -> Any:
    """Return the job of three devices with the networks mlp, logistic and mlp, and their connections."""
    own = {f"{algorithm}.{name}": value for name, value in TEACH[algorithm].items()}
    words: dict[str, Any] = {
        "algorithm": algorithm, "model": "mlp,logistic", "data.classes": 4, "run.rounds": 2, "run.cohort_size": 3,
        "local.epochs": 1, "local.batch_size": 8, "run.compilation": "none",
    }  # fmt: skip
    ours = site_devices.members_of(folder, [images(folder / f"{k}.npz", 12 + 3 * k, 2 + k) for k in range(3)])
    manager, test = InProcess(ours), images(folder / "test.npz", 24, 4)
    public = {"data.public_source": images(folder / "public.npz", 15, 4), "data.public": 10} | more
    needs_public = catalogue.kind(algorithm)().requires.public
    job = site_devices.serve(folder, {**words, **own, **(public if needs_public else more)}, manager, test, wait=0.2)
    if needs_public:
        send_public(job.fleet, job.federation.public, labels=False)
    return job, manager


@pytest.mark.some(2)
@pytest.mark.filterwarnings(
    "ignore:lambda1 = 1.0 weighs.* in mlp, logistic,", "ignore:alpha_f = 10.0 .* mlp, logistic,"
)
@pytest.mark.parametrize("algorithm", ["dense", "fed_dafl", "fed_adi", "feddf"])
def test_a_device_knows_every_network_of_the_run(algorithm: str, tmp_path: Path) -> None:
    """The student is one of the run's networks, which a device need not have; what it lacks is no warning of it."""
    job, manager = taught(tmp_path, algorithm, **{f"{algorithm}.student": "logistic"})
    history = job.run(tmp_path / "out")
    assert manager.failures == {}
    assert [record.get("failed", {}) for record in history.metrics] == [{}, {}, {}]
    for member in manager.answering:
        population = member.controller.runtime.population
        assert list(population.models) == ["mlp", "logistic"]
        assert population.assignment == (("mlp", "logistic", "mlp")[population.first],)


@pytest.mark.slow
def test_states_that_travel_are_as_large_as_those_of_the_largest_device(tmp_path: Path) -> None:
    job, manager = taught(tmp_path, "pfedsd", **{"run.stateless": True, "model": "logistic"})
    history = job.run(tmp_path / "out")
    assert [record.get("failed", {}) for record in history.metrics] == [{}, {}, {}]
    tables = {member.controller.runtime.algorithm.table for member in manager.answering}
    assert tables == {(12, 4)}  # two thirds of 18


def test_models_that_are_sent_once_come_from_as_many_devices_as_a_run_begins_with(tmp_path: Path) -> None:
    """A device that fails then would be missed for the rest of the run: it stops, and goes on with fewer if told so."""
    job, manager = taught(tmp_path, "dense", **{"dense.lambda1": 0.0, "dense.student": "mlp"})
    registry = Registry.read(tmp_path / "devices.json")
    assert job.fleet.least == registry.least == 3
    manager.failures[2] = "gone"
    words = (
        r"DENSE is taught by the models of at least 3 devices \(--least\), got 2 in round 1: continue with --resume "
        "--least 3, which waits for the others, or without them with --resume --least 2"
    )
    with pytest.raises(RankError, match=words):
        job.run(tmp_path / "out")
    for given, least in ((None, 3), (2, 2)):
        there = [Membership(m.source, m.folder) for m in (manager.answering[0], manager.answering[2])]
        fleet, described = fleet_of([*there], tmp_path), manager.answering[0].experiment.described()
        register_devices(
            fleet, tmp_path / "devices.json", described, ["mlp", "logistic"], test=registry.test, wait=0.2,
            min_devices=given,
        )  # fmt: skip
        assert fleet.least == least
    assert Registry.read(tmp_path / "devices.json") == registry
