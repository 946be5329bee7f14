"""Run recipes: each with each seed in a directory of its own; what is done is not done again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from fedloom.coordinator import Job, reading
from fedloom.core import files
from fedloom.core.errors import ClientError, FedloomError, SettingError, StorageError
from fedloom.core.output import below, publish
from fedloom.experiments.experiment import Experiment, Federations
from fedloom.recipes.recipe import Recipe, differences
from fedloom.recipes.results import FAILED, Result, Run, as_csv, as_markdown, read, runs

EXPORTED = ("settings.json", "manifest.json", "metrics.jsonl", "timing.jsonl", FAILED)
NO_DATA = "skipped: data cannot be made: "  # how the status of a run begins whose data are not there
_ELSEWHERE = {"run.rounds": "--rounds", "run.seed": "--seed", "data.source": "--data", "algorithm": "--methods"}


class Train(Protocol):
    """What runs a job in a directory, from where the run there stands."""

    def __call__(self, name: str, job: Job, directory: Path) -> object: ...


class Outcome(NamedTuple):
    """What became of one run."""

    recipe: Recipe
    seed: int
    status: str  # "done", "there", "failed: why", "skipped: why" or "not run"

    @property
    def skipped(self) -> bool:
        return self.status.startswith("skipped")

    @property
    def good(self) -> bool:
        """Whether the run is there, or failed as the published one did."""
        return self.status in ("done", "there") or (self.recipe.failed and self.status.startswith("failed"))


def reproduce(
    recipes: Sequence[Recipe],
    data: str | None,
    out: Path,
    *,
    seeds: Sequence[int] = (0,),
    rounds: int | None = None,
    changes: Mapping[str, str] | None = None,
    known: Sequence[Path] = (),
    train: Train | None = None,
    tell: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Run recipes below `out`, in PLACE/seed-S; a run that fails, or whose data are not there, costs no other.

    A run of fewer `rounds` than published has the same rates in the same rounds: it is the beginning of the longer
    one, and goes on when more are asked for. `data`: the folder with the original files; None will do where all runs
    are there. `changes`: settings other than the recipes', by their names in a settings file. `known`: other folders
    of results, whose runs with the settings that are asked for count as done.

    Raises:
        SettingError: a change is no setting, there are more rounds than published, a seed is out of range, one of
            `known` holds no results of the table, a run must be made without data, or a run in `out` has other
            settings than are asked for.
        StorageError: a file cannot be written, or one of a run is damaged.
    """
    outcomes: list[Outcome] = []
    _check(recipes, seeds, rounds, known)
    recipes = with_changes(recipes, changes or {})
    if data is None:  # said before hours of work
        for seed in seeds:
            for recipe in recipes:
                if _settled(recipe, seed, out, rounds, known) is None:
                    raise SettingError(
                        f"{recipe.column}/{recipe.row}/seed-{seed} must be run, and the data are needed; name the "
                        "folder of the original files with --data FOLDER"
                    )
    for source in dict.fromkeys(r.experiment.data.source for r in recipes):
        federations = Federations()  # of one data set at a time
        unmade: dict[str, str] = {}
        for seed in seeds:  # one seed of every cell tells more than all seeds of one cell
            for recipe in [r for r in recipes if r.experiment.data.source == source]:
                status = _settled(recipe, seed, out, rounds, known) or unmade.get(recipe.column)
                if status is None:
                    experiment = recipe.with_data(data or "", seed).changed("run.rounds", _wanted(recipe, rounds))
                    name, place = f"{recipe.column}/{recipe.row}/seed-{seed}", _place(recipe, seed, out)
                    status = _run(experiment, name, place, federations, train or _train)
                    if status.startswith(NO_DATA):
                        unmade[recipe.column] = status
                outcomes.append(Outcome(recipe, seed, status))
                if tell is not None:
                    tell(outcomes[-1])
    return outcomes


def standing(
    recipes: Sequence[Recipe],
    out: Path,
    *,
    seeds: Sequence[int] = (0,),
    rounds: int | None = None,
    known: Sequence[Path] = (),
) -> list[Outcome]:
    """What `reproduce` would find, where nothing is run: runs that are there, that failed, and those that are not.

    Raises:
        SettingError: there are more rounds than published, a seed is out of range, one of `known` holds no results of
            the table, `out` is no folder, or a file of a run is damaged.
    """
    _check(recipes, seeds, rounds, known)
    if not out.is_dir():
        raise SettingError(f"--out {out} is no folder; with --report-only name one with results")
    return [
        Outcome(recipe, seed, _there(_found(recipe, seed, out, known), recipe, seed, out, rounds) or "not run")
        for seed in seeds
        for recipe in recipes
    ]


class _Found(NamedTuple):
    """The run of a seed that counts, wherever it is, and the one in the directory of results."""

    best: Run | None
    here: Run | None


def _found(recipe: Recipe, seed: int, out: Path, known: Sequence[Path]) -> _Found:
    here = runs(recipe, [out])
    best = runs(recipe, [out, *known]) if known else here
    return _Found(best.get(seed), here.get(seed))


def _there(found: _Found, recipe: Recipe, seed: int, out: Path, rounds: int | None) -> str | None:
    """How a run ended that is there as asked, None where there is none or not all of it."""
    place = _place(recipe, seed, out)
    for run in found:
        if run is not None and not recipe.unasked(run.history.settings):
            if run.failed is not None:
                remedy = f"; delete {place / FAILED} to try again" if run.folder == place else f", in {run.folder}"
                return f"failed: {run.failed} (before{remedy})"
            if run.rounds >= _wanted(recipe, rounds):
                return "there"
    return None


def _settled(recipe: Recipe, seed: int, out: Path, rounds: int | None, known: Sequence[Path]) -> str | None:
    """The status of a run for which there is nothing to do, or nothing that can be done; None where it must be run."""
    if recipe.missing is not None:
        return f"skipped: {recipe.missing}"
    found = _found(recipe, seed, out, known)
    if status := _there(found, recipe, seed, out, rounds):
        return status
    here, place = found.here, _place(recipe, seed, out)
    if here is not None:
        if others := recipe.unasked(here.history.settings):
            listing = "; ".join(f"{key} {how}" for key, how in others.items())
            raise SettingError(
                f"{place} holds a run with other settings: {listing}. Ask for what it was made with (--set), or name "
                "another directory"
            )
        if not here.resumable:
            return (
                f"skipped: {place} holds {here.rounds} rounds without checkpoints, which cannot go on (exported, or "
                "they were deleted); run it in another directory"
            )
    return None


def _run(experiment: Experiment, name: str, place: Path, federations: Federations, train: Train) -> str:
    try:
        federation = federations.of(experiment)
    except (ValueError, OSError) as error:
        if isinstance(error, FedloomError):
            raise
        return f"{NO_DATA}{error}"
    try:
        train(name, experiment.job(federation), place)
    except ClientError as error:
        files.write(place, FAILED, (json.dumps({"why": str(error)}) + "\n").encode())
        return f"failed: {error}"
    return "done"


def _wanted(recipe: Recipe, rounds: int | None) -> int:
    return recipe.rounds if rounds is None else rounds


def _place(recipe: Recipe, seed: int, out: Path) -> Path:
    return out / recipe.place / f"seed-{seed}"


def _train(name: str, job: Job, directory: Path) -> object:
    return job.run(directory, resume=True)


def _check(recipes: Sequence[Recipe], seeds: Sequence[int], rounds: int | None, known: Sequence[Path]) -> None:
    if rounds is not None:
        check_rounds(rounds, recipes)
    for seed in seeds:
        if not 0 <= seed < 2**32:
            raise SettingError(f"seed must be in 0..{2**32 - 1}, got {seed}: choose one in this range")
    check_known(known, recipes)


def check_rounds(rounds: int, recipes: Sequence[Recipe]) -> None:
    """Raise SettingError unless so many rounds can be compared with what was published."""
    published = min((r.rounds for r in recipes), default=rounds)
    if not 1 <= rounds <= published:
        remedy = "ask for no more" if rounds > published else "ask for at least one"
        raise SettingError(f"rounds must be in 1..{published}, the published number, got {rounds}: {remedy}")


def check_known(known: Sequence[Path], recipes: Sequence[Recipe]) -> None:
    """Raise SettingError unless each folder has one of the folders in which runs of these recipes stand.

    One too high or too low would count for nothing, and all would be computed again.
    """
    tables = dict.fromkeys(Path(r.place).parts[0] for r in recipes)
    for folder in known:
        if tables and not any((folder / table).is_dir() for table in tables):
            raise SettingError(
                f"{folder} holds no results of {recipes[0].table}; name the folder that holds "
                f"{' or '.join(f'{table}/' for table in tables)}"
            )


def with_changes(recipes: Sequence[Recipe], changes: Mapping[str, str]) -> list[Recipe]:
    """Recipes of which some settings are asked for otherwise.

    Raises:
        SettingError: a change is no setting of them, or one that is asked for in another way.
    """
    for key, value in changes.items():
        if key in _ELSEWHERE:
            raise SettingError(f"{key} is not changed by --set but by {_ELSEWHERE[key]}, got {value!r}")
        owners = [r for r in recipes if Experiment.knows(key) or key.startswith(f"{r.experiment.algorithm}.")]
        if not owners:
            known = dict.fromkeys(f"{r.experiment.algorithm}.NAME" for r in recipes)
            raise SettingError(f"no recipe that is run has a setting {key!r}; there are run.NAME, {', '.join(known)}")
        if Experiment.knows(key) or owners[0].missing is None:
            owners[0].experiment.changed(key, value)  # raises if there is no such setting
    return [dataclasses.replace(r, changes={**r.changes, **changes}) for r in recipes]


def write(title: str, recipes: Sequence[Recipe], folders: Sequence[Path], rounds: int | None = None) -> list[Result]:
    """Write results.csv and results.md of a table's recipes into its folder in the first of `folders`.

    Variants stand there if they have runs. `rounds`: take numbers after so many where runs are longer.

    Raises:
        SettingError: a file of a run is damaged.
        StorageError: a file cannot be written.
    """
    results = [r for r in read(recipes, folders, rounds) if r.runs or not r.recipe.variant]
    for name, text in {"results.csv": as_csv(results), "results.md": as_markdown(title, results)}.items():
        publish(folders[0], f"{recipes[0].table}/{name}", text.encode())
    return results


def export(recipes: Sequence[Recipe], out: Path, to: Path, rounds: int | None = None) -> list[Path]:
    """Copy settings, facts and logs of finished and failed runs, without weights: small enough to be committed.

    A copy counts as done when it is read, but cannot go on. Settings name the data without their folder. A copy stays
    where it begins with the run's numbers and ended alike, however long both took; it gives way to a run with other
    numbers and as many rounds, as of corrected code.

    Raises:
        SettingError: a copy has other numbers and more rounds than the run; nothing is copied then.
        StorageError: a file cannot be written.
    """
    found: list[tuple[Run, Path]] = []
    for recipe in recipes:
        copies = runs(recipe, [to])
        for seed, run in runs(recipe, [out]).items():
            copy = copies.get(seed)
            if run.failed is None and run.rounds < _wanted(recipe, rounds):
                continue
            if copy is not None and copy.rounds >= run.rounds:
                difference = _difference(run, copy)
                if difference is None:
                    continue
                if copy.rounds > run.rounds:
                    raise SettingError(
                        f"{copy.folder} holds a copy of {copy.rounds} rounds, and {run.folder} a run of {run.rounds} "
                        f"that is not their beginning: {difference}. Delete the copy, or name another folder"
                    )
            found.append((run, _place(recipe, seed, to)))
    for run, folder in found:
        below(to, str(folder.relative_to(to)))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _copy(run, folder)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"cannot copy {run.folder} to {folder}: {error.strerror}") from error
    return [folder for _, folder in found]


def _difference(run: Run, copy: Run) -> str | None:
    """In what a copy is neither this run nor one that goes on from it, None if in nothing."""
    if settings := differences(copy.history.settings, run.history.settings):
        return f"other settings ({', '.join(settings)})"
    for ours, theirs in zip(run.history.metrics, copy.history.metrics, strict=False):
        if ours != theirs:
            return f"other numbers from round {min(ours['round'], theirs['round'])} on"
    if run.failed != copy.failed:
        return f"the copy {_ended(copy)}, the run {_ended(run)}"
    return None


def _ended(run: Run) -> str:
    return "has not failed" if run.failed is None else f"has failed ({run.failed})"


def _copy(run: Run, folder: Path) -> None:
    found: dict[str, bytes] = {}
    for name in EXPORTED:
        path = run.folder / name
        if not path.exists():
            (folder / name).unlink(missing_ok=True)
            continue
        content = path.read_bytes()
        if name == "settings.json":
            data = dict(run.history.settings.get("data", {}))
            data["source"] = str(data.get("source")).partition(":")[0]
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
