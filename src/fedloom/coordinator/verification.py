"""Verify that a run directory is whole: every byte that decides a result is the one that was written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedloom.coordinator import run_documents as reading
from fedloom.coordinator.checkpoint import LOGS, Checkpoint, Checkpoints, identity
from fedloom.coordinator.chosen_rounds import measures_of_task, validated_round
from fedloom.coordinator.run_digests import check_beginning, check_log, check_named, left_by_a_kill, read_log
from fedloom.core.errors import DamageError, StorageError, StorageWarning, warn
from fedloom.core.task_measures import TaskMeasure
from fedloom.storage import files
from fedloom.storage.files import File
from fedloom.storage.strict_json import Object

FEW_BYTES = 8 << 20
"""States of a run that are together larger are read by `verify`, and by what uses them, alone: else a report of many
runs, or of large networks, would take minutes."""
_SHOWN = {"settings.json", "federation.json"}


@dataclass
class Verdict:
    """Findings about a run directory. `round`: of its newest checkpoint; `notes`: what is odd and yet no damage.

    `root`: one digest for the manifest, the newest index and the logs up to it, by which all else is proved; None where
    the run is not whole. Whoever writes it down elsewhere learns of any change, also of one whose digests fit.
    `untrue`: the problems of what a report shows, documents, logs and indexes that are not what the run wrote.
    """

    path: Path
    round: int | None = None
    root: str | None = None
    checkpoints: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    untrue: list[StorageError] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.problems

    @contextmanager
    def attempt(self, *, shown: bool = False) -> Iterator[None]:
        """Note a file that is damaged or cannot be read as a problem. `shown`: of what a report shows."""
        try:
            yield
        except StorageError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))
                self.untrue += [error] * shown


def verify(directory: str | os.PathLike[str]) -> Verdict:
    """Check the chain of a run: manifest, documents, indexes of checkpoints, states, logs. Nothing is run or written.

    Indexes must be those that later ones name, and the file of weights that a run started from, if it is here, must be
    what it was. A run that was killed at any moment is whole.

    Args:
        directory: directory of a run.

    Returns:
        What was checked, and what is wrong.
    """
    folder = files.path_of(directory).absolute()
    verdict = Verdict(files.path_of(directory))
    with verdict.attempt():
        newest = _check(folder, reading.manifest(folder), verdict)
        verdict.root = _root(folder, newest) if verdict.whole else None
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


def unproved(folder: Path, manifest: Mapping[str, Any], records: Sequence[Object]) -> str:
    """Return in words what nothing proves of a run, or what `verify` finds wrong beside what is shown; "" where all is.

    States are read as far as they are small (`FEW_BYTES`). `records`: those of metrics.jsonl.

    Raises:
        DamageError: a document, a log or an index is not what the run wrote; names it.
        StorageError: a file cannot be read.
    """
    verdict, last = Verdict(folder), records[-1]["round"] if records else 0
    newest = _check(folder, manifest, verdict, FEW_BYTES, records)
    if verdict.untrue:
        raise verdict.untrue[0]
    if newest is None and last >= 1:
        return "no checkpoint proves its logs"
    if not verdict.whole:
        return f"it is damaged: {_first(verdict)}"
    return f"no checkpoint proves its rounds after {newest.round} yet" if newest and last > newest.round else ""


def warn_unless_whole(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Warn of what `verify` finds wrong with a run of which a part is used; what is used itself was read and proved."""
    verdict = Verdict(folder)
    with verdict.attempt():
        _check(folder, manifest, verdict, FEW_BYTES)
    if not verdict.whole:
        warn(f"the run in {folder} is damaged: {_first(verdict)}; fedloom verify lists all", StorageWarning)


def _first(verdict: Verdict) -> str:
    first, *others = verdict.problems
    return first + f" (and {len(others)} more)" * bool(others)


def _check(
    folder: Path,
    manifest: Mapping[str, Any],
    verdict: Verdict,
    most: int | None = None,
    records: Sequence[Object] | None = None,
) -> Checkpoint | None:
    """Check a run, and return its newest checkpoint, None if there is none that can be read.

    The run may go on meanwhile: what it deletes while this reads is not missed. `most`: states that are together more
    bytes are not read, only looked for; None: all are. `records`: those of metrics.jsonl, if the logs were parsed.
    """
    kept = Checkpoints(folder / "checkpoints")
    kept.identity = identity(manifest)
    _check_documents(folder, manifest, verdict, most)
    checkpoints = _indexes(kept, verdict)
    verdict.checkpoints = len(checkpoints)
    if not checkpoints:
        if verdict.untrue:
            return None
        verdict.notes.append("killed before its first checkpoint")
        with verdict.attempt():
            check_beginning(folder, kept)
        return None
    newest = checkpoints[-1]
    verdict.round = newest.round
    wrong = kept.unchained(checkpoints)
    for problem in wrong.values():
        with verdict.attempt(shown=True):
            raise DamageError(problem)
    _check_states(kept, checkpoints, verdict, most)
    with verdict.attempt():
        kept.check_newest(newest)
    _note_unchained(kept, checkpoints, verdict)
    trusted = [c for c in checkpoints if c.round not in wrong]
    records = _check_logs(folder, kept, trusted, manifest["run"]["checkpoint_every"], verdict, records)
    if manifest["run"].get("keep_best") and records is not None:
        _check_best(kept, records, newest, measures_of_task(manifest)[0], verdict)
    _check_unnamed(kept, checkpoints, verdict)
    return newest


def _root(folder: Path, newest: Checkpoint | None) -> str:
    parts = [files.digest_of(folder / "manifest.json")]
    if newest is not None:
        starts = [files.load(folder / name)[: prefix.size] for name, prefix in newest.logs.items()]
        parts += [newest.digest, *map(files.digest, starts)]
    else:
        there = [folder / name for name in LOGS if files.exists(folder / name)]
        parts += map(files.digest_of, there)
    return files.digest(" ".join(parts).encode())


def _check_documents(folder: Path, manifest: Mapping[str, Any], verdict: Verdict, most: int | None) -> None:
    if "start" in manifest:
        _check_start(files.path_of(manifest["start"]["file"]), manifest["start"]["digest"], verdict, most)
    for name, digests in manifest["documents"].items():
        path = folder / name
        there = files.exists(path)
        if there and name not in _SHOWN and _is_large(path, most):
            continue
        with verdict.attempt(shown=there and name in _SHOWN):  # what is missing shows nothing
            check_named(path, digests)


def _check_start(path: Path, digest: str, verdict: Verdict, most: int | None) -> None:
    """Note where the file of weights that a run starts from is not here; one that has changed is a problem."""
    with verdict.attempt():
        if not path.is_file():
            verdict.notes.append(f"{path}, the weights that it started from, is not here")
        elif not _is_large(path, most) and files.digest_of(path) != digest:
            raise DamageError(
                f"{path} is not the file of weights that the run started from, and a resume refuses it: bring that back"
            )


def _is_large(path: Path, most: int | None) -> bool:
    """Return whether a file that is there has more than `most` bytes."""
    return most is not None and path.stat().st_size > most


def _sizes(*folders: Path) -> tuple[int, set[tuple[Path, str]]]:
    """Return how many bytes the files in some folders have together, and which there are."""
    total, there = 0, set[tuple[Path, str]]()
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file():
                    there.add((folder, entry.name))
                    total += entry.stat().st_size
    return total, there


def _indexes(kept: Checkpoints, verdict: Verdict) -> list[Checkpoint]:
    """Return the checkpoints whose indexes can be read, in order."""
    known = dict[int, Checkpoint | None]()
    while True:
        rounds, gone = kept.rounds(), False
        known = {t: known[t] for t in rounds if t in known}
        for round in (t for t in rounds if t not in known):
            known[round] = None
            with verdict.attempt(shown=True):
                try:
                    known[round] = kept.read(round)
                except DamageError:
                    if files.exists(kept.index(round)):
                        raise
                    gone = True
        if not gone:
            return [checkpoint for checkpoint in known.values() if checkpoint is not None]


def _check_states(kept: Checkpoints, checkpoints: Sequence[Checkpoint], verdict: Verdict, most: int | None) -> None:
    states = dict[tuple[Path, File], int]()  # each with the newest checkpoint that names it, which is deleted last
    clients = kept.clients
    for checkpoint in checkpoints:
        states[kept.folder, checkpoint.server] = checkpoint.round
        states |= dict.fromkeys([(clients, file) for file in checkpoint.clients.values()], checkpoint.round)
    total, there = _sizes(kept.folder, clients)
    for (folder, file), round in states.items():
        with verdict.attempt():
            try:
                if most is None or total <= most:
                    files.read(folder, file)
                elif (folder, file.name) not in there:
                    files.load(folder / file.name)  # which says why
            except DamageError:
                if files.exists(kept.index(round)):
                    raise


def _note_unchained(kept: Checkpoints, checkpoints: Sequence[Checkpoint], verdict: Verdict) -> None:
    named = {file.name for c in checkpoints for file in c.before}
    alone = sum(kept.index(c.round).name not in named for c in checkpoints[:-1])
    if alone:
        verdict.notes.append(f"{alone} older checkpoint(s) that none after them names: the root says nothing of them")


def _check_logs(
    folder: Path,
    kept: Checkpoints,
    checkpoints: Sequence[Checkpoint],
    every: int,
    verdict: Verdict,
    records: Sequence[Object] | None,
) -> Sequence[Object] | None:
    """Compare the logs with all checkpoints; return the records of metrics.jsonl, None where these are damaged."""
    *earlier, newest = checkpoints
    surplus, out = 0, None if records is None else [r for r in records if r["round"] <= newest.round]
    for name in kept.identity.logs:
        path = folder / name
        with verdict.attempt(shown=files.exists(path)):  # what is missing shows nothing
            if records is None:
                lines, start, tail = read_log(path, newest, earlier, kept.identity.entries)
                out = lines if name == LOGS[0] else out
            else:
                data, size = files.load(path), newest.logs[name].size
                check_log(path, data, checkpoints)
                start, tail = data[:size], data[size:]
            surplus = max(surplus, len(tail))
            with verdict.attempt():
                by_a_kill = left_by_a_kill(name, start, tail, every, kept.identity.entries)
                if not by_a_kill and kept.rounds()[-1:] == [newest.round]:
                    raise DamageError(
                        f"{path} does not end as a run does that was killed in the {every} round(s) after "
                        f"{newest.round}, that of the newest checkpoint: it was changed, or checkpoints are missing"
                    )
    if surplus:
        verdict.notes.append(f"what the logs hold after round {newest.round} will be computed again")
    return out


def _check_unnamed(kept: Checkpoints, checkpoints: Sequence[Checkpoint], verdict: Verdict) -> None:
    """Report the files that no checkpoint names.

    They are of a checkpoint that was being written or deleted, or its index is lost, which is a problem.
    """
    newest = checkpoints[-1].round
    unnamed = kept.unnamed(checkpoints)
    going = {path for c in kept.going(newest) for path in kept.states(c)}
    lost = [p for p, round in unnamed if round <= newest and p not in going and files.exists(p)]
    if lost and verdict.whole:  # else the checkpoint that is a problem names them
        verdict.problems.append(
            f"no checkpoint names {lost[0]}" + f" and {len(lost) - 1} more" * (len(lost) > 1) + ": an index is missing"
        )
    count = len(unnamed) - len(lost) + len(kept.unfinished())
    if count:
        verdict.notes.append(f"{count} file(s) of a checkpoint that was being written or deleted")


def _check_best(
    kept: Checkpoints, records: Sequence[Object], newest: Checkpoint, headline: TaskMeasure, verdict: Verdict
) -> None:
    """Report where the best round has no checkpoint: a problem if the newest names it, else the run could not keep it.

    The run may have gone back, or begun to keep the best later.
    """
    with verdict.attempt():
        best, rounds = validated_round(records, headline), kept.rounds()
        if best is None or best in rounds:
            return
        index = kept.index(best)
        if index.name in {file.name for file in newest.before} and newest.round in rounds[-1:]:
            raise DamageError(f"{index} is missing, the checkpoint of the best round on validation data: bring it back")
        verdict.notes.append(f"no checkpoint of round {best}, the best on validation data")
