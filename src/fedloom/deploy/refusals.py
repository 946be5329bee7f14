"""Connections that Flower or nats-server refuse, read from their logs for the audit log of the run.

Whoever reaches the port can be refused as often as he likes: each key is noted once in a while, and only so many.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from fedloom.deploy.certificates import fingerprint

LARGEST = 1 << 24  # bytes of a log, which then is begun anew: the part before is kept as .old
AGAIN = 600.0  # seconds until the same is noted once more
MOST = 1000  # different ones that are noted
_CHUNK = 1 << 20  # bytes that are read at a time
_LINE = 1 << 14  # bytes of a line that are looked at


def begin_anew(log: Path) -> bool:
    """Empty a log beyond `LARGEST` bytes, to which a program appends at its new end; return whether it was so long."""
    if not log.exists() or log.stat().st_size <= LARGEST:
        return False
    shutil.copy(log, log.with_name(f"{log.name}.old"))
    os.truncate(log, 0)
    return True


class Refusal(NamedTuple):
    """Name of who was refused, the fingerprint of a key or an address, and why."""

    who: str
    why: str


class RefusalLog:
    """The refusals in a log that grows, from its present end on; beyond `LARGEST` bytes it is begun anew.

    `find`: returns the refusal in a line, or None. `note`: called with each. `names`: of keys that are or were
    registered.
    """

    def __init__(self, log: Path, find: Callable[[str], Refusal | None], note: Callable[[str, str], object]) -> None:
        self.log, self.find, self.note = log, find, note
        self.names: dict[str, str] = {}
        self._place = log.stat().st_size if log.exists() else 0
        self._rest = b""
        self._noted: dict[Refusal, float] = {}

    def register(self, keys: Mapping[str, str]) -> None:
        """Take note of keys that are registered, by name."""
        self.names |= {key: name for name, key in keys.items()}

    def look(self) -> None:
        """Note what has come since the last look."""
        if not self.log.exists():
            return
        with self.log.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._place:  # it was emptied, as programs that rotate logs do
                self._place, self._rest = 0, b""
            file.seek(self._place)
            data = file.read(_CHUNK)
        self._place += len(data)
        if begin_anew(self.log):
            self._place = 0
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_LINE:]
        for line in lines:
            if (refusal := self.find(line[:_LINE].decode(errors="replace"))) is not None:
                self._take(refusal)

    def _take(self, refusal: Refusal) -> None:
        now = time.monotonic()
        if refusal not in self._noted and len(self._noted) >= MOST:
            if len(self._noted) == MOST:
                self._noted[Refusal("", "")] = now
                self.note("others", f"more than {MOST} different ones were refused: {self.log} has all")
            return
        if now - self._noted.get(refusal, float("-inf")) < AGAIN:
            return
        self._noted[refusal] = now
        name = next((name for key, name in self.names.items() if fingerprint(key) == refusal.who), "")
        known = "it was that of {}, which was removed" if refusal.why == UNREGISTERED else "its key is registered as {}"
        self.note(f"key {refusal.who}", f"{refusal.why}; {known.format(name)}" if name else refusal.why)


UNREGISTERED = "its key is not registered"
