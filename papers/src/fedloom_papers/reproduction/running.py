"""Run recipes: each with each seed in a directory of its own; what is done is not done again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from fedloom.coordinator import Job, run_documents as reading
from fedloom.coordinator.directory import RunDirectory
from fedloom.core.errors import ClientError, FedloomError, SettingError, SettingWarning, warn
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.federations import Federations
from fedloom.experiments.settings_sections import DataSettings
from fedloom.mirror.fetch import fetched
from fedloom.mirror.object_store import below
from fedloom.storage import files
from fedloom_papers.reproduction import kept
from fedloom_papers.reproduction.recipe import Recipe
from fedloom_papers.reproduction.results import FAILED, Run, runs
from fedloom_papers.reproduction.unfinished_runs import import_unfinished

NO_DATA = "skipped: data cannot be made: "  # how the status of a run begins whose data are not there
_ELSEWHERE = {
    "run.rounds": "--rounds", "run.seed": "--seed", "data.source": "--data", "algorithm": "--methods",
    "run.mirror": "--mirror",
}  # fmt: skip


class Train(Protocol):
    """Function that runs a job in a directory, from where the run there stands."""

    def __call__(self, name: str, job: Job, directory: Path) -> object: ...


class Outcome(NamedTuple):
    """Outcome of the run of a recipe with a seed.

    Attributes:
        recipe: what was run.
        seed: its seed.
        status: "done", "there", "failed: why", "skipped: why" or "not run".
    """

    recipe: Recipe
    seed: int
    status: str

    @property
    def skipped(self) -> bool:
        """True if it could not be run at all: the version or the data lack something."""
        return self.status.startswith("skipped")

    @property
    def good(self) -> bool:
        """True if the run is there, or failed as the published one did."""
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
    mirror: str | None = None,
    train: Train | None = None,
    tell: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Run recipes below `out`, in PLACE/seed-S; a run that fails, or lacks its data, stops no other.

    A run of fewer `rounds` than published has the same rates in the same rounds: it is the beginning of the longer
    one, and goes on when more are asked for.

    Args:
        recipes: of one table.
        data: the folder with the original files; None will do where all runs are there.
        out: the folder of results.
        seeds: each recipe is run with all of them.
        rounds: fewer than published; a recipe that has no more than that is run whole.
        changes: settings other than the recipes', by their names in a settings file.
        known: other folders of results, whose runs with the settings that are asked for count as done, and whose
            archives of unfinished ones go on in `out`.
        mirror: the address below which each run has its mirror; a run that is there and not in `out` is fetched first.
        train: what runs a job in a directory, from where the run there stands.
        tell: called with what became of each run.

    Raises:
        SettingError: a change is no setting, there are more rounds than published, a seed is out of range, one of
            `known` holds no results, a run must be made without data, or a run in `out` has other settings than are
            asked for.
        StorageError: a file cannot be written, one of a run is damaged, or a mirror does not answer.
    """
    outcomes: list[Outcome] = []
    _check(recipes, seeds, rounds, known)
    recipes = with_changes(recipes, changes or {})
    if data is None:  # refused before hours of work
        unsettled(recipes, None, out, seeds=seeds, rounds=rounds, known=known)
    for source in dict.fromkeys(r.experiment.data.source for r in recipes):
        federations = Federations()  # of one data set at a time
        unmade: dict[DataSettings, str] = {}
        for seed in seeds:  # one seed of every cell tells more than all seeds of one cell
            for recipe in [r for r in recipes if r.experiment.data.source == source]:
                status = _settled(recipe, seed, out, rounds, known) or unmade.get(recipe.asked.data)
                if status is None and import_unfinished(recipe, seed, out, known):
                    status = _settled(recipe, seed, out, rounds, known)
                if status is None:
                    steps = _steps(recipe, data or "", seed, out, recipe.wanted(rounds), mirror)
                    status = _run(steps, federations, train or _train)
                    if status.startswith(NO_DATA):
                        unmade[recipe.asked.data] = status
                outcomes.append(Outcome(recipe, seed, status))
                if tell is not None:
                    tell(outcomes[-1])
    return outcomes


def unsettled(
    recipes: Sequence[Recipe],
    data: str | None,
    out: Path,
    *,
    seeds: Sequence[int] = (0,),
    rounds: int | None = None,
    known: Sequence[Path] = (),
) -> list[tuple[int, list[Recipe]]]:
    """Return the cells that `reproduce` would run, with their seed, in groups that several processes may run at once.

    Cells that begin with one run are a group, and of those that share a run the first alone is there.

    Raises:
        SettingError: as of `reproduce`.
    """
    _check(recipes, seeds, rounds, known)
    groups: dict[tuple[str, int], dict[str, Recipe]] = {}
    for seed in seeds:
        for recipe in recipes:
            if _settled(recipe, seed, out, rounds, known) is None:
                if data is None:
                    raise SettingError(
                        f"{recipe.column}/{recipe.row}/seed-{seed} must be run, and the data are needed; name the "
                        "folder of the original files with --data FOLDER"
                    )
                first = recipe.beginning or recipe
                groups.setdefault((first.place, seed), {}).setdefault(recipe.place, recipe)
    return [(seed, list(group.values())) for (_, seed), group in groups.items()]


def standing(
    recipes: Sequence[Recipe],
    out: Path,
    *,
    seeds: Sequence[int] = (0,),
    rounds: int | None = None,
    known: Sequence[Path] = (),
) -> list[Outcome]:
    """Return what `reproduce` would find, where nothing is run: runs that are there, that failed, and that are not.

    Raises:
        SettingError: there are more rounds than published, a seed is out of range, one of `known` holds no
            results, `out` is no folder, or a file of a run is damaged.
    """
    _check(recipes, seeds, rounds, known)
    if not out.is_dir():
        raise SettingError(f"--out {out} is no folder; with --report-only name one with results")
    return [
        Outcome(recipe, seed, _there(_found(recipe, seed, out, known), recipe, out, rounds) or "not run")
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


def _there(found: _Found, recipe: Recipe, out: Path, rounds: int | None) -> str | None:
    """Return how a run that is there as asked ended; None where there is none, or not all of it."""
    for run in found:
        if run is not None and not recipe.unasked(run.history.settings):
            if run.rounds >= recipe.wanted(rounds):
                return "there"
            if run.failed is not None:
                own = run.folder.is_relative_to(out)
                remedy = f"; delete {run.folder / FAILED} to try again" if own else f", in {run.folder}"
                return f"failed: {run.failed} (before{remedy})"
    return None


def _settled(recipe: Recipe, seed: int, out: Path, rounds: int | None, known: Sequence[Path]) -> str | None:
    """Return the status of a run if nothing is left to do, or nothing can be done; None where it must be run."""
    if recipe.missing is not None:
        return f"skipped: {recipe.missing}"
    found = _found(recipe, seed, out, known)
    if status := _there(found, recipe, out, rounds):
        return status
    here, place = found.here, recipe.folder(out, seed)
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


class _Step(NamedTuple):
    name: str
    place: Path
    experiment: Experiment


def _steps(recipe: Recipe, data: str, seed: int, out: Path, rounds: int, mirror: str | None) -> list[_Step]:
    """Return the run of a recipe, after that with which it begins, if there is one and it has not begun.

    Each is brought from its mirror where it is there alone.
    """

    def step(name: str, recipe: Recipe, experiment: Experiment) -> _Step:
        place = recipe.folder(out, seed)
        if mirror is not None:
            address = below(mirror, place.relative_to(out).as_posix())
            experiment = experiment.changed("run.mirror", address)
            fetched(address, place, resume=True)
        return _Step(name, place, experiment)

    name = f"{recipe.column}/{recipe.row}/seed-{seed}"
    whole = step(name, recipe, recipe.with_data(data, seed).changed("run.rounds", rounds))
    first = recipe.beginning
    if first is None or RunDirectory(whole.place).begun:
        return [whole]
    return [step(f"{name}, its beginning", first, first.with_data(data, seed)), whole]


def _run(steps: Sequence[_Step], federations: Federations, train: Train) -> str:
    """Run experiments, each of which begins as the one before it ended."""
    try:
        federation = federations.of(steps[-1].experiment)
    except (ValueError, OSError) as error:
        if isinstance(error, FedloomError):
            raise
        return f"{NO_DATA}{error}"
    before = None
    for name, place, experiment in steps:
        job = experiment.job(federation)
        try:
            if before is not None:
                job.branch(before, place)
            train(name, job, place)
        except ClientError as error:
            files.write(place, FAILED, reading.sealed({"why": str(error)}))
            return f"failed: {error}"
        before = place
    return "done"


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
    published = max((r.rounds for r in recipes), default=rounds)
    if not 1 <= rounds <= published:
        remedy = "ask for no more" if rounds > published else "ask for at least one"
        raise SettingError(f"rounds must be in 1..{published}, the published number, got {rounds}: {remedy}")


def check_known(known: Sequence[Path], recipes: Sequence[Recipe]) -> None:
    """Warn of a folder of results that has none of the tables of these recipes, whose runs then count for nothing.

    Raises:
        SettingError: a folder is none of results (TABLE/COLUMN/ROW/seed-N), as one too high or too low is none.
    """
    tables = dict.fromkeys(Path(r.place).parts[0] for r in recipes)
    for folder in known:
        if not tables or any((folder / table).is_dir() for table in tables):
            continue
        if next(folder.glob("*/*/*/seed-*"), None) is None and next(folder.glob(f"*/{kept.NAME}"), None) is None:
            raise SettingError(
                f"{folder} holds no results of {recipes[0].table}; name the folder that holds "
                f"{' or '.join(f'{table}/' for table in tables)}"
            )
        warn(
            f"{folder} holds results, but none of {' or '.join(tables)}: no run there counts as done",
            SettingWarning,
        )


def with_changes(recipes: Sequence[Recipe], changes: Mapping[str, str]) -> list[Recipe]:
    """Return recipes with other settings than their own, with which their runs are then asked for.

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
    changed = [dataclasses.replace(r, changes={**r.changes, **changes}) for r in recipes]
    for r in changed if changes else []:
        if r.missing is None:
            r.asked.described()  # raises if its algorithm refuses them: now, not after hours
    return changed
