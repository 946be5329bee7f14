"""What networks start from reaches a device once, by its digest, and stays for the next run."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from fedloom.core.errors import RefusedError, SettingError, StorageError
from fedloom.core.model import Model
from fedloom.data import from_arrays
from fedloom.deploy.device import Membership
from fedloom.deploy.device.start_file import StartFile
from fedloom.deploy.initial_weights import Offer, Start
from fedloom.deploy.registration import versions
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.fleet import NoResponse, RankFleet
from fedloom.deploy.server.joining import register_devices, send_public
from fedloom.engines.message_bytes import pack
from fedloom.experiments.experiment import Experiment
from fedloom.ranks.communication import CLOSED
from fedloom.storage import files
from fedloom.testing.in_process import InProcess

PART = 100


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.deploy.initial_weights.PART", PART)


def network(seed: int = 0, wide: int = 8) -> Model:
    torch.manual_seed(seed)
    return Model(nn.Sequential(nn.Linear(4, wide), nn.Linear(wide, 3)), name="net", frozen="0")


def parts_of(start: Start, begin: int = 0) -> list[bytes]:
    return [start.part(k) for k in range(begin, len(start.data), PART)]


def named(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fetched(folder: Path, model: Model, start: Start) -> StartFile:
    file = StartFile(folder, model, start.offer())
    for message in parts_of(start, file.has):
        file.take(message)
    return file


def same_tensors(one: Model, other: Model) -> bool:
    a, b = one.whole(0), other.whole(1)
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a) and one.params == other.params


# ---- the file


def test_a_start_comes_in_parts_and_is_there_the_next_time(tmp_path: Path) -> None:
    start = Start.of(network(1))
    assert len(parts_of(start)) > 1
    file = fetched(tmp_path, network(), start)
    assert file.network is not None
    assert same_tensors(file.network, network(1))
    assert file.network.frozen.keys() == {"0.weight", "0.bias"}
    assert named(tmp_path) == [f"{start.digest}.safetensors"]
    again = StartFile(tmp_path, network(), start.offer())
    assert again.has == len(start.data)
    assert again.network is not None
    assert same_tensors(again.network, network(1))


def test_a_transfer_that_broke_off_goes_on_where_it_was(tmp_path: Path) -> None:
    start = Start.of(network(1))
    first, second, *_ = parts_of(start)
    file = StartFile(tmp_path, network(), start.offer())
    file.take(first)
    assert (file.has, file.network) == (PART, None)
    assert named(tmp_path) == [f"{start.digest}.part.safetensors"]
    with pytest.raises(RefusedError, match="begins at byte 100 is due, got one from 0"):
        file.take(first)
    with (tmp_path / f"{start.digest}.part.safetensors").open("ab") as written:
        written.write(start.data[PART : PART + 7])  # of a part that was cut
    again = StartFile(tmp_path, network(), start.offer())
    assert again.has == PART + 7
    with pytest.raises(RefusedError, match="begins at byte 107 is due, got one from 100"):
        again.take(second)
    for message in parts_of(start, again.has):
        again.take(message)
    assert named(tmp_path) == [f"{start.digest}.safetensors"]


def test_a_file_that_was_whole_before_the_device_was_killed_is_taken(tmp_path: Path) -> None:
    start = Start.of(network(1))
    (tmp_path / f"{start.digest}.part.safetensors").write_bytes(start.data)
    file = StartFile(tmp_path, network(), start.offer())
    assert file.network is not None
    assert named(tmp_path) == [f"{start.digest}.safetensors"]


def test_a_partial_file_that_is_too_long_comes_anew(tmp_path: Path) -> None:
    start = Start.of(network(1))
    (tmp_path / f"{start.digest}.part.safetensors").write_bytes(start.data + b"x")
    assert StartFile(tmp_path, network(), start.offer()).has == 0
    assert named(tmp_path) == []


def test_a_wrong_digest_is_refused_and_nothing_stays(tmp_path: Path) -> None:
    start, other = Start.of(network(1)), Start.of(network(2))
    assert len(start.data) == len(other.data)
    file = StartFile(tmp_path, network(), start.offer())
    *first, last = parts_of(other)
    for message in first:
        file.take(message)
    with pytest.raises(RefusedError, match=rf"has another digest than {start.digest}, and is removed: .*; join again"):
        file.take(last)
    assert file.network is None
    assert named(tmp_path) == []


def test_a_file_that_was_damaged_on_the_disk_comes_anew(tmp_path: Path) -> None:
    start = Start.of(network(1))
    fetched(tmp_path, network(), start)
    path = tmp_path / f"{start.digest}.safetensors"
    data = bytearray(start.data)
    data[-1] ^= 1
    path.write_bytes(data)
    file = StartFile(tmp_path, network(), start.offer())
    assert (file.has, file.network, named(tmp_path)) == (0, None, [])


def of_bytes(data: bytes) -> Start:
    return Start(data, files.digest(data))


def test_other_tensors_than_the_networks_are_refused_and_nothing_stays(tmp_path: Path) -> None:
    """Of the right size and digest: the server sends other names, shapes, types, values, or no tensors."""
    values = dict(network(1).whole(0))
    size = len(Start.of(network(1)).data)

    def saved(**changed: torch.Tensor) -> bytes:
        found = {**values, **{name.replace("_", "."): tensor for name, tensor in changed.items()}}
        return safetensors.torch.save({name: found[name] for name in found if found[name].numel()})

    odd = torch.full((8, 4), float("nan"))
    for data, words in (
        (saved(**{"0.weight": torch.zeros(0), "9.weight": torch.zeros(8, 4)}), "has '9.weight', which the model has"),
        (saved(**{"0.weight": torch.zeros(4, 8)}), r"'0.weight' has the shape \[4, 8\], the model's has \[8, 4\]"),
        (saved(**{"0.weight": torch.zeros(8, 4, dtype=torch.int32)}), "'0.weight' is torch.int32, net has"),
        (saved(**{"0.weight": odd}), "'0.weight' has values that are NaN or infinite"),
        (saved(**{"1.weight": torch.full((3, 8), float("inf"))}), "'1.weight' has values that are NaN or infinite"),
        (saved(**{"0.bias": torch.zeros(0), "0.weight": torch.zeros(10, 4)}), "has the shape"),
        (b"\x80\x04" + b"." * (size - 2), "is no whole safetensors file"),
        (b"\xff" * size, "is no whole safetensors file"),
    ):
        with pytest.raises(RefusedError, match=f"the start does not fit the network of this device: .*{words}"):
            fetched(tmp_path, network(), of_bytes(data))
        assert named(tmp_path) == []


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    """Also where a server sends what `torch.load` would take."""
    padded = Start.of(network(1))
    torch.save(dict(network(1).whole(0)), tmp_path / "w.pt")
    data = (tmp_path / "w.pt").read_bytes()[: len(padded.data) + 500]
    with pytest.raises(RefusedError, match="is no whole safetensors file"):
        fetched(tmp_path / "starts", network(), of_bytes(data))


def test_the_start_of_another_architecture_is_refused_before_it_comes(tmp_path: Path) -> None:
    wide = Start.of(network(1, wide=800))
    with pytest.raises(RefusedError, match=r"the start of net has 268 to \d+ bytes here, and the server says \d+"):
        StartFile(tmp_path, network(), wide.offer())
    same_size = Start.of(Model(nn.Sequential(nn.Linear(4, 8), nn.Linear(3, 8)), name="net"))
    with pytest.raises(RefusedError, match=r"the start does not fit the network of this device"):
        fetched(tmp_path, Model(nn.Sequential(nn.Linear(8, 4), nn.Linear(8, 3)), name="net"), same_size)


def test_a_file_of_another_run_stays_where_its_network_is_another(tmp_path: Path) -> None:
    start = Start.of(network(1))
    fetched(tmp_path, network(), start)
    other = Model(nn.Sequential(nn.Linear(8, 4), nn.Linear(8, 3)), name="other")
    with pytest.raises(RefusedError, match="the start does not fit the network of this device"):
        StartFile(tmp_path, other, start.offer())
    assert named(tmp_path) == [f"{start.digest}.safetensors"]


def test_few_files_are_kept_those_that_were_used_last(tmp_path: Path) -> None:
    starts = [Start.of(network(seed)) for seed in range(6)]
    (tmp_path / "mine.txt").write_text("of the user")
    for age, start in enumerate(starts[:5]):
        fetched(tmp_path, network(), start)
        os.utime(tmp_path / f"{start.digest}.safetensors", (age, age))
    StartFile(tmp_path, network(), starts[1].offer())  # used again
    StartFile(tmp_path, network(), starts[5].offer()).take(parts_of(starts[5])[0])
    kept = [f"{starts[k].digest}.safetensors" for k in (1, 3, 4)] + [f"{starts[5].digest}.part.safetensors"]
    assert named(tmp_path) == sorted(["mine.txt", *kept])


def test_a_disk_that_takes_nothing_is_said(tmp_path: Path) -> None:
    start = Start.of(network(1))
    file = StartFile(tmp_path, network(), start.offer())
    (tmp_path / f"{start.digest}.part.safetensors").mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*part.safetensors: .*; make room for the start"):
        file.take(parts_of(start)[0])


# ---- over a fleet


def settings(**more: Any) -> dict[str, Any]:
    words: dict[str, Any] = {"algorithm": "fedavg", "model": "logistic", "data.classes": 3, "run.engine": "devices"}
    return Experiment().with_all(words | {"frozen": "*.bias"} | more).described()


def members(folder: Path, count: int = 2) -> list[Membership]:
    """Devices of these folders, as they begin: what is in their state folders stays."""
    x, y = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32), np.resize([0, 1], 12)
    np.savez(folder / "mine.npz", x_train=x[:9], y_train=y[:9], x_test=x[9:], y_test=y[9:])
    return [Membership(str(folder / "mine.npz"), folder / f"state{k}") for k in range(count)]


def started(seed: int = 5) -> Model:
    """The server's network, which begins with tensors of its own."""
    like = from_arrays(np.zeros((3, 4), np.float32), np.arange(3))
    (made,) = Experiment.of(settings()).models(like).values()
    return Model(made.filled(made.whole(seed)), name=made.name)


class Line:
    """What goes to a device, counted; cut before message number `cut` of those of a start."""

    def __init__(self, member: Membership, cut: int | None = None, drop: str = "") -> None:
        self.member, self.cut, self.drop = member, cut, drop
        self.came = list[int]()

    def __call__(self, message: bytes) -> bytes | None:
        if message == CLOSED or message[:1] == b"{":
            answer = self.member(message)
            told = json.loads(answer) if answer else {}
            return json.dumps({n: v for n, v in told.items() if n != self.drop}).encode() if told else answer
        if len(self.came) == self.cut:
            raise EOFError
        self.came.append(len(message))
        return self.member(message)


def joined(lines: list[Any], folder: Path, name: str, start: Start | None = None, **more: Any) -> RankFleet:
    fleet = RankFleet(InProcess(lines), Audit(folder / f"{name}.jsonl"))
    register_devices(fleet, folder / f"{name}.json", settings(), ["logistic"], start=True, **more)
    fleet.send_start(start or Start.of(started()), 60.0)
    return fleet


def log(folder: Path, name: str, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def until_there(fleet: RankFleet, count: int) -> None:
    """One part goes to each device at a time."""
    for _ in range(20):
        fleet.admit_arrivals()
        if len(fleet.connected()) == count:
            return
    raise AssertionError(f"{len(fleet.connected())} of {count} devices are there")


def begins_with(member: Membership, model: Model) -> bool:
    assert member.controller is not None
    runtime = member.controller.runtime
    own = runtime.population.models["logistic"]
    trained = {**runtime.initial("logistic").params, **runtime.initial("logistic").buffers}
    want = model.whole(0)
    assert own.frozen
    return {**trained, **own.frozen}.keys() == want.keys() and all(
        torch.equal(tensor, want[name]) for name, tensor in {**trained, **own.frozen}.items()
    )


def test_a_device_is_sent_what_its_network_starts_from_once(tmp_path: Path) -> None:
    size = len(Start.of(started()).data)
    first = [Line(member) for member in members(tmp_path)]
    fleet = joined(first, tmp_path, "first")
    assert set(fleet.connected()) == {line.member.id for line in first}
    assert all(begins_with(line.member, started()) for line in first)
    assert [line["bytes"] for line in log(tmp_path, "first", "started")] == [size, size]
    assert all(sum(line.came) > size for line in first)
    fleet.close()
    second = [Line(member) for member in members(tmp_path)]
    fleet = joined(second, tmp_path, "second")
    assert set(fleet.connected()) == {line.member.id for line in second}
    assert all(begins_with(line.member, started()) for line in second)
    assert [line["bytes"] for line in log(tmp_path, "second", "started")] == [0, 0]
    assert [len(line.came) for line in second] == [1, 1]  # the offer
    fleet.close()
    third = [Line(member) for member in members(tmp_path)]
    joined(third, tmp_path, "third", Start.of(started(6)))
    assert all(begins_with(line.member, started(6)) for line in third)
    assert [line["bytes"] for line in log(tmp_path, "third", "started")] == [size, size]


def test_a_device_that_was_cut_off_is_sent_the_rest(tmp_path: Path) -> None:
    size = len(Start.of(started()).data)
    one, other = members(tmp_path)
    fleet = joined([Line(one, cut=3), Line(other)], tmp_path, "run")
    assert list(fleet.connected()) == [other.id]
    wires = fleet.manager
    assert isinstance(wires, InProcess)
    back = Line(members(tmp_path)[0])
    wires.come(back)
    until_there(fleet, 2)
    assert set(fleet.connected()) == {one.id, other.id}
    assert begins_with(back.member, started())
    assert [line["bytes"] for line in log(tmp_path, "run", "started")] == [size, size - 2 * PART]


def test_public_examples_come_before_the_start(tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    fleet = RankFleet(InProcess([one]), Audit())
    register_devices(fleet, tmp_path / "run.json", settings(), ["logistic"], public=True, start=True)
    given = from_arrays(np.zeros((3, 4), np.float32), np.arange(3))
    send_public(fleet, given, labels=False)
    assert one.controller is None
    fleet.send_start(Start.of(started()), 60.0)
    assert begins_with(one, started())
    wires = fleet.manager
    assert isinstance(wires, InProcess)
    wires.failures[1] = "killed"
    (back,) = members(tmp_path, 1)
    wires.come(back)
    until_there(fleet, 1)
    assert begins_with(back, started())
    assert back.controller is not None
    assert back.controller.runtime.population.federation.public is not None


def test_a_device_of_an_earlier_version_hears_why_it_is_refused(tmp_path: Path) -> None:
    old, new = members(tmp_path)
    fleet = joined([Line(old, drop="start"), new], tmp_path, "run", min_devices=1)
    assert list(fleet.connected()) == [new.id]
    (refused,) = log(tmp_path, "run", "refused")
    assert refused["why"].startswith(f"device {old.id} has an earlier version of fedloom, which cannot be sent")
    assert isinstance(fleet.manager, InProcess)
    assert "the server does not take this device: " in fleet.manager.failures[1]
    registry = register_devices(
        RankFleet(InProcess([Line(m, drop="start") for m in members(tmp_path)]), Audit()), tmp_path / "without.json",
        settings(), ["logistic"],
    )  # fmt: skip
    assert len(registry.devices) == 2  # where nothing is to be sent


def slow(member: Membership, heard: list[bytes]) -> Any:
    """Which answers the parts of a start when it is let."""

    def answer(message: bytes) -> bytes | None:
        if message == CLOSED or message[:1] == b"{":
            return member(message)
        heard.append(message)
        return None

    return answer


def test_who_has_not_the_whole_start_is_not_asked(tmp_path: Path) -> None:
    """The others are, and the transfer goes on in the meantime."""
    one, other = members(tmp_path)
    held = list[bytes]()

    def quick(message: bytes) -> bytes | None:
        if other.controller is None or message == CLOSED:
            return other(message)
        wires.answers[1].append(one(held.pop()))  # what `one` has been sent, which it has taken by now
        return b"an answer"

    fleet = RankFleet(InProcess([slow(one, held), quick]), Audit(tmp_path / "run.jsonl"))
    wires = fleet.manager
    assert isinstance(wires, InProcess)
    register_devices(fleet, tmp_path / "run.json", settings(), ["logistic"], start=True)
    fleet.send_start(Start.of(started()), 0.0)
    until_there(fleet, 1)
    for _ in range(len(parts_of(Start.of(started())))):
        assert list(fleet.connected()) == [other.id]
        found = dict(fleet.ask({one.id: b"r", other.id: b"r"}.items(), None))
        assert found == {one.id: NoResponse("it does not have the whole start yet"), other.id: b"an answer"}
        fleet.admit_arrivals()
    wires.answers[1].append(one(held.pop()))
    assert one.controller is not None
    fleet.admit_arrivals()
    assert set(fleet.connected()) == {one.id, other.id}
    assert not held


def test_a_deadline_holds_while_a_start_is_sent(tmp_path: Path) -> None:
    """Whoever is quick to take parts holds nobody up."""
    one, other = members(tmp_path)
    mute = [False]
    fleet = RankFleet(InProcess([slow(one, []), lambda message: None if mute[0] else other(message)]), Audit())
    wires = fleet.manager
    assert isinstance(wires, InProcess)
    register_devices(fleet, tmp_path / "run.json", settings(), ["logistic"], start=True)
    fleet.send_start(Start.of(started()), 0.0)
    until_there(fleet, 1)
    mute[0] = True
    asked = list[int]()

    class Endless:
        sent = 0

        def next(self, said: Any) -> bytes:
            asked.append(1)
            assert len(asked) < 10**6, "the deadline is over"
            return b"part"

    fleet._transfers[1] = Endless()  # type: ignore[assignment]
    wires.answering[0] = lambda message: b"more"
    wires.answers[1].append(b"more")
    assert dict(fleet.ask({other.id: b"r"}.items(), 0.05)) == {other.id: NoResponse("no answer within 0.05 s")}
    assert asked


def test_a_run_waits_for_a_start_where_nobody_else_is_there(tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    held = list[bytes]()
    fleet = RankFleet(InProcess([slow(one, held)]), Audit())
    wires = fleet.manager
    assert isinstance(wires, InProcess)
    register_devices(fleet, tmp_path / "run.json", settings(), ["logistic"], start=True, wait=30.0)
    fleet.send_start(Start.of(started()), 0.0)
    wait = wires.wait

    def later(ranks: Any, timeout: Any) -> list[int]:
        if held and timeout:
            wires.answers[1].append(one(held.pop()))
        return wait(ranks, timeout)

    wires.wait = later  # type: ignore[method-assign]
    fleet.admit_arrivals()
    assert list(fleet.connected()) == [one.id]


def test_a_device_that_says_nonsense_of_a_start_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    one, other = members(tmp_path)
    heard = list[bytes]()

    def liar(message: bytes) -> bytes:
        if message[:1] == b"{":
            return one(message)
        heard.append(message)
        return b'{"start": -1}'

    fleet = joined([liar, other], tmp_path, "run")
    assert list(fleet.connected()) == [other.id]
    (refused,) = log(tmp_path, "run", "refused")
    assert (refused["device"], refused["why"][:40]) == (one.id, "it says that it has -1 bytes of the star")
    one(heard[0])
    with pytest.raises(RefusedError, match="the server does not take this device: it says that it has -1"):
        one(heard[1])


def test_a_server_names_no_file_of_a_device(tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    (tmp_path / "w.safetensors").write_bytes(Start.of(started()).data)
    named_file = settings(start=str(tmp_path / "w.safetensors"))
    with pytest.raises(SettingError, match=r"a device opens no file that a server names, .* '.*w\.safetensors'"):
        one(json.dumps({"run": "a" * 32, "versions": versions(), "settings": named_file}).encode())


def test_a_start_is_of_a_network_of_the_settings(tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    one(json.dumps({"run": "a" * 32, "versions": versions(), "settings": settings()}).encode())
    one(json.dumps({"client": 0, "model": "lenet", "token": "t", "start": True}).encode())
    with pytest.raises(RefusedError, match="the server gives the architecture 'lenet', and its settings have"):
        one(Start.of(started()).offer())


def test_requests_are_no_part_of_a_start(tmp_path: Path) -> None:
    (one,) = members(tmp_path, 1)
    one(json.dumps({"run": "a" * 32, "versions": versions(), "settings": settings()}).encode())
    one(json.dumps({"client": 0, "model": "logistic", "token": "t", "start": True}).encode())
    one(Start.of(started()).offer())
    for data in (b"{}", b"x" * 30, pack({"method": "local_update"}, {}), Start.of(started()).offer()):
        with contextlib.suppress(RefusedError):
            one(data)
        assert one.controller is None


def test_an_offer_takes_no_memory(tmp_path: Path) -> None:
    """What is said is compared with shapes alone: a network of 4 GB is described without its tensors."""
    with torch.device("meta"):
        module = nn.Linear(1 << 15, 1 << 15)
    huge = object.__new__(Model)
    huge.name = "huge"
    huge.skeleton = lambda: module  # type: ignore[method-assign]
    size = 4 * ((1 << 30) + (1 << 15)) + 100
    assert Offer.read(pack({"digest": "a" * 32, "size": size}, {}), huge).size == size
