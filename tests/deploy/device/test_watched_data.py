"""A device that looks at its own examples, and joins again with those that have changed."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commands import error
from fedloom.core.errors import SettingError
from fedloom.deploy.device import Membership
from fedloom.deploy.device.watched_data import EVERY, WatchedData
from fedloom.deploy.participation import JoinsAnew, take_part
from fedloom.ranks.communication import CLOSED


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def later(self, watched: WatchedData, looks: int = 1) -> list[bool]:
        """Return what is said at so many looks."""
        out = []
        for _ in range(looks):
            self.now += EVERY
            out.append(watched.changed())
        return out


def table(path: Path, rows: int, time: int = 0) -> None:
    path.write_text("x,label\n" + "".join(f"{k},{k % 2}\n" for k in range(rows)))
    os.utime(path, ns=(time, time))


def test_a_table_that_has_grown_is_read_once_nobody_writes_it(tmp_path: Path) -> None:
    file, clock, said = tmp_path / "mine.csv", Clock(), list[str]()
    table(file, 4)
    watched = WatchedData(f"{file}?label=label", said.append, clock)
    assert clock.later(watched, 2) == [False, False]
    table(file, 6, 1)
    clock.now += EVERY / 2
    assert not watched.changed()  # too early to look
    assert clock.later(watched) == [False]  # somebody may be writing
    table(file, 8, 2)
    assert clock.later(watched, 3) == [False, True, False]
    table(file, 8, 3)
    file.write_text("x,label\n1,")
    assert clock.later(watched, 3) == [False, False, False]
    (told,) = said
    assert told.startswith("the examples have changed and cannot be read, so those before count: ")
    table(file, 9, 4)
    assert clock.later(watched, 2) == [False, True]
    file.unlink()
    assert clock.later(watched, 2) == [False, False]


def test_a_folder_is_watched_with_what_is_in_it(tmp_path: Path) -> None:
    clock = Clock()
    table(tmp_path / "mine.csv", 4)
    watched = WatchedData(str(tmp_path), lambda text: None, clock)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "new.txt").write_text("more")
    assert clock.later(watched, 2) == [False, True]


def test_what_is_no_file_is_not_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="--watch-data looks at a file or at a folder, got --data fashion_mnist: na"):
        WatchedData("fashion_mnist", print)
    table(tmp_path / "mine.csv", 4)
    table(tmp_path / "other.csv", 4)
    monkeypatch.setattr("fedloom.deploy.device.watched_data._MOST", 1)
    with pytest.raises(SettingError, match="looks at no more than 1 files, and"):
        WatchedData(str(tmp_path), print)


def test_a_transport_by_which_nobody_joins_again_refuses_the_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(tmp_path / "mine.csv", 4)
    words = ["join", "--data", f"{tmp_path}/mine.csv", "--state", f"{tmp_path}/state", "--watch-data"]
    assert "--watch-data belongs to --transport nats, got --transport gloo" in error(capsys, *words)


def test_a_member_that_watches_says_when_to_join_again(tmp_path: Path) -> None:
    table(tmp_path / "mine.csv", 6)
    member = Membership(f"{tmp_path}/mine.csv?label=label", tmp_path / "state", watches=True)
    plain = Membership(f"{tmp_path}/mine.csv?label=label", tmp_path / "state")
    assert not member.changed()
    assert not plain.changed()
    assert member.watched is not None
    member.watched._clock = clock = Clock()
    clock.now = 1e12
    table(tmp_path / "mine.csv", 8, 1)
    assert [member.changed(), clock.later(member.watched)] == [False, [True]]


def test_a_device_leaves_between_two_requests_to_join_anew() -> None:
    """Not while it computes."""
    waits, computes, done = threading.Event(), threading.Event(), list[str]()

    def receive() -> bytes:
        if not done:
            return b"request"
        waits.wait(20)
        return CLOSED

    def answer(message: bytes) -> bytes:
        computes.wait(20)
        done.append("answered")
        return message

    class Member:
        is_over, leave_reason = False, None

        def __call__(self, data: bytes) -> bytes:
            return answer(data)

        def changed(self) -> bool:
            threading.Timer(0.3, computes.set).start()  # it computes when it hears of the change
            return True

    manager: Any = SimpleNamespace(limit=0, receive=receive, answer=lambda message: None)
    with pytest.raises(JoinsAnew):
        take_part(manager, Member(), anew=Member().changed)
    assert done == ["answered"]
    waits.set()
