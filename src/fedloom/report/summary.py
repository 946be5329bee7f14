"""Runs from their directories, grouped into methods, and the numbers that a report says of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.coordinator import RunSettings
from fedloom.coordinator.history import EVALUATION, History, Record, runs_below
from fedloom.core.errors import SettingError
from fedloom.report.style import looks

Floats = npt.NDArray[np.float64]

_MOST = 1e30  # of a number; a loss beyond has diverged
_DEEPEST = 20  # of settings in settings
_COMPUTING = {
    f"run.{name}" for name in ("kind", "threads", "chunk", "checkpoint_every", "keep_every", "state_memory_mib")
}


def newest(rounds: int) -> int:
    """Over how many of the last rounds a mean is taken: one round alone swings with the classes of its cohort.

    The last tenth, and at least 10 rounds where these are at most half of all; 1: there is nothing to take a mean of.
    """
    return max(1, rounds // 10, min(10, rounds // 2))


def training_seconds(history: History) -> float:
    """Seconds of a round without evaluation, mean over rounds; NaN before the first and where one was not timed."""
    last = history.rows()[-1]
    return math.nan if not last["round"] or last["seconds"] is None else float(last["seconds"] / last["round"])


def evaluation_seconds(history: History) -> float:
    """Seconds that evaluation takes beside it, mean over rounds; NaN before the first and where one was not timed."""
    laps = [t["seconds"].get(EVALUATION, 0.0) for t in history.timing if t["round"]]
    rounds = history.metrics[-1]["round"]
    return sum(laps) / rounds if laps and len(laps) == rounds else math.nan


@dataclass(frozen=True)
class Run:
    """One run as its directory tells it. `folder`: its name in the report, relative to what was asked for."""

    folder: str
    history: History

    @cached_property
    def rows(self) -> list[Record]:
        """The flat records, one per round."""
        return self.history.rows()

    @property
    def seed(self) -> int | None:
        """The seed, where the settings name one."""
        seed = part(self.history.settings, "run", "seed")
        return seed if isinstance(seed, int) else None

    @property
    def rounds(self) -> int:
        """Rounds that are complete."""
        return int(self.history.metrics[-1]["round"])

    @property
    def planned(self) -> int | None:
        """Rounds that were asked for, where the settings tell."""
        rounds = part(self.history.settings, "run", "rounds")
        return rounds if isinstance(rounds, int) else None

    @cached_property
    def stopped(self) -> str | None:
        """Why the run ended early, by the rule in its settings; None if it did not."""
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

    @property
    def facts(self) -> dict[str, str]:
        """What was asked for, flat: `local.lr` -> "0.01"; from the manifest where the settings do not name a model."""
        s, m = self.history.settings, self.history.manifest
        known = dict(s)
        if "model" not in s:
            kept = ("algorithm", "hyper_parameters", "task", "models", "federation")
            known |= {key: m[key] for key in kept if key in m and key not in s}
            if isinstance(data := known.get("federation"), dict):  # of the fingerprints, that which no seed changes
                parts = part(data, "parts") or {}
                kept_parts = {key: parts[key] for key in ("test", "train") if key in parts}
                known["federation"] = {k: v for k, v in data.items() if k != "parts"} | dict([*kept_parts.items()][:1])
        own = known.get(str(s.get("algorithm")))  # the algorithm's settings, under its name: methods share many of them
        if isinstance(own, dict) and not own.keys() & known.keys():
            known = {key: value for key, value in known.items() if value is not own} | own
        return dict(_flat(known))

    def key(self) -> str:
        """The same text for runs that differ in their seed only; the folder's where nothing is known."""
        facts = {k: v for k, v in self.facts.items() if not _seedy(k)}
        return json.dumps(facts, sort_keys=True) if facts else self.folder


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


@dataclass(frozen=True)
class Method:
    """Runs that differ in their seed only. `number` chooses colour and line style; `looks` gives it."""

    label: str
    number: int
    runs: tuple[Run, ...] = field(repr=False)

    @cached_property
    def counted(self) -> tuple[Run, ...]:
        """The runs that means are taken over: the finished ones; if there are none, all."""
        return tuple(run for run in self.runs if run.finished) or self.runs

    @property
    def first(self) -> Run:
        """The run that stands for the others where only one can be shown: of the lowest seed."""
        return self.counted[0]

    def has(self, name: str) -> bool:
        """Whether every counted run has measured a number."""
        return all(any(row.get(name) is not None for row in run.rows) for run in self.counted)

    def curve(self, name: str, x: str = "round") -> Curve | None:
        """A number in the rounds that all counted runs have it in; None where there is no such round."""
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
        """One number of each counted run; None where a run does not have it."""
        values = [of(run) for run in self.counted]
        known = [float(v) for v in values if v is not None and not np.isnan(v)]
        if len(known) < len(values):
            return None
        return Spread(float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else np.nan, len(known))

    def last(self, name: str, count: int = 1) -> Spread | None:
        """A number after the last round, or its mean over the newest `count` rounds that have it."""
        return self.spread(lambda run: run.history.last(name, count))


def read_methods(directories: Sequence[str | os.PathLike[str]]) -> tuple[list[Method], list[str]]:
    """Every run below some directories, grouped by what was asked for but the seed; and remarks for the reader.

    Raises:
        SettingError: a directory holds no run, or a file of one is damaged.
    """
    runs: list[Run] = []
    remarks: list[str] = []
    seen: set[Path] = set()
    for directory in directories:
        below = runs_below(directory)
        if not below:
            raise SettingError(f"{directory} holds no run (a folder with a metrics.jsonl); name one that does")
        for path in below:
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            name = path.relative_to(directory) if path != Path(directory) else Path(path.resolve().name)
            if len(directories) > 1 and path != Path(directory):
                name = Path(Path(directory).resolve().name) / name
            run = Run(printable(name.as_posix()), History.read(path))
            if _within(run.history):
                remarks.append(f"{run.folder}: numbers beyond {_MOST:g} are left out.")
            if run.history.metrics:
                runs.append(run)
            else:
                remarks.append(f"{run.folder}: no round is complete; left out.")
    if not runs:
        raise SettingError(f"no run below {', '.join(map(str, directories))} has a complete round yet; try again later")
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.key(), []).append(run)
    ordered = [sorted(group, key=lambda run: -1 if run.seed is None else run.seed) for group in groups.values()]
    labels = _labels(ordered)
    numbers = looks([_algorithm(group[0]) or label for label, group in zip(labels, ordered, strict=True)])
    methods = [
        Method(label, number, tuple(group)) for label, number, group in zip(labels, numbers, ordered, strict=True)
    ]
    return methods, remarks + [remark for method in methods for remark in _remarks(method)]


def part(value: Any, *names: str) -> Any:
    """value[name][name]..., None as soon as something is missing or no mapping."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def printable(text: str, most: int = 120) -> str:
    """Text from a file, fit for a page: no control characters, no half characters, not endless."""
    kept = "".join(c if c.isprintable() else "\ufffd" for c in text[: most + 1])
    return kept if len(kept) <= most else kept[: most - 1] + "…"


def differences(methods: Sequence[Method]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Settings that all methods share, and for each method those that not all have alike; without seeds."""
    facts = [{k: v for k, v in m.first.facts.items() if not _seedy(k)} for m in methods]
    names = list(dict.fromkeys(name for f in facts for name in f))
    alike = {name for name in names if all(f.get(name) == facts[0].get(name) for f in facts)}
    return {n: facts[0][n] for n in names if n in alike}, [
        {n: f[n] for n in names if n in f and n not in alike} for f in facts
    ]


def _flat(value: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    for name, inner in value.items():
        name = printable(f"{prefix}{name}")
        if isinstance(inner, Mapping) and depth < _DEEPEST:
            yield from _flat(inner, f"{name}.", depth + 1)
        else:
            yield name, _text(inner)


def _text(value: Any, depth: int = 0) -> str:
    if value is None or isinstance(value, bool):
        return "none" if value is None else "yes" if value else "no"
    if isinstance(value, (list, Mapping)) and depth >= _DEEPEST:
        return "…"
    if isinstance(value, list):
        return printable(", ".join(_text(v, depth + 1) for v in value))
    return printable(value) if isinstance(value, str) else printable(repr(value))


def _within(history: History) -> bool:
    """Leave out numbers that no figure can show and no mean be taken of; whether there were any."""
    records = [*history.metrics, *(t["seconds"] for t in history.timing)]
    beyond = [(r, k) for r in records for k, v in r.items() if isinstance(v, (int, float)) and abs(v) > _MOST]
    for record, name in beyond:
        del record[name]
    return bool(beyond)


def _seedy(name: str) -> bool:
    """Whether runs of one method may differ in this setting: by their seed, or in how they were computed."""
    last = name.rpartition(".")[2]
    return last in ("seed", "fingerprint") or name in _COMPUTING


def _labels(groups: Sequence[Sequence[Run]]) -> list[str]:
    """The algorithm; where that leaves twins, what differs in their settings if it is little, or the folder."""
    names = [_algorithm(run) for run, *_ in groups]
    out = []
    for name, group in zip(names, groups, strict=True):
        twins = [other for other, n in zip(groups, names, strict=True) if n == name]
        facts = [other[0].facts for other in twins]
        changed = {k for f in facts for k in f if not _seedy(k) and any(k not in g or g[k] != f[k] for g in facts)}
        folders = {_method_folder(run.folder) for run in group}
        if name and len(twins) == 1:
            out.append(name)
        elif name and 0 < len(changed) <= 2:
            own = group[0].facts
            out.append(" ".join([name, *(f"{k.rpartition('.')[2]}={own.get(k, '–')}" for k in sorted(changed))]))
        else:
            out.append(folders.pop() if len(folders) == 1 else name)
    out = [label or "run" for label in out]
    return [label if out.count(label) == 1 else f"{label} ({out[: i + 1].count(label)})" for i, label in enumerate(out)]


def _algorithm(run: Run) -> str:
    """As the settings name it, or the class of one from Python; "" where nothing is known."""
    return printable(str(run.history.settings.get("algorithm") or run.history.algorithm))


def _method_folder(folder: str) -> str:
    """The label of OUT/label/seed-0."""
    return "/".join(name for name in folder.split("/") if not name.startswith("seed-"))


def _remarks(method: Method) -> Iterator[str]:
    for run in method.runs:
        if run.stopped is not None and run.planned is not None and run.rounds < run.planned:
            yield f"{run.folder} ended after {run.rounds} of {run.planned} rounds: {run.stopped}."
        if not run.finished:
            left_out = "" if run in method.counted else "; means leave it out"
            yield f"{run.folder} is unfinished: {run.rounds} of {run.planned} rounds{left_out}."
    seeds = [run.seed for run in method.runs if run.seed is not None]
    if len(set(seeds)) < len(seeds):
        yield f"{method.label}: a seed occurs twice, so that its spread is not one over seeds."
