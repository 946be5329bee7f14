"""Hostile messages through the sockets and subjects by which devices and server really talk, over Flower and NATS.

    python tests/attack/paths.py relay answers subjects --cases 40000

`relay`: envelopes to the socket of `fedloom join`, behind it a device with its seal. `answers`: what a ServerApp brings
from a device to the socket of `fedloom serve`, behind it the engine. `subjects`: pieces of messages by a real
nats-server from a device with a key. Every hundredth case is sound: it must be taken, and the others must not be.

A case is made of (seed, target, number) alone. Printed are the cases, what was taken of those that are not sound, and
how much the process has grown.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import torch
from fuzz import damaged

from fedloom.algorithms import FedAvg
from fedloom.core.errors import FedloomError
from fedloom.deploy.flower import over_flower
from fedloom.deploy.flower.flower_relay import (
    _COMMAND,
    _LENGTH,
    ABSENT,
    ANSWER,
    ANSWERED,
    FAILED,
    ID,
    MOST,
    NODES,
    Envelope,
    Reply,
    relay,
)
from fedloom.deploy.flower.over_flower import FlowerConnections, RelayedServer
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.fleet import RankFleet
from fedloom.engines.message import Call
from fedloom.engines.message_bytes import part, seal, unpack, unseal
from fedloom.engines.service import request_bytes
from fedloom.testing.in_process import DevicesInProcess
from flower_in_memory import short_folder
from tiny import LOCAL, mlp, population

SOUND = 100  # every so many cases one is sound


class Counts:
    """Number of cases, of those that were taken though they are not sound, and of sound ones that were refused."""

    def __init__(self) -> None:
        self.cases = self.sound = self.accepted = self.refused_sound = 0

    def add(self, is_sound: bool, is_taken: bool) -> None:
        self.cases += 1
        self.sound += is_sound
        self.accepted += is_taken and not is_sound
        self.refused_sound += is_sound and not is_taken


class Two:
    """Device 2 with its seal, and the server that asks it."""

    def __init__(self) -> None:
        self.engine = DevicesInProcess(population(mlp), FedAvg(local=LOCAL))
        assert self.engine.fleet is not None
        self.name = self.engine.fleet.names[2]
        self.token = self.engine.fleet.tokens[self.name]
        self.call = Call("local_update", (self.engine.runtime.initial("net"),), 0, 0, 0.1)
        asked = self.engine.request(self.call, [2], lambda ids: ())
        self.device = self.engine.controller(2)
        beside = {"to": self.name, "durable": 0, "held": None}
        self.request = seal(request_bytes(asked, 1, (1, part(self.call.broadcast)), None, **beside), self.token)
        self.answer = self.asks(self.request)

    def asks(self, data: bytes) -> bytes:
        """Return what the device answers, as if it was asked for the first time."""
        self.device._number, self.device._newest_training = 0, (-1, -1)
        return self.device(data)

    def is_answer(self, data: bytes) -> bool:
        """Return whether the device has done what an answer is to."""
        return unpack(unseal(data, self.token, 1 << 30)).head["problem"] is None


def hostile(sound: bytes, rng: random.Random, sealed: bytes) -> bytes:
    """Return other bytes than the sound ones, in which the sealed message is not whole."""
    while True:
        data = damaged(sound, rng) if rng.random() < 0.9 else rng.randbytes(rng.choice((0, 1, 30, 5000)))
        if sealed not in data:
            return data


def of_relay(cases: int, seed: str) -> Counts:
    two, counts, folder = Two(), Counts(), short_folder()
    server, link = RelayedServer(folder / "device"), bytes(range(ID))
    server.limit = 1 << 20

    def serve() -> None:
        while True:
            try:
                server.answer(two.asks(bytes(server.receive())))
            except EOFError:
                if not server.reopen():
                    return

    threading.Thread(target=serve, daemon=True).start()
    sound = bytes(Envelope(link, False, [memoryview(two.request)]))
    for number in range(cases):
        rng, is_sound = random.Random(f"{seed}/relay/{number}"), number % SOUND == 0
        server._link = link
        if not is_sound and rng.random() < 0.1:  # beside whole messages: what is cut on its way, or claims too much
            with socket.socket(socket.AF_UNIX) as raw, contextlib.suppress(OSError):
                raw.connect(str(server.path))
                raw.sendall(
                    rng.choice((b"", b"\0", b"\0\0\0\x09abc", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff" + sound))
                )
            counts.add(False, False)
            continue
        said = relay(sound if is_sound else hostile(sound, rng, two.request), server.path)
        taken = False
        if said != ABSENT:
            reply = Reply.read(said, MOST)
            taken = reply.status == ANSWERED and any(two.is_answer(bytes(each)) for each in reply.answers)
        counts.add(is_sound, taken)
    server.close()
    shutil.rmtree(folder)
    return counts


class Pump:
    """In the place of a ServerApp: it brings what `answer` makes of each envelope, for the newest of its nodes."""

    def __init__(self, path: Path) -> None:
        self.path, self.node = path, 0
        self.answer: Callable[[bytes], bytes] = bytes
        self.connect()
        threading.Thread(target=self.run, daemon=True).start()

    def connect(self) -> None:
        self.pipe = Client(str(self.path), "AF_UNIX")

    def appear(self) -> None:
        """Bring a node that was not there."""
        self.node += 1
        self.pipe.send_bytes(_COMMAND.pack(NODES, 0, 0, 0) + _LENGTH.pack(self.node))

    def run(self) -> None:
        while True:
            try:
                data = self.pipe.recv_bytes()
                self.pipe.send_bytes(self.answer(data))
            except (EOFError, OSError):  # the server has ended it, or is over
                if not self.path.exists():
                    return
                self.connect()
                self.appear()


def of_answers(cases: int, seed: str) -> Counts:
    two, counts, folder = Two(), Counts(), short_folder()
    over_flower.AGAIN = (0.0, 0.0)
    connections = FlowerConnections(folder)
    engine, fleet = two.engine, RankFleet(connections, Audit())
    names = engine.fleet.names  # type: ignore[union-attr]
    fleet.names, fleet.tokens, engine.fleet = names, dict.fromkeys(names, two.token), fleet
    todo: list[random.Random | None] = [None]

    def answer(data: bytes) -> bytes:
        _, number, _, _ = _COMMAND.unpack_from(data)
        envelope, rng = Envelope.read(data[_COMMAND.size :]), todo[0]
        if envelope.is_first:
            greeting = Reply(ANSWERED, envelope.link, bytes(ID), [memoryview(b"hello")])
            return _COMMAND.pack(ANSWER, number, 0, 0) + bytes(greeting)
        said = [memoryview(two.asks(bytes(each))) for each in envelope.messages]
        reply = bytes(Reply(ANSWERED, envelope.link, bytes(ID), said))
        if rng is None:
            return _COMMAND.pack(ANSWER, number, 0, 0) + reply
        what = rng.random()
        if what < 0.05:
            return _COMMAND.pack(FAILED, number, 0, 0) + rng.randbytes(50)
        if what < 0.15:  # the ServerApp itself
            return hostile(_COMMAND.pack(ANSWER, number, 0, 0) + reply, rng, bytes(said[0]))
        return _COMMAND.pack(ANSWER, number, 0, 0) + hostile(reply, rng, bytes(said[0]))

    pump = Pump(connections.path)
    pump.answer = answer
    pump.appear()
    fleet.admit = lambda rank, data: fleet.ranks.update({two.name: rank}) if data == b"hello" else None
    fleet.wait, fleet.hello = 20.0, b"hello"
    for number in range(cases):
        is_sound = number % SOUND == 0
        todo[0] = None if is_sound else random.Random(f"{seed}/answers/{number}")
        engine.options = type(engine.options)(deadline=5.0 if is_sound else 0.2)
        while not list(fleet.connected()):
            if connections.wait([*fleet.ranks.values()], 0.0) or fleet._late:
                fleet._drop_stale()
            if fleet._late:  # a report that belongs to nothing was brought: the node returns
                pump.appear()
                time.sleep(0.002)
            fleet.admit_arrivals()
        taken = False
        with contextlib.suppress(FedloomError):
            taken = bool(list(engine._ask_devices(two.call, [2], lambda ids: ())))
        counts.add(is_sound, taken)
    connections.close()
    shutil.rmtree(folder)
    return counts


def of_subjects(cases: int, seed: str) -> Counts:
    from test_over_nats import Place

    two, counts, place = Two(), Counts(), Place()
    end = place.come("Kiel")
    while not place.manager.arrivals():
        time.sleep(0.01)
    place.manager.limit = 1 << 20
    for number in range(cases):
        rng, is_sound = random.Random(f"{seed}/subjects/{number}"), number % SOUND == 0
        rank = place.manager.arrivals()[-1]
        if rank in place.manager._gone:  # it comes again, as a device does
            session = over_nats_session(end)
            end._sessions[0] = session
            end._run(end._greet(session)).result(20)
            rank = place.manager.arrivals()[-1]
        place.manager._due[rank] = 1  # it was asked
        place.manager._unasked.clear()  # else the bound on floods, which has its own tests, would refuse in its place
        answer = two.answer if is_sound else hostile(two.answer, rng, two.answer)
        head = {"size": str(len(answer)), "start": "0"}
        if not is_sound and rng.random() < 0.3:
            odd = ("-1", "x", "", "9" * 15, "9" * 40, str(len(answer) + 1), "0", "7", "é")
            head[rng.choice(["size", "start", "session", "greeting", "more"])] = rng.choice(odd)
        with contextlib.suppress(Exception):
            end._run(end._ask(end._sessions[0], head, answer)).result(20)
        taken = False
        while place.manager._inbox[rank]:
            with contextlib.suppress(FedloomError):
                taken |= two.is_answer(bytes(place.manager.take(rank)))
        counts.add(is_sound, taken)
        assert sum(len(each.data) for each in place.manager._sessions.values()) <= 4 * len(two.answer) + 10_000
    place.close()
    return counts


def over_nats_session(end: Any) -> Any:
    """Return the session of a device with which it greets again."""
    session = end._sessions[0]
    return type(session)(session.subject, session.id)


TARGETS = {"relay": of_relay, "answers": of_answers, "subjects": of_subjects}


def resident() -> float:
    """Return the resident memory of this process, in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def attack(name: str, cases: int, seed: int) -> Counts:
    """Run the cases of a target, and print what became of them."""
    TARGETS[name](SOUND, f"warm {seed}")
    before, start = resident(), time.monotonic()
    counts = TARGETS[name](cases, str(seed))
    print(
        f"{name}: cases {counts.cases:,}, of these sound {counts.sound:,}, accepted {counts.accepted}, sound ones "
        f"refused {counts.refused_sound}, seconds {time.monotonic() - start:.0f}, grown by {resident() - before:.1f} "
        "MiB",
        flush=True,
    )
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", choices=list(TARGETS))
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = [attack(name, args.cases, args.seed) for name in args.targets]
    return int(any(each.accepted or each.refused_sound for each in found))


if __name__ == "__main__":
    sys.exit(main())
