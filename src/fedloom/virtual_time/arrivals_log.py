"""Log of a run on devices that does not wait: who started from each version of the model, and who came, in its order.

A line of `arrivals.jsonl` in the run's folder for each version, for good before this is computed:

    {"version": 4, "model": digest, "started": [2], "arrivals": [[0, 3], [2, 4]], "lost": [[1, 2, "lost: ..."]]}

Clients that started from version 4, in their order; clients whose answers make version 5, in the order in which they
came, each with the version that it started from; who lost its place without an answer, and why. `model` is the digest
of the server's state. A version that is begun anew after a kill has another line, and the lines from it on before that
do not count. After the last round `{"version": 20, "model": digest}` says where the run has come to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedloom.core.errors import SettingError, StorageError
from fedloom.storage import files
from fedloom.storage.strict_json import parse
from fedloom.virtual_time.unwaited_versions import UnderWay, Version

NAME = "arrivals.jsonl"
_LARGEST = 1 << 20  # bytes of a line
_DIGEST = 32  # hexadecimal digits
_WORDS = 300  # characters of a reason


@dataclass(frozen=True)
class Moment:
    """Events between a version of the model and the next one.

    Attributes:
        version: from 0.
        model: digest of the server's state at its begin.
        started: clients that started from it, in their order.
        arrivals: clients whose answers make the next one, in the order in which they came, and their versions.
        lost: why clients have lost their places, by client and version.
    """

    version: int
    model: str
    started: tuple[int, ...]
    arrivals: Mapping[int, int]
    lost: Mapping[tuple[int, int], str]

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Moment:
        """Return the moment of a line.

        Raises:
            ValueError: it is none.
        """
        version, model = _whole(line["version"]), line["model"]
        if not (isinstance(model, str) and len(model) == _DIGEST):
            raise ValueError(f"model is a digest of {_DIGEST} digits, got {model!r:.80}")
        started = tuple(map(_whole, line.get("started", ())))
        arrivals = {_whole(k): _whole(since) for k, since in line.get("arrivals", ())}
        lost = {(_whole(k), _whole(since)): str(why)[:_WORDS] for k, since, why in line.get("lost", ())}
        if len({*started}) < len(started) or len(arrivals) < len(line.get("arrivals", ())):
            raise ValueError("a client starts once from a version, and comes once")
        return cls(version, model, started, arrivals, lost)

    @property
    def line(self) -> dict[str, Any]:
        """Line of the log, as JSON has it."""
        lost = [[*who, why[:_WORDS]] for who, why in self.lost.items()]
        return {
            "version": self.version, "model": self.model, "started": [*self.started],
            "arrivals": [[*one] for one in self.arrivals.items()], "lost": lost,
        }  # fmt: skip

    def after(self, under_way: Mapping[int, UnderWay], places: int) -> Version:
        """Return the version whose events these are.

        Args:
            under_way: when it came about.
            places: the most clients that are under way.

        Raises:
            ValueError: somebody comes who was not under way, starts twice, or has no place.
        """
        there = {k: one for k, one in under_way.items() if (k, one.version) not in self.lost}
        if twice := there.keys() & {*self.started}:
            raise ValueError(f"client {min(twice)} starts from version {self.version} and is under way")
        there |= {k: UnderWay(self.version, 0.0) for k in self.started}
        for k, since in self.arrivals.items():
            if k not in there or there[k].version != since:
                raise ValueError(f"client {k} comes from version {since}, and has not started there")
        arrivals = {k: there.pop(k) for k in sorted(self.arrivals)}
        there = {k: one for k, one in there.items() if (k, one.version) not in self.lost}
        held = {one.place for one in there.values()}
        free = [place for place in range(places) if place not in held]
        if len(there) > places:
            raise ValueError(f"{len(there)} clients are under way after version {self.version}, in {places} places")
        left = {k: one if one.place >= 0 else replace(one, place=free.pop(0)) for k, one in there.items()}
        return Version(self.version, arrivals, self.started, left, 0.0, self.lost)


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 30:
        raise ValueError(f"versions and clients are whole numbers, got {value!r:.80}")
    return value


class ArrivalsLog:
    """The versions of a run by their numbers, and the file where they are written; None: nowhere.

    Attributes:
        moments: by version.
        ends: digest of the server's state after the last round, by the number of rounds.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self.moments, self.ends = path, dict[int, Moment](), dict[int, str]()
        self._whole = 0  # bytes of the lines that were read
        for number, line in enumerate(() if path is None or not path.exists() else self._lines(path), 1):
            try:
                found = parse(line, _LARGEST)
                moment = Moment.read(found)
                if "arrivals" not in found:
                    self.ends[moment.version] = moment.model
                    continue
                if not moment.arrivals or moment.version > len(self.moments):
                    raise ValueError(f"version {moment.version} has arrivals, and follows {len(self.moments) - 1}")
            except (ValueError, LookupError, TypeError) as error:
                raise StorageError(f"line {number} of {path} does not say who came in a version: {error}") from None
            self._take(moment)

    def _lines(self, path: Path) -> Iterator[bytes]:
        for line in files.load(path).splitlines(keepends=True):
            if not line.endswith(b"\n"):
                return  # of a process that was killed while it wrote
            self._whole += len(line)
            yield line

    def _take(self, moment: Moment) -> None:
        self.moments = {version: one for version, one in self.moments.items() if version < moment.version}
        self.ends = {version: model for version, model in self.ends.items() if version <= moment.version}
        self.moments[moment.version] = moment

    def write(self, moment: Moment) -> None:
        """Add a version, for good before this returns; what was written of it and of later ones does not count."""
        self._take(moment)
        self._append(moment.line)

    def end(self, rounds: int, model: str) -> None:
        """Add where the run has come to after its last round."""
        if self.ends.get(rounds) != model:
            self.ends[rounds] = model
            self._append({"version": rounds, "model": model})

    def _append(self, line: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        with self.path.open("ab") as file:
            file.truncate(self._whole)
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self._whole = file.tell()

    def check(self, rounds: int, clients: int, places: int) -> None:
        """Raise SettingError unless a run with so many rounds, clients and places can follow the log."""
        if rounds > len(self.moments):
            raise SettingError(
                f"{self.path} has {len(self.moments)} versions of the model, so rounds (--rounds) is at most as much, "
                f"got {rounds}: set fewer"
            )
        under_way: Mapping[int, UnderWay] = {}
        try:
            for moment in self.moments.values():
                if (most := max((*moment.started, *moment.arrivals), default=0)) >= clients:
                    raise ValueError(f"client {most} is one of {clients}")
                under_way = moment.after(under_way, places).left
        except ValueError as error:
            raise SettingError(
                f"{self.path} is not the log of such a run ({error}): take the data of all its devices, in the order "
                "of devices.json, and its cohort_size"
            ) from None
