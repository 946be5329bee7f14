"""Write the logs of a run, and compare logs and documents with the digests that manifest and checkpoints have."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedloom.coordinator import run_documents as reading
from fedloom.coordinator.checkpoint import LOGS, PER_CLIENT, Checkpoint, Checkpoints, Prefix
from fedloom.coordinator.record_entries import Entries
from fedloom.core.errors import DamageError
from fedloom.storage import files
from fedloom.storage.strict_json import Object

FIRST = b'{"round": 0'  # how a log begins
ALONE = {"devices.json"}  # documents that nothing else tells
BRING_BACK = "the checkpoints are untouched: bring the log back, or export the model"


def check_named(path: Path, digests: list[str]) -> None:
    """Raise DamageError if the digest of a file is not among those that the manifest has for it."""
    if files.digest_of(path) not in digests:
        remedy = ", or move it away: going on with what began the run (its command with --resume) writes it anew"
        raise DamageError(
            f"{path} is not what manifest.json has the digest of: it was damaged or changed. Bring it "
            f"back{'' if path.name in ALONE else remedy}"
        )


def check_beginning(folder: Path, checkpoints: Checkpoints) -> None:
    """Raise DamageError if there is more than a process leaves that was killed before its first checkpoint."""
    for name in (*LOGS, PER_CLIENT):
        path = folder / name
        data = files.load(path) if files.exists(path) else b""
        if len(data.splitlines()) > 1 or not data.startswith(FIRST[: len(data)]):
            raise DamageError(
                f"{path} holds more than round 0, but {checkpoints.folder} holds no checkpoint: bring the "
                "checkpoints back (were they moved, or is their disk not there?), or begin in another directory; "
                "nothing was changed"
            )
    if later := [path for path, round in checkpoints.unnamed(()) if round > 0]:
        raise DamageError(
            f"{later[0]} is of a later round, but {checkpoints.folder} holds no checkpoint: bring its .json "
            "files back, or begin in another directory; nothing was changed"
        )


def read_log(
    path: Path, checkpoint: Checkpoint, earlier: Iterable[Checkpoint], entries: Entries
) -> tuple[list[Object], bytes, bytes]:
    """Return the records of a log up to a checkpoint, their bytes, and what comes after.

    `earlier`: checkpoints of rounds up to this one, in order, of which each must have the digest of the log's start.
    `entries`: the types of what records hold.

    Raises:
        DamageError: the log is not what it was when one of the checkpoints was made.
        StorageError: it cannot be read.
    """
    size, data = checkpoint.logs[path.name].size, files.load(path)
    start = data[:size]
    try:
        lines = list(reading.records(path.name, start.splitlines(keepends=True), entries))
    except ValueError as error:
        raise DamageError(f"{path}, {error}; {BRING_BACK}") from None
    if len(start) < size or [r["round"] for r in lines] != list(range(checkpoint.round + 1)):
        raise DamageError(
            f"{path} must hold rounds 0 to {checkpoint.round} in its first {size:,} bytes, but does not: it was "
            f"cut or changed; {BRING_BACK}"
        )
    check_log(path, data, (*earlier, checkpoint))
    return lines, start, data[size:]


def check_log(path: Path, data: bytes, checkpoints: Iterable[Checkpoint]) -> None:
    """Raise DamageError if a log does not begin as it did when each of some checkpoints, in order, was made."""
    running, done = files.RunningDigest(), 0
    for checkpoint in checkpoints:
        prefix = checkpoint.logs[path.name]
        running.add(data[done : prefix.size])
        done = max(done, prefix.size)
        if prefix.digest != running.digest:
            raise DamageError(
                f"{path} was changed: its first {prefix.size:,} bytes are not those of which the checkpoint of round "
                f"{checkpoint.round} has the digest; {BRING_BACK}"
            )


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


def left_by_a_kill(name: str, start: bytes, tail: bytes, every: int, entries: Entries) -> bool:
    """Return whether the end of a log is what a process may have written since its newest checkpoint."""
    try:
        rounds = [r["round"] for r in reading.records(name, tail.splitlines(keepends=True), entries)]
    except ValueError:
        return False
    first = start.count(b"\n")
    return rounds == list(range(first, first + len(rounds))) and len(rounds) <= every
