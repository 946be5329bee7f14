"""Costs of reaching a level of a measure: rounds, bytes and virtual time over seeds, and their differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedloom.core.errors import SettingError
from fedloom.core.task_measures import sign
from fedloom.report.methods import Method, Run
from fedloom.report.number_table import Column, Interval, Table, amount, format_of, whole, with_unit
from fedloom.report.over_seeds import (
    PARTITION,
    POOLED,
    WAYS,
    noise_among,
    of_methods,
    one_partition,
    paired,
    reading_of,
    seeds_text,
    tail_length,
)

TO = "95%"  # of the end of the method that others are compared with


def megabytes_text(value: float, like: float | None = None) -> str:
    """Return bytes as MB. `like`: as of `amount`."""
    return amount(value / 1e6, None if like is None else like / 1e6)


class Cost(NamedTuple):
    """Cost of a run until a round. `keys`: of its records, added up; `heading`: on pages; `show`: how it is printed."""

    keys: tuple[str, ...]
    heading: str
    show: Callable[[float], str]


COSTS = {
    "rounds_to": Cost((), "rounds", whole),
    "bytes_to": Cost(("bytes_down", "bytes_up"), "MB", megabytes_text),
    "bytes_down_to": Cost(("bytes_down",), "MB down", megabytes_text),
    "bytes_up_to": Cost(("bytes_up",), "MB up", megabytes_text),
    "seconds_to": Cost(("virtual_seconds",), "virtual s", amount),
}
SHOWN = ("rounds_to", "bytes_to", "seconds_to")  # where no costs are chosen


@dataclass(frozen=True)
class Reach:
    """Cost of reaching a level over runs: `costs` of those that do; `spent`: by those that never do, in all."""

    costs: tuple[float, ...]
    spent: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """Mean over runs; infinite where one never reaches the level, so that it is never the best."""
        return math.inf if self.spent else statistics.fmean(self.costs)

    @property
    def std(self) -> float:
        """Sample standard deviation; NaN of one run, or where one never reaches the level."""
        return statistics.stdev(self.costs) if len(self.costs) > 1 and not self.spent else math.nan

    def text(self, show: Callable[..., str]) -> str:
        """Return mean and deviation; where some runs never reach the level, what the mean is above, and how many do."""
        if not self.costs:
            ends = dict.fromkeys(show(end) for end in sorted(self.spent))
            return "never in " + " to ".join([*ends][:: max(1, len(ends) - 1)])
        if self.spent:
            least = statistics.fmean([*self.costs, *self.spent])
            return f"> {show(least)} ({len(self.costs)} of {len(self.costs) + len(self.spent)})"
        if math.isnan(self.std):
            return show(self.mean)
        return f"{show(self.mean)} ± {show(self.std) if show is whole else show(self.std, self.mean)}"

    def full(self) -> dict[str, float | str]:
        """Return the cells of a CSV, by the ends of the columns' names."""
        known = {"": self.mean, "_std": self.std}
        cells: dict[str, float | str] = {end: v if math.isfinite(v) else "" for end, v in known.items()}
        return cells | {"_runs": len(self.costs) + len(self.spent), "_reached": len(self.costs)}


def level_text(to: str) -> tuple[float, bool]:
    """Return what `--to` says: a value, or (True) a share of where the method ends that others are compared with.

    Raises:
        SettingError: it is neither.
    """
    try:
        value, of_end = float(to.removesuffix("%")), to.endswith("%")
    except ValueError:
        value, of_end = math.nan, False
    if not math.isfinite(value) or (of_end and not 0 < value <= 100):
        raise SettingError(
            f"a level is a value of the measure, as 0.8, or a share of the reference's end above 0% and up to 100%, as "
            f"95%, got {to!r}"
        )
    return (value / 100 if of_end else value), of_end


def check_level(to: str, methods: Sequence[Method]) -> None:
    """Raise a SettingError unless this is a level that the measure of these methods can have."""
    value, of_end = level_text(to)
    if not of_end and methods[0].headline.unit == "%" and not 0 <= value <= 1:
        remedy = f", {value / 100:g} for {value:g} %" if 1 < value <= 100 else ""
        raise SettingError(f"a level of a share is from 0 to 1, got {to}: write it as records have it{remedy}")


def level_of(reference: Method, name: str, to: str, way: str, last_rounds: int) -> float | None:
    """Return the level of a measure; None where it is of an end that was not measured, or not above 0.

    Where low is good, a share of an end is a value from which it is that share: 95% of an RMSE of 1.9 is 2.
    """
    value, of_end = level_text(to)
    if not of_end:
        return value
    end = reading_of(reference, name, way, last_rounds) if name in reference.measures else None
    if end is None or not end.mean > 0:
        return None
    return end.mean * value if sign(reference.measures[name].better or "high") > 0 else end.mean / value


def spent(run: Run, until: int, cost: Cost) -> float:
    """Return what a run has spent in its rounds up to one."""
    if not cost.keys:
        return float(until)
    rows = [row for row in run.rows if row["round"] <= until]
    counted = rows[-1:] if cost.keys == COSTS["seconds_to"].keys else rows  # virtual seconds are sums already
    return float(sum(row.get(key) or 0 for row in counted for key in cost.keys))


def rounding(methods: Sequence[Method], name: str, cost: Cost) -> float:
    """Return the deviation that a difference of costs has of this alone, that a run is measured in some rounds only.

    Each cost is known up to what is spent from one of these to the next, with all values between alike.
    """
    steps = []
    for m in methods:
        counts = [max(1, len(run.history.series(name)) - 1) for run in m.counted_runs]
        totals = [spent(run, run.rounds, cost) for run in m.counted_runs]
        steps.append(statistics.fmean(total / count for total, count in zip(totals, counts, strict=True)))
    return math.sqrt(sum(step**2 for step in steps) / 12)


class Reached(NamedTuple):
    """Costs of methods to reach a level of a measure, by the names of costs: over runs, and less `against`."""

    measure: str
    level: float
    against: Method
    methods: list[Method]
    costs: dict[str, list[Reach]]
    gaps: dict[str, list[Interval | None]]


def reached(
    methods: Sequence[Method], against: Method, name: str, to: str, way: str, chosen: Collection[str]
) -> Reached | None:
    """Return what it costs the methods that have a measure to reach a level; None where there is no such level.

    A difference is taken over common seeds, and there is none where a run of the two never reaches the level: what it
    would cost is only known to be more than what was spent. `to`, `way`: as of `level_of`. `chosen`: names of `COSTS`;
    virtual time is there where all methods have it.
    """
    measured = [m for m in methods if name in m.measures and m.has(name)]
    level = level_of(against, name, to, way, tail_length(methods))
    if level is None or not measured:
        return None
    ends = {id(run): run.history.to_target(name, level) for m in measured for run in m.counted_runs}
    first = {run: None if end is None else end.rounds for run, end in ends.items()}
    costs: dict[str, list[Reach]] = {}
    gaps: dict[str, list[Interval | None]] = {}
    for key in (key for key in COSTS if key in chosen):
        cost = COSTS[key]
        if key == "seconds_to" and not all(m.has("virtual_seconds") for m in measured):
            continue

        def number_of(run: Run, cost: Cost = cost) -> float:
            return math.nan if (until := first[id(run)]) is None else spent(run, until, cost)

        costs[key] = [
            Reach(
                tuple(number_of(run) for run in m.counted_runs if first[id(run)] is not None),
                tuple(spent(run, run.rounds, cost) for run in m.counted_runs if first[id(run)] is None),
            )
            for m in measured
        ]
        ended = [m for m, reach in zip(measured, costs[key], strict=True) if not reach.spent]
        noise = noise_among(ended, number_of)
        gaps[key] = [
            paired(m, against, number_of, noise, least=rounding((m, against), name, cost))
            if m is not against and m in ended and against in ended
            else None
            for m in measured
        ]
    return Reached(name, level, against, measured, costs, gaps)


def cost_table(found: Reached, to: str, way: str, *, with_gaps: bool = True) -> tuple[str, Table]:
    """Return a caption and a row for each method: its costs, and with `with_gaps` the differences to `against`."""
    columns, cells = [Column("method", "method")], list[list[Any]]([[m.label for m in found.methods]])
    for key, values in found.costs.items():
        columns.append(Column(key, COSTS[key].heading, COSTS[key].show, "low", "to reach it"))
        cells.append([*values])
    for key, gaps in found.gaps.items() if with_gaps else ():
        if any(gap is not None for gap in gaps):
            heading, less = COSTS[key].heading, f"minus {found.against.label}"
            columns.append(
                Column(f"{key}_less_{found.against.label}", f"{heading} {less}", COSTS[key].show, None, less, heading)
            )
            cells.append([*gaps])
    measure, (_, of_end) = found.against.measures[found.measure], level_text(to)
    level = with_unit(format_of(measure.unit)(found.level), measure.unit)
    level += f" ({to.removesuffix('%')} % of {found.against.label}, {_way(way, found.methods)})" if of_end else ""
    several = any(len(m.counted_runs) > 1 for m in found.methods)
    caption = f"Cost of reaching {level} in {measure.title[:1].lower()}{measure.title[1:]}: what had been spent when a "
    caption += "round was first measured there"
    caption += f"; mean ± standard deviation over {seeds_text(found.methods)}." if several else "; one seed each."
    reaches = [reach for values in found.costs.values() for reach in values]
    if any(reach.costs and reach.spent for reach in reaches):
        caption += " > and (1 of 2): so many runs reach it, and the mean is above what all have spent."
    if len(columns) > len(found.costs) + 1:
        caption += f" Differences over common seeds [95 % interval, Student's t, {POOLED}, and no less than that of "
        caption += "measuring some rounds only]"
        caption += "; none where a run never reaches it." if any(reach.spent for reach in reaches) else "."
    rows = [list(row) for row in zip(*cells, strict=True)]
    return caption, Table(f"cost_{found.measure}", columns, rows, *of_methods(found.methods))


def _way(way: str, methods: Sequence[Method]) -> str:
    return WAYS[way].format(many=tail_length(methods))


def cost_rows(found: Reached) -> Iterator[list[Any]]:
    """Yield the rows of a summary's CSV: method, measure, cost and level, and numbers, the runs that reach it last."""
    for key, values in found.costs.items():
        for m, reach, gap in zip(found.methods, values, found.gaps[key], strict=True):
            cells = list(reach.full().values())
            row = [m.label, found.measure, f"{key} {found.level:.6g}", *cells[:3]]
            row += [PARTITION[one_partition(m)], found.against.label]
            yield [*row, *((gap.mean, gap.low, gap.high, gap.count) if gap else [""] * 4), cells[3]]
