"""Rounds of devices that have begun, in a file beside a run's records: a lost one, computed anew, has other noise."""

from __future__ import annotations

import os

from fedloom.coordinator.part import Running


def write_down(run: Running, name: str, *numbers: int) -> None:
    """Add a line of numbers to a file of the run, for good before it returns; nothing where a run has no files."""
    if run.files is not None:
        with (run.files.path / name).open("a") as log:
            log.write(f"{' '.join(map(str, numbers))}\n")
            log.flush()
            os.fsync(log.fileno())


def written(run: Running, name: str) -> list[list[int]]:
    """Return the numbers of each line, of whichever process."""
    if run.files is None or not (log := run.files.path / name).exists():
        return []
    return [[*map(int, line.split())] for line in log.read_text().splitlines()]
