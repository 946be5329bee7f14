"""The devices of a server in words, by its status file: `fedloom devices status`, and the rows of its page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from fedloom.core.errors import SettingError
from fedloom.deploy.presence import CONNECTED
from fedloom.deploy.status_file import read_status
from fedloom.display.terminal import Terminal, table
from fedloom.wording import printable

COLUMNS = ("device", "there", "heard", "examples", "round", "s", "down", "up", "lost", "personal")
_TROUBLES = ("lost", "late", "refused", "declined")
_LOOKED_AT = 1.0  # seconds between two looks


def show(folder: Path, console: Terminal, watch: bool) -> int:
    """Print how the devices of a run's server are; return 1 if the server was killed, hangs or has failed.

    `watch`: go on until the server has ended.

    Raises:
        SettingError: the folder has no status file, or there is no terminal to watch at.
    """
    if watch and not console.is_terminal:
        raise SettingError("--watch draws on a terminal, and this is none: leave it out, and call the command again")
    content = read_status(folder)
    if not watch:
        console.print(_drawn(content))
        return _failed(content)
    with Live(_drawn(content), console=console, auto_refresh=False) as live:
        try:
            while content["server"] == "runs":
                time.sleep(_LOOKED_AT)
                content = read_status(folder)
                live.update(_drawn(content), refresh=True)
        except KeyboardInterrupt:
            return 0
    return _failed(content)


def sentences(content: Mapping[str, Any]) -> list[str]:
    """Return what is to be said of a server: how it is, its run, and how many devices are there."""
    devices, written = content["devices"], content["written"]
    if content["server"] == "runs":
        how = f"The server runs since {_at(content['started'])}."
    elif content["server"] == "has ended":
        how = f"The server has ended at {_at(content['ended'])}" + (f": {content['why']}" * bool(content["why"])) + "."
    elif content["server"] == "was killed":
        how = f"The server is not running since {_at(written)}: it was killed. Continue with fedloom serve --resume."
    else:
        how = f"The server has written nothing since {_at(written)}: it hangs, or was killed."
    here = sum(its["state"] == CONNECTED for its in devices)
    versions = " and ".join(sorted({its["version"] for its in devices} - {""}))
    least = content["least"]
    waits = f"It waits for {least} device{'s' * (least > 1)} to begin."
    waits = waits if content["server"] == "runs" else "The run had not begun."
    run = f"Round {content['round']} of {content['rounds']}." if content["begun"] else waits
    are = "are" if content["server"] == "runs" else "were"
    there = f"{here} of {len(devices)} devices {are} connected" + f", with fedloom {versions}" * bool(versions) + "."
    what = f"The personal measure is {content['measure']}." * bool(content["measure"])
    return [how, run, there, *[what] * bool(what)]


def rows(content: Mapping[str, Any], now: float) -> list[tuple[str, ...]]:
    """Return a row for each device, of texts as `COLUMNS` names them; "-" for what is not known.

    There is for how long it is connected, heard how long ago it was heard; down and up are bytes to and from it.
    """
    runs = content["server"] == "runs"
    return [
        (
            _label(its),
            _state(its, runs, now),
            "-" if its["heard"] is None else duration(now - its["heard"]),
            "-" if its["examples"] is None else f"{its['examples']:,}",
            _number(its["round"]),
            _number(its["seconds"]),
            size(its["sent"]),
            size(its["received"]),
            str(its["lost"]),
            _number(its["personal"]),
        )
        for its in content["devices"]
    ]


def reasons(content: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each device that was lost, late or refused, or that declined, with the last reason."""
    out = []
    for its in content["devices"]:
        if its["when"] is None:
            continue
        counts = ", ".join(f"{name} {its[name]}" for name in _TROUBLES if its[name])
        out.append(f"{_label(its)}: {counts}{'; ' * bool(counts)}{_at(its['when'])}: {printable(its['why'], 300)}")
    return out + [
        f"refused {_at(its['when'])}: {printable(its['who'])}: {printable(its['why'], 300)}"
        for its in content["refused"]
    ]


def duration(seconds: float) -> str:
    """Return a duration in its largest unit, rounded down: "5 s", "3 min", "7 h", "2 d"."""
    whole = max(0, int(seconds))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    return next((f"{whole // each} {unit}" for unit, each in units if whole >= each), "0 s")


def size(count: int) -> str:
    """Return a number of bytes in three digits: "35.4 kB"."""
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}"


def _drawn(content: Mapping[str, Any]) -> Group:
    now = time.time()
    drawn = table("")
    for heading in COLUMNS:
        drawn.add_column(heading, justify="left" if heading == "device" else "right")
    for row in rows(content, now):
        drawn.add_row(*row)
    told = _lines([" ".join(sentences(content))])
    return Group(*told, *[drawn] * bool(content["devices"]), *_lines(reasons(content)))


def _lines(texts: Sequence[str]) -> list[Text]:
    return [Text(text) for text in texts]


def _failed(content: Mapping[str, Any]) -> int:
    return int(content["server"] in ("was killed", "hangs") or bool(content["why"]))


def _label(its: Mapping[str, Any]) -> str:
    return printable(its["name"] or its["id"][:8], 64)


def _state(its: Mapping[str, Any], runs: bool, now: float) -> str:
    if its["state"] != CONNECTED:
        return str(its["state"])
    return duration(now - its["since"]) if runs else "was"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _at(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
