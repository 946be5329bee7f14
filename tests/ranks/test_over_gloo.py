"""Ranks that come over Gloo, late, again, or never quite, all in one process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from fedloom.core.errors import EngineWarning, RankError, SettingError
from fedloom.ranks import communication, over_gloo
from fedloom.ranks.over_gloo import GlooManager

Made = Callable[..., GlooManager]


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Makes the ends of a job of three; all end with the test."""
    monkeypatch.setattr(over_gloo, "LOOK", 0.005)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store, made = dist.HashStore(), list[GlooManager]()

    def make(rank: int) -> GlooManager:
        made.append(GlooManager(rank, 3, store))
        return made[-1]

    yield make
    for each in reversed(made):
        each.end()


def here(server: GlooManager, count: int) -> list[int]:
    """The ranks that have come, once these are so many."""
    until = time.monotonic() + 20
    while len(server.arrivals()) < count and time.monotonic() < until:
        time.sleep(0.005)
    return server.arrivals()


def connected(server: GlooManager) -> None:
    """Waits until nobody is being connected."""
    while server.arriving:
        time.sleep(0.005)


def asked(server: GlooManager, number: int, rank: GlooManager, message: bytes) -> bytes:
    """What a rank answers, in capitals."""
    server.post(number, message)
    rank.answer(bytes(rank.receive()).upper())
    assert server.wait([number], 20) == [number]
    return bytes(server.take(number))


def test_a_rank_comes_late_and_again_under_another_number(manager: Made) -> None:
    server, one = manager(0), manager(1)
    assert here(server, 1) == [1]
    assert asked(server, 1, one, b"one") == b"ONE"  # the other is not there yet
    two = manager(2)
    assert here(server, 2) == [1, 2]
    assert asked(server, 2, two, b"two") == b"TWO"
    one.end()
    assert server.wait([1], 20) == [1]  # it is missed though nobody has asked it anything
    with pytest.raises(EOFError):
        server.take(1)
    again = manager(1)
    assert here(server, 3) == [1, 2, 3]
    assert asked(server, 3, again, b"back") == b"BACK"
    assert asked(server, 2, two, b"go on") == b"GO ON"
    assert [server.launched_as(number) for number in (1, 2, 3)] == ["1", "2", "1"]  # the rank to start again


@pytest.mark.slow
def test_what_nobody_asked_for_is_not_taken(manager: Made) -> None:
    server, one = manager(0), manager(1)
    here(server, 1)
    for _ in range(3):
        one.answer(b"unasked")
    assert server.wait([1], 0.2) == []
    server.post(1, b"now")
    assert server.wait([1], 20) == [1]
    assert bytes(server.take(1)) == b"unasked"
    assert server.wait([1], 0.2) == []


def test_an_end_wakes_whoever_waits(manager: Made) -> None:
    """A thread that still waits in Gloo when the interpreter ends aborts the process."""
    before = threading.active_count()
    server, one = manager(0), manager(1)
    here(server, 1)
    begun = time.monotonic()
    one.end()
    server.end()
    assert time.monotonic() - begun < 2
    assert threading.active_count() == before


def test_what_was_said_before_an_end_is_heard(manager: Made) -> None:
    server, one = manager(0), manager(1)
    here(server, 1)
    server.post(1, b"")
    server.end()
    assert bytes(one.receive()) == b""
    time.sleep(0.1)
    with pytest.raises(EOFError, match="rank 0 is gone"):
        one.answer(b"")


def test_an_end_sends_what_was_posted_to_a_rank_that_has_just_come(
    manager: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender must be there before it is listed, or the end does not wait for that."""
    comes = GlooManager._add_rank

    def slowly(self: GlooManager, rank: int) -> None:
        comes(self, rank)
        time.sleep(0.0 if self.rank else 0.5)

    monkeypatch.setattr(GlooManager, "_add_rank", slowly)
    server, one = manager(0), manager(1)
    here(server, 1)
    server.post(1, b"")
    server.end()
    assert bytes(one.receive()) == b""


def test_who_has_come_and_is_not_there_holds_nobody_up(manager: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_gloo, "MEETING", timedelta(seconds=0.3))
    server = manager(0)
    server.store.add("arrivals", 1)  # by somebody who dies then
    until = time.monotonic() + 5
    while not server.arriving and time.monotonic() < until:
        time.sleep(0.005)
    one = manager(1)
    assert here(server, 1) == [2]
    assert asked(server, 2, one, b"one") == b"ONE"
    with pytest.warns(EngineWarning, match=r"a new rank did not connect: .* could not be connected"):
        connected(server)


def test_ranks_that_cannot_be_connected_hear_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("Gloo connectFullMesh failed with ... Connection refused, remote=[127.0.0.1]:3972")

    monkeypatch.setattr("torch.distributed.ProcessGroupGloo", refused)
    with pytest.raises(
        RankError, match=r"could not be connected \(Gloo connect.* and GLOO_SOCKET_IFNAME=eth0 to the network"
    ):
        GlooManager(1, 3, dist.HashStore())


def test_a_port_that_another_program_holds_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a second server does not wait for devices, and the first one's ranks are not told of it."""
    monkeypatch.setattr(communication, "_LEAVES_WITHIN", 0.0)
    for host in ("127.0.0.1", "0.0.0.0"):
        with socket.create_server((host, 0)) as other:
            port = str(other.getsockname()[1])
            for name, value in (
                ("RANK", "0"),
                ("WORLD_SIZE", "3"),
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", port),
            ):
                monkeypatch.setenv(name, value)
            words = rf"port {port} is taken \(address already in use\), .*, or choose another port \(MASTER_PORT\)"
            with pytest.raises(SettingError, match=words):
                over_gloo.over_gloo()
