"""Measures of a model on examples with bootstrap intervals: examples drawn again with replacement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.core.task import Task
from fedloom.core.task_measures import Sum, measures_of, scores_of
from fedloom.evaluate.accuracy import RowResults

RESAMPLES = 1000
LEAST_ROWS = 30
"""The fewest examples of which an interval is made."""
_AT_ONCE = 1 << 22  # numbers in memory of a few resamples


@dataclass(frozen=True)
class Interval:
    """A measure on some examples, and its 95 % percentile interval; NaN where it is undefined."""

    value: float
    low: float
    high: float
    defined: int
    """The resamples in which the measure is defined, which the interval is of."""


def intervals(
    results: RowResults,
    task: Task,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    on_rows: Callable[[int], None] | None = None,
) -> dict[str, Interval]:
    """Return the measures that `results` hold, each with its interval, in the order of the task.

    Resample b is of the rows `rng.integers(0, N, N)`, drawn in turn by one `numpy.random.default_rng(seed)`; it is the
    same for all measures. The interval is from the 2.5 % to the 97.5 % quantile over resamples. `on_rows` is called
    with the number of rows of a few resamples, as they are done.
    """
    values = results.measured(task)
    drawn = resampled(results, task, resamples, seed, on_rows)
    return {name: _interval(values[name], np.asarray(drawn[name])) for name in measures_of(task) if name in values}


def resampled(
    results: RowResults, task: Task, resamples: int, seed: int, on_rows: Callable[[int], None] | None = None
) -> dict[str, list[float]]:
    """Return the measures of each resample, [B] by name."""
    rng, count = np.random.default_rng(seed), len(results.y)
    each = sum(one[0].numel() for one in (*results.sums.values(), *results.outputs.values()))
    step = max(1, _AT_ONCE // (count * max(1, each)))
    out: dict[str, list[float]] = {name: [] for name in (*results.sums, *results.outputs)}
    for start in range(0, resamples, step):
        rows = torch.from_numpy(np.stack([rng.integers(0, count, count) for _ in range(min(step, resamples - start))]))
        for name, values in _sums(results, task, rows).items():
            out[name] += values
        if results.outputs:
            picked = {name: one[rows] for name, one in results.outputs.items()}
            real = torch.ones_like(rows, dtype=torch.bool)
            for name, scores in scores_of(task, picked, results.y[rows], real).items():
                out[name] += scores.tolist()
        if on_rows is not None:
            on_rows(rows.numel())
    return out


def _sums(results: RowResults, task: Task, rows: Tensor) -> dict[str, list[float]]:
    """Return the measures that are sums, of each resample; a total is how often a row was drawn, times what it adds."""
    resamples, count = rows.shape
    times = torch.zeros(resamples, count, dtype=torch.float64)
    times.scatter_add_(1, rows, torch.ones_like(rows, dtype=torch.float64))
    known, out = measures_of(task), dict[str, list[float]]()
    for name, one in results.sums.items():
        if not isinstance(measure := known.get(name), Sum):
            continue
        totals = (times @ one.double().flatten(1) if one.ndim > 1 else times @ one.double()).view(-1, *one.shape[1:])
        if one.dtype == torch.bool:
            totals = totals.long()
        out[name] = [measure.value(total, count) for total in totals]
    return out


def _interval(value: float, drawn: npt.NDArray[np.float64]) -> Interval:
    # A resample may lack the only row on which the model says nothing: of what is undefined there is no interval.
    known = drawn[np.isfinite(drawn) & np.isfinite(value)]
    low, high = np.quantile(known, (0.025, 0.975)) if len(known) else (np.nan, np.nan)
    return Interval(value, float(low), float(high), len(known))
