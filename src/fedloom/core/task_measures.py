"""Define the measures of a task: sums over examples, and scores of a whole set of examples."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedloom.core.errors import SettingError
from fedloom.wording import did_you_mean

SILENT = "(silent)"
"""The sum beside those of measures: on how many examples the model says nothing (`silent_rows`)."""
LARGEST_SHARE = 1 + 1e-9  # a weighted mean of ones may round up
_LARGEST = sys.float_info.max


@dataclass(frozen=True, kw_only=True)
class TaskMeasure:
    """Description of a number by which the models of a task are compared.

    Use `Sum` where it follows from sums over examples, and `Score` where it needs all predictions at once.
    """

    name: str
    """Its name in records, behind whom it is of: `global_<name>`, `personal_<name>`."""
    title: str
    """Its name in headings, tables and legends."""
    meaning: str
    """Its meaning, in one sentence."""
    better: Literal["high", "low"] = "high"
    unit: Literal["%", ""] = "%"
    """Shares (0..1 in records) are printed in %, other numbers as they are."""
    chance: float | Literal["majority", "classes", "constant"] | None = None
    """Its value for a model that looks at no input: a number, "majority" (the share of the most frequent target),
    "classes" (1 / the number of classes that occur) or "constant" (what its `value` makes of the counts [3, C], right,
    said and true, of answers that are all the most frequent target); None: it is not known."""


def sign(better: Literal["high", "low"]) -> int:
    """Return 1 or -1, by which values of a measure are multiplied so that the highest is the best."""
    return 1 if better == "high" else -1


def share(total: Tensor, count: int) -> float:
    """Return a total over examples divided by their number."""
    return float(total) / count


def is_total(total: Tensor, count: int) -> bool:
    """Return whether examples can add up to a total: counted bools are 0 to `count`, other numbers finite."""
    if total.is_floating_point():
        return bool(total.isfinite().all())
    return bool(((total >= 0) & (total <= count)).all())


@dataclass(frozen=True, kw_only=True)
class Sum(TaskMeasure):
    """Measure that follows from sums over examples; engines, stacks and devices add them up."""

    rows: Callable[[Tensor, Tensor], Tensor]
    """Take logits [B, ...] and targets [B, ...], and return what each example adds, [B, ...]: bools, which are counted,
    or floating point numbers."""
    value: Callable[[Tensor, int], float] = share
    """Take the sum over at least one example and their number, and return the measure; NaN where it is undefined."""
    possible: Callable[[Tensor, int], bool] = is_total
    """Take a sum that a device has sent and the number of its examples, and return whether they can add up to it."""


@dataclass(frozen=True, kw_only=True)
class Score(TaskMeasure):
    """Measure of a whole set of examples, computed where their predictions are."""

    outputs: Callable[[Tensor], Tensor]
    """Take logits [B, ...], and return what the score needs of each example, [B, ...]."""
    values: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Take outputs [K, N, ...], targets [K, N, ...] and which rows are real, [K, N], and return the score of each of K
    sets, [K] float64; NaN where it is undefined."""


def along(mask: Tensor, rows: Tensor) -> Tensor:
    """Return a mask of rows, [B], with as many axes as these have."""
    return mask.view(-1, *[1] * (rows.ndim - 1))


def added(rows: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the sum over examples: int64 of bools, else float64. `mask`: which rows are real, [B]."""
    wide = rows.to(torch.int64 if rows.dtype == torch.bool else torch.float64)
    if mask is not None:
        wide = torch.where(along(mask, wide), wide, torch.zeros((), dtype=wide.dtype, device=wide.device))
    return wide.sum(0)


def correct_measure(correct: Callable[[Tensor, Tensor], Tensor]) -> Sum:
    """Return accuracy, by a function that says which rows are right."""
    return Sum(
        name="accuracy",
        title="accuracy",
        meaning="Share of examples that the model gets right.",
        rows=correct,
        chance="majority",
    )


def measures_of(task: Any) -> dict[str, TaskMeasure]:
    """Return the measures of a task by name, its headline first."""
    if (declared := getattr(task, "measures", None)) is not None:
        return {m.name: m for m in declared}
    return {"accuracy": correct_measure(task.correct)}


def headline(task: Any) -> TaskMeasure:
    """Return the measure by which a task's models are compared before all others."""
    return next(iter(measures_of(task).values()))


def chosen_measures(task: Any, names: Sequence[str] = (), main: str = "") -> tuple[str, ...]:
    """Return the names of the measures to compute: headline, the task's first one, what chooses a threshold, `names`.

    `main`: the headline; "": the task's first measure.

    Raises:
        SettingError: the task has no measure of such a name.
    """
    known = measures_of(task)
    for name in (*names, *([main] if main else [])):
        if name not in known:
            raise SettingError(
                f"measures are some of those of the task {type(task).__name__}, {', '.join(known)}, got {name!r}"
                f"{did_you_mean(name, known)} [FL-TASK-005]"
            )
    first, chooses = next(iter(known)), getattr(task, "chosen_by", None)
    return tuple(dict.fromkeys([main or first, first, *([chooses] if chooses else []), *names]))


def silent_rows(task: Any, logits: Tensor, y: Tensor) -> Tensor:
    """Return on which examples the model says nothing, [B] bool: where an output is not a number.

    A task may know better by a method `silent(logits, y)`: which outputs count, and what an infinite one means.
    """
    if (own := getattr(task, "silent", None)) is not None:
        silent: Tensor = own(logits, y)
        return silent
    return logits.isnan().reshape(len(logits), -1).any(-1)


def sums_of(task: Any, names: Sequence[str], logits: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return what each example adds to the measures that are sums, [B, ...] by name, and `SILENT`.

    An example on which the model says nothing adds nothing to any other sum. A task may write on what it is given:
    logits and targets do not change.
    """
    known, silent = measures_of(task), silent_rows(task, logits, y)
    rows = {n: m.rows(logits.clone(), y.clone()) for n in names if isinstance(m := known.get(n), Sum)}
    for name, each in rows.items():
        if each.shape[:1] == silent.shape:  # else the measure is wrong, which others say
            rows[name] = each.where(~along(silent, each), each.new_zeros(()))
    return {**rows, SILENT: silent}


def outputs_of(task: Any, names: Sequence[str], logits: Tensor) -> dict[str, Tensor]:
    """Return what the measures that are scores need of each example, [B, ...] by name."""
    known = measures_of(task)
    return {n: m.outputs(logits.clone()) for n in names if isinstance(m := known[n], Score)}


def values_of_sums(
    task: Any, sums: Mapping[str, Tensor], count: int, scores: Mapping[str, Tensor] | None = None
) -> dict[str, float]:
    """Return the measures that follow from sums over `count` examples, at least one, and `scores` of these.

    All are NaN where the model says nothing on one of the examples.
    """
    known = measures_of(task)
    values = {n: m.value(total, count) for n, total in sums.items() if isinstance(m := known.get(n), Sum)}
    values |= {n: float(score) for n, score in (scores or {}).items()}
    return dict.fromkeys(values, math.nan) if is_silent(sums) else values


def is_silent(sums: Mapping[str, Tensor]) -> bool:
    """Return whether the model says nothing on one of the examples that were added up: no measure is defined then."""
    return SILENT in sums and int(sums[SILENT]) != 0


def impossible(task: Any, sums: Mapping[str, Tensor], scores: Mapping[str, Tensor], count: int) -> str | None:
    """Return the first measure that no `count` examples have by these sums and scores of a device; None: all may be.

    Shares are 0 to 1, other values finite. NaN is possible: a measure may be undefined on these examples.
    """
    known, silent = measures_of(task), sums.get(SILENT, torch.zeros((), dtype=torch.int64))
    if not is_total(silent, count):
        return SILENT
    said = count - int(silent)
    for name, total in sums.items():
        if isinstance(m := known.get(name), Sum) and not m.possible(total, said):
            return name
    values = {name: float(score) for name, score in scores.items()}
    if said:
        values |= values_of_sums(task, sums, count)
    for name, value in values.items():
        least, most = (0.0, LARGEST_SHARE) if known[name].unit == "%" else (-_LARGEST, _LARGEST)
        most = math.inf if most == _LARGEST and name in sums else most  # of finite sums, such as the perplexity
        if not (least <= value <= most or math.isnan(value)):
            return name
    return None


def scores_of(task: Any, outputs: Mapping[str, Tensor], y: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Return the scores of K sets of examples, [K] float64 by name.

    Args:
        task: whose measures they are.
        outputs: as `outputs_of` gives them, [K, N, ...].
        y: targets [K, N, ...].
        mask: which rows are real, [K, N].
    """
    known = measures_of(task)
    return {n: m.values(each, y, mask) for n, each in outputs.items() if isinstance(m := known[n], Score)}
