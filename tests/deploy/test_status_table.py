"""What `fedloom devices status` says of a server that runs, has ended, was killed or hangs, and of its devices."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedloom.cli.main import main
from fedloom.deploy import status_table
from fedloom.deploy.presence import Presence, Seen
from fedloom.deploy.status_file import STATUS, StatusFile, read_status
from fedloom.deploy.status_table import duration, reasons, rows, sentences, show, size
from fedloom.display.terminal import Terminal

NOW = 1_800_000_000.0


def content(server: str = "runs", **more: Any) -> dict[str, Any]:
    kiel = Seen(
        "a" * 32, "Kiel", 0, "connected", NOW - 190, NOW - 2, "0.2.0", 120, 7, 1.5, 35405, 4_682_900, 14, lost=2,
        refused=1, why="it has failed", when=NOW - 60, personal=0.8333333,
    )  # fmt: skip
    devices = [vars(kiel), vars(Seen("b" * 32))]
    made = {
        "server": server, "devices": devices, "written": NOW, "started": NOW - 3600, "ended": None, "why": "",
        "begun": True, "least": 5, "round": 7, "rounds": 20, "measure": "accuracy",
        "refused": [{"who": "key \x1b[31mabc", "why": "its key is not registered", "when": NOW}],
    }  # fmt: skip
    return made | more


def test_a_row_says_what_is_known_of_a_device() -> None:
    known, unknown = rows(content(), NOW)
    assert known == ("Kiel", "3 min", "2 s", "120", "7", "1.5", "35.4 kB", "4.68 MB", "2", "0.8333")
    assert unknown == ("bbbbbbbb", "awaited", "-", "-", "-", "-", "0 B", "0 B", "0", "-")
    assert rows(content("was killed"), NOW)[0][1] == "was"
    first, second = reasons(content())
    assert first.startswith("Kiel: lost 2, refused 1; 20")
    assert first.endswith(": it has failed")
    assert second.endswith(": key \N{REPLACEMENT CHARACTER}[31mabc: its key is not registered")


@pytest.mark.parametrize(
    ("server", "more", "said"),
    [
        ("runs", {}, "The server runs since "),
        ("has ended", {"ended": NOW, "why": "no device is left"}, ": no device is left."),
        ("was killed", {}, ": it was killed. Continue with fedloom serve --resume."),
        ("hangs", {}, ": it hangs, or was killed."),
    ],
)
def test_a_sentence_says_how_the_server_is(server: str, more: dict[str, Any], said: str) -> None:
    found = sentences(content(server, **more))
    assert said in found[0]
    are = "are" if server == "runs" else "were"
    assert found[1:] == [
        "Round 7 of 20.",
        f"1 of 2 devices {are} connected, with fedloom 0.2.0.",
        "The personal measure is accuracy.",
    ]
    assert sentences(content(begun=False, least=1))[1] == "It waits for 1 device to begin."
    assert sentences(content("was killed", begun=False))[1] == "The run had not begun."
    waits = sentences(content(begun=False, devices=[], measure=""))
    assert waits[1:] == ["It waits for 5 devices to begin.", "0 of 0 devices are connected."]


def test_durations_and_sizes_have_their_largest_unit() -> None:
    assert [duration(s) for s in (-1, 0.9, 59, 60, 3599, 3600, 86400 * 3)] == [
        "0 s", "0 s", "59 s", "1 min", "59 min", "1 h", "3 d",
    ]  # fmt: skip
    assert [size(n) for n in (0, 999, 1000, 999_499, 999_500, 10**16)] == [
        "0 B", "999 B", "1 kB", "999 kB", "1 MB", "1e+04 TB",
    ]  # fmt: skip


def test_the_command_prints_it_and_its_status_tells_a_dead_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    presence = Presence(print, 20, "0.2.0")
    presence.hear({"event": "joined", "device": "a" * 32, "name": "Kiel", "client": 0, "examples": 12})
    status = StatusFile(tmp_path, presence, print)
    status.write()
    assert main(["devices", "status", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("The server runs since 20")
    assert " 12 " in next(line for line in said.splitlines() if line.startswith("Kiel"))
    found = json.loads((tmp_path / STATUS).read_text())
    (tmp_path / STATUS).write_text(json.dumps(found | {"pid": 1 << 30}))
    assert main(["devices", "status", str(tmp_path)]) == 1
    presence.end("no device is left")
    status.write()
    assert main(["devices", "status", str(tmp_path)]) == 1
    presence.end()
    status.write()
    assert main(["devices", "status", str(tmp_path)]) == 0
    for words, why in (
        (["status", str(tmp_path / "none")], "which fedloom serve writes: name the folder of a run of devices"),
        (["status", str(tmp_path), "Kiel"], "takes a run's folder alone, got 'Kiel' too: leave it out"),
        (["list", str(tmp_path), "--watch"], "--watch belongs to fedloom devices status, got devices list: leave it"),
        (["status", str(tmp_path), "--watch"], "--watch draws on a terminal, and this is none: leave it out"),
    ):
        assert main(["devices", *words]) == 2
        assert why in " ".join(capsys.readouterr().err.split())


def test_watching_ends_with_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    presence = Presence(print, 20, "0.2.0")
    status = StatusFile(tmp_path, presence, print)
    status.write()
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            presence.end()
            status.write()
        if len(looks) > 3:
            raise KeyboardInterrupt

    clock = SimpleNamespace(sleep=sleep, time=time.time, strftime=time.strftime, localtime=time.localtime)
    monkeypatch.setattr(status_table, "time", clock)
    screen = io.StringIO()
    console = Terminal(file=screen, force_terminal=True, width=80)
    assert show(tmp_path, console, watch=True) == 0
    assert len(looks) == 3
    assert "The server has ended" in screen.getvalue()
    path = tmp_path / STATUS
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ended": None, "pid": os.getpid()}))
    assert read_status(tmp_path)["server"] == "runs"
    assert show(tmp_path, console, watch=True) == 0  # Ctrl+C
