"""Runs and methods of a report, and their numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedloom.coordinator import RunSettings
from fedloom.coordinator.chance_level import Chance, chance_of
from fedloom.coordinator.history import MEASURING, History, Record
from fedloom.core.errors import SettingError
from fedloom.core.setting import may_differ
from fedloom.core.task_measures import TaskMeasure
from fedloom.evaluate.measure import Measure, monitored
from fedloom.experiments.problem import of_problem
from fedloom.experiments.settings_sections import applies
from fedloom.report.printable import flat_settings, part, printable
from fedloom.report.problems import Problem, facts_of

Floats = npt.NDArray[np.float64]

_COMPUTING = {"run.kind", *(f"run.{name}" for name in may_differ(RunSettings, "method"))}


def training_seconds(history: History) -> float:
    """Return the seconds of a round without evaluation, mean over rounds.

    NaN before the first round, and where one was not timed.
    """
    last = history.rows()[-1]
    return math.nan if not last["round"] or last["seconds"] is None else float(last["seconds"] / last["round"])


def evaluation_seconds(history: History) -> float:
    """Return the seconds of a round's evaluation, mean over rounds.

    NaN before the first round, and where one was not timed.
    """
    laps = [sum(s for phase, s in t["seconds"].items() if phase in MEASURING) for t in history.timing if t["round"]]
    rounds = history.metrics[-1]["round"]
    return sum(laps) / rounds if laps and len(laps) == rounds else math.nan


@dataclass(frozen=True)
class Run:
    """Run as its directory records it. `folder`: its name in the report, relative to the report's directory.

    `directory`: where its files are; None of a run in memory.
    """

    folder: str
    history: History
    directory: Path | None = None

    @cached_property
    def rows(self) -> list[Record]:
        """Measured numbers, as one flat record for each round."""
        return self.history.rows()

    @property
    def algorithm(self) -> str:
        """Name of the algorithm in the settings, or the class of one from Python; "" where nothing is known."""
        return printable(str(self.history.settings.get("algorithm") or self.history.algorithm))

    @property
    def seed(self) -> int | None:
        """The seed of the run, None where its settings name none."""
        seed = part(self.history.settings, "run", "seed")
        return seed if isinstance(seed, int) else None

    @property
    def draw(self) -> tuple[int | None, object]:
        """Seeds by which the run and its partition were drawn."""
        chosen = part(self.history.settings, "data", "partition_seed")
        return self.seed, self.seed if chosen is None else chosen

    @property
    def clients(self) -> dict[str, str]:
        """Examples by client and class, and the partition's fingerprint, as far as the run records them."""
        recorded = {
            "partition": part(self.history.manifest, "federation", "parts", "partition"),
            "train": self.history.federation.get("train"),
        }
        return {name: str(value) for name, value in recorded.items() if value is not None}

    def pairs_with(self, other: Run) -> bool:
        """Return whether two runs of one problem have the same seeds, and the same clients if both record them."""
        common = self.clients.keys() & other.clients.keys()
        same = all(self.clients[name] == other.clients[name] for name in sorted(common)[:1])
        return self.seed is not None and self.draw == other.draw and same

    @property
    def rounds(self) -> int:
        """Number of complete rounds."""
        return int(self.history.metrics[-1]["round"])

    @property
    def planned_rounds(self) -> int | None:
        """Number of rounds in the settings; None where they have none."""
        rounds = part(self.history.settings, "run", "rounds")
        return rounds if isinstance(rounds, int) else None

    @cached_property
    def stopped(self) -> str | None:
        """Reason why the run ended early, by the rule in its settings; None if it did not."""
        run_settings = part(self.history.settings, "run") or {}
        rule = {name: run_settings[name] for name in ("monitor", "target", "patience") if name in run_settings}
        try:
            settings = RunSettings(**rule)
            watched = monitored(settings.monitor, self.history.measures)
            values = [row.get(watched.name) for row in self.rows if row["round"]]
            return settings.reason_to_stop([v for v in values if v is not None], watched)
        except (SettingError, TypeError):  # of another version
            return None

    @property
    def finished(self) -> bool:
        """False if the settings have more rounds than the log, and no rule ended the run."""
        return self.planned_rounds is None or self.rounds >= self.planned_rounds or self.stopped is not None

    @cached_property
    def facts(self) -> dict[str, str]:
        """Settings of the run, flat: `local.lr` -> "0.01"; of a run over devices without those of simulations.

        They come from the manifest where the settings do not name a model.
        """
        s, m = self.history.settings, self.history.manifest
        settings = dict(s)
        if "model" not in s:
            names = ("algorithm", "hyper_parameters", "task", "models", "federation")
            settings |= {key: m[key] for key in names if key in m and key not in s}
            if isinstance(data := settings.get("federation"), dict):  # of the fingerprints, one that no seed changes
                parts = part(data, "parts") or {}
                kept_parts = {key: parts[key] for key in ("test", "train") if key in parts}
                settings["federation"] = {
                    k: v for k, v in data.items() if k not in ("parts", "table") and v is not None
                } | dict([*kept_parts.items()][:1])
        own_settings = settings.get(str(s.get("algorithm")))  # the algorithm's settings; methods share many of them
        if isinstance(own_settings, dict) and not own_settings.keys() & settings.keys():
            settings = {key: value for key, value in settings.items() if value is not own_settings} | own_settings
        engine = part(s, "run", "engine")
        return {name: value for name, value in flat_settings(settings) if applies(name, engine)}

    @cached_property
    def problem(self) -> dict[str, str]:
        """Settings of the problem of the run."""
        return facts_of(self.history)

    def key(self) -> str:
        """Return a text that runs of one method share, on any problem; the folder where nothing is known."""
        facts = {k: v for k, v in self.facts.items() if not free_in_a_method(k)}
        facts = facts or ({"algorithm": self.algorithm} if self.algorithm else {})
        own = {k: v for k, v in facts.items() if not of_problem(k)}
        return json.dumps(own, sort_keys=True) if facts else self.folder


@dataclass(frozen=True)
class Curve:
    """Measure over rounds: the mean over seeds, the lowest and the highest; `x` are places on the axis."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over `count` runs; `std` is NaN for one."""

    mean: float
    std: float
    count: int

    def full(self) -> dict[str, float | str]:
        """Return the cells of a CSV, by the ends of the columns' names."""
        return {"": self.mean, "_std": "" if np.isnan(self.std) else self.std, "_runs": self.count}


def is_reference(algorithm: str) -> bool:
    """Return whether an algorithm, by its name or its class, is a reference: local-only or centralised training."""
    return is_local_only(algorithm) or algorithm.lower() == "centralised"


def is_local_only(algorithm: str) -> bool:
    """Return whether a run with this algorithm, by its name or its class, trains every client alone."""
    return algorithm.lower().replace("_", "") == "localonly"


@dataclass(frozen=True)
class Method:
    """Runs that differ in their seed only, on one problem.

    `number`: its place in the comparison, which gives its colour and line style.
    """

    label: str
    number: int
    runs: tuple[Run, ...] = field(repr=False)
    problem: Problem = field(default=Problem("", {}), repr=False)

    @cached_property
    def counted_runs(self) -> tuple[Run, ...]:
        """The runs that means are taken over: the finished ones; if there are none, all."""
        return tuple(run for run in self.runs if run.finished) or self.runs

    @property
    def is_local_only(self) -> bool:
        """True for local-only training."""
        return is_local_only(self.first.history.algorithm)

    @property
    def is_reference(self) -> bool:
        """True for local-only and centralised training, which methods are read against and which are never best."""
        return is_reference(self.first.history.algorithm)

    @property
    def headline(self) -> TaskMeasure:
        """Measure by which methods on its problem are compared."""
        return self.first.history.headline

    @property
    def measures(self) -> dict[str, Measure]:
        """Descriptions of the numbers of its records, by name."""
        return self.first.history.measures

    @property
    def has_classes(self) -> bool:
        """False where targets are numbers, several labels or tokens."""
        return "targets" not in self.first.history.federation

    @property
    def first(self) -> Run:
        """Run of the lowest seed, which represents the method where only one run is shown."""
        return self.counted_runs[0]

    def chance(self, name: str) -> Chance | None:
        """Return a number for a model that looks at no input, mean over runs; None where it is not known."""
        found = [chance for run in self.counted_runs if (chance := chance_of(run.history, name)) is not None]
        if len(found) < len(self.counted_runs):
            return None
        value, examples, start = zip(*found, strict=True)
        return Chance(float(np.mean(value)), min(examples), float(np.mean(start)))

    def has(self, name: str) -> bool:
        """Return whether every counted run has measured a number."""
        return all(any(row.get(name) is not None for row in run.rows) for run in self.counted_runs)

    def curve(self, name: str, x: str = "round") -> Curve | None:
        """Return a number in the rounds in which all counted runs have it; None where there is no such round."""
        by_run = [
            {r["round"]: (r[x], r[name]) for r in run.rows if r.get(name) is not None and r.get(x) is not None}
            for run in self.counted_runs
        ]
        rounds = sorted(set.intersection(*map(set, by_run)))
        if not rounds:
            return None
        values = np.array([[by_round[t] for t in rounds] for by_round in by_run], np.float64)  # [runs, rounds, 2]
        at, y = values[..., 0].mean(0), values[..., 1]
        return Curve(at, y.mean(0), y.min(0), y.max(0))

    def spread(self, number_of: Callable[[Run], float | None]) -> Spread | None:
        """Return the mean and spread of one number over the counted runs; None where a run does not have it."""
        values = [number_of(run) for run in self.counted_runs]
        known = [float(v) for v in values if v is not None and not np.isnan(v)]
        if len(known) < len(values):
            return None
        if len(known) > 1 and len({*known}) == 1:  # epsilon, say, whose mean may differ from each in the last bit
            return Spread(known[0], 0.0, len(known))
        return Spread(float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else np.nan, len(known))

    def last(self, name: str, count: int = 1) -> Spread | None:
        """Return a number after the last round, or its mean over the last `count` rounds, as `History.last` does."""
        return self.spread(lambda run: run.history.last(name, count) if run.history.has(name) else math.nan)


def reference_numbers(methods: Sequence[Method]) -> frozenset[int]:
    """Return the numbers of the methods that are references."""
    return frozenset(m.number for m in methods if m.is_reference)


def free_in_a_method(name: str) -> bool:
    """Return whether runs of one method may differ in this setting: a seed, or a setting of the computation."""
    last = name.rpartition(".")[2]
    return last in ("seed", "partition_seed", "fingerprint") or name in _COMPUTING


def own_columns(methods: Sequence[Method]) -> list[str]:
    """Return the names of the columns of users' own parts that some of these methods have, in order."""
    return list(dict.fromkeys(name for m in methods for name in m.first.history.columns))
