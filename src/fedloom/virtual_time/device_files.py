"""Files of devices: classes with shares of the clients, and traces with the columns that FedScale's traces have.

FedScale (Lai et al., "FedScale: Benchmarking Model and System Performance of Federated Learning at Scale", ICML 2022)
keeps two traces, as pickles, which are not read here: write them as CSV files. The first has `computation`, the
milliseconds of inference for an example, and `communication`, kbit/s; the second has for each client a `finish_time`,
after which it begins anew, and lists of the seconds at which the client becomes `active` and `inactive`.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedloom.core.errors import SettingError
from fedloom.wording import local_path


@dataclass(frozen=True)
class DeviceClass:
    """Devices that are alike: `example` is seconds for an example, `down` and `up` are Mbit/s."""

    name: str
    share: float
    example: float
    down: float
    up: float


@dataclass(frozen=True)
class Spells:
    """Seconds at which a client comes and goes, in order and apart, within `length` seconds; then it begins anew."""

    begins: tuple[float, ...]
    ends: tuple[float, ...]
    length: float


def classes(file: str) -> list[DeviceClass]:
    """Return the classes of a file with the columns name, share, example, down and up.

    Raises:
        SettingError: it cannot be read, or says something else.
    """
    found = [
        DeviceClass(name, *(_number(file, row, key) for key in ("share", "example", "down", "up")))
        for row, name in ((row, row.cells["name"]) for row in _rows(file, ("name", "share", "example", "down", "up")))
    ]
    check_classes(found, file)
    return found


def check_classes(several: Sequence[DeviceClass], where: str) -> None:
    """Raise SettingError where there is no class, or one with a share or a rate of 0 or less."""
    for one in several:
        if not (one.share > 0 and one.example >= 0 and one.down > 0 and one.up > 0):
            raise SettingError(
                f"a class of devices has a share, Mbit/s down and up above 0, and 0 or more seconds for an example, "
                f"got {one} in {where!r}: correct it"
            )
    if len({one.name for one in several}) < len(several):
        raise SettingError(f"classes of devices have different names, got one twice in {where!r}: rename it")


def capacities(file: str) -> list[tuple[float, float]]:
    """Return `computation` and `communication` of each client of a trace.

    Raises:
        SettingError: it cannot be read, or says something else.
    """
    found = list[tuple[float, float]]()
    for row in _rows(file, ("computation", "communication")):
        computing, rate = _number(file, row, "computation"), _number(file, row, "communication")
        if computing < 0 or rate <= 0:
            raise SettingError(
                f"a device computes in 0 or more milliseconds and sends more than 0 kbit/s, got computation = "
                f"{computing:g} and communication = {rate:g} in line {row.line} of {file}: correct it"
            )
        found.append((computing, rate))
    return found


def availability(file: str) -> list[Spells]:
    """Return when each client of a trace is there, from client_id, active, inactive and finish_time of each spell.

    Raises:
        SettingError: it cannot be read, or says something else.
    """
    spells, lengths = dict[str, list[tuple[float, float]]](), dict[str, float]()
    for row in _rows(file, ("client_id", "active", "inactive", "finish_time")):
        client = row.cells["client_id"]
        begin, end, length = (_number(file, row, key) for key in ("active", "inactive", "finish_time"))
        so_far = spells.setdefault(client, [])
        if (
            not (so_far[-1][1] if so_far else 0.0) <= begin < end <= length
            or lengths.setdefault(client, length) != length
        ):
            raise SettingError(
                f"spells of a client follow each other, from active to a later inactive, up to its one finish_time, "
                f"got active = {begin:g}, inactive = {end:g}, finish_time = {length:g} of client {client!r} in line "
                f"{row.line} of {file}: sort them, or correct it"
            )
        if so_far and so_far[-1][1] == begin:  # it stays
            so_far[-1] = (so_far[-1][0], end)
        else:
            so_far.append((begin, end))
    return [
        Spells(tuple(begin for begin, _ in of), tuple(end for _, end in of), lengths[client])
        for client, of in spells.items()
    ]


def measured(run: str) -> list[float]:
    """Return the seconds of each device of a run, by its audit log: the median of its answers in rounds, by device.

    Raises:
        SettingError: there is no such log, or it tells of no seconds.
    """
    file, seconds = audit_of(run), dict[str, list[float]]()
    try:
        for line in map(json.loads, file.read_text(encoding="ascii").splitlines()):
            if line["event"] == "answered" and "seconds" in line:
                seconds.setdefault(line["device"], []).append(float(line["seconds"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SettingError(
            f"a measured clock takes the folder of a run of devices, with its audit log, got {run!r}: {error}; name "
            "the folder that fedloom serve has written"
        ) from None
    if not seconds:
        raise SettingError(
            f"a measured clock needs answers whose seconds are known, got none in {file}: it is of an earlier version, "
            "or of a run under masks; measure again"
        )
    return [statistics.median(seconds[device]) for device in sorted(seconds)]


def audit_of(run: str) -> Path:
    """Return the audit log of a run's folder."""
    return local_path(run) / "audit.jsonl"


@dataclass(frozen=True)
class _Row:
    line: int
    cells: dict[str, str]


def _rows(file: str, columns: Collection[str]) -> Iterator[_Row]:
    """Yield the rows of a CSV file that has these columns, and maybe others.

    Raises:
        SettingError: it cannot be read, has not these columns, or no row.
    """
    try:
        text = local_path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingError(f"a file of devices is a CSV file in UTF-8, got {file}: {error}; correct its name") from None
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True, restval="")
    if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
        raise SettingError(
            f"{file} needs the columns {', '.join(columns)}, and has no {missing[0]!r}: name it in the first line"
        )
    count = 0
    for count, cells in enumerate(reader, 1):  # noqa: B007  # of the last
        yield _Row(reader.line_num, {name: str(cells[name]).strip() for name in columns})
    if not count:
        raise SettingError(f"{file} is a file of devices and has no line beside the first: add one for each")


def _number(file: str, row: _Row, key: str) -> float:
    text = row.cells[key]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise SettingError(f"{key} is a number, got {text!r} in line {row.line} of {file}: correct it")
    return value
