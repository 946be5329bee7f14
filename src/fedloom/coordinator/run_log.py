"""Append to a log of a run, and tell what a killed process may have left at its end."""

from __future__ import annotations

from pathlib import Path

from fedloom.coordinator import run_documents as reading
from fedloom.coordinator.checkpoint import Prefix
from fedloom.storage import files

FIRST = b'{"round": 0'  # how a log begins


class Log:
    """A log to which lines are appended, and its digest so far."""

    def __init__(self, path: Path, start: bytes, mode: str) -> None:
        self.path, self.file, self._running = path, path.open(mode), files.RunningDigest(start)
        self.file.truncate(len(start))
        self.file.seek(len(start))

    def append(self, line: bytes) -> None:
        self.file.write(line)
        self.file.flush()
        self._running.add(line)

    @property
    def prefix(self) -> Prefix:
        """All that is in it."""
        return Prefix(self.file.tell(), self._running.digest)


def left_by_a_kill(name: str, start: bytes, tail: bytes, every: int) -> bool:
    """Return whether the end of a log is what a process may have written since its newest checkpoint."""
    try:
        rounds = [r["round"] for r in reading.records(name, tail.splitlines(keepends=True))]
    except ValueError:
        return False
    first = start.count(b"\n")
    return rounds == list(range(first, first + len(rounds))) and len(rounds) <= every
