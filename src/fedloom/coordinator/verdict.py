"""Verify that a run directory is whole: every byte that decides a result is the one that was written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedloom.coordinator.checkpoint import LOGS, Checkpoint, identity
from fedloom.coordinator.chosen_rounds import measures_of_task, validated_round
from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.run_log import left_by_a_kill
from fedloom.core.errors import DamageError, StorageError
from fedloom.core.task_measures import TaskMeasure
from fedloom.storage import files
from fedloom.storage.files import File


@dataclass
class Verdict:
    """Findings about a run directory. `round`: of its newest checkpoint; `notes`: what is odd and yet no damage.

    `root`: one digest for the manifest, the newest index and the logs up to it, by which all else is proved; None where
    the run is not whole. Whoever writes it down elsewhere learns of any change, also of one whose digests fit.
    """

    path: Path
    round: int | None = None
    root: str | None = None
    checkpoints: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.problems

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Note a file that is damaged or cannot be read as a problem."""
        try:
            yield
        except StorageError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))


def verify(directory: str | os.PathLike[str]) -> Verdict:
    """Check the chain of a run: manifest, documents, indexes of checkpoints, states, logs. Nothing is run or written.

    Indexes must be those that later ones name, and the file of weights that a run started from, if it is here, must be
    what it was. A run that was killed at any moment is whole.

    Args:
        directory: directory of a run.

    Returns:
        What was checked, and what is wrong.
    """
    run = RunDirectory(directory)
    verdict = Verdict(files.path_of(directory))
    with verdict.attempt():
        _check(run, run.manifest(), verdict)
        verdict.root = _root(run, verdict) if verdict.whole else None
    return verdict


def root_of(verdicts: Mapping[str, Verdict]) -> str | None:
    """Return one digest for the runs below a folder, by their places in it; None where one is not whole.

    Where the folder is itself the only run, this is the run's own root.
    """
    roots = {name: verdict.root for name, verdict in verdicts.items()}
    if list(roots) == ["."]:
        return roots["."]
    if None in roots.values():
        return None
    return files.digest("".join(f"{name} {root}\n" for name, root in sorted(roots.items())).encode())


def _check(run: RunDirectory, manifest: Mapping[str, Any], verdict: Verdict) -> None:
    run.checkpoints.identity = identity(manifest)
    _check_start(manifest, verdict)
    for name in manifest["documents"]:
        with verdict.attempt():
            run.check_named(name, manifest["documents"])
    checkpoints, seen = list[Checkpoint](), dict[Path, File]()
    for round in run.checkpoints.rounds():
        with verdict.attempt():
            checkpoints.append(run.checkpoints.read(round))
            for path, file in run.checkpoints.states(checkpoints[-1]).items():
                if seen.get(path) != file:
                    seen[path] = file
                    with verdict.attempt():
                        files.read(path.parent, file)
    verdict.checkpoints = len(checkpoints)
    if checkpoints:
        verdict.round = checkpoints[-1].round
        with verdict.attempt():
            run.checkpoints.check_newest(checkpoints[-1])
        _check_chain(run, checkpoints, verdict)
        _check_logs(run, checkpoints, manifest["run"]["checkpoint_every"], verdict)
        if manifest["run"].get("keep_best"):
            _check_best(run, checkpoints[-1], measures_of_task(manifest)[0], verdict)
        _check_unnamed(run, checkpoints, verdict)
    else:
        verdict.notes.append("killed before its first checkpoint")
        with verdict.attempt():
            run.check_beginning()


def _root(run: RunDirectory, verdict: Verdict) -> str:
    parts = [files.digest_of(run.path / "manifest.json")]
    if verdict.round is not None:
        newest = run.checkpoints.read(verdict.round)
        starts = [files.load(run.path / name)[: prefix.size] for name, prefix in newest.logs.items()]
        parts += [newest.digest, *map(files.digest, starts)]
    else:
        there = [run.path / name for name in LOGS if files.exists(run.path / name)]
        parts += map(files.digest_of, there)
    return files.digest(" ".join(parts).encode())


def _check_start(manifest: Mapping[str, Any], verdict: Verdict) -> None:
    """Note where the file of weights that a run starts from is not here; one that has changed is a problem."""
    if "start" not in manifest:
        return
    path, digest = files.path_of(manifest["start"]["file"]), manifest["start"]["digest"]
    with verdict.attempt():
        if not path.is_file():
            verdict.notes.append(f"{path}, the weights that it started from, is not here")
        elif files.digest_of(path) != digest:
            raise DamageError(
                f"{path} is not the file of weights that the run started from, and a resume refuses it: bring that back"
            )


def _check_chain(run: RunDirectory, checkpoints: Sequence[Checkpoint], verdict: Verdict) -> None:
    verdict.problems += run.checkpoints.unchained(checkpoints).values()
    named = {file.name for c in checkpoints for file in c.before}
    alone = sum(run.checkpoints.index(c.round).name not in named for c in checkpoints[:-1])
    if alone:
        verdict.notes.append(f"{alone} older checkpoint(s) that none after them names: the root says nothing of them")


def _check_logs(run: RunDirectory, checkpoints: Sequence[Checkpoint], every: int, verdict: Verdict) -> None:
    newest, surplus = checkpoints[-1], 0
    for name in run.logs:
        with verdict.attempt():
            _, start, tail = run.log(name, newest)
            running, done = files.RunningDigest(), 0
            for checkpoint in checkpoints:
                size, digest = checkpoint.logs[name]
                running.add(start[done:size])
                done = size
                if digest != running.digest:
                    raise DamageError(
                        f"{run.path / name} is not what the checkpoint of round {checkpoint.round} has the digest of"
                    )
            if not left_by_a_kill(name, start, tail, every):
                raise DamageError(
                    f"{run.path / name} does not end as a run does that was killed in the {every} round(s) after "
                    f"{newest.round}, that of the newest checkpoint: it was changed, or checkpoints are missing"
                )
            surplus = max(surplus, len(tail))
    if surplus:
        verdict.notes.append(f"what the logs hold after round {newest.round} will be computed again")


def _check_unnamed(run: RunDirectory, checkpoints: Sequence[Checkpoint], verdict: Verdict) -> None:
    """Report the files that no checkpoint names.

    They are of a checkpoint that was being written or deleted, or its index is lost, which is a problem.
    """
    newest = checkpoints[-1].round
    going = {path for c in run.checkpoints.going(newest) for path in run.checkpoints.states(c)}
    unnamed = run.checkpoints.unnamed(checkpoints)
    lost = [path for path, round in unnamed if round <= newest and path not in going]
    if lost and verdict.whole:  # else the checkpoint that is a problem names them
        verdict.problems.append(
            f"no checkpoint names {lost[0]}" + f" and {len(lost) - 1} more" * (len(lost) > 1) + ": an index is missing"
        )
    count = len(unnamed) - len(lost) + len(run.checkpoints.unfinished())
    if count:
        verdict.notes.append(f"{count} file(s) of a checkpoint that was being written or deleted")


def _check_best(run: RunDirectory, newest: Checkpoint, headline: TaskMeasure, verdict: Verdict) -> None:
    """Report where the best round has no checkpoint: a problem if the newest names it, else the run could not keep it.

    The run may have gone back, or begun to keep the best later.
    """
    with verdict.attempt():
        best = validated_round(run.log("metrics.jsonl", newest)[0], headline)
        if best is None or best in run.checkpoints.rounds():
            return
        index = run.checkpoints.index(best)
        if index.name in {file.name for file in newest.before}:
            raise DamageError(f"{index} is missing, the checkpoint of the best round on validation data: bring it back")
        verdict.notes.append(f"no checkpoint of round {best}, the best on validation data")
