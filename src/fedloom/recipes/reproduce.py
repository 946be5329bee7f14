"""Run recipes: each with each seed in a directory of its own; what is done is not done again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from fedloom.coordinator import Job
from fedloom.core import files
from fedloom.core.errors import ClientError, FedloomError, SettingError, StorageError
from fedloom.experiments.experiment import Experiment, Federations
from fedloom.recipes.recipe import Recipe
from fedloom.recipes.results import FAILED, Result, Run, as_csv, as_markdown, read, runs

EXPORTED = ("settings.json", "manifest.json", "metrics.jsonl", "timing.jsonl", FAILED)
_ELSEWHERE = {"run.rounds": "--rounds", "run.seed": "--seed", "data.source": "--data", "algorithm": "--methods"}


class Train(Protocol):
    """What runs a job in a directory, from where the run there stands."""

    def __call__(self, name: str, job: Job, directory: Path) -> object: ...


class Outcome(NamedTuple):
    """What became of one run."""

    recipe: Recipe
    seed: int
    status: str  # "done", "there", "failed: why" or "skipped: why"

    @property
    def skipped(self) -> bool:
        return self.status.startswith("skipped")

    @property
    def good(self) -> bool:
        """Whether the run is there, or failed as the published one did."""
        return self.status in ("done", "there") or (self.recipe.failed and self.status.startswith("failed"))


def reproduce(
    recipes: Sequence[Recipe],
    data: str,
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
    one, and goes on when more are asked for. `data`: the folder with the original files. `changes`: settings other
    than the recipes', by their names in a settings file. `known`: other folders of results, whose runs with the
    settings that are asked for count as done.

    Raises:
        SettingError: a change is no setting, there are more rounds than published, a seed is out of range, or a run in
            `out` has other settings than are asked for.
        StorageError: a file cannot be written, or one of a run is damaged.
    """
    outcomes: list[Outcome] = []
    if rounds is not None:
        check_rounds(rounds, recipes)
    for seed in seeds:
        if not 0 <= seed < 2**32:
            raise SettingError(f"seed must be in 0..{2**32 - 1}, got {seed}: choose one in this range")
    recipes = with_changes(recipes, changes or {})
    for source in dict.fromkeys(r.experiment.data.source for r in recipes):
        federations = Federations()  # of one data set at a time
        unmade: dict[str, str] = {}
        for seed in seeds:  # one seed of every cell tells more than all seeds of one cell
            for recipe in [r for r in recipes if r.experiment.data.source == source]:
                if recipe.column in unmade:
                    status = unmade[recipe.column]
                else:
                    status = _run(recipe, data, seed, out, rounds, known, federations, train or _train)
                    if status.startswith("skipped: data"):
                        unmade[recipe.column] = status
                outcomes.append(Outcome(recipe, seed, status))
                if tell is not None:
                    tell(outcomes[-1])
    return outcomes


def _run(
    recipe: Recipe,
    data: str,
    seed: int,
    out: Path,
    rounds: int | None,
    known: Sequence[Path],
    federations: Federations,
    train: Train,
) -> str:
    if recipe.missing is not None:
        return f"skipped: {recipe.missing}"
    wanted, place = recipe.rounds if rounds is None else rounds, out / recipe.place / f"seed-{seed}"
    here = runs(recipe, [out]).get(seed)
    for run in (runs(recipe, [out, *known]).get(seed), here):
        if run is not None and not recipe.unasked(run.history.settings):
            if run.failed is not None:
                remedy = f"; delete {place / FAILED} to try again" if run.folder == place else f", in {run.folder}"
                return f"failed: {run.failed} (before{remedy})"
            if run.rounds >= wanted:
                return "there"
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
    experiment = recipe.with_data(data, seed).changed("run.rounds", wanted)
    try:
        federation = federations.of(experiment)
    except (ValueError, OSError) as error:
        if isinstance(error, FedloomError):
            raise
        return f"skipped: data cannot be made: {error}"
    try:
        train(f"{recipe.column}/{recipe.row}/seed-{seed}", experiment.job(federation), place)
    except ClientError as error:
        files.write(place, FAILED, (json.dumps({"why": str(error)}) + "\n").encode())
        return f"failed: {error}"
    return "done"


def _train(name: str, job: Job, directory: Path) -> object:
    return job.run(directory, resume=True)


def check_rounds(rounds: int, recipes: Sequence[Recipe]) -> None:
    """Raise SettingError unless so many rounds can be compared with what was published."""
    published = min((r.rounds for r in recipes), default=rounds)
    if not 1 <= rounds <= published:
        raise SettingError(f"rounds must be in 1..{published}, the published number, got {rounds}: ask for no more")


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
    folder = folders[0] / recipes[0].table
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write in {folder}: {error.strerror}; name another directory") from error
    files.write(folder, "results.csv", as_csv(results).encode())
    files.write(folder, "results.md", as_markdown(title, results).encode())
    return results


def export(recipes: Sequence[Recipe], out: Path, to: Path, rounds: int | None = None) -> list[Path]:
    """Copy settings, facts and logs of finished and failed runs, without weights: small enough to be committed.

    A copy counts as done when it is read, but cannot go on. Settings name the data without their folder. A copy that
    is there and has as many rounds stays.

    Raises:
        StorageError: a file cannot be written.
    """
    copied = []
    for recipe in recipes:
        there = runs(recipe, [to])
        for seed, run in runs(recipe, [out]).items():
            done = run.failed is not None or run.rounds >= (recipe.rounds if rounds is None else rounds)
            if not done or (seed in there and there[seed].rounds >= run.rounds):
                continue
            folder = to / recipe.place / f"seed-{seed}"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                _copy(run, folder)
            except OSError as error:
                if isinstance(error, StorageError):
                    raise
                raise StorageError(f"cannot copy {run.folder} to {folder}: {error.strerror}") from error
            copied.append(folder)
    return copied


def _copy(run: Run, folder: Path) -> None:
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
        files.write(folder, name, content)
