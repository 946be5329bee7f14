"""The status file of a server: written while it runs, and what it tells of one that has ended, or was killed."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import SettingError, StorageError
from fedloom.deploy import status_file
from fedloom.deploy.presence import Presence
from fedloom.deploy.status_file import STATUS, StatusFile, read_status


def opened(folder: Path, said: list[str] | None = None) -> StatusFile:
    said = [] if said is None else said
    return StatusFile(folder, Presence(said.append, 20, "0.2.0"), said.append)


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_it_is_written_at_events_and_removed_keys_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_file, "EVERY", 0.01)
    said: list[str] = []
    with opened(tmp_path, said) as status:
        assert read_status(tmp_path)["server"] == "runs"
        status.presence.hear({"event": "joined", "device": "a", "name": "Kiel"})
        wait_for(lambda: [each["state"] for each in read_status(tmp_path)["devices"]] == ["connected"])
        status.removed = lambda: ["a"]
        wait_for(lambda: [each["state"] for each in read_status(tmp_path)["devices"]] == ["removed"])
        before = (tmp_path / STATUS).stat().st_mtime_ns
        time.sleep(0.05)
        assert (tmp_path / STATUS).stat().st_mtime_ns == before  # nothing has happened
        monkeypatch.setattr(status_file, "HEARTBEAT", 0.0)
        wait_for(lambda: (tmp_path / STATUS).stat().st_mtime_ns > before)
    assert read_status(tmp_path)["server"] == "has ended"
    assert len(said) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [STATUS]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (SettingError("no device is left"), "no device is left"),
        (KeyboardInterrupt(), "it was stopped by a signal"),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_it_says_what_ended_the_server(error: BaseException, why: str, tmp_path: Path) -> None:
    with pytest.raises(type(error)), opened(tmp_path):
        raise error
    assert read_status(tmp_path)["why"] == why


def test_a_disk_that_does_not_take_it_ends_no_run_and_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    status = opened(tmp_path / "away", said)
    status.write()
    status.write()
    assert len(said) == 1
    assert status.problem.endswith("; make room or name another folder")
    assert said[0].startswith(f"cannot write {tmp_path / 'away' / STATUS} ")
    (tmp_path / "away").mkdir()
    status.write()
    assert status.problem == ""


def test_a_server_that_was_killed_or_hangs_is_told_from_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path).write()
    path = tmp_path / STATUS
    content = json.loads(path.read_text())
    assert read_status(tmp_path)["server"] == "runs"
    path.write_text(json.dumps(content | {"written": content["written"] - status_file.SILENT}))
    assert read_status(tmp_path)["server"] == "hangs"
    path.write_text(json.dumps(content | {"pid": 1 << 30}))  # no system has so many
    assert read_status(tmp_path)["server"] == "was killed"
    path.write_text(json.dumps(content | {"pid": 1 << 30, "host": socket.gethostname() + "2"}))
    assert read_status(tmp_path)["server"] == "runs"  # as far as this host can tell

    def refuse(process: int, signal: int) -> None:
        raise PermissionError

    path.write_text(json.dumps(content))
    monkeypatch.setattr(status_file.os, "kill", refuse)  # of another user
    assert read_status(tmp_path)["server"] == "runs"
    path.write_text(json.dumps(content | {"ended": 5.0}))
    assert read_status(tmp_path)["server"] == "has ended"


def test_a_folder_without_it_and_a_damaged_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"there is no .*status\.json, .* name the folder of a run of devices"):
        read_status(tmp_path)
    for text, why in (("{", "Expecting"), ("{}", "'format'"), ('{"format": 2}', "format 2, and this version reads 1")):
        (tmp_path / STATUS).write_text(text)
        with pytest.raises(StorageError, match=rf"status\.json is damaged \(.*{why}.*\): a server that runs writes it"):
            read_status(tmp_path)
