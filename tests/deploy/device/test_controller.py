"""A device: who may ask it what, what it keeps, and when it declines."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedloom.algorithms import FedAvg, PFedSD
from fedloom.core import tree
from fedloom.core.errors import RefusedError, SettingError, StorageError
from fedloom.core.types import Weights
from fedloom.deploy.device import Controller, Limits, ModelManager, Reading, system_monitor
from fedloom.deploy.registration import INVITATION
from fedloom.engines.loop import Loop
from fedloom.engines.message import EVALUATING, Call, Request
from fedloom.engines.message_bytes import Message, part, seal, unpack, unseal, with_checksum
from fedloom.engines.runtime import Runtime
from fedloom.engines.service import answer_of, request_bytes
from fedloom.storage.store import Version
from fedloom.testing.compare import same
from fedloom.testing.in_process import population_of
from tiny import LOCAL, mlp, population

NAME, TOKEN, CLIENT = "d" * 32, "the token", 2
ALGORITHM = PFedSD(local=LOCAL)
PEOPLE = population(mlp)
WEIGHTS = Runtime(PEOPLE, ALGORITHM).initial("net")


def device(folder: Path | None, algorithm: Any = ALGORITHM, **more: Any) -> Controller:
    runtime = Runtime(population_of(PEOPLE, CLIENT), algorithm)
    models = None if folder is None else ModelManager(folder, runtime.fresh(0))
    return Controller(NAME, TOKEN, runtime, models, **more)


def asked(number: int, round: int = 0, exchange: Any = 0, accepted: Version | None = None, **more: Any) -> bytes:
    method = more.pop("method", "local_update" if exchange != EVALUATING else "personal")
    call = Call(method, (WEIGHTS,), round, exchange, 0.1, "test" if exchange == EVALUATING else None)
    request = Request.to(call, [more.pop("client", CLIENT)], 0, {} if accepted is None else {CLIENT: accepted})
    state, token = more.pop("state", None), more.pop("token", TOKEN)
    beside = {"to": NAME, "durable": 0, **more}
    return seal(request_bytes(request, number, (number, part(call.broadcast)), state, **beside), token)


def opened(data: bytes) -> Message:
    return unpack(unseal(data, TOKEN, 1 << 30))


def refusal(data: bytes) -> str:
    problem = opened(data).head["problem"]
    assert problem is not None, "the request was answered"
    return f"{problem['kind']}: {problem['text']}"


def test_a_device_answers_what_the_loop_computes(tmp_path: Path) -> None:
    ours, loop = device(tmp_path), Loop(PEOPLE, ALGORITHM)
    message = opened(ours(asked(1)))
    assert (message.head["from"], message.head["number"], message.head["problem"]) == (NAME, 1, None)
    assert set(message.parts) == {"upload", "losses"}  # its state stays
    call = Call("local_update", (WEIGHTS,), 0, 0, 0.1)
    want, answer = loop.runtime.answer(Request.to(call, [CLIENT], 0), loop.stack([CLIENT]))
    same(answer.upload, answer_of(message, Request.to(call, [CLIENT], 0))[1].upload, "the upload")
    assert ours.models is not None
    same(tree.take(want, 0), ours.models.state((0, 0)), "the state")


# ---- who may ask what


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (asked(5, token="another"), "RefusedError: a message was damaged on its way, or its sender has not"),
        (asked(5, to="e" * 32), f"RefusedError: the request is for '{'e' * 32}', and this is device {NAME}"),
        (asked(5, client=3), "RefusedError: the request is for"),
        (asked(4, round=5), "RefusedError: request 4 was sent twice, or is older than 4"),
        (asked(3, round=5), "RefusedError: request 3 was sent twice, or is older than 4"),
        (asked(5, round=4), "RefusedError: round 4, exchange 0 was answered before, up to (4, 0)"),
        (asked(5, round=3), "RefusedError: round 3, exchange 0 was answered before"),
        (asked(5, round=5, durable=6), "RefusedError: round 5 is over: the server has a checkpoint after round 6"),
        (asked(5, round=4, exchange=EVALUATING, durable=6), "RefusedError: round 4 is over"),
        (asked(5, round=5, durable=None), "CodecError: durable must be a whole number, got None"),
        (asked(5, round=5, accepted=(3, 0)), "StorageError: this device holds states after (round, exchange) [(4, 0)]"),
        (asked(5, round=5, exchange=-1), "CodecError: exchange must be a number or 'evaluate'"),
        (asked(5, round=1 << 40), "CodecError: round must be in 0..1073741823"),
        (asked(5, round=5, method="init"), "StackingError: 'init' is no method"),
        (b"", "RefusedError: a message was damaged"),
    ],
)
def test_what_may_not_be_asked_is_refused_and_moves_nothing(request_: bytes, words: str, tmp_path: Path) -> None:
    ours = device(tmp_path)
    assert opened(ours(asked(4, round=4))).head["problem"] is None
    before = sorted(path.name for path in tmp_path.iterdir())
    assert refusal(ours(request_)).startswith(words)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert opened(ours(asked(9, round=6, accepted=(4, 0)))).head["problem"] is None


def test_a_message_has_a_limit_before_it_is_looked_at(tmp_path: Path) -> None:
    ours = device(tmp_path, limit=200)
    assert "RefusedError: a message of" in refusal(ours(asked(1)))


def test_of_an_error_the_server_hears_no_trace(tmp_path: Path) -> None:
    """Which has the paths and the code of the device."""

    def monitor() -> Reading:
        raise ValueError("no reading")

    problem = opened(device(tmp_path, monitor=monitor)(asked(1))).head["problem"]
    assert (problem["what"], problem["trace"]) == ("ValueError: no reading", "")
    assert __file__ not in json.dumps(problem)


def test_one_request_at_a_time(tmp_path: Path) -> None:
    inside, go = threading.Event(), threading.Event()

    def monitor() -> Reading:
        inside.set()
        go.wait(10)
        return Reading()

    ours, first = device(tmp_path, monitor=monitor), list[bytes]()
    thread = threading.Thread(target=lambda: first.append(ours(asked(1))))
    thread.start()
    inside.wait(10)
    assert refusal(ours(asked(2))) == "DeclinedError: it is busy with another request"
    go.set()
    thread.join()
    assert opened(first[0]).head["problem"] is None


# ---- the monitor


@pytest.mark.parametrize(
    ("limits", "reading", "why"),
    [
        (Limits(battery=0.3), Reading(battery=0.2), "battery is 0.2, at least 0.3 is asked for"),
        (Limits(battery=0.3), Reading(), None),  # plugged in
        (Limits(load=0.5), Reading(load=0.75), "load is 0.75, at most 0.5 is asked for"),
        (Limits(temperature=60), Reading(temperature=61), "temperature is 61, at most 60 is asked for"),
        (Limits(memory=500), Reading(memory=499), "memory is 499, at least 500 is asked for"),
        (Limits(memory=500), Reading(memory=500, load=9.0), None),
    ],
)
def test_a_device_declines_for_a_reason(limits: Limits, reading: Reading, why: str | None, tmp_path: Path) -> None:
    ours = device(tmp_path, monitor=lambda: reading, start_limits=limits)
    for message in (asked(1), asked(2, exchange=EVALUATING), asked(3, exchange=EVALUATING, method=INVITATION)):
        if why is None:
            assert opened(ours(message)).head["problem"] is None
        else:
            assert refusal(ours(message)) == f"DeclinedError: {why}"
    assert bool(list(tmp_path.iterdir())) == (why is None)


def test_a_hard_limit_ends_what_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.deploy.device.controller.SECONDS", 0.0)
    readings = iter([Reading(temperature=50.0)] * 3 + [Reading(temperature=90.0)])
    ours = device(tmp_path, monitor=lambda: next(readings), abort_limits=Limits(temperature=80))
    assert refusal(ours(asked(1))) == "DeclinedError: aborted: temperature is 90, at most 80 is asked for"
    assert not list(tmp_path.iterdir())


def test_more_steps_than_a_device_takes_end_what_has_begun(tmp_path: Path) -> None:
    assert opened(device(tmp_path / "enough", steps=20)(asked(1))).head["problem"] is None
    ours = device(tmp_path / "few", steps=3)
    words = "the server asks for 4 training steps in a request, and this device takes at most 3"
    for number in (1, 2):  # counted anew for each request
        assert refusal(ours(asked(number))) == f"DeclinedError: aborted: {words}"
    assert not list((tmp_path / "few").iterdir())


def test_an_answer_s_head_stays_short_whatever_went_wrong(tmp_path: Path) -> None:
    ours = device(tmp_path)
    assert len(ours.describe_error(ValueError("x" * 10**6))["text"]) == 10_000


def test_who_leaves_ends_what_has_begun(tmp_path: Path) -> None:
    said = iter([None, None, "it leaves"])
    ours = device(tmp_path, leave_reason=lambda: next(said))
    assert refusal(ours(asked(1))) == "DeclinedError: aborted: it leaves"


def test_limits_are_in_range() -> None:
    with pytest.raises(SettingError, match="battery must be at least 0 and at most 1, got 20"):
        Limits(battery=20)
    with pytest.raises(SettingError, match="memory must be at least 0, got -1"):
        Limits(memory=-1)


class Psutil:
    """As much of psutil as is read."""

    plugged = False

    @classmethod
    def sensors_battery(cls) -> Any:
        return SimpleNamespace(percent=25, power_plugged=cls.plugged)

    @staticmethod
    def sensors_temperatures() -> Any:
        return {"cpu": [SimpleNamespace(current=50.0), SimpleNamespace(current=71.5)], "disk": []}

    @staticmethod
    def getloadavg() -> Any:
        return 3.0, 2.0, 1.0

    @staticmethod
    def virtual_memory() -> Any:
        return SimpleNamespace(available=512 << 20)


def test_what_psutil_says_is_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", Psutil)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    read = system_monitor()
    assert read() == Reading(battery=0.25, load=0.75, temperature=71.5, memory=512.0)
    monkeypatch.setattr(Psutil, "plugged", True)
    monkeypatch.delattr(Psutil, "sensors_temperatures")
    assert read() == Reading(battery=None, load=0.75, temperature=None, memory=512.0)


def test_the_monitor_reads_this_machine() -> None:
    pytest.importorskip("psutil", reason="psutil is not installed")
    found = system_monitor()()
    assert found.load is not None
    assert found.load >= 0
    assert found.memory is not None
    assert found.memory > 1


def test_a_monitor_without_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(
        SettingError, match=r"need psutil .*: pip install '<PATH>\[device\]', where <PATH> is fedloom's"
    ):
        system_monitor()


# ---- states


def state(number: float) -> Weights:
    return Weights(params={"w": torch.full((2, 3), float(number))})


def kept(folder: Path) -> list[Version]:
    return sorted(ModelManager(folder, state(0)).files)


def moved(models: ModelManager, accepted: Version | None, version: Version, number: float) -> None:
    models.state(accepted)
    models.offer(state(number), version)


def test_states_stay_until_no_server_can_name_them(tmp_path: Path) -> None:
    """The example of the class."""
    models = ModelManager(tmp_path, state(0))
    chain: Sequence[Version] = [(0, 0), (2, 0), (3, 0), (5, 0), (5, 1)]
    for before, version in zip([None, *chain], chain, strict=False):
        moved(models, before, version, version[0] + version[1] / 10)
    models.prune(3)  # (5, 1) is not accepted yet
    assert kept(tmp_path) == [(2, 0), (3, 0), (5, 0), (5, 1)]
    again = ModelManager(tmp_path, state(0))  # the device starts again, and so does the server, after round 3
    same(again.state((2, 0)), state(2.0), "the state of then")
    again.offer(state(3.5), (3, 0))  # the round is computed again
    assert kept(tmp_path) == [(2, 0), (3, 0)]
    same(again.state((3, 0)), state(3.5), "the new one")
    again.prune(4)
    assert kept(tmp_path) == [(3, 0)]


def test_what_the_server_did_not_accept_goes_with_the_next(tmp_path: Path) -> None:
    models = ModelManager(tmp_path, state(0))
    moved(models, None, (0, 0), 1)
    moved(models, None, (1, 0), 2)  # round 0 was refused
    assert kept(tmp_path) == [(1, 0)]
    with pytest.raises(StorageError, match=r"\[\(1, 0\)\], the server last accepted \(0, 0\): bring"):
        models.state((0, 0))
    same(models.state(None), state(0), "the first state")


def test_the_same_state_again_is_the_same_file(tmp_path: Path) -> None:
    models = ModelManager(tmp_path, state(0))
    for _ in range(2):
        moved(models, None, (0, 0), 1)
    assert kept(tmp_path) == [(0, 0)]


@pytest.mark.parametrize("value", range(2, 8))  # names, so which of them is read last, follow from digests
def test_who_is_killed_while_it_offers_stands_where_the_server_does(value: int, tmp_path: Path) -> None:
    """Between writing a state and forgetting the other one of the same exchange, both files are there."""
    moved(ModelManager(tmp_path, state(0)), None, (0, 0), 1)
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    moved(ModelManager(tmp_path, state(0)), None, (0, 0), value)
    for name, data in left.items():
        (tmp_path / name).write_bytes(data)
    moved(ModelManager(tmp_path, state(0)), None, (0, 0), 9)  # asked again, and accepted
    again = ModelManager(tmp_path, state(0))
    same(again.state((0, 0)), state(9), "the state that was accepted")
    assert kept(tmp_path) == [(0, 0)]


@pytest.mark.parametrize("damage", ["cut", "missing", "other"])
def test_a_damaged_state_is_an_error(damage: str, tmp_path: Path) -> None:
    models = ModelManager(tmp_path, state(0))
    moved(models, None, (0, 0), 1)
    (path,) = tmp_path.iterdir()
    first = Weights(params={"v": torch.zeros(2)}) if damage == "other" else state(0)
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError, match=path.name):
        (ModelManager(tmp_path, first) if damage == "other" else models).state((0, 0))


def test_what_a_killed_process_was_writing_goes(tmp_path: Path) -> None:
    (tmp_path / "0.safetensors.part").write_bytes(b"half")
    ModelManager(tmp_path, state(0))
    assert not list(tmp_path.iterdir())


def test_an_algorithm_without_states_writes_nothing(tmp_path: Path) -> None:
    ours = device(tmp_path, FedAvg(local=LOCAL))
    for number in (1, 2):
        message = opened(ours(asked(number, round=number, accepted=None if number == 1 else (1, 0))))
        assert message.head["problem"] is None
    assert not list(tmp_path.iterdir())


def test_a_stateless_device_sends_its_state_back() -> None:
    ours = device(None)
    own = tree.stack([ours.runtime.fresh(0)])
    message = opened(ours(asked(1, state=own)))
    assert tree.same_structure(message.parts["state"], own)
    assert "state is not what was asked for" in refusal(ours(asked(2, round=1, state=(torch.zeros(1),))))


# ---- anything at all


def damaged(data: bytes, rng: Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(4):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                del out[at:]
            case 2:
                out[at:at] = rng.randbytes(rng.randrange(1, 9))
            case _:
                del out[at : at + rng.randrange(1, 30)]
    return bytes(out)


def test_fuzzed_requests_are_refused_every_one(tmp_path: Path) -> None:
    ours, rng, sound = device(tmp_path), Random(0), asked(1)
    for _ in range(3000):
        data = damaged(sound, rng)
        assert data == sound or refusal(ours(data)).startswith("RefusedError")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_fuzzed_requests_of_the_server_itself_get_an_answer(tmp_path: Path) -> None:
    """The same behind a digest that is right."""
    ours, rng = device(tmp_path), Random(1)
    sound = bytes(unseal(asked(1), TOKEN, 1 << 30))[4:]
    for _ in range(2000):
        assert "problem" in opened(ours(seal(with_checksum(damaged(sound, rng)), TOKEN))).head


def test_a_token_is_needed_to_read_an_answer(tmp_path: Path) -> None:
    data = device(tmp_path)(asked(1))
    with pytest.raises(RefusedError, match="its sender has not joined"):
        unseal(data, "another", 1 << 30)
