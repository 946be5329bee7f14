"""A fleet over Flower, whose grid is in this process: the bits of the loop, and who comes, goes and lies."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from connected import asked, greeted, named, until
from fedloom.deploy.flower import over_flower
from fedloom.deploy.flower.flower_relay import (
    ABSENT,
    ANSWERED,
    ID,
    MOST,
    UNKNOWN,
    Envelope,
    Reply,
    joined,
    relay,
    split,
)
from fedloom.deploy.flower.over_flower import RelayedServer, _shut
from fedloom.deploy.server.fleet import NoResponse
from fedloom.ranks.communication import CLOSED
from fedloom.testing import checks
from flower_in_memory import DevicesOverFlower, Flower, serve, short_folder
from test_battery import REPRESENTATIVES, subject

pytestmark = pytest.mark.filterwarnings("ignore:.* weighs a distance to the running statistics")

QUICK = ("fedavg", "scaffold", "pfedsd", "kt_pfl", "feddf", "fedmd")
OTHERS = sorted({*REPRESENTATIVES} - {*QUICK})  # the way of the bytes knows no algorithm, but what it exchanges


@pytest.mark.some(1)
@pytest.mark.parametrize("algorithm", [*QUICK, *OTHERS])
def test_each_form_of_exchange_has_the_bits_of_the_loop(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check that payloads travel, with the devices of the battery over Flower."""
    ours = subject(algorithm)
    monkeypatch.setattr(checks, "DevicesInProcess", DevicesOverFlower)
    checks.payloads_travel(ours)
    engine = ours.run(DevicesOverFlower).engine
    assert isinstance(engine, DevicesOverFlower)
    assert engine.flower.connections._sent == {}


# ---- connections


@pytest.fixture
def flower() -> Iterator[Flower]:
    flower = Flower()
    yield flower
    flower.close()


def test_a_device_that_comes_late_is_a_rank(flower: Flower) -> None:
    serve(flower.add(7), named("one"))
    fleet = greeted(flower.connections, 1)
    assert asked(fleet, "one") == {"one": b"one request"}
    serve(flower.add(9), named("two"))
    until(lambda: len(flower.connections.arrivals()) == 2)
    admitted: dict[int, bytes] = {}
    fleet.admit = admitted.__setitem__
    until(lambda: (fleet.admit_arrivals(), admitted)[1])
    assert admitted == {2: b"two"}


def test_a_process_that_was_started_again_has_a_new_rank(flower: Flower) -> None:
    """Its link is not known there; so no message of the old one reaches it."""
    serve(flower.add(7), named("one"))
    fleet, seen = greeted(flower.connections, 1), list[bytes]()
    flower.servers[7].close()
    (flower.folder / "device 7").unlink(missing_ok=True)

    def answer(data: bytes) -> bytes:
        seen.append(data)
        return b"again"

    serve(flower.add(7), answer)
    assert asked(fleet, "one") == {"one": NoResponse("its connection ended, or it sent too much")}
    assert flower.connections.reasons == {1: "its process was started again"}
    assert seen == []
    fleet.admit = lambda rank, data: fleet.ranks.update({data.decode(): rank})
    fleet.wait = 10.0
    fleet.admit_arrivals()
    assert fleet.ranks == {"again": 2}


def test_a_link_outlives_a_supernode_and_the_old_one_ends_where_a_process_connects_anew(flower: Flower) -> None:
    device = flower.add(7)
    serve(device, named("one"))
    fleet = greeted(flower.connections, 1)
    before = flower.grid.clients[7]
    flower.grid.clients[7] = lambda data: before(data)  # the same node, another SuperNode
    assert asked(fleet, "one") == {"one": b"one request"}
    flower.add(8, device)  # without a key, it has another number
    until(lambda: len(flower.connections.arrivals()) == 2)
    fleet._registrations(0.0)
    # the device's loop ends where the server begins anew, and takes part again
    until(lambda: device._next is not None)
    assert device.reopen()
    serve(device, named("one"))
    until(lambda: 1 in flower.connections.reasons)
    assert flower.connections.reasons[1] == "its process has connected again"


def test_a_node_that_leaves_is_gone_and_others_are_not(flower: Flower) -> None:
    for node, name in ((1, "one"), (2, "two")):
        serve(flower.add(node), named(name))
    fleet = greeted(flower.connections, 2)
    del flower.grid.clients[1]
    until(lambda: flower.connections.reasons)
    assert asked(fleet, "one", "two") == {"one": NoResponse("it is not there"), "two": b"two request"}
    assert [*flower.connections.reasons.values()] == ["it is not connected to Flower any more"]


def test_a_late_answer_is_dropped(flower: Flower) -> None:
    go = threading.Event()

    def slow(data: bytes) -> bytes:
        if data == b"request":
            go.wait(10)
        return named("one")(data)

    serve(flower.add(1), slow)
    fleet = greeted(flower.connections, 1)
    assert asked(fleet, "one", deadline=0.05) == {"one": NoResponse("no answer within 0.05 s")}
    assert list(fleet.connected()) == []
    go.set()
    until(lambda: (fleet.admit_arrivals() if fleet._late else None, fleet.connected())[1])
    assert asked(fleet, "one") == {"one": b"one request"}


def test_messages_that_wait_go_together_and_in_order(flower: Flower) -> None:
    go, seen = threading.Event(), list[bytes]()

    def answer(data: bytes) -> bytes:
        seen.append(data)
        if data == b"0":
            go.wait(10)
        return data

    serve(flower.add(1), answer)
    fleet = greeted(flower.connections, 0)
    until(lambda: flower.connections.arrivals())
    connections, carried = flower.connections, list[int]()
    push = flower.grid.push
    flower.grid.push = lambda node, data: (carried.append(len(data)), push(node, data))[1]  # type: ignore[method-assign]
    connections.post(1, b"first")
    until(lambda: connections.wait([1], 0.0))
    assert bytes(connections.take(1)) == b"first"
    for message in (b"0", b"1", b"2", b"3"):
        connections.post(1, message)
    until(lambda: b"0" in seen)
    go.set()
    for message in (b"0", b"1", b"2", b"3"):
        until(lambda: connections.wait([1], 0.0))
        assert bytes(connections.take(1)) == message
    assert seen == [b"first", b"0", b"1", b"2", b"3"]
    assert len(carried) == 3
    fleet.close()


def test_a_pump_that_dies_ends_all_links_and_the_next_one_greets_anew(flower: Flower) -> None:
    serve(flower.add(1), named("one"))
    fleet = greeted(flower.connections, 1)
    _shut(flower.pipe)
    until(lambda: not flower.connections.is_carried)
    assert flower.connections.wait([1], 0.0) == [1]
    flower.start_pump()
    until(lambda: len(flower.connections.arrivals()) == 2)
    assert fleet.manager.wait([2], 0.0) == []


def test_the_end_of_a_run_reaches_devices(flower: Flower) -> None:
    threads = [serve(flower.add(node), named(name)) for node, name in ((1, "one"), (2, "two"))]
    fleet = greeted(flower.connections, 2)
    fleet.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


# ---- what a device may send


def lying(answer: Callable[[Envelope], bytes | str]) -> Callable[[bytes], bytes | str]:
    """A ClientApp that answers what it likes, after the first message."""
    process = bytes(ID)

    def client(data: bytes) -> bytes | str:
        envelope = Envelope.read(data)
        if envelope.is_first:
            return bytes(Reply(ANSWERED, envelope.link, process, [memoryview(b"liar")]))
        return answer(envelope)

    return client


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda e: b"", "not an answer of a device"),
        (lambda e: ABSENT, "no process of a device is there"),
        (lambda e: b"a" * 20, "not an answer of a device"),
        (lambda e: "it is ill", "it is ill"),
        (lambda e: bytes(Reply(UNKNOWN, e.link, bytes(ID), [])), "its process was started again"),
        (lambda e: bytes(Reply(ANSWERED, bytes(ID), bytes(ID), [memoryview(b"x")])), "its process was started again"),
        (lambda e: bytes(Reply(ANSWERED, e.link, b"1" * ID, [memoryview(b"x")])), "another process answers for it"),
        (lambda e: bytes(Reply(ANSWERED, e.link, bytes(ID), [])), "it sent too much, or not an answer for each"),
        (lambda e: bytes(Reply(ANSWERED, e.link, bytes(ID), [memoryview(b"x")] * 2)), "it has more than 1 messages"),
        (lambda e: bytes(Reply(ANSWERED, e.link, bytes(ID), [])) + bytes(1000), "it has more than 1 messages"),
        (lambda e: bytes(Reply(ANSWERED, e.link, bytes(ID), [memoryview(b"x" * 101)])), "it sent too much, or not an"),
        (lambda e: bytes(Reply(ANSWERED, e.link, bytes(ID), [])) + b"\xff" * 8, "a message is shorter than it says"),
        (lambda e: bytes(Reply(ANSWERED, e.link, bytes(ID), [])) + b"\xff", "a message is shorter than it says"),
        (lambda e: b"x" * 2000, "it sent 2000 bytes, and at most 1124 are taken"),
    ],
)
def test_a_device_that_answers_wrongly_is_gone(
    flower: Flower, answer: Callable[[Envelope], bytes | str], reason: str
) -> None:
    flower.connections.limit = 100
    flower.grid.clients[1] = lying(answer)
    serve(flower.add(2), named("honest"))
    fleet = greeted(flower.connections, 2)
    assert asked(fleet, "liar", "honest") == {
        "liar": NoResponse("its connection ended, or it sent too much"), "honest": b"honest request",
    }  # fmt: skip
    (given,) = flower.connections.reasons.values()
    assert given.startswith(reason)


def test_a_device_takes_messages_of_its_server_alone() -> None:
    folder = short_folder()
    server = RelayedServer(folder / "device")
    server.limit = 100
    thread = serve(server, named("one"))
    ours, other = secrets.token_bytes(ID), secrets.token_bytes(ID)

    def sent(link: bytes, is_first: bool, *messages: bytes) -> Reply | None:
        data = relay(bytes(Envelope(link, is_first, [memoryview(each) for each in messages])), folder / "device")
        return None if data == ABSENT else Reply.read(data, 1)

    assert sent(other, False, b"request").status == UNKNOWN  # type: ignore[union-attr]
    reply = sent(ours, True, b"hello")
    assert reply is not None
    assert [bytes(each) for each in reply.answers] == [b"one"]
    assert sent(ours, False, b"x" * 101).status == UNKNOWN  # type: ignore[union-attr]
    assert sent(other, False, b"request").status == UNKNOWN  # type: ignore[union-attr]
    said = list[Reply | None]()
    empty = threading.Thread(target=lambda: said.append(sent(ours, False)), daemon=True)
    empty.start()
    empty.join(10)  # nothing is there to be answered, and its relay does not wait
    assert [reply.status for reply in said if reply] == [UNKNOWN]
    for wrong in (b"", b"x", bytes(ID), bytes(ID) + b"\2", bytes(ID) + b"\1" + b"\xff" * 8, b"x" * 5000):
        assert relay(wrong, folder / "device") == ABSENT
    assert sent(ours, False, CLOSED) is not None
    thread.join(10)
    assert not thread.is_alive()
    server.close()
    assert relay(b"x", folder / "device") == ABSENT


def test_messages_come_apart_as_they_were_joined() -> None:
    for messages in ([], [b""], [b"a", b"", b"bc" * 1000]):
        assert [bytes(each) for each in split(memoryview(joined(messages)), 3)] == messages


def test_no_more_messages_are_taken_apart_than_are_expected() -> None:
    """Each takes 25 times the memory of its length, which is all that an empty one sends."""
    with pytest.raises(ValueError, match="it has more than 2 messages"):
        split(memoryview(bytes(3 * 8)), 2)
    empty = joined([b""] * MOST)
    assert len(Envelope.read(bytes(ID) + b"\1" + empty).messages) == MOST
    with pytest.raises(ValueError, match=f"it has more than {MOST} messages"):
        Envelope.read(bytes(ID) + b"\1" + empty + bytes(8))


def test_a_device_is_sent_no_more_messages_at_once_than_it_takes_apart(
    flower: Flower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_flower, "MOST", 2)
    took = list[int]()
    honest = flower.add(1)
    serve(honest, named("one"))
    client = flower.grid.clients[1]

    def counting(data: bytes) -> bytes | str:
        took.append(len(Envelope.read(data).messages))
        return client(data)

    flower.grid.clients[1] = counting
    fleet = greeted(flower.connections, 1)
    for k in range(5):
        flower.connections.post(fleet.ranks["one"], b"request %d" % k)
    answers = list[bytes]()
    while len(answers) < 5:
        assert flower.connections.wait([fleet.ranks["one"]], 20)
        answers.append(bytes(flower.connections.take(fleet.ranks["one"])))
    assert answers == [b"one request %d" % k for k in range(5)]
    assert max(took) == 2


def test_a_server_takes_one_pump_at_a_time(flower: Flower) -> None:
    Client(str(flower.connections.path), "AF_UNIX")  # waits until the first has ended
    serve(flower.add(1), named("one"))
    assert asked(greeted(flower.connections, 1), "one") == {"one": b"one request"}


def test_relays_import_no_torch_and_no_flower() -> None:
    program = "import fedloom.deploy.flower.flower_relay, sys; print({'torch', 'numpy', 'flwr'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
