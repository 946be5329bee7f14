"""Put finished runs into the file of kept results, beside the published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedloom.coordinator.history import Record
from fedloom.core.errors import SettingError
from fedloom.storage import files
from fedloom.storage.output import path_below, publish
from fedloom_papers.reproduction import kept
from fedloom_papers.reproduction.recipe import Recipe, differences
from fedloom_papers.reproduction.results import Run, runs

_FEDERATION = "federation.json"


def export(
    recipes: Sequence[Recipe], out: Path, to: Path, rounds: int | None = None, evidence: Sequence[str] = ()
) -> list[Path]:
    """Keep settings, facts and numbers of finished and failed runs (`kept`): small enough to be committed.

    A copy counts as done when it is read, but cannot go on. Settings name the data without their folder.
    A copy stays where it begins with the run's numbers and ended alike, however long both took; it gives way to a run
    with other numbers and as many rounds, as of corrected code, and to the same run with what older copies leave out.

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
    found: dict[Path, tuple[Recipe, Run]] = {}  # by the copy's folder, which recipes may share
    replaced: set[Path] = set()  # where the copy is of another run
    beside: dict[Path, Path] = {}
    files_beside = [name for name in evidence if name != _FEDERATION]
    for recipe in recipes:
        copies = runs(recipe, [to])
        for seed, run in runs(recipe, [out]).items():
            copy = copies.get(seed)
            if run.failed is None and run.rounds < recipe.wanted(rounds):
                continue
            folder = recipe.folder(to, seed)
            beside |= {folder / name: run.folder / name for name in files_beside if (run.folder / name).is_file()}
            difference = None if copy is None else _difference(run, copy)
            if copy is not None and copy.rounds >= run.rounds:
                if difference is None and (copy.rounds > run.rounds or not _has_more(run, copy)):
                    continue
                if copy.rounds > run.rounds:
                    raise SettingError(
                        f"{copy.folder} holds a copy of {copy.rounds} rounds, and {run.folder} a run of {run.rounds} "
                        f"that is not their beginning: {difference}. Delete the copy, or name another folder"
                    )
            found[folder] = recipe, run
            if difference is not None:
                replaced.add(folder)
    for table in dict.fromkeys(recipe.place.partition("/")[0] for recipe, _ in found.values()):
        path_below(to, table)
        there = {(one.place, one.seed): one for one in kept.read(to / table)}
        new = [
            _kept(recipe, run, _FEDERATION in evidence)
            for recipe, run in found.values()
            if recipe.place.partition("/")[0] == table
        ]
        kept.write(to / table, {**there, **{(one.place, one.seed): one for one in new}}.values())
    for folder in replaced:
        for name in files_beside:
            files.remove(folder / name)
    for target, source in beside.items():
        publish(to, str(target.relative_to(to)), files.load(source))
    return list(found)


def _difference(run: Run, copy: Run) -> str | None:
    """Say in what a copy is neither this run nor one that goes on from it, None if in nothing."""
    if settings := differences(copy.history.settings, run.history.settings):
        return f"other settings ({', '.join(settings)})"
    for ours, theirs in zip(run.history.metrics, copy.history.metrics, strict=False):
        if _without_clients(ours) != _without_clients(theirs):
            return f"other numbers from round {min(ours['round'], theirs['round'])} on"
    if run.failed != copy.failed:
        return f"the copy {_ended(copy)}, the run {_ended(run)}"
    return None


def _has_more(run: Run, copy: Run) -> bool:
    """Return whether a run has matrices of more rounds than its copy, which an older version has kept."""
    counts = [
        sum(name in record for record in records for name in kept.MATRICES)
        for records in (kept.thinned(run.history.metrics), copy.history.metrics)
    ]
    return counts[0] > counts[1]


def _ended(run: Run) -> str:
    return "has not failed" if run.failed is None else f"has failed ({run.failed})"


def _without_clients(record: Record) -> Record:
    return {name: value for name, value in record.items() if name not in kept.LAST | kept.MATRICES}


def _kept(recipe: Recipe, run: Run, federation: bool) -> kept.Kept:
    """Return a run as it is kept, with who holds what if asked for."""
    known = run.history.federation if federation else {}
    history = replace(run.history, settings=without_folders(run.history.settings), federation=known)
    return kept.Kept(recipe.place.partition("/")[2], run.seed, history, run.failed)


def without_folders(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that name the data without their folder."""
    data = dict(settings.get("data", {}))
    for place in ("source", "public_source"):
        if data.get(place) is not None:
            data[place] = str(data[place]).partition(":")[0]
    return {**settings, "data": data}
