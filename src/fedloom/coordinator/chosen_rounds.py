"""Read records that only grow: the best round on validation data, the last rounds, classes, a run in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedloom.core.task_measures import TaskMeasure, headline, sign
from fedloom.tasks import Classification


class Reached(NamedTuple):
    """Cost of reaching a target: rounds, bytes (down and up, all clients), seconds (phases not `MEASURING`)."""

    rounds: int
    bytes: int
    seconds: float  # NaN where a round was not timed


class Summaries(NamedTuple):
    """One measured number of a run, read in five ways: papers use each of them, and they differ. NaN: not known.

    `last`: where it was measured last. `tail`: mean over the last rounds (`newest`), or over as many as were asked for,
    of the values that these have; the newest of all where it was measured in none of them (`eval_every`).
    `validated`: in the round that is best on validation data. `best`: over rounds, which is optimistic, since it
    chooses the round by what it reports. `mean`: over all rounds that have it, with that before training. Where it was
    undefined when it was measured last (`null`, as of a model that diverged), `last`, `tail` and `mean` are unknown.
    """

    last: float
    tail: float
    validated: float
    best: float
    mean: float


def measures_of_task(manifest: Mapping[str, Any]) -> list[TaskMeasure]:
    """Return the measures of the task of a run, the headline first, as its manifest has them."""
    said = manifest.get("measures")
    return [TaskMeasure(**one) for one in said] if said else [headline(Classification())]


def validated_round(records: Iterable[Mapping[str, Any]], measure: TaskMeasure) -> int | None:
    """Return the round that is best on validation data, the first of equals; None where no round has such a number.

    `measure`: the headline of the task.

    Round 0 counts: the initial weights may be the best. Test data choose no round. A number that is undefined, as of a
    model that says nothing, is never the best.
    """
    name, up = f"val_{measure.name}", sign(measure.better)
    known = ((m["round"], m[name]) for m in records if m.get(name) is not None)
    measured = [(up * value, -round) for round, value in known if math.isfinite(value)]
    return -max(measured)[1] if measured else None


def newest(rounds: int) -> int:
    """Return over how many of the last rounds a mean is taken: one round alone swings with the classes of its cohort.

    It is the last tenth, but at least 10 rounds; half of all where 10 are more than that. 1: there is nothing to take a
    mean of.
    """
    return max(1, rounds // 10, min(10, rounds // 2))


class ClassRows:
    """Accuracies by class of records that only grow: each record is read once."""

    def __init__(self) -> None:
        self._known: npt.NDArray[np.float64] = np.empty((0, 0))
        self._seen, self._newest = 0, dict[str, Any]()

    def of(self, metrics: list[dict[str, Any]]) -> npt.NDArray[np.float64]:
        """Return the accuracies by round and class, [T, C], read-only."""
        grown = len(metrics) >= self._seen and (not self._seen or metrics[self._seen - 1] is self._newest)
        if not grown:  # cut back or replaced: from the start
            self._known, self._seen = np.empty((0, 0)), 0
        new = metrics[self._seen :]
        rows = [m["class_accuracy"] for m in new if m["round"] > 0 and m.get("class_accuracy") is not None]
        if rows:
            read = np.array([[np.nan if a is None else a for a in row] for row in rows], np.float64)
            self._known = np.concatenate([self._known, read]) if len(self._known) else read
            self._known.flags.writeable = False
        if new:
            self._seen, self._newest = len(metrics), metrics[-1]
        return self._known
