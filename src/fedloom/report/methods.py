"""Runs as a report sees them, the methods that they are runs of, and numbers of both."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedloom.coordinator import RunSettings
from fedloom.coordinator.history import MEASURING, History, Record
from fedloom.core.errors import SettingError
from fedloom.core.setting import may_differ
from fedloom.experiments.problem import of_problem
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
    """Return the seconds that measuring takes beside training, mean over rounds.

    NaN before the first round, and where one was not timed.
    """
    laps = [sum(s for phase, s in t["seconds"].items() if phase in MEASURING) for t in history.timing if t["round"]]
    rounds = history.metrics[-1]["round"]
    return sum(laps) / rounds if laps and len(laps) == rounds else math.nan


@dataclass(frozen=True)
class Run:
    """One run as its directory tells it. `folder`: its name in the report, relative to what was asked for."""

    folder: str
    history: History

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
        """Examples by client and class, and the partition's fingerprint, as far as the run tells who holds what."""
        told = {
            "partition": part(self.history.manifest, "federation", "parts", "partition"),
            "train": self.history.federation.get("train"),
        }
        return {name: str(value) for name, value in told.items() if value is not None}

    def pairs_with(self, other: Run) -> bool:
        """Return whether two runs of one problem have the same seeds, and the same clients as far as both tell."""
        common = self.clients.keys() & other.clients.keys()
        same = all(self.clients[name] == other.clients[name] for name in sorted(common)[:1])
        return self.seed is not None and self.draw == other.draw and same

    @property
    def rounds(self) -> int:
        """Number of complete rounds."""
        return int(self.history.metrics[-1]["round"])

    @property
    def planned(self) -> int | None:
        """Number of rounds that were asked for; None where the settings do not tell."""
        rounds = part(self.history.settings, "run", "rounds")
        return rounds if isinstance(rounds, int) else None

    @cached_property
    def stopped(self) -> str | None:
        """Reason why the run ended early, by the rule in its settings; None if it did not."""
        asked = part(self.history.settings, "run") or {}
        rule = {name: asked[name] for name in ("monitor", "target", "patience") if name in asked}
        try:
            settings = RunSettings(**rule)
            values = [row.get(settings.monitor) for row in self.rows if row["round"]]
            return settings.reason_to_stop([v for v in values if v is not None])
        except (SettingError, TypeError):  # of another version
            return None

    @property
    def finished(self) -> bool:
        """False only if the settings asked for more rounds than there are, and no rule ended the run."""
        return self.planned is None or self.rounds >= self.planned or self.stopped is not None

    @cached_property
    def facts(self) -> dict[str, str]:
        """Settings that were asked for, flat: `local.lr` -> "0.01".

        They come from the manifest where the settings do not name a model.
        """
        s, m = self.history.settings, self.history.manifest
        known = dict(s)
        if "model" not in s:
            kept = ("algorithm", "hyper_parameters", "task", "models", "federation")
            known |= {key: m[key] for key in kept if key in m and key not in s}
            if isinstance(data := known.get("federation"), dict):  # of the fingerprints, that which no seed changes
                parts = part(data, "parts") or {}
                kept_parts = {key: parts[key] for key in ("test", "train") if key in parts}
                known["federation"] = {
                    k: v for k, v in data.items() if k not in ("parts", "table") and v is not None
                } | dict([*kept_parts.items()][:1])
        own = known.get(str(s.get("algorithm")))  # the algorithm's settings, under its name: methods share many of them
        if isinstance(own, dict) and not own.keys() & known.keys():
            known = {key: value for key, value in known.items() if value is not own} | own
        return dict(flat_settings(known))

    @cached_property
    def problem(self) -> dict[str, str]:
        """The facts about the problem that it works on."""
        return facts_of(self.history)

    def key(self) -> str:
        """Return a text that runs of one method share, on whatever problem; the folder where nothing is known."""
        facts = {k: v for k, v in self.facts.items() if not free_in_a_method(k)}
        facts = facts or ({"algorithm": self.algorithm} if self.algorithm else {})
        own = {k: v for k, v in facts.items() if not of_problem(k)}
        return json.dumps(own, sort_keys=True) if facts else self.folder


@dataclass(frozen=True)
class Curve:
    """A number over rounds: the mean over seeds, the lowest and the highest; `x` is what the axis shows."""

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


def is_local_only(algorithm: str) -> bool:
    """Return whether a run with this algorithm, by its name or its class, trains every client alone."""
    return algorithm.lower().replace("_", "") == "localonly"


@dataclass(frozen=True)
class Method:
    """Runs that differ in their seed only, on one problem.

    `number`: its place in the comparison, by which it has colour and line style.
    """

    label: str
    number: int
    runs: tuple[Run, ...] = field(repr=False)
    problem: Problem = field(default=Problem("", {}), repr=False)

    @cached_property
    def counted(self) -> tuple[Run, ...]:
        """The runs that means are taken over: the finished ones; if there are none, all."""
        return tuple(run for run in self.runs if run.finished) or self.runs

    @property
    def alone(self) -> bool:
        """True for local-only training."""
        return is_local_only(self.first.history.algorithm)

    @property
    def first(self) -> Run:
        """The run that stands for the others where only one can be shown: of the lowest seed."""
        return self.counted[0]

    def has(self, name: str) -> bool:
        """Return whether every counted run has measured a number."""
        return all(any(row.get(name) is not None for row in run.rows) for run in self.counted)

    def curve(self, name: str, x: str = "round") -> Curve | None:
        """Return a number in the rounds in which all counted runs have it; None where there is no such round."""
        found = [
            {r["round"]: (r[x], r[name]) for r in run.rows if r.get(name) is not None and r.get(x) is not None}
            for run in self.counted
        ]
        rounds = sorted(set.intersection(*map(set, found)))
        if not rounds:
            return None
        values = np.array([[by_round[t] for t in rounds] for by_round in found], np.float64)  # [runs, rounds, 2]
        at, y = values[..., 0].mean(0), values[..., 1]
        return Curve(at, y.mean(0), y.min(0), y.max(0))

    def spread(self, of: Callable[[Run], float | None]) -> Spread | None:
        """Return the mean and spread of one number over the counted runs; None where a run does not have it."""
        values = [of(run) for run in self.counted]
        measured = [float(v) for v in values if v is not None and not np.isnan(v)]
        if len(measured) < len(values):
            return None
        return Spread(
            float(np.mean(measured)), float(np.std(measured, ddof=1)) if len(measured) > 1 else np.nan, len(measured)
        )

    def last(self, name: str, count: int = 1) -> Spread | None:
        """Return a number after the last round, or its mean over the last `count` rounds, as `History.last` does."""
        return self.spread(lambda run: run.history.last(name, count))


def free_in_a_method(name: str) -> bool:
    """Return whether runs of one method may differ in this setting: it is their seed, or how they were computed."""
    last = name.rpartition(".")[2]
    return last in ("seed", "partition_seed", "fingerprint") or name in _COMPUTING
