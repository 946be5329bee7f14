"""Sweeps among the methods of a report: trials of one algorithm with other settings, and their results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedloom.evaluate.measure import Measure
from fedloom.experiments.problem import of_problem
from fedloom.experiments.trials import at_end
from fedloom.report.grouping import differences
from fedloom.report.methods import Method, Spread
from fedloom.report.number_table import Column, Table, format_of, with_unit

_FEWEST = 3  # trials


def chosen_by(methods: Sequence[Method]) -> dict[str, Measure]:
    """Return the measures that trials may be compared by; the first that all of them have measured is taken."""
    main, measures = methods[0].headline.name, methods[0].measures
    return {name: measures[name] for name in (f"val_{main}", f"global_{main}", f"personal_{main}")}


class Trial(NamedTuple):
    """Trial of a sweep: its method, the settings in which trials differ, and its result."""

    method: Method
    settings: dict[str, str]
    result: Spread


class SweepResult(NamedTuple):
    """Trials of an algorithm, best first. `measure`: of their results, one of `chosen_by`.

    `problems`: the varied settings that change the problem. If there are any, no trial is the best, and trials are in
    the order of their settings. `without`: labels of the trials whose measure was undefined at the end.
    """

    measure: str
    trials: list[Trial]
    problems: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the settings in which trials differ."""
        return list(self.trials[0].settings)

    def table(self, place: int) -> Table:
        """Return a row for each trial: its settings, and measures as `fedloom sweep` takes them. `place`: from 1."""
        of = chosen_by([t.method for t in self.trials])
        measures = [name for name in of if any(t.method.has(name) for t in self.trials)]
        settings = [Column(name, short(name)) for name in self.names]
        columns = [Column("trial", "trial"), *settings]
        for name in measures:
            title, unit = of[name].title, of[name].unit
            best = None if self.problems else of[name].better
            heading = with_unit(title[:1].lower() + title[1:], unit, ", ")
            columns.append(Column(name, heading, format_of(unit), best))
        rows = [
            [t.method.label, *t.settings.values(), *(_result(t.method, name, self.measure) for name in measures)]
            for t in self.trials
        ]
        numbers = [t.method.number for t in self.trials]
        return Table("sweep" if place == 1 else f"sweep_{place}", columns, rows, numbers)


def sweeps(methods: Sequence[Method]) -> list[SweepResult]:
    """Return a sweep for each algorithm with results for three or more methods from the same source of data.

    Methods on one problem are compared. Methods on several problems are a sweep where the problem itself was varied.
    Results are of validation examples where all have measured them. A setting that one method does not know is not
    varied.
    """
    groups: dict[str, list[Method]] = {}
    for m in methods:
        groups.setdefault(m.first.algorithm, []).append(m)
    results = []
    for group in groups.values():
        known = chosen_by(group)
        measure = next((name for name in known if all(_measured(m, name) for m in group)), None)
        _, settings_of = differences(group)
        varied_names = [name for name in settings_of[0] if all(name in settings for settings in settings_of)]
        if len(group) < _FEWEST or measure is None or not varied_names or _other_data(settings_of, group):
            continue
        trials = [
            Trial(m, {name: settings[name] for name in varied_names}, result)
            for m, settings in zip(group, settings_of, strict=True)
            if (result := _result(m, measure, measure)) is not None
        ]
        if len(trials) < 2:
            continue
        problems = tuple(name for name in varied_names if of_problem(name))
        if problems:
            trials.sort(key=lambda trial: [order(value) for value in trial.settings.values()])
        else:
            sign = 1 if known[measure].better == "low" else -1
            trials.sort(key=lambda trial: sign * trial.result.mean)
        without = tuple(m.label for m in group if all(m is not trial.method for trial in trials))
        results.append(SweepResult(measure, trials, problems, without))
    return results


def _other_data(settings_of: Sequence[dict[str, str]], group: Sequence[Method]) -> bool:
    """Return whether methods differ in their source of data, or in their problems without a varied setting.

    No axis of a figure can show such a difference.
    """
    several = len({m.problem.title for m in group}) > 1
    return any("data.source" in settings for settings in settings_of) or (
        several
        and not any(all(name in settings for settings in settings_of) and of_problem(name) for name in settings_of[0])
    )


def _measured(method: Method, name: str) -> bool:
    return all(any(m["round"] > 0 and name in m for m in run.history.metrics) for run in method.counted_runs)


def _result(method: Method, name: str, by: str) -> Spread | None:
    return method.spread(lambda run: at_end(run.history, name, by))


def short(name: str) -> str:
    """Return the last part of a setting's name: lr of local.lr."""
    return name.rpartition(".")[2]


def order(value: str) -> tuple[bool, float, str]:
    """Return a key that sorts values of a setting: numbers by size, then words."""
    try:
        number = float(value)
    except ValueError:
        return True, 0.0, value
    return math.isnan(number), number, value
