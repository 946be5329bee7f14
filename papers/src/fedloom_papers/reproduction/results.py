"""Compare the results of recipes with what was published."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedloom.coordinator import History, run_documents as reading
from fedloom.evaluate.paired_differences import Noise
from fedloom_papers.reproduction import kept
from fedloom_papers.reproduction.recipe import Recipe, noise

FAILED = "failed.json"  # why a run ended early, beside its logs


@dataclass(frozen=True)
class Run:
    """One run of a recipe, as its folder tells.

    Attributes:
        seed: of everything random but the partition.
        folder: the run's directory.
        history: what it has logged.
        failed: why it could not go on, None if it could.
    """

    seed: int
    folder: Path
    history: History
    failed: str | None

    @property
    def rounds(self) -> int:
        """Number of rounds that are done."""
        return int(self.history.metrics[-1]["round"]) if self.history.metrics else 0

    @property
    def resumable(self) -> bool:
        """True if the run can go on: an exported one has no checkpoints, and those of a finished one may be deleted."""
        return self.rounds == 0 or any((self.folder / "checkpoints").glob("*.json"))

    def after(self, round: int, name: str) -> float | None:
        """Return what was measured under a name after a round, None if nothing was."""
        return next((m.get(name) for m in self.history.metrics if m["round"] == round), None)

    def best(self, round: int, name: str) -> float | None:
        """Return the highest value of a measured number in the rounds 1 to `round`, None if there is none."""
        values = [m[name] for m in self.history.metrics if 1 <= m["round"] <= round and m.get(name) is not None]
        return max(values, default=None)

    def mean(self, round: int, name: str) -> float | None:
        """Return the mean of a measured number over the rounds 0 to `round` that have it, None if none has."""
        values = [m[name] for m in self.history.metrics if m["round"] <= round and m.get(name) is not None]
        return statistics.fmean(values) if values else None

    def smoothed(self, round: int, name: str, factor: float) -> float | None:
        """Return the exponential moving average of a measured number after a round.

        It begins with the value of round 1, and then m <- factor m + (1 - factor) value.
        """
        values = [m[name] for m in self.history.metrics if 1 <= m["round"] <= round and name in m]
        return reduce(lambda mean, v: factor * mean + (1 - factor) * v, values) if values else None


def runs(recipe: Recipe, folders: Sequence[Path]) -> dict[int, Run]:
    """Return the runs of a recipe below some folders, by seed.

    Behind the first folder, only runs with the settings asked for count. Of two runs with a seed, one with these
    settings is preferred, then the longer one, then the first. A run that never began, because the run with which it
    begins (`Recipe.begins`) has failed, has failed in the folder of that run.

    Raises:
        SettingError: a file is damaged; names it.
    """
    out: dict[int, Run] = {}
    ranks: dict[int, tuple[bool, int]] = {}
    if (first := recipe.beginning) is not None and recipe.missing is None:
        asked = recipe.asked
        never = History(algorithm=asked.algorithm, settings=asked.described())
        out = {
            seed: Run(seed, run.folder, never, run.failed)
            for seed, run in runs(first, folders[:1]).items()
            if run.failed is not None and not first.unasked(run.history.settings)
        }
        ranks = dict.fromkeys(out, (False, 0))
    for folder in folders:
        for run in _standing(recipe, folder):
            rank = (not recipe.unasked(run.history.settings), run.rounds)
            if (folder == folders[0] or rank[0]) and (run.seed not in out or rank > ranks[run.seed]):
                out[run.seed], ranks[run.seed] = run, rank
    return dict(sorted(out.items()))


def _standing(recipe: Recipe, folder: Path) -> Iterator[Run]:
    """Yield the runs of a recipe in a folder of results: those in directories of their own, and those that are kept."""
    for place in (folder / recipe.place).glob("seed-*"):
        if place.name.removeprefix("seed-").isdecimal() and (place / "metrics.jsonl").is_file():
            why = reading.proved(place / FAILED).get("why")
            seed = int(place.name.removeprefix("seed-"))
            yield Run(seed, place, History.read(place), None if why is None else str(why))
    table, _, place_in_it = recipe.place.partition("/")
    for one in kept.read(folder / table):
        if one.place == place_in_it:
            yield Run(one.seed, recipe.folder(folder, one.seed), one.history, one.failed)


@dataclass(frozen=True, eq=False)
class Folders:
    """Folders that results were read from at once, and the noise of their tables, as far as somebody has asked for it.

    Attributes:
        paths: the first before the others (`runs`).
        rounds: as `Result.until`.
        noises: kept by `table_noise`.
    """

    paths: tuple[Path, ...]
    rounds: int | None
    noises: dict[object, Noise | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """A cell: what was published, and what its runs gave after `rounds` rounds, as far as they got there.

    Attributes:
        recipe: the published number and its settings.
        runs: by seed.
        until: take numbers after at most so many rounds; None: as many as published.
        folders: where the rest of its table is; None: nothing is known of it.
    """

    recipe: Recipe
    runs: dict[int, Run]
    until: int | None = None
    folders: Folders | None = field(default=None, compare=False, repr=False)

    @property
    def wanted(self) -> int:
        """Number of rounds after which numbers are taken of runs that are long enough."""
        return self.recipe.wanted(self.until)

    @cached_property
    def failures(self) -> dict[int, str]:
        """Reasons why runs failed, by seed; one that failed after the rounds that are wanted did not fail in them."""
        return {s: r.failed for s, r in self.runs.items() if r.failed is not None and r.rounds < self.wanted}

    @cached_property
    def rounds(self) -> int:
        """Number of rounds after which numbers are taken: as the longest run has, at most `until` and as published."""
        return min(self.wanted, max((r.rounds for s, r in self.runs.items() if s not in self.failures), default=0))

    @property
    def full(self) -> bool:
        """True where all runs are as long as published, with its settings."""
        return not self.changed and not self.failures and self.rounds == self.recipe.rounds

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds whose runs got as far as `rounds`."""
        return [s for s, r in self.runs.items() if s not in self.failures and self.rounds and r.rounds >= self.rounds]

    @cached_property
    def numbers(self) -> dict[int, float]:
        """The recipe's measure, after `rounds` rounds, in the best of them or over all, in %, of each seed that has it.

        A run may have got that far without it: it evaluates every tenth round, or its version did not log it.
        """
        read = {"last": Run.after, "best": Run.best, "mean": Run.mean}[self.recipe.reading]
        found = {seed: read(self.runs[seed], self.rounds, self.recipe.measure) for seed in self.seeds}
        return {seed: 100 * a for seed, a in found.items() if a is not None}

    @property
    def accuracy(self) -> float | None:
        """The mean of `numbers`."""
        return statistics.fmean(self.numbers.values()) if self.numbers else None

    @property
    def last(self) -> float | None:
        """The recipe's measure after `rounds` rounds, mean over seeds, in %."""
        values = self._values(lambda run: run.after(self.rounds, self.recipe.measure))
        return 100 * statistics.fmean(values) if values else None

    @property
    def best(self) -> float | None:
        """The recipe's measure in the best of `rounds` rounds, mean over seeds, in %."""
        values = self._values(lambda run: run.best(self.rounds, self.recipe.measure))
        return 100 * statistics.fmean(values) if values else None

    @property
    def std(self) -> float | None:
        """Standard deviation (n - 1) of that accuracy over seeds, in % points; None with one seed."""
        return statistics.stdev(self.numbers.values()) if len(self.numbers) > 1 else None

    @property
    def smoothed(self) -> float | None:
        """Accuracy smoothed over rounds as the recipe says (`Run.smoothed`), mean over seeds, in %."""
        factor = self.recipe.smoothing
        if factor is None:
            return None
        values = self._values(lambda run: run.smoothed(self.rounds, self.recipe.measure, factor))
        return 100 * statistics.fmean(values) if values else None

    @property
    def forgetting(self) -> float | None:
        """Forgetting after `rounds` rounds, mean over seeds, a fraction."""
        values = self._values(lambda run: run.after(self.rounds, "forgetting"))
        return statistics.fmean(values) if values else None

    @property
    def difference(self) -> float | None:
        """Our accuracy less the published one, in % points."""
        return _minus(self.accuracy, self.recipe.accuracy)

    @property
    def forgetting_difference(self) -> float | None:
        """Our forgetting less the published one, a fraction."""
        return _minus(self.forgetting, self.recipe.forgetting)

    @property
    def noise(self) -> float:
        """Largest difference that is still within noise, in % points, by the rule of `noise`."""
        return noise(self.recipe.std, self.std, max(1, len(self.numbers)))

    @cached_property
    def changed(self) -> dict[str, list[Any]]:
        """The settings in which runs differ from the recipe, and what they are there."""
        out: dict[str, list[Any]] = {}
        for run in self.runs.values():
            for key, value in self.recipe.changed(run.history.settings).items():
                if value not in out.setdefault(key, []):
                    out[key].append(value)
        return out

    @property
    def verdict(self) -> str:
        """Comparison of the runs with what was published, in words; only "within noise" says it was reproduced."""
        recipe, failures = self.recipe, len(self.failures)
        if not self.runs:
            return "not run" if recipe.missing is None else recipe.missing
        if self.changed:
            return f"other settings: {', '.join(self.changed)}"
        if failures and not self.seeds:
            return "failed, as published" if recipe.failed else "failed"
        if failures:
            return f"{failures} of {len(self.runs)} failed"
        if self.rounds < recipe.rounds:
            return f"short run ({self.rounds} of {recipe.rounds})"
        if not recipe.target or self.difference is None:
            return "no target"
        if abs(self.difference) <= self.noise + 1e-9:
            return "within noise"
        return "higher" if self.difference > 0 else "lower"

    def _values(self, of: Callable[[Run], float | None]) -> list[float]:
        """Return a number of each run that has it."""
        values = [of(self.runs[seed]) for seed in self.seeds]
        return [v for v in values if v is not None]


def read(recipes: Iterable[Recipe], folders: Sequence[Path], rounds: int | None = None) -> list[Result]:
    """Return the result of each recipe, of the runs that are there.

    A run that finished no round counts only where it failed.

    Args:
        recipes: of one or several tables.
        folders: of results, the first before the others (`runs`).
        rounds: take numbers after so many where runs are longer.
    """
    out, there = [], Folders(tuple(folders), rounds)
    for recipe in recipes:
        begun = {s: run for s, run in runs(recipe, folders).items() if run.rounds or run.failed is not None}
        out.append(Result(recipe, begun, rounds, there))
    return out


def curve(r: Result, name: str) -> tuple[list[int], npt.NDArray[np.float64]]:
    """Return a number after each round for which every run that logs it has it, mean over these runs."""
    logged = [
        {m["round"]: float(m[name]) for m in r.runs[s].history.metrics if m.get(name) is not None} for s in r.seeds
    ]
    return mean_curve([one for one in logged if one])


def mean_curve(series: Sequence[Mapping[int, float]]) -> tuple[list[int], npt.NDArray[np.float64]]:
    """Return the rounds that all series of numbers by round have, and the mean over the series after each."""
    rounds = sorted(set.intersection(*map(set, series))) if series else []
    return rounds, np.array([np.mean([one[t] for one in series]) for t in rounds], np.float64)


class Ordering(NamedTuple):
    """Published order of two methods in a column, and whether our runs agree.

    `clear`: the published gap is more than two standard deviations; None where only words, no numbers, are published.
    `holds`: the method is above the other in ours, in the mean over seeds. `against`: the seeds in which it is not.
    """

    column: str
    above: str
    below: str
    clear: bool | None
    holds: bool
    against: tuple[int, ...]

    @property
    def by_the_mean(self) -> bool:
        """True if the order holds in the mean over seeds, but not in each of them."""
        return self.holds and bool(self.against)


def orderings(results: Iterable[Result]) -> list[Ordering]:
    """Return every published order of two targets in a column that our runs can speak to (`comparable`)."""
    able = [r for r in results if not r.recipe.variant and r.accuracy is not None]
    out = []
    for pair in itertools.combinations(able, 2):
        if pair[0].recipe.column != pair[1].recipe.column or not (found := comparable(*pair)):
            continue
        a, b = found
        ours = _minus(a.accuracy, b.accuracy)
        gap = _minus(a.recipe.accuracy, b.recipe.accuracy) if a.recipe.target and b.recipe.target else None
        clear = None if gap is None else abs(gap) > noise(a.recipe.std, b.recipe.std, 1)
        if gap is None:
            gap = float(b.recipe.row in a.recipe.above) - float(a.recipe.row in b.recipe.above)
        if not gap or ours is None:
            continue
        high, low = (a, b) if gap > 0 else (b, a)
        broken_in = seeds_against(high, low)
        out.append(Ordering(a.recipe.column, high.recipe.row, low.recipe.row, clear, gap * ours > 0, broken_in))
    return out


def comparable(*results: Result) -> list[Result]:
    """Return methods over the seeds for which all of them have a number; nothing where these cannot be compared.

    They can where none has a run that failed, those of a seed differ from their recipes alike if at all, as where all
    train for fewer epochs, and all got equally far: as many rounds, short of the recipe or not. One whose recipe has
    fewer rounds than another got, as that of one-shot FedAvg has, got as far where it is done. Two that are read of one
    run after different rounds, as DENSE of two and of five rounds of uploads, can where both are done.
    """
    seeds = set.intersection(*(set(r.numbers) for r in results))
    as_far = all(_as_far(a, b) for a, b in itertools.combinations(results, 2))
    if not seeds or not as_far or any(r.failures for r in results):
        return []
    found = [dataclasses.replace(r, runs={s: run for s, run in r.runs.items() if s in seeds}) for r in results]
    first, *others = ([r.recipe.changed(run.history.settings) for run in r.runs.values()] for r in found)
    return found if all(other == first for other in others) else []


def seeds_against(high: Result, low: Result) -> tuple[int, ...]:
    """Return the seeds in which the first of two methods is not above the second; both have the same (`comparable`)."""
    return tuple(seed for seed, number in high.numbers.items() if number <= low.numbers[seed])


def seeds_of(found: Sequence[Result], *asked: Result) -> str:
    """Say which seeds a comparison is of, behind its numbers, where one of its methods has others too."""
    seeds = list(found[0].numbers)
    if all(list(r.numbers) == seeds for r in asked):
        return ""
    return f", of seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _as_far(a: Result, b: Result) -> bool:
    if a.recipe.place == b.recipe.place and a.recipe.measure == b.recipe.measure:
        return a.rounds == a.recipe.rounds and b.rounds == b.recipe.rounds
    done = any(r.rounds == r.recipe.rounds < other.rounds for r, other in ((a, b), (b, a)))
    alike = a.rounds == b.rounds and (a.rounds < a.recipe.rounds) == (b.rounds < b.recipe.rounds)
    return done or alike


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b
