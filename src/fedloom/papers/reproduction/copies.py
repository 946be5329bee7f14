"""Copies of runs without their weights, small enough to be committed beside the published numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedloom.coordinator import reading
from fedloom.coordinator.history import Record
from fedloom.core.errors import SettingError, StorageError
from fedloom.papers.reproduction.recipe import Recipe, differences
from fedloom.papers.reproduction.results import FAILED, Run, runs
from fedloom.storage import files
from fedloom.storage.output import below, publish

EXPORTED = ("settings.json", "manifest.json", "metrics.jsonl", "timing.jsonl", FAILED)
_BY_CLIENT = "personal_by_client"


def export(
    recipes: Sequence[Recipe], out: Path, to: Path, rounds: int | None = None, evidence: Sequence[str] = ()
) -> list[Path]:
    """Copy settings, facts and logs of finished and failed runs, without weights: small enough to be committed.

    A copy counts as done when it is read, but cannot go on. Settings name the data without their folder, and only the
    last round that has the accuracy of each client keeps it: with 1,000 clients the others are nine tenths of the log.
    A copy stays where it begins with the run's numbers and ended alike, however long both took; it gives way to a run
    with other numbers and as many rounds, as of corrected code.

    Args:
        recipes: of a table.
        out: folder of results with the runs.
        to: folder of the copies.
        rounds: what counts as finished; None: as many as published.
        evidence: other files of a run that go along, also later than the run itself, such as those of its analyses.

    Returns:
        The folders of the runs that were copied.

    Raises:
        SettingError: a copy has other numbers and more rounds than the run; nothing is copied then.
        StorageError: a file cannot be written.
    """
    found: dict[Path, Run] = {}  # by the copy's folder, which recipes may share
    replaced: set[Path] = set()  # where the copy is of another run
    beside: dict[Path, Path] = {}
    for recipe in recipes:
        copies = runs(recipe, [to])
        for seed, run in runs(recipe, [out]).items():
            copy = copies.get(seed)
            if run.failed is None and run.rounds < recipe.wanted(rounds):
                continue
            folder = recipe.folder(to, seed)
            beside |= {folder / name: run.folder / name for name in evidence if (run.folder / name).is_file()}
            difference = None if copy is None else _difference(run, copy)
            if copy is not None and copy.rounds >= run.rounds:
                if difference is None:
                    continue
                if copy.rounds > run.rounds:
                    raise SettingError(
                        f"{copy.folder} holds a copy of {copy.rounds} rounds, and {run.folder} a run of {run.rounds} "
                        f"that is not their beginning: {difference}. Delete the copy, or name another folder"
                    )
            found[folder] = run
            if difference is not None:
                replaced.add(folder)
    for folder, run in found.items():
        below(to, str(folder.relative_to(to)))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _copy(run, folder)
            for name in evidence if folder in replaced else ():
                (folder / name).unlink(missing_ok=True)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"cannot copy {run.folder} to {folder}: {error.strerror}") from error
    for target, source in beside.items():
        publish(to, str(target.relative_to(to)), files.load(source))
    return list(found)


def _difference(run: Run, copy: Run) -> str | None:
    """In what a copy is neither this run nor one that goes on from it, None if in nothing."""
    if settings := differences(copy.history.settings, run.history.settings):
        return f"other settings ({', '.join(settings)})"
    for ours, theirs in zip(run.history.metrics, copy.history.metrics, strict=False):
        if _without_clients(ours) != _without_clients(theirs):
            return f"other numbers from round {min(ours['round'], theirs['round'])} on"
    if run.failed != copy.failed:
        return f"the copy {_ended(copy)}, the run {_ended(run)}"
    return None


def _ended(run: Run) -> str:
    return "has not failed" if run.failed is None else f"has failed ({run.failed})"


def _without_clients(record: Record) -> Record:
    return {name: value for name, value in record.items() if name != _BY_CLIENT}


def _thinned(metrics: Sequence[Record]) -> bytes:
    last = max((i for i, record in enumerate(metrics) if _BY_CLIENT in record), default=-1)
    kept = [record if i == last else _without_clients(record) for i, record in enumerate(metrics)]
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in kept).encode()


def _copy(run: Run, folder: Path) -> None:
    found: dict[str, bytes] = {}
    for name in EXPORTED:
        path = run.folder / name
        if not path.exists():
            (folder / name).unlink(missing_ok=True)
            continue
        content = _thinned(run.history.metrics) if name == "metrics.jsonl" else path.read_bytes()
        if name == "settings.json":
            data = dict(run.history.settings.get("data", {}))
            for place in ("source", "public_source"):
                if data.get(place) is not None:
                    data[place] = str(data[place]).partition(":")[0]
            content = (json.dumps({**run.history.settings, "data": data}, indent=2) + "\n").encode()
        if name.endswith(".jsonl"):
            content = content[: content.rfind(b"\n") + 1]  # a run that was killed may have half a line
        found[name] = content
    if run.history.manifest.get("format") == 2:  # without checkpoints, the manifest proves the copy
        digests = {name: [files.digest(content)] for name, content in found.items() if name != "manifest.json"}
        facts = {name: value for name, value in run.history.manifest.items() if name != "digest"}
        found["manifest.json"] = reading.sealed({**facts, "documents": digests}, indent=2)
    for name, content in found.items():
        files.write(folder, name, content)
