"""A published number, and the run that should give it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedloom.algorithms import ALGORITHMS
from fedloom.coordinator.descriptions import plain
from fedloom.coordinator.settings import RunSettings
from fedloom.core.errors import SettingError
from fedloom.core.setting import may_differ
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_file import flat
from fedloom.models import MODELS
from fedloom.wording import did_you_mean

UNKNOWN_STD = 1.0  # % points, where neither they nor we have one: about that of their CIFAR-10 cells
LEAST_STD = 0.23  # % points, the lower quartile of Table 7: a few repetitions agree by chance, down to 0.00

_FREE = {f"run.{name}" for name in may_differ(RunSettings, "recipe")}


@dataclass(frozen=True)
class Method:
    """One row of a table, whatever the column: an algorithm, and what the row has that others have not.

    Attributes:
        algorithm: its name.
        own: settings of the algorithm.
        run: settings of the run that it needs otherwise, by their names in a settings file.
        above: rows that it was published to be above.
        caveat: what is doubtful about it.
        variant: it is another reading of a row, as `Recipe.variant`.
    """

    algorithm: str
    own: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    above: tuple[str, ...] = ()
    caveat: str | None = None
    variant: bool = False

    def of(self, experiment: Experiment) -> Experiment:
        """Return a column's experiment with this method."""
        own = {self.algorithm: self.own} if self.own else {}
        made = dataclasses.replace(experiment, algorithm=self.algorithm, settings=own)
        return made.with_all(self.run) if self.run else made

    def recipe(self, table: str, column: str, row: str, experiment: Experiment, **given: Any) -> Recipe:
        """Return the recipe of this row in a column; it has no published number where `given` has none."""
        own = {"accuracy": None, "target": False, "caveat": self.caveat, "above": self.above, "variant": self.variant}
        place, experiment = f"{table}/{column}/{row}", self.of(experiment)
        return Recipe(table=table, column=column, row=row, place=place, experiment=experiment, **{**own, **given})


class Beginning(NamedTuple):
    """A short run with which those of several rows begin: it is computed once."""

    place: str  # as that of a recipe
    experiment: Experiment
    unless: tuple[str, ...] = ()  # settings of a row's algorithm: where one is asked for, its states are others


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One cell of a published table, and its settings.

    Attributes:
        table: the table's name.
        row: method, with what the table varies and which reading of the settings it is.
        column: data and protocol.
        place: folder of its runs below that of all results; tables that share a cell share its runs.
        experiment: the published settings.
        accuracy: the published `measure`, in %; None: not published, or lost.
        std: of that accuracy over repetitions, in % points; None: not published.
        forgetting: a fraction; None: not published.
        failed: the published run diverged.
        caveat: what is doubtful about the number or the settings.
        target: whether runs should give this number; damaged, impossible and failed ones are none.
        measure: which accuracy a run is evaluated by, as metrics.jsonl calls it.
        reading: it is that of the `last` round, of the `best`, or the `mean` over all rounds, that before training
            included. The best round is chosen on the very examples that it is measured on: the number is optimistic.
        above: rows of the same column that this one was published to be above, in words or in lost numbers.
        variant: it takes another reading of the settings than the table's row, and is run where it is asked for by its
            name.
        changes: settings that are asked for otherwise, by their names in a settings file; those of other algorithms
            are left alone.
        begins: the first rounds, where several rows have the same.
        smoothing: the factor of the moving average over rounds that printed accuracies may be; None: they are not.
    """

    table: str
    row: str
    column: str
    place: str
    experiment: Experiment
    accuracy: float | None
    std: float | None = None
    forgetting: float | None = None
    failed: bool = False
    caveat: str | None = None
    target: bool = True
    measure: str = "global_accuracy"
    reading: Literal["last", "best", "mean"] = "last"
    above: tuple[str, ...] = ()
    variant: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    begins: Beginning | None = None
    smoothing: float | None = None

    @property
    def rounds(self) -> int:
        """Number of rounds of the published run."""
        return self.experiment.run.rounds

    def wanted(self, rounds: int | None) -> int:
        """Return how many rounds a run needs where at most `rounds` are asked for; None: all that are published."""
        return self.rounds if rounds is None else min(rounds, self.rounds)

    @property
    def missing(self) -> str | None:
        """Parts that this version of the package lacks to run the recipe, in words; None if it lacks nothing."""
        e = self.experiment
        if e.algorithm not in ALGORITHMS:
            return f"there is no algorithm {e.algorithm!r} in this version"
        unknown = next((name for name in e.model.split(",") if name not in MODELS), None)
        return None if unknown is None else f"there is no model {unknown!r} in this version"

    @property
    def asked(self) -> Experiment:
        """The experiment with the changes that are asked for."""
        out = self.experiment
        for key, value in self.changes.items():
            if Experiment.knows(key) or key.startswith(f"{out.algorithm}."):
                out = out.changed(key, value)
        return out

    @property
    def beginning(self) -> Recipe | None:
        """A recipe of its first rounds, if it shares them; changes to settings of algorithms leave these alone."""
        if self.begins is None:
            return None
        place, experiment, unless = self.begins
        if any(f"{self.experiment.algorithm}.{name}" in self.changes for name in unless):
            return None
        changes = {key: value for key, value in self.changes.items() if Experiment.knows(key)}
        return dataclasses.replace(self, place=place, experiment=experiment, changes=changes, begins=None)

    def folder(self, results: Path, seed: int) -> Path:
        """Return where the run of a seed stands below a folder of results."""
        return results / self.place / f"seed-{seed}"

    def with_data(self, folder: str, seed: int) -> Experiment:
        """Return the experiment that is asked for, with a seed, on the data in a folder; public data lie there too."""
        asked = self.asked.changed("run.seed", seed)
        public = asked.data.public_source
        if public is not None and ":" not in public:  # else it was asked for from elsewhere
            asked = asked.changed("data.public_source", f"{public}:{folder}")
        return asked.changed("data.source", f"{asked.data.source}:{folder}")

    def changed(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings in which a run, by its settings.json, differs from what was published, and its values."""
        return {key: got for key, (got, _) in self._differences(settings, self.experiment).items()}

    def unasked(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings in which a run differs from the one that is asked for, each difference in words."""
        found = self._differences(settings, self.asked)
        return {key: f"was {json.dumps(got)} and is {json.dumps(asked)}" for key, (got, asked) in found.items()}

    def _differences(self, settings: Mapping[str, Any], experiment: Experiment) -> dict[str, tuple[Any, Any]]:
        """Return the settings in which a run differs from an experiment, each with both values.

        The rounds and the clients for which accuracies are measured also count, where the number depends on them.
        """
        if self.missing is not None:
            return {}
        free = {"run.eval_every": self.reading == "last", "run.panel": self.measure == "global_accuracy"}
        return differences(settings, experiment.described(), {name for name, counts_not in free.items() if counts_not})


def differences(
    settings: Mapping[str, Any], asked: Mapping[str, Any], free: Collection[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ between a settings.json and what is asked for, each with both values.

    How a run is computed (engine, device, threads, checkpoints) does not count, nor its seed, its number of rounds and
    what is `free`. A setting that one of the two lacks counts as equal: it had its default when the run was made.
    """
    there, wanted = flat(plain(settings)), flat(plain(asked))
    for d in (there, wanted):
        for name in ("data.source", "data.public_source"):
            d[name] = str(d.get(name)).partition(":")[0]  # wherever the data are
        d.setdefault("start", None)
    return {
        key: (there[key], value)
        for key, value in wanted.items()
        if key not in _FREE and key not in free and key in there and there[key] != value
    }


def noise(published_std: float | None, our_std: float | None, seeds: int) -> float:
    """Return half the width of the band around a published number in which ours is within noise.

    It is in the unit of the standard deviations:

        2 sqrt(published_std^2 + our_std^2 / seeds)

    An unknown `published_std` is taken from ours, an unknown `our_std` (one seed) from theirs; both: `UNKNOWN_STD`.
    How many repetitions a published mean is of is not known, so its own error is taken as that of one. None is taken
    to be less than `LEAST_STD`.
    """
    either = next((s for s in (published_std, our_std) if s is not None), UNKNOWN_STD)
    theirs, ours = (max(either if s is None else s, LEAST_STD) for s in (published_std, our_std))
    return 2 * math.sqrt(theirs**2 + ours**2 / seeds)


def same(a: Experiment) -> str:
    """Return a text that is equal for two experiments if and only if all their settings are."""
    return json.dumps(dataclasses.asdict(a), sort_keys=True, default=str)


def select(recipes: Sequence[Recipe], only: Sequence[str] = (), methods: Sequence[str] = ()) -> list[Recipe]:
    """Return the recipes of a table that are in some columns and rows; nothing named is everything but the variants.

    Args:
        recipes: of one table.
        only: columns (`cifar10-s2`), or how their names begin (`cifar10`), where none has that very name.
        methods: rows (`fedntd`, `kd_ntd-0.3`, `fedprox-config`), or how those of a method begin (`kd_ntd`), likewise.

    Raises:
        SettingError: there is no such column or row.
    """
    for what, asked, known in (
        ("column", only, dict.fromkeys(r.column for r in recipes)),
        ("method", methods, dict.fromkeys(r.row for r in recipes)),
    ):
        for name in asked:
            if not _named([name], known):
                table = recipes[0].table
                raise SettingError(
                    f"{table} has no {what} {name!r}{did_you_mean(name, known)}; it has {', '.join(known)}"
                )
    columns, rows = _named(only, {r.column for r in recipes}), _named(methods, {r.row for r in recipes})
    return [
        r
        for r in recipes
        if (not only or r.column in columns) and (r.row in methods if r.variant else not methods or r.row in rows)
    ]


def _named(names: Collection[str], known: Collection[str]) -> set[str]:
    """Return those of `known` that some names mean: the one of that name, else all that begin with it."""
    return {k for name in names for k in ([name] if name in known else [k for k in known if k.startswith(f"{name}-")])}
