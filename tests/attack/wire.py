"""Damaged and forged messages to devices, and answers of devices, under the limits of `fuzz.py`.

    python tests/attack/wire.py requests answers --cases 1000000
    python tests/attack/wire.py own-requests own-answers registrations welcomes --cases 100000

`requests` and `answers` were damaged on their way, or are of somebody without a token: none may be taken. `own-`: the
other end itself sends nonsense, behind a digest that is right: it is refused, or has the structure that was asked for.
"""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import fuzz
import numpy as np
import torch

from fedloom import algorithms
from fedloom.algorithms import PFedSD
from fedloom.core import tree
from fedloom.core.errors import CodecError, DeclinedError, RefusedError, SettingError, SettingWarning
from fedloom.core.model import Model
from fedloom.data import from_arrays
from fedloom.deploy.device import Membership
from fedloom.deploy.initial_weights import Start
from fedloom.deploy.registration import versions
from fedloom.deploy.server.joining import _read_registration
from fedloom.engines.engine_options import Options
from fedloom.engines.message import Call
from fedloom.engines.message_bytes import pack, part, seal, unpack, unseal, with_checksum
from fedloom.engines.service import request_bytes
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.storage.files import digest
from fedloom.testing.in_process import DevicesInProcess
from tiny import LOCAL, mlp, population

ODD: list[Any] = [
    *fuzz.NUMBERS, -1, -(2**70), 2**200, 1.5, 1e308, float("nan"), float("inf"), True, None, "2", "", [], {}, [[]],
    [[0, 0]], [2, 2], ["a"], "evaluate", "x" * 300, {"kind": "DeclinedError"}, {"kind": 5, "batch": "x"},
]  # fmt: skip


REFUSALS = (CodecError, DeclinedError, RefusedError)


class Wire:
    """Device 2 and its server, with one sound request and its answer."""

    def __init__(self) -> None:
        # states travel: more to damage
        self.engine = DevicesInProcess(population(mlp), PFedSD(local=LOCAL), Options(counts_states=True))
        fleet = self.engine.fleet
        assert fleet is not None
        self.name = fleet.names[2]
        self.token = fleet.tokens[self.name]
        call = Call("local_update", (self.engine.runtime.initial("net"),), 0, 0, 0.1)
        self.asked = self.engine.request(call, [2], lambda ids: ())
        self.device = self.engine.controller(2)
        beside = {"to": self.name, "durable": 0}
        self.request = seal(
            request_bytes(self.asked, 1, (1, part(call.broadcast)), self.engine.stack([2]), **beside), self.token
        )
        self.engine._request_numbers = {2: 1}
        self.answer = self.device(self.request)
        self.want = self.taken(self.answer)

    def asks(self, data: bytes) -> str | None:
        """What the device says is wrong with a request."""
        self.device._number, self.device._newest_training = 0, (-1, -1)
        problem = unpack(unseal(self.device(data), self.token, 1 << 30)).head["problem"]
        return None if problem is None else f"{problem['kind']}: {problem['text']}"

    def taken(self, data: bytes) -> Any:
        """What the server takes of an answer."""
        return self.engine.read_answer(self.asked, self.engine.opened(2, memoryview(data)))[1].upload

    def own(self, rng: Random, sound: bytes) -> bytes:
        """Nonsense of the other end itself."""
        inner = bytes(unseal(sound, self.token, 1 << 30))
        if rng.random() < 0.4:
            return seal(with_checksum(fuzz.damaged(inner[4:], rng)), self.token)
        message = unpack(inner)
        head, parts = dict(message.head), dict(message.parts)
        for _ in range(rng.choice((1, 1, 2, 3))):
            name = rng.choice([*head, "state", "more"])
            if rng.random() < 0.8:
                head[name] = rng.choice(ODD)
            elif name in head:
                del head[name]
        if rng.random() < 0.3:
            name = rng.choice([*parts, "state", "after", "scatter", "more"])
            parts[name] = rng.choice([(), [], {}, torch.zeros(3), [torch.zeros(1, 2)], parts.get("upload", ())])
        if rng.random() < 0.1 and parts:
            del parts[rng.choice(list(parts))]
        return seal(pack(head, parts), self.token)


_wire: list[Wire] = []


def wire() -> Wire:
    """Made once in each process."""
    if not _wire:
        _wire.append(Wire())
    return _wire[0]


def otherwise(sound: bytes, rng: Random) -> bytes:
    """Damaged so that it is not the same."""
    while (data := fuzz.damaged(sound, rng)) == sound:
        pass
    return data


def read_request(data: bytes, _: Path) -> None:
    said = wire().asks(data)
    assert said is not None, "somebody without a token was answered"
    raise RefusedError(said)


def read_own_request(data: bytes, _: Path) -> None:
    if (said := wire().asks(data)) is not None:
        raise RefusedError(said)


def read_answer(data: bytes, _: Path) -> None:
    wire().taken(data)
    raise AssertionError("an answer of somebody without a token was taken")


def read_own_answer(data: bytes, _: Path) -> None:
    assert tree.same_structure(wire().want, wire().taken(data)), "another structure"


SOUND = {
    "id": "a" * 32, "versions": versions(), "train": [3, 4], "test": [1, 1], "val": [0, 0], "shape": [4],
    "dtype": "float32", "model": "", "classes": [], "columns": [],
}  # fmt: skip


def registration(rng: Random) -> bytes:
    said: dict[str, Any] = {name: rng.choice(ODD) if rng.random() < 0.2 else value for name, value in SOUND.items()}
    for name in ("train", "test", "shape"):
        if isinstance(said[name], list) and said[name] and rng.random() < 0.2:
            said[name] = [rng.choice(ODD) for _ in said[name]]
    return fuzz.damaged(json.dumps(said).encode(), rng) if rng.random() < 0.3 else json.dumps(said).encode()


def read_registration(data: bytes, _: Path) -> None:
    found = _read_registration(data)[0]
    assert sum(found.with_cap(100).train) <= 100, "too many examples count"


# ---- what a server says to a device before it asks


def described(algorithm: str) -> dict[str, Any]:
    words: dict[str, Any] = {"algorithm": algorithm, "model": "logistic", "data.classes": 3, "run.engine": "devices"}
    return Experiment().with_all(words).described()


ALGORITHMS = [described(name) for name in algorithms.ALGORITHMS]
_member: list[Membership] = []


def member(folder: Path) -> Membership:
    """A device that has heard nothing yet; made once in each process, with its files in a folder."""
    if not _member:
        x, y = np.eye(4, dtype=np.float32), np.array([0, 1, 2, 1])
        np.savez(folder / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        _member.append(Membership(str(folder / "mine.npz"), folder / "state"))
    one = _member[0]
    one._offer, one._welcome, one.controller, one.is_over = {}, None, None, False
    shutil.rmtree(one.folder / "starts", ignore_errors=True)
    return one


_start: list[Start] = []


def start() -> Start:
    """What the network of the device may start from; made once in each process."""
    if not _start:
        torch.manual_seed(0)
        like = from_arrays(np.zeros((3, 4), np.float32), np.arange(3))
        (build,) = catalogue.models("logistic", like).values()
        _start.append(Start.of(Model(build(), name="logistic")))
    return _start[0]


def handed_over(rng: Random) -> list[bytes]:
    """A start, offered and sent, of which nothing, something or much is wrong."""
    data, offer = bytearray(start().data), {"digest": start().digest, "size": len(start().data)}
    if rng.random() < 0.3:
        data = bytearray(fuzz.damaged(bytes(data), rng))
    if rng.random() < 0.3:  # sound as to its bytes, whatever is in them
        offer |= {"digest": digest(bytes(data)), "size": len(data)}
    cut = rng.choice((0, 1, 50, len(data)))
    heads: list[dict[str, Any]] = [offer, {"offset": 0}, {"offset": cut}]
    pieces: list[Any] = [None, data[:cut] or data[:1], data[cut:] or data[:1]]
    messages = []
    for head, piece in zip(heads, pieces, strict=True):
        parts = {} if piece is None else {"bytes": torch.frombuffer(bytearray(piece), dtype=torch.uint8)}
        if rng.random() < 0.1:
            head[rng.choice([*head, "more", "refused"])] = rng.choice(ODD)
        if rng.random() < 0.1:
            parts |= {rng.choice(("bytes", "more")): rng.choice(([torch.zeros(2)], torch.zeros(2, 3), torch.zeros(0)))}
        message = pack(head, parts)
        if rng.random() < 0.1:
            message = with_checksum(fuzz.damaged(message[4:], rng))
        messages.append(message if rng.random() < 0.95 else fuzz.damaged(message, rng))
    return messages if rng.random() < 0.9 else rng.sample(messages, rng.choice((1, 2, 3)))


def welcome(rng: Random) -> list[bytes]:
    """Settings and a welcome, of which something is wrong, or a start that follows a sound welcome."""
    settings = json.loads(json.dumps(rng.choice(ALGORITHMS)))
    first = {"run": "a" * 32, "versions": versions(), "settings": settings}
    second: dict[str, Any] = {"client": 1, "model": "logistic", "token": "t" * 32}
    if rng.random() < 0.5:
        second["start"] = True
        return [*(json.dumps(part).encode() for part in (first, second)), *handed_over(rng)]
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = [first, second, settings, *(part for part in settings.values() if isinstance(part, dict))]
        place: dict[str, Any] = rng.choice(places)
        name = rng.choice([*place, "more", "public", "start", "refused"])
        place[name] = rng.choice(ODD)
    texts = [json.dumps(part).encode() for part in (first, second)]
    return [fuzz.damaged(text, rng) if rng.random() < 0.15 else text for text in texts]


def read_welcome(messages: list[bytes], folder: Path) -> None:
    one = member(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingWarning)  # of dense without BatchNorm
        for message in messages:
            assert isinstance(one(message), bytes)
            if one._start is not None and one._start.network is None:
                assert one.controller is None, "it has joined without the whole start"
                assert one._start.has < len(start().data) + 2000, "more than the network can have"
    if one._start is not None and one._missing == []:
        assert one._start.network is not None, "it has joined without a start"
        assert all(bool(t.isfinite().all()) for t in one._start.network.whole(0).values()), "not finite"


fuzz.TARGETS |= {
    "welcomes": fuzz.Target(welcome, read_welcome, (RefusedError, SettingError)),
    "requests": fuzz.Target(lambda rng: otherwise(wire().request, rng), read_request, (RefusedError,)),
    "answers": fuzz.Target(lambda rng: otherwise(wire().answer, rng), read_answer, (RefusedError,)),
    "own-requests": fuzz.Target(lambda rng: wire().own(rng, wire().request), read_own_request, (RefusedError,)),
    "own-answers": fuzz.Target(lambda rng: wire().own(rng, wire().answer), read_own_answer, REFUSALS),
    "registrations": fuzz.Target(registration, read_registration, (RefusedError,)),
}

if __name__ == "__main__":
    sys.exit(fuzz.main())
