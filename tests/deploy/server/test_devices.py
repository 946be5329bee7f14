"""The server's side of devices: what it registers, whom it hears, and what it takes for an answer."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedloom import Job, RunSettings, run
from fedloom.algorithms import FedAvg, PFedSD, Scaffold
from fedloom.coordinator.history import History
from fedloom.coordinator.verification import verify
from fedloom.core import tree
from fedloom.core.errors import CodecError, FedloomError, RefusedError, SettingError, StorageError
from fedloom.data.examples import MAX_CLASSES
from fedloom.deploy.device import Controller, Limits, ModelManager, Reading
from fedloom.deploy.registration import CAP, Registration, cap_of
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.device_registry import Registry, RemoteExamples
from fedloom.deploy.server.devices import Devices
from fedloom.deploy.server.fleet import RankFleet
from fedloom.deploy.server.serve import check_devices
from fedloom.engines.engine_options import Options
from fedloom.engines.faults import Faults
from fedloom.engines.message import Call, EvaluationResult
from fedloom.engines.message_bytes import head_of, pack, seal, unpack, unseal, with_checksum
from fedloom.engines.population import Population
from fedloom.engines.runtime import Runtime
from fedloom.testing.compare import same
from fedloom.testing.in_process import DevicesInProcess, InProcess, fleet_of, population_of, token_of
from tampering import HARMLESS, HARMS, tamper_with, with_upload, with_weight
from tiny import LOCAL, federation, mlp, population

PEOPLE = federation(val_fraction=0.2)
MODELS = {"net": mlp}
RUN = "a" * 32


def registrations() -> list[Registration]:
    """The six clients of the tests, as they would register."""
    f = PEOPLE
    found = []
    for k in range(f.num_clients):
        parts = (f.partition, f.local_test, f.local_val)
        counts = [tuple(map(int, part.counts(f.train.y, 3)[k])) for part in parts if part is not None]
        found.append(Registration(f"{k:032x}", *counts, (4,), "float32"))
    return found


class Fleetwide:
    """Six devices with folders of their own, and the server's job, which has nothing of their examples."""

    def __init__(self, folder: Path, algorithm: Any, **more: Any) -> None:
        self.folder, self.algorithm = folder, algorithm
        self.stateless = more.get("stateless", False)
        self.registry = Registry.of(RUN, registrations(), ["net"])
        self.settings = RunSettings(
            **{"rounds": 5, "cohort_size": 3, "engine": "devices", "compilation": "none", "on_nonfinite": "refuse"}
            | more
        )
        self.monitors: dict[int, Reading] = {}
        self.begin()

    def begin(self) -> None:
        """The devices, and the server, start."""
        self.folder.mkdir(exist_ok=True)
        people = Job(
            algorithm=self.algorithm,
            federation=PEOPLE,
            model=MODELS,
            settings=RunSettings(engine="loop", cohort_size=3, measures=self.settings.measures),
        ).population
        devices = {name: self.controller(people, k) for k, name in enumerate(self.registry.names)}
        self.fleet = fleet_of(devices, Audit(self.folder / "audit.jsonl"))

    def controller(self, people: Population, k: int) -> Controller:
        runtime = Runtime(population_of(people, k), self.algorithm)
        models = None if self.stateless else ModelManager(self.folder / str(k), runtime.fresh(0))
        return Controller(
            self.registry.names[k], token_of(self.registry.names[k]), runtime, models,
            monitor=lambda: self.monitors.get(k, Reading()), start_limits=Limits(battery=0.5),
        )  # fmt: skip

    def job(self) -> Job:
        whole = self.registry.federation(PEOPLE.test)
        return Job(algorithm=self.algorithm, federation=whole, model=MODELS, settings=self.settings, fleet=self.fleet)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "audit.jsonl").read_text().splitlines()]


def of_loop(algorithm: Any, faults: Faults | None = None, **more: Any) -> Any:
    settings = RunSettings(**{"rounds": 5, "cohort_size": 3, "engine": "loop", "compilation": "none"} | more)
    return Job(algorithm=algorithm, federation=PEOPLE, model=MODELS, settings=settings, faults=faults).run()


# ---- a run


@pytest.mark.some(1)
@pytest.mark.parametrize("algorithm", [FedAvg(local=LOCAL), PFedSD(local=LOCAL), Scaffold(local=LOCAL)])
def test_a_run_of_devices_has_the_numbers_of_the_loop(algorithm: Any, tmp_path: Path) -> None:
    ours, want = Fleetwide(tmp_path, algorithm), of_loop(algorithm)
    history = ours.job().run()
    of_rounds = [line for line in ours.log() if "seconds" in line]
    assert Counter(line["round"] for line in of_rounds) == dict.fromkeys(range(1, 6), 3)
    assert {line["method"] for line in of_rounds} == {"local_update"}
    assert history.metrics == want.metrics
    same(want.server, history.server, "the server state")
    assert history.metrics[-1]["val_accuracy"] is not None


@pytest.mark.slow
def test_stateless_devices_give_the_same_bits(tmp_path: Path) -> None:
    algorithm = PFedSD(local=LOCAL)
    runs = [Fleetwide(tmp_path / str(s), algorithm, stateless=s).job().run() for s in (False, True)]
    same(runs[0].server, runs[1].server, "the server state")
    bytes_of = [
        [{n: v for n, v in m.items() if not n.startswith("bytes_")} for m in history.metrics] for history in runs
    ]
    assert bytes_of[0] == bytes_of[1]
    assert runs[1].metrics[-1]["bytes_down_personal"] > 0
    assert "bytes_down_personal" not in runs[0].metrics[-1]
    assert not list(tmp_path.glob("True/[0-9]*"))  # on no device


@pytest.mark.slow
@pytest.mark.parametrize("stateless", [False, True])
def test_a_killed_server_goes_on_and_devices_may_be_other_machines(stateless: bool, tmp_path: Path) -> None:
    """The newest checkpoint is of round 2, devices hold states of round 3, and all of them start again."""
    whole, algorithm = of_loop(PFedSD(local=LOCAL), stateless=stateless), PFedSD(local=LOCAL)
    ours = Fleetwide(tmp_path / "devices", algorithm, checkpoint_every=2, stateless=stateless)

    def kill(history: Any) -> None:
        if len(history.metrics) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ours.job().run(tmp_path / "run", on_round=kill)
    ours.begin()
    history = ours.job().run(tmp_path / "run", resume=True)
    assert history.metrics == whole.metrics
    assert Counter(line["event"] for line in ours.log()).keys() == {"answered"}


@pytest.mark.slow
def test_what_a_device_cannot_stand_at_is_refused(tmp_path: Path) -> None:
    ours = Fleetwide(tmp_path / "devices", PFedSD(local=LOCAL), cohort_size=6)
    job = ours.job()
    job.run(tmp_path / "run")
    for file in (tmp_path / "devices" / "0").iterdir():
        file.unlink()
    ours.begin()
    ours.settings = dataclasses.replace(ours.settings, rounds=6)
    history = ours.job().run(tmp_path / "run", resume=True)
    assert history.metrics[-1]["failed"]["0"].startswith("refused: it has failed: StorageError: this device holds")
    assert len(history.metrics[-1]["failed"]) == 1


# ---- who is lost, declines, or is not taken


SAID = {  # what the audit log says of the answers of devices 2 and 4 in round 2
    "lost": ("lost", "no answer within 0.05 s"),
    "slow": ("lost", "no answer within 0.05 s"),
    "replayed": ("refused", "it answers request"),
    "swapped": ("refused", "a message was damaged on its way, or its sender has not joined"),
    "corrupted": ("refused", "a message was damaged"),
    "forged": ("refused", "a message was damaged"),
    "malicious": ("refused", "the upload is not finite"),
    "absurd": ("refused", "the upload has a norm of"),
}


@pytest.mark.slow
@pytest.mark.parametrize("harm", HARMS)
def test_answers_that_do_not_count_change_nothing(harm: str, tmp_path: Path) -> None:
    """Whatever happens to the answers of two devices, the run is that of the loop which loses whom the record names."""
    algorithm = PFedSD(local=LOCAL)

    def plan(round: int, exchange: int, client: int) -> str | None:
        return harm if round == 1 and client in (2, 4) else None

    ours = Fleetwide(tmp_path, algorithm, cohort_size=6, rounds=3, deadline=0.05, bound="refuse:sent:100")
    tamper_with(ours.fleet, plan)
    history = ours.job().run()
    lost = {(m["round"] - 1, int(k)): why for m in history.metrics for k, why in m.get("failed", {}).items()}
    stays = {(2, 2), (2, 4)} if harm == "lost" else set()  # whose answer never comes is not asked again
    assert lost.keys() == (set() if harm in HARMLESS else {(1, 2), (1, 4)} | stays)
    want = of_loop(algorithm, lambda t, e, k: lost.get((t, k)), cohort_size=6, rounds=3)
    same(want.server, history.server, harm)
    # A refused upload has been sent all the same; who is not there is not evaluated.
    unlike = {"malicious": "bytes_", "absurd": "bytes_", "lost": ("personal_", "val_")}.get(harm, "-")
    for got, m in zip(history.metrics, want.metrics, strict=True):
        names = [name for name in m if not name.startswith(unlike)]
        assert {name: got[name] for name in names} == {name: m[name] for name in names}
    if harm in SAID:
        event, why = SAID[harm]
        lines = [line for line in ours.log() if line["event"] == event and line["round"] == 2]
        first = {line["device"]: line["why"][: len(why)] for line in reversed(lines)}
        assert first == {ours.fleet.names[k]: why for k in (2, 4)}
    if harm == "duplicated":
        late = [(line["device"], line["why"]) for line in ours.log() if line["event"] == "late"]
        assert late == [(ours.fleet.names[k], "its answer came twice, or unasked, and was dropped") for k in (2, 4)]


@pytest.mark.slow
def test_nobody_answers_and_the_server_stays(tmp_path: Path) -> None:
    ours = Fleetwide(tmp_path, FedAvg(local=LOCAL), rounds=2, cohort_size=6, deadline=0.05)
    engine_of: list[Any] = []
    tamper_with(ours.fleet, lambda t, e, k: "slow" if t == 1 else None)
    history = ours.job().run(on_round=lambda h: engine_of.append(h.server))
    same(engine_of[0], engine_of[1], "nobody answered")
    assert len(history.metrics[-1]["failed"]) == 6


@pytest.mark.slow
def test_a_device_that_is_low_declines(tmp_path: Path) -> None:
    ours = Fleetwide(tmp_path, FedAvg(local=LOCAL), rounds=1, cohort_size=6)
    ours.monitors[3] = Reading(battery=0.25)
    history = ours.job().run()
    assert history.metrics[1]["failed"] == {"3": "declined: battery is 0.25, at least 0.5 is asked for"}
    declined = [line for line in ours.log() if line["event"] == "declined" and line["round"] == 1]
    assert {line["device"] for line in declined} == {ours.fleet.names[3]}
    assert "3" not in history.metrics[1]["personal_by_client"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "devices"])
def test_spares_take_the_places_of_decliners(engine: str, tmp_path: Path) -> None:
    algorithm, low = FedAvg(local=LOCAL), {1, 4}
    if engine == "loop":
        history = of_loop(algorithm, lambda t, e, k: "declined" if k in low else None, spares=2)
    else:
        ours = Fleetwide(tmp_path, algorithm, spares=2)
        ours.monitors.update(dict.fromkeys(low, Reading(battery=0.0)))
        history = ours.job().run()
    drawn = [{*m["clients"], *map(int, m["declined"])} for m in history.metrics[1:]]
    assert any(m["declined"] for m in history.metrics[1:])
    for m, those in zip(history.metrics[1:], drawn, strict=True):
        assert len(m["clients"]) == 3
        assert set(map(int, m["declined"])) == low & those
        assert not m["failed"]
    assert len(of_loop(algorithm, spares=2, cohort_size=5).metrics[1]["clients"]) == 5


def test_spares_are_not_fewer_than_none() -> None:
    with pytest.raises(SettingError, match="spares must be >= 0, got -1"):
        RunSettings(spares=-1)


# ---- what an answer may be


class Answered:
    """One device, asked once, whose answer tests change before the server takes it."""

    def __init__(self) -> None:
        self.engine = DevicesInProcess(population(mlp), PFedSD(local=LOCAL))
        fleet = self.engine.fleet
        assert fleet is not None
        self.name, self.token = fleet.names[2], fleet.tokens[fleet.names[2]]
        self.call = Call("local_update", (self.engine.runtime.initial("net"),), 0, 0, 0.1)
        self.request = self.engine.request(self.call, [2], lambda ids: ())
        ((_, answer),) = self.engine._exchange({2: self.request}, self.call.broadcast)
        assert isinstance(answer, memoryview)
        self.sound = bytes(answer)

    def taken(self, data: bytes) -> Any:
        return self.engine.read_answer(self.request, self.engine.opened(2, memoryview(data)))

    def changed(self, head: dict[str, Any], parts: dict[str, Any]) -> bytes:
        message = unpack(unseal(self.sound, self.token, 1 << 30))
        return seal(pack({**message.head, **head}, {**message.parts, **parts}), self.token)


def test_an_answer_is_that_of_the_device_to_the_newest_request() -> None:
    ours = Answered()
    assert ours.taken(ours.sound)[1].steps
    for head, parts, words in (
        ({"from": "device 3"}, {}, "it answers for 'device 3'"),
        ({"number": 0}, {}, "it answers request 0, and was sent 1"),
        ({"number": None}, {}, "it answers request None"),
        ({"problem": {"kind": "DeclinedError", "text": "no"}, "number": None}, {}, "no"),
        ({"problem": {"kind": "KeyError", "what": "boo"}}, {}, "boo"),
        ({"problem": 5}, {}, "it has failed: 5"),
        ({"warnings": 5}, {}, None),  # its words are for its own log
        ({"steps": [[1 << 62]]}, {}, "counts the steps"),
        ({"steps": [[1 << 70]]}, {}, "integers have at most 20 digits"),
        ({"steps": [[]]}, {}, "counts the steps"),  # of one client each
        ({"steps": [[1, 1]]}, {}, "counts the steps"),
        ({}, {"state": torch.zeros(1)}, "state is not what was asked for"),
        ({}, {"more": torch.zeros(1)}, "has no part 'more'"),
    ):
        if words is None:
            ours.taken(ours.changed(head, parts))
            continue
        with pytest.raises(FedloomError, match=words):
            ours.taken(ours.changed(head, parts))


def test_an_answer_is_no_larger_than_the_limit() -> None:
    ours = Answered()
    ours.engine.limit = 100
    with pytest.raises(RefusedError, match=r"a message of \d+ bytes, and at most 100 are taken"):
        ours.taken(ours.sound)


def test_losses_are_of_the_steps_that_were_asked_for() -> None:
    """Two epochs of three batches; without this, a list of any length is paid for."""
    ours = Answered()
    told = unpack(unseal(ours.sound, ours.token, 1 << 30)).parts["losses"]
    assert [tuple(t.shape) for t in told] == [(1, 6)]
    for losses, count in (
        ([torch.zeros(1, 7)], 7),
        ([torch.zeros(1, 0)] * 7, 7),
        ([torch.zeros(1, 1 << 20, dtype=torch.float64)], 1 << 20),
    ):
        with pytest.raises(CodecError, match=f"losses are of at most the 6 steps that were asked for, got {count}"):
            ours.taken(ours.changed({}, {"losses": losses}))
    shorter = ours.changed({"steps": [[2]]}, {"losses": [told[0][:, :2]]})
    assert ours.taken(shorter)[1].steps == ((2,),)


def test_a_server_receives_no_more_than_a_request_can_bring_back() -> None:
    ours = Answered()
    assert isinstance(ours.engine.fleet, RankFleet)
    ours.engine.fleet.manager.limit = 0
    list(ours.engine._exchange({2: ours.request}, ours.call.broadcast))
    most = ours.engine.fleet.manager.limit
    assert len(ours.sound) < most == ours.engine.size(ours.request) < 10 << 20
    ours.engine.fleet.expect(10)
    assert ours.engine.fleet.manager.limit == most  # a late answer is to an earlier request


def test_an_upload_weighs_what_was_registered_and_no_more() -> None:
    ours = Answered()
    size = int(ours.engine.population.sizes[2])
    for weight, counts in ((size, size), (10**9, size), (3, 3)):
        upload = ours.taken(with_weight(ours.sound, ours.token, weight))[1].upload
        assert upload.weight.tolist() == [counts]
    for weight in (-1, 0):
        with pytest.raises(RefusedError, match="weighs a finite number above 0"):
            ours.taken(with_weight(ours.sound, ours.token, weight))


@pytest.mark.slow
def test_answers_that_weigh_nothing_end_no_run(tmp_path: Path) -> None:
    ours = Fleetwide(tmp_path, FedAvg(local=LOCAL), rounds=2, cohort_size=2)
    wires = ours.fleet.manager
    assert isinstance(wires, InProcess)

    def weightless(device: Any, token: str) -> Any:
        def answer(data: bytes) -> bytes:
            method = head_of(unseal(data, token, 1 << 30))["method"]
            return with_weight(device(data), token, 0) if method == "local_update" else device(data)

        return answer

    wires.answering = [
        weightless(device, token_of(name)) for device, name in zip(wires.answering, ours.registry.names, strict=True)
    ]
    history = ours.job().run()
    assert [set(m["failed"].values()) for m in history.metrics[1:]] == [
        {"refused: an upload weighs a finite number above 0"}
    ] * 2


def test_nobody_gets_more_right_than_it_holds(tmp_path: Path) -> None:
    engine = DevicesInProcess(population(mlp), FedAvg(local=LOCAL))
    server = engine.init()
    (seen,) = engine.evaluate(server, [2], 0).values()
    request = engine.request(Call("personal", (), 0, "evaluate", 0.1, "test"), [2], lambda ids: ())
    seen = tree.stack([seen])  # [1, ...], as it travels
    right = seen.sums["accuracy"]
    for wrong in (seen.examples + 1, right - 100, right.double() * torch.nan):
        with pytest.raises(RefusedError, match=r"no [1-9]\d* examples have the accuracy that it sends"):
            engine._check_plausible(request, dataclasses.replace(seen, sums={"accuracy": wrong}))
    with pytest.raises(RefusedError, match="no more than the examples that it has registered"):
        engine._check_plausible(request, dataclasses.replace(seen, examples=seen.examples + 1000))
    assert engine._check_plausible(request, seen) is seen


@pytest.mark.parametrize("lie", ["auc", "balanced_accuracy", "calibration_error"])
def test_a_lie_about_a_measure_leaves_a_log_that_is_read(lie: str, tmp_path: Path) -> None:
    """The device that lies is refused, and the measures are those of the others."""
    measures = ("accuracy", lie)
    ours = Fleetwide(tmp_path, FedAvg(local=LOCAL), rounds=1, cohort_size=2, measures=measures)
    wires = ours.fleet.manager
    assert isinstance(wires, InProcess)

    def change(upload: Any) -> Any:
        for values in (upload.scores, upload.sums) if isinstance(upload, EvaluationResult) else ():
            if lie in values:
                values[lie] = torch.full_like(values[lie], 9)
        return upload

    def lying(device: Any, token: str) -> Any:
        return lambda data: with_upload(device(data), token, change)

    wires.answering[0] = lying(wires.answering[0], token_of(ours.registry.names[0]))
    history = ours.job().run(tmp_path / "run")
    assert History.read(tmp_path / "run").metrics == history.metrics
    refused = [line for line in ours.log() if line["event"] == "refused"]
    assert {line["device"] for line in refused} == {ours.registry.names[0]}
    assert all(line["why"].endswith(f"examples have the {lie} that it sends") for line in refused)
    assert history.metrics[-1][f"personal_{lie}"] is not None


def test_fuzzed_answers_are_refused_every_one() -> None:
    ours, rng = Answered(), Random(2)
    for _ in range(4000):
        data = bytearray(ours.sound)
        for _ in range(rng.choice((1, 1, 2, 8))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        if data != ours.sound:
            with pytest.raises(RefusedError):
                ours.taken(bytes(data[: rng.choice((len(data), rng.randrange(len(data))))]))


@pytest.mark.slow
def test_fuzzed_answers_of_the_device_itself_are_refused_or_taken_whole() -> None:
    """The same behind a digest that is right."""
    ours, rng, taken = Answered(), Random(3), 0
    want, sound = ours.taken(ours.sound)[1].upload, ours.sound[20:]
    for _ in range(2000):
        data = bytearray(sound)
        for _ in range(rng.choice((1, 1, 2, 8))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            upload = ours.taken(seal(with_checksum(bytes(data)), ours.token))[1].upload
        except FedloomError:
            continue
        taken += 1
        assert tree.same_structure(want, upload)
    assert taken


def test_an_engine_of_devices_needs_devices() -> None:
    engine = Devices(population(mlp), FedAvg(local=LOCAL))
    with pytest.raises(SettingError, match="a run of devices needs a fleet, got none: start it"):
        engine.round(engine.init(), [0], 0)
    with pytest.raises(SettingError, match="engine = 'devices' is for devices that join: fedloom serve"):
        run(FedAvg(local=LOCAL), PEOPLE, mlp, RunSettings(rounds=1, cohort_size=2, engine="devices"))
    keeping = DevicesInProcess(population(mlp), FedAvg(local=LOCAL))
    keeping.watch = lambda exchange: None
    with pytest.raises(SettingError, match="a round of devices cannot be replayed"):
        keeping.round(keeping.init(), [0], 0)


# ---- registration


def test_the_file_of_devices_with_classes_is_that_of_earlier_versions() -> None:
    """Its digest belongs to a run, which goes on."""
    described = Registry.of(RUN, registrations(), ["net"]).described()
    assert [*described] == ["run", "devices", "test", "cap"]
    known = ["id", "train", "test", "val", "shape", "dtype", "model", "classes", "columns"]
    assert [*described["devices"][0]] == known


def test_a_registry_is_the_same_whoever_came_first(tmp_path: Path) -> None:
    there = registrations()
    registry = Registry.of(RUN, there[::-1], ["net", "other"])
    assert registry.names == tuple(each.id for each in there)
    assert [each.model for each in registry.devices] == ["net", "other"] * 3
    registry.save(tmp_path / "devices.json")
    assert Registry.read(tmp_path / "devices.json") == registry


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"train"', '"test"', "names must be unique, got 'test' twice"),
        ('"test": ""', '"test": NaN', "numbers must be finite, got NaN"),
        ('"devices": [', '"devices": ' + 100_000 * "[", "JSON is nested too deeply"),
        ('"run"', '"ruin"', "'run'"),
    ],
)
def test_a_damaged_registry_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "devices.json"
    Registry.of(RUN, registrations(), ["net"]).save(path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1) + (99_999 * "]" if "[" in new else ""))
    with pytest.raises(StorageError, match=f"devices.json does not say which devices a run has: .*{message}"):
        Registry.read(path)


def test_a_federation_is_made_of_what_was_registered() -> None:
    found = Registry.of(RUN, registrations(), ["net"]).federation()
    for name in ("partition", "local_test", "local_val"):
        got, want = getattr(found, name), getattr(PEOPLE, name)
        assert (got.counts(found.train.y, 3) == want.counts(PEOPLE.train.y, 3)).all()
    assert isinstance(found.train, RemoteExamples)
    assert (found.num_classes, found.train.shape, len(found.train)) == (3, (4,), len(PEOPLE.train))
    assert found.train.x.untyped_storage().nbytes() == 4  # one number, however many examples
    assert found.train.fingerprint() == Registry.of(RUN, registrations(), ["net"]).federation().train.fingerprint()


def test_devices_hold_examples_that_are_alike() -> None:
    there = registrations()
    for change, words in (
        ({"shape": (5,)}, r"must have the same shape, got \(4,\) on 0+ and \(5,\)"),
        ({"dtype": "uint8"}, "must have the same dtype, got float32 on"),
        (
            {"train": (1, 2), "test": (0, 0), "val": (0, 0)},
            "classes must have the same names .* '2' on 0+, nothing more on",
        ),
    ):
        with pytest.raises(SettingError, match=words):
            Registry.of(RUN, [*there[:2], dataclasses.replace(there[2], **change)], ["net"])
    with pytest.raises(SettingError, match="a run needs at least 1 device, got none"):
        Registry.of(RUN, [], ["net"])
    with pytest.raises(
        SettingError, match=r"an architecture of the settings, net, got 'lenet' on 0{32}: leave --model out"
    ):
        Registry.of(RUN, [dataclasses.replace(there[0], model="lenet")], ["net"])


def named(one: Registration, classes: tuple[str, ...] = (), columns: tuple[str, ...] = ()) -> Registration:
    return dataclasses.replace(one, classes=classes, columns=columns)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (
            {},
            {"classes": ("1", "2", "3")},
            r"classes must have the same names in the same order, got '0', '1', '2' on 0+, '1', '2', '3' on 0+1: "
            r"give them .* or number them from 0 in all and set data.classes",
        ),
        (
            {"classes": ("cat", "dog", "eel")},
            {"classes": ("cat", "dog", "fox")},
            "from number 2 on, 'eel' on 0+, 'fox'",
        ),
        ({"classes": ("a", "b", "c\x1b\ud800")}, {}, r"'a', 'b', 'c\\x1b\\ud800' on"),
        (
            {"columns": ("age", "town_Bonn", "town_Kiel", "x")},
            {"columns": ("age", "town_Kiel", "town_Ulm", "x")},
            r"columns must have the same .* from number 1 on, 'town_Bonn', 'town_Kiel', 'x' on 0+, 'town_Kiel', .* 'x' "
            r"on 0+1: give all files the same columns in the same order; where prepare=standard",
        ),
        ({"columns": ("a", "b", "c", "d")}, {}, r"got 'a', 'b', 'c', 'd' on 0+, no names on 0+1:"),
    ],
)
def test_devices_call_classes_and_columns_alike(
    one: dict[str, tuple[str, ...]], other: dict[str, tuple[str, ...]], words: str
) -> None:
    first, second = registrations()[:2]
    assert len(Registry.of(RUN, [named(first, **one), named(second, **one)], ["net"]).devices) == 2
    with pytest.raises(SettingError, match=words):
        Registry.of(RUN, [named(first, **one), named(second, **other)], ["net"])


def test_classes_that_some_devices_lack_are_named() -> None:
    first, second = registrations()[:2]
    fewer = dataclasses.replace(second, train=(1, 2), test=(0, 0), val=(0, 0), classes=("a", "b"), columns=())
    with pytest.raises(
        SettingError, match=r"from number 2 on, 'c' on 0+, nothing more on 0+1: give them the same names"
    ):
        Registry.of(RUN, [named(first, ("a", "b", "c")), fewer], ["net"])
    # numbers that somebody has spelt are numbers
    assert Registry.of(RUN, [named(first, ("0", "1", "2")), named(second)], ["net"]).devices[0].classes


def test_who_has_joined_comes_back_as_who_it_was() -> None:
    there = registrations()
    registry = Registry.of(RUN, there[:3], ["net"])
    assert registry.admit(there[1]).model == "net"
    assert registry.admit(there[5]) == there[5]  # who comes later
    assert registry.admit(dataclasses.replace(there[1], train=(1, 1, 1))).train == (1, 1, 1)
    with pytest.raises(RefusedError, match="has registered with other examples"):
        registry.admit(dataclasses.replace(there[1], dtype="float64"))
    registry = Registry.of(RUN, [named(each, ("a", "b", "c")) for each in there[:3]], ["net"])
    with pytest.raises(RefusedError, match="has registered with other examples"):
        registry.admit(named(there[1], ("a", "c", "b")))


def test_of_one_device_no_more_count_than_ten_times_the_median() -> None:
    def sized(*sizes: int) -> list[Registration]:
        one = registrations()[0]
        return [dataclasses.replace(one, train=(size, 0, 0)) for size in sizes]

    assert cap_of(sized(10, 20, 30, 10**6)) == 200  # the lower one of two
    assert cap_of(sized(20, 10, 10**6)) == 200
    assert cap_of(sized(10, 10**6)) == CAP  # of two there is no median
    assert cap_of(sized(10**6, 10**6, 10**7)) == CAP


def test_sizes_are_capped() -> None:
    one = registrations()[0]
    assert one.with_cap(10**6) is not one
    assert one.with_cap(10**6) == one
    big = dataclasses.replace(one, train=(10**11, 0, 3 * 10**11))
    assert big.with_cap(1000).train == (250, 0, 750)
    many = dataclasses.replace(one, train=(2, 3, 3), test=(0, 0, 0), val=(1, 1, 1))  # each rounds to none
    assert many.with_cap(2).train == (0, 1, 1)
    assert many.with_cap(2).test == (0, 0, 0)
    assert many.with_cap(2).val == (1, 1, 0)
    assert dataclasses.replace(one, train=(3, 2, 2)).with_cap(4).train == (2, 1, 1)
    wide = dataclasses.replace(one, train=(1,) * 100, test=(0,) * 100, val=(0,) * 100)
    assert wide.with_cap(50).train == (1,) * 50 + (0,) * 50  # all 50 were of class 0


@pytest.mark.some(8)
@pytest.mark.parametrize(
    "change",
    [
        {"id": "../../etc/passwd"}, {"id": "A" * 32}, {"id": 5}, {"train": [1.5, 2, 3]}, {"train": [-1, 2, 3]},
        {"train": [True, 2, 3]}, {"train": 7}, {"train": [1 << 50, 0, 0]}, {"train": [0, 0, 0]}, {"train": []},
        {"test": [1]}, {"shape": []}, {"shape": [1 << 20, 1 << 20]}, {"dtype": "object"}, {"dtype": []},
        {"model": None}, {"val": None}, {"train": "123"}, {"classes": "abc"}, {"classes": ["a", "b"]},
        {"classes": ["a", "b", 3]}, {"classes": 3}, {"classes": ["a", "b", "c" * 1001]}, {"columns": ["a"]},
        {"shape": [2, 2], "columns": ["a", "b"]}, {"classes": None}, {"columns": None},
    ],
)  # fmt: skip
def test_registrations_that_are_none(change: dict[str, Any]) -> None:
    sound = json.loads(json.dumps(dataclasses.asdict(registrations()[0])))
    assert Registration.of(sound) == registrations()[0]
    with pytest.raises(RefusedError):
        Registration.of({**sound, **change})
    assert Registration.of({**sound, "classes": ["a", "b", "c"], "columns": []}).classes == ("a", "b", "c")
    many = {"train": [1] * 3000, "test": [0] * 3000, "val": [0] * 3000, "classes": ["c" * 1000] * 3000}
    with pytest.raises(RefusedError, match=r"names of classes take at most 2097152 bytes, got 30.*: shorten them"):
        Registration.of({**sound, **many})
    for other in (None, [], "no", 5, {}):
        with pytest.raises(RefusedError, match="a device registers with"):
            Registration.of(other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": "A" * 32}, "an id, 32 hexadecimal digits, got 'AAA"),
        ({"id": "a" * 32 + "\n"}, "an id, 32 hexadecimal digits, got 'aaa"),
        (
            {"test": [1, 0, True]},
            r"test examples by class, a list of 1 to .* below 2\*\*40, got \[1, 0, T",
        ),
        ({"train": [1 << 40, 0, 0]}, r"training examples by class, a list of 1 to .* below 2\*\*40, got \[10995"),
        ({"val": ["x"] * 3_000_000}, "validation examples by class, a list of 1 to"),  # and it takes no time
        ({"train": [1] * (MAX_CLASSES + 1)}, "training examples by class, a list of 1 to"),
        ({"shape": [1] * 9}, "shapes of an example, a list of 1 to 8 whole numbers, got"),
        (
            {"shape": [1 << 16, 1 << 16]},
            r"an example has at most 2\*\*30 values, got \(65536, 65536\): make it",
        ),
        ({"dtype": "object"}, "types of values, one of uint8, float32, float64, int64, got 'object': give it other ex"),
        ({"target_dtype": "int8"}, "types of targets, one of int64, float32, float64, got 'int8'"),
        ({"target_shape": [2, 2]}, "one target, a row of them or one for each pixel, got"),
        ({"target_shape": [2] * 4}, r"shapes of a target, \[\], \[D\] or the shape of a mask, of at most"),
        ({"statistics_digest": "f"}, "statistics, 32 hexadecimal digits or an empty text, got 'f'"),
        ({"vocabulary": 1 << 31}, r"numbers of tokens, a whole number below 2\*\*31, got 2147483648"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_a_registration_lacks_is_said(change: dict[str, Any], words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        Registration.of(registrations()[0].described() | change)


def test_the_audit_log_is_bounded_and_in_lines(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    audit("refused", "x" * 500, "words\n" * 1000, round=3)
    (line,) = (tmp_path / "audit.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert (len(found["device"]), len(found["why"]), found["round"]) == (80, 300, 3)


# ---- what decides a run is proved


def begun(folder: Path, **more: Any) -> Fleetwide:
    """A run of six devices that was stopped after its third round; the devices have started again."""
    ours = Fleetwide(folder / "devices", PFedSD(local=LOCAL), cohort_size=6, rounds=3, **more)
    ours.job().run(folder / "run")
    ours.settings = dataclasses.replace(ours.settings, rounds=5)
    ours.begin()
    return ours


@pytest.mark.slow
def test_a_state_is_taken_of_its_own_device_alone(tmp_path: Path) -> None:
    """The folders of two devices are exchanged between two starts: both are refused, and say what to do."""
    ours, devices = begun(tmp_path), tmp_path / "devices"
    for old, new in (("0", "aside"), ("1", "0"), ("aside", "1")):
        (devices / old).rename(devices / new)
    before = {path: path.read_bytes() for k in "01" for path in (devices / k).iterdir()}
    ours.begin()
    history = ours.job().run(tmp_path / "run", resume=True)
    for m in history.metrics[4:]:
        assert m["failed"].keys() == {"0", "1"}
        assert all("StorageError: this device's state after (round, exchange)" in why for why in m["failed"].values())
    why = [line["why"] for line in ours.log() if line["event"] == "refused"]
    assert why[0].endswith(": bring its own state folder back")
    assert {path: path.read_bytes() for path in before} == before  # nothing is lost by it
    lost = {(m["round"] - 1, int(k)) for m in history.metrics for k in m.get("failed", {})}
    want = of_loop(ours.algorithm, lambda t, e, k: "refused" if (t, k) in lost else None, cohort_size=6)
    same(want.server, history.server, "the loop that loses both")


def test_a_server_compares_the_digests_of_an_answer() -> None:
    ours = Answered()
    held = ours.taken(ours.sound)[0]
    made = head_of(unseal(ours.sound, ours.token, 1 << 30))["made"]
    assert bytes(held.digest[0].tolist()).hex() == made
    for head, words in (
        (
            {"began": "0" * 32},
            "it began from the state '0+, and that of this device is None: bring its own state folder back",
        ),
        ({"made": 5}, "the digest of a state is 32 hexadecimal digits, got 5"),
        ({"made": "x" * 32}, "the digest of a state is 32 hexadecimal digits"),
    ):
        with pytest.raises(FedloomError, match=words):
            ours.taken(ours.changed(head, {}))
    ours.engine.states[2] = tree.take(held, 0)
    assert ours.engine._digest(2) == made
    with pytest.raises(
        RefusedError, match=f"it began from the state None, and that of this device is '{made[:9]}: bring"
    ):
        ours.taken(ours.sound)


def test_a_device_that_is_judged_is_at_its_own_state() -> None:
    """What is evaluated is a state too."""
    engine = DevicesInProcess(population(mlp), PFedSD(local=LOCAL))
    server = engine.round(engine.init(), [2], 0)
    assert engine.evaluate(server, [2], 0).keys() == {2}
    held = engine.states[2]
    engine.states[2] = dataclasses.replace(held, digest=held.digest ^ 1)
    assert engine.evaluate(server, [2], 0).keys() == set()
    assert "StorageError: this device's state" in engine.lost[2]


def swapped(registry: dict[str, Any]) -> None:
    first, second = registry["devices"][:2]
    first["id"], second["id"] = second["id"], first["id"]


DAMAGES = {
    "ids swapped": swapped,
    "list reversed": lambda registry: registry["devices"].reverse(),
    "a digit of an id": lambda registry: registry["devices"][0].update(id="f" * 32),
    "another run": lambda registry: registry.update(run="b" * 32),
    "another cap": lambda registry: registry.update(cap=7),
    "another test": lambda registry: registry.update(test="x.npz"),
    "another model": lambda registry: registry["devices"][2].update(model="other"),
    "gone": None,
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_the_devices_of_a_run_are_proved(damage: str, tmp_path: Path) -> None:
    ours, path = begun(tmp_path), tmp_path / "run" / "devices.json"
    assert Registry.read(path) == ours.registry
    assert verify(tmp_path / "run").whole
    found, change = json.loads(path.read_text()), DAMAGES[damage]
    if change is None:
        path.unlink()
    else:
        change(found)
        path.write_text(json.dumps(found, indent=2) + "\n")
    assert "devices.json" in verify(tmp_path / "run").problems[0]
    with pytest.raises(StorageError, match=r"devices\.json is (missing|not what manifest.json has the digest of)") as e:
        ours.job().run(tmp_path / "run", resume=True)
    assert "writes it anew" not in str(e.value)  # nothing else knows it
    with pytest.raises(StorageError, match=r"devices\.json is"):
        check_devices(tmp_path / "run")


@pytest.mark.slow
def test_a_run_has_the_devices_with_which_it_began(tmp_path: Path) -> None:
    """Also where their counts are alike, so that nothing else differs."""
    ours = begun(tmp_path)
    ours.registry = dataclasses.replace(ours.registry, run="b" * 32)
    with pytest.raises(SettingError, match=r"a run with other settings or data: federation\.devices was"):
        ours.job().run(tmp_path / "run", resume=True)


def test_answers_are_used_in_the_order_of_clients_whoever_comes_first() -> None:
    """So sums over devices have the same last bit; a second answer is dropped, and who is lost is left out."""
    values, call = {2: 1e16, 3: 1.0, 5: -1e16, 8: 3.3}, Call("local_update", (), 0, 0, 0.1)

    def used(arriving: Sequence[int], clients: Sequence[int] = (2, 3, 4, 5, 8)) -> list[int]:
        engine: Any = SimpleNamespace(
            options=Options(),
            adding=None,
            started=None,
            _ask_devices=lambda *_: iter([(SimpleNamespace(clients=(k,)), None, values[k]) for k in arriving]),
        )
        return [request.clients[0] for request, _, _ in Devices.answers(engine, call, clients, Any)]

    for arriving in itertools.permutations(values):
        assert used(arriving) == [2, 3, 5, 8]
    assert used((8, 2, 8, 3, 5)) == [2, 3, 5, 8]
    assert used((8, 2, 3, 5), (5, 2)) == [5, 2]


def test_requests_are_made_as_they_are_sent() -> None:
    """All at once they took the memory of the model for each device of a round."""
    engine, events = DevicesInProcess(population(mlp), FedAvg(local=LOCAL), Options()), list[str]()
    assert isinstance(engine.fleet, RankFleet)
    message, post = engine.message, engine.fleet.manager.post
    engine.message = lambda *a: (events.append("made"), message(*a))[1]  # type: ignore[method-assign]
    engine.fleet.manager.post = lambda *a: (events.append("sent"), post(*a))[1]  # type: ignore[method-assign]
    engine.round(engine.init(), range(3), 0)
    assert events == ["made", "sent"] * 3
