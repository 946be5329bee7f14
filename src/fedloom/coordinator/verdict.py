"""Whether a run directory is whole: every byte that decides a result is the one that was written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedloom.coordinator import reading
from fedloom.coordinator.checkpoint import LOGS, PER_CLIENT, Checkpoint
from fedloom.coordinator.directory import RunDirectory, identity, left_by_a_kill
from fedloom.core import files
from fedloom.core.errors import DamageError, StorageError
from fedloom.core.files import File


@dataclass
class Verdict:
    """What is known of a run directory. `round`: of its newest checkpoint; `notes`: what is odd and yet no damage."""

    path: Path
    round: int | None = None
    checkpoints: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.problems

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """A file that is damaged or cannot be read is a problem."""
        try:
            yield
        except StorageError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))


def verify(directory: str | os.PathLike[str]) -> Verdict:
    """Check the chain of a run: manifest, documents, indexes of checkpoints, states, logs. Nothing is run or written.

    A run that was killed at any moment is whole; so is a copy by `fedloom reproduce --export`. Of a run of an earlier
    format only the states have digests; a note says so.
    """
    run = RunDirectory(directory)
    found = Verdict(run.path)
    with found.attempt():
        _check(run, run.document("manifest"), found)
    return found


def _check(run: RunDirectory, manifest: Mapping[str, Any], found: Verdict) -> None:
    run.checkpoints.identity = identity(manifest)
    if manifest["format"] == 1:
        found.notes.append("of an earlier format: only the states of checkpoints have digests")
    for name in manifest["documents"]:
        with found.attempt():
            run.check_named(name, manifest["documents"])
    checkpoints, seen = list[Checkpoint](), dict[Path, File]()
    for round in run.checkpoints.rounds():
        with found.attempt():
            checkpoints.append(run.checkpoints.read(round))
            for path, file in run.checkpoints.states(checkpoints[-1]).items():
                if seen.get(path) != file:
                    seen[path] = file
                    with found.attempt():
                        files.read(path.parent, file)
    found.checkpoints = len(checkpoints)
    if checkpoints:
        found.round = checkpoints[-1].round
        _check_logs(run, checkpoints, manifest["run"]["checkpoint_every"], found)
        _check_unnamed(run, checkpoints, found)
    elif manifest["format"] == 1 or set(LOGS) <= set(manifest["documents"]):
        found.notes.append("a copy without checkpoints, which cannot go on")
        for name in run.logs if files.there(run.path / PER_CLIENT) else LOGS:
            with found.attempt():
                _read(run.path / name)
    else:
        found.notes.append("killed before its first checkpoint")
        with found.attempt():
            run.check_beginning()


def _check_logs(run: RunDirectory, checkpoints: Sequence[Checkpoint], every: int, found: Verdict) -> None:
    newest, left = checkpoints[-1], 0
    for name in run.logs:
        with found.attempt():
            _, start, tail = run.log(name, newest)
            running, done = files.RunningDigest(), 0
            for checkpoint in checkpoints:
                size, digest = checkpoint.logs[name]
                running.add(start[done:size])
                done = size
                if digest not in (None, running.digest):
                    raise DamageError(
                        f"{run.path / name} is not what the checkpoint of round {checkpoint.round} has the digest of"
                    )
            if not left_by_a_kill(name, start, tail, every):
                raise DamageError(
                    f"{run.path / name} does not end as a run does that was killed in the {every} round(s) after "
                    f"{newest.round}, that of the newest checkpoint: it was changed, or checkpoints are missing"
                )
            left = max(left, len(tail))
    if left:
        found.notes.append(f"what the logs hold after round {newest.round} will be computed again")


def _check_unnamed(run: RunDirectory, checkpoints: Sequence[Checkpoint], found: Verdict) -> None:
    """Files that no checkpoint names are of one that was being written or deleted, or its index is lost."""
    newest = checkpoints[-1].round
    going = {path for c in run.checkpoints.going(newest) for path in run.checkpoints.states(c)}
    unnamed = run.checkpoints.unnamed(checkpoints)
    lost = [path for path, round in unnamed if round <= newest and path not in going]
    if lost and found.whole:  # else the checkpoint that is a problem names them
        found.problems.append(
            f"no checkpoint names {lost[0]}" + f" and {len(lost) - 1} more" * (len(lost) > 1) + ": an index is missing"
        )
    left = len(unnamed) - len(lost) + len(run.checkpoints.unfinished())
    if left:
        found.notes.append(f"{left} file(s) of a checkpoint that was being written or deleted")


def _read(path: Path) -> None:
    """Read a log that nothing proves."""
    try:
        list(reading.records(path.name, files.load(path).splitlines(keepends=True)))
    except ValueError as error:
        raise DamageError(f"{path}, {error}") from None
