"""Measures of methods over their seeds: in several readings, and as differences over common seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fedloom.coordinator.chosen_rounds import newest
from fedloom.evaluate.measure import Measure
from fedloom.evaluate.paired_differences import Noise, difference, pooled
from fedloom.report.methods import Method, Run, Spread, reference_numbers
from fedloom.report.number_table import Column, Interval, Table, format_of, whole, with_unit

WAYS = {  # field of Summaries: its meaning
    "last": "last round",
    "tail": "mean of last {many}",
    "validated": "chosen on validation",
    "best": "best on test (optimistic)",
    "mean": "mean over rounds",
}
BRIEF = {"last": "last", "tail": "last {many}", "validated": "validated", "best": "best test", "mean": "all rounds"}

POOLED = "with the deviation of all methods of the table, or of the two where it is larger"


def compared(methods: Sequence[Method], *, headline: bool = False) -> dict[str, Measure]:
    """Return the measures of global and personal models by name, those of the headline first, or these alone."""
    return {
        name: m.measures[name]
        for m in methods
        for one in m.first.history.task_measures[: 1 if headline else None]
        for name in (f"global_{one.name}", f"personal_{one.name}")
    }


def readings(
    methods: Sequence[Method], kinds: Sequence[str], ways: Sequence[str] = tuple(WAYS), with_seeds: bool = True
) -> Table | None:
    """Return measures in several readings (`History.summaries`); None where none of them was measured.

    `ways`: the readings, in this order. `with_seeds`: with the number of seeds. Where several kinds stand beside each
    other, so do the round that validation data choose and its headline on these.
    """
    last_rounds, main, known = tail_length(methods), methods[0].headline, compared(methods)
    columns, cells = [], []
    for kind in kinds:
        for way in ways:
            heading, spreads = WAYS[way], [reading_of(m, kind, way, last_rounds) for m in methods]
            if any(spread is not None for spread in spreads) and (way != "tail" or last_rounds > 1):
                of = known[kind]
                group = with_unit(f"{of.title[:1].lower()}{of.title[1:]}", of.unit, ", ") if len(kinds) > 1 else ""
                show = format_of(of.unit)
                brief = BRIEF[way].format(many=last_rounds)
                title, chance = heading.format(many=last_rounds), methods[0].chance(kind)
                columns.append(Column(f"{kind}_{way}", title, show, of.better, group, brief, chance))
                cells.append(spreads)
        by = known[kind]
        spreads = [reading_of(m, f"{kind}_by_samples", "last", last_rounds) for m in methods]
        if len(kinds) > 1 and any(spread is not None for spread in spreads):
            name, title = f"{kind}_by_samples", "last round, by samples"
            columns.append(Column(name, title, format_of(by.unit), by.better, group, "by samples"))
            cells.append(spreads)
    if not columns:
        return None
    if len(kinds) > 1 and any(c.name.endswith("_validated") for c in columns):
        group = "chosen on validation"
        columns.append(Column("validated_round", "round", whole, group=group))
        cells.append([m.spread(lambda run: run.history.validated_round) for m in methods])
        name, heading = f"val_{main.name}", with_unit(f"validation {main.title}", main.unit, ", ")
        columns.append(Column(f"{name}_validated", heading, format_of(main.unit), main.better, group, main.title))
        cells.append([reading_of(m, name, "validated", last_rounds) for m in methods])
    head, rows = [Column("method", "method")], [list[Any]([m.label]) for m in methods]
    if with_seeds and len(kinds) == 1 and any(len(m.counted_runs) > 1 for m in methods):
        head.append(Column("seeds", "seeds", whole))
        rows = [[*row, len(m.counted_runs)] for row, m in zip(rows, methods, strict=True)]
    rows = [[*row, *values] for row, *values in zip(rows, *cells, strict=True)]
    return Table(kinds[0] if len(kinds) == 1 else "readings", [*head, *columns], rows, *of_methods(methods))


def reading_of(method: Method, name: str, way: str, last_rounds: int) -> Spread | None:
    """Return one reading of a measure over the seeds of a method."""
    return method.spread(lambda run: _reading(run, name, way, last_rounds))


def tail_length(methods: Sequence[Method]) -> int:
    """Return the number of last rounds that `tail` is a mean over: the same for all methods."""
    return newest(min(run.rounds for m in methods for run in m.counted_runs))


def noise_of(methods: Sequence[Method], name: str, way: str, last_rounds: int) -> Noise | None:
    """Return the deviation of paired differences of a reading, pooled over the methods of a table.

    Only methods on the problem of the first count, and of runs that did not finish those that are equally long.
    """
    return noise_among(methods, lambda run: _reading(run, name, way, last_rounds))


def noise_among(methods: Sequence[Method], number_of: Callable[[Run], float]) -> Noise | None:
    """Return the deviation of paired differences of a number of each run, as `noise_of`; NaN is no number."""
    blocks: dict[int | None, dict[int, dict[object, float]]] = {}
    for m in (m for m in methods if m.problem == methods[0].problem):
        for run in m.counted_runs:
            value = number_of(run)
            if run.seed is not None and not math.isnan(value):
                block = blocks.setdefault(None if run.finished else run.rounds, {})
                block.setdefault(m.number, {})[run.draw, str(run.clients)] = value
    return pooled(blocks.values())


def paired_difference(
    method: Method,
    other: Method,
    name: str,
    way: str,
    last_rounds: int,
    noise: Noise | None = None,
    level: float = 0.95,
) -> Interval | None:
    """Return the difference of a method to another over their common seeds, as `paired`; None with fewer than two.

    The interval has no values that no difference of the measure can have: shares differ by at most 100 %.

    Args:
        method: the first of the two.
        other: the second, which is taken off.
        name: the measure.
        way: its reading.
        last_rounds: the number of rounds in the mean of `tail`, as in the table beside it.
        noise: of all methods of the table (`noise_of`); None: these two are all of it.
        level: the probability with which the interval has the true difference.
    """
    most = {"%": 1.0, "points": 2.0}.get(method.measures[name].unit, math.inf)
    return paired(method, other, lambda run: _reading(run, name, way, last_rounds), noise, level, most)


def paired(
    method: Method,
    other: Method,
    number_of: Callable[[Run], float],
    noise: Noise | None = None,
    level: float = 0.95,
    most: float = math.inf,
    least: float = 0.0,
) -> Interval | None:
    """Return the difference of two methods in a number of each run, over common seeds; None with fewer than two.

    An unfinished run is compared with one that is as long, and with no other. `most`: that there can be. `least`: as of
    `evaluate.paired_differences.difference`.
    """
    if method.problem != other.problem:
        return None
    both = [(run, beside) for run in method.counted_runs for beside in other.counted_runs if run.pairs_with(beside)]
    ended = [(a, b) for a, b in both if (a.finished and b.finished) or a.rounds == b.rounds]
    pairs = {(a.draw, str(a.clients)): (a, b) for a, b in ended}  # a seed that occurs twice counts once
    gaps = [number_of(a) - number_of(b) for a, b in pairs.values()]
    if len(gaps) < 2 or any(map(math.isnan, gaps)) or (found := difference(gaps, noise, level, least)) is None:
        return None
    low, high = max(found.mean - found.half, -most), min(found.mean + found.half, most)
    return Interval(found.mean, low, high, found.pairs, most)


def _reading(run: Run, name: str, way: str, last_rounds: int) -> float:
    return float(getattr(run.history.summaries(name, last_rounds), way)) if run.history.has(name) else math.nan


def of_methods(methods: Sequence[Method]) -> tuple[list[int], frozenset[int]]:
    """Return the numbers of methods, a row each in a table, and those of references."""
    return [m.number for m in methods], reference_numbers(methods)


def seeds_text(methods: Sequence[Method], *, unfinished: bool = False) -> str:
    """Return the number of seeds of methods as text, of those that count or, with `unfinished`, of all."""
    return count_text(len(m.runs if unfinished else m.counted_runs) for m in methods)


def count_text(counts: Iterable[int]) -> str:
    """Return numbers of seeds as text: 1 seed, 2 to 3 seeds."""
    several = sorted(set(counts))
    span = f"{several[0]}" if len(several) == 1 else f"{several[0]} to {several[-1]}"
    return f"{span} seed{'s' * (span != '1')}"


def undefined(methods: Sequence[Method], name: str) -> str:
    """Say for how many clients a measure has no value, at most, and that a run has none; "" where all have one."""
    missing = f"{name}_undefined"
    records = [run.history.metrics for m in methods for run in m.counted_runs]
    newest = [found for of in records if (found := next((r for r in reversed(of) if name in r), None)) is not None]
    lost = [r[name] is None for r in newest if missing in r]
    most = max((r.get(missing, 0) for r in newest if r[name] is not None), default=0)
    said = f" Undefined for up to {most:g} clients of a run, which its mean leaves out." if most else ""
    return said + " Undefined at the end of a run where no client has it, or a model says nothing (NaN)." * any(lost)


PARTITION = {True: "fixed", False: "varied", None: ""}


def partitions_text(methods: Sequence[Method]) -> str:
    """Say whether the partition was the same for all seeds of each method, which ± depends on."""
    kinds = {one_partition(m) for m in methods if len(m.counted_runs) > 1}
    if kinds == {True}:
        return "one partition for all seeds, which vary initial weights, cohorts and batches"
    if kinds == {False}:
        named = {run.history.settings.get("data", {}).get("partition") for m in methods for run in m.counted_runs}
        own = "the clients are those of the data, and every seed draws its own"
        own = own if named == {"natural"} else "every seed draws its own partition and"
        return f"{own} held-out examples (data.partition_seed fixes them)"
    return "whether seeds share a partition is not known of all runs" if None in kinds else "some share a partition"


def one_partition(method: Method) -> bool | None:
    """Return whether all seeds have the same clients; None where this is not recorded, or there is one seed."""
    clients_by_run = [run.clients for run in method.counted_runs]
    if len(clients_by_run) < 2 or not all(clients_by_run):
        return None
    return all(clients == clients_by_run[0] for clients in clients_by_run)
