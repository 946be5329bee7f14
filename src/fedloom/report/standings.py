"""First screen of a report: the best method, the runner-up, and which difference is established."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedloom.coordinator.chance_level import Chance
from fedloom.coordinator.record_entries import columns_of
from fedloom.evaluate.measure import Measure
from fedloom.evaluate.paired_differences import Noise
from fedloom.report.methods import Method, Spread
from fedloom.report.number_table import Column, Interval, Table, format_of, with_unit
from fedloom.report.over_seeds import (
    POOLED,
    count_text,
    noise_of,
    one_partition,
    paired_difference,
    seeds_text,
)

_NAMED, _LISTED = 4, 6  # methods in a cell, and in a sentence


@dataclass(frozen=True)
class Standing:
    """Methods by one measure after the last round, the best first, without references such as local-only training.

    `references`: those measured. `chance`: of the measure, None where it is not known.
    """

    measure: Measure
    ranked: tuple[tuple[Method, Spread], ...]
    references: tuple[tuple[Method, Spread], ...]
    chance: Chance | None

    def equal_to(self, place: int) -> list[tuple[Method, Spread]]:
        """Return the method at a place, and those that print the same."""
        show = format_of(self.measure.unit)
        return [item for item in self.ranked if show(item[1].mean) == show(self.ranked[place][1].mean)]

    @property
    def leading(self) -> int:
        """Number of methods that print the same as the best."""
        return len(self.equal_to(0)) if self.ranked else 1

    @cached_property
    def gap(self) -> Interval | None:
        """Return the best minus the runner-up over the seeds that both have.

        None with fewer than two, where unfinished runs ended in different rounds, and where several lead.
        """
        if len(self.ranked) < 2 or self.leading > 1:
            return None
        return self._difference(self.ranked[0][0], self.ranked[1][0], 0.95)

    def _difference(self, one: Method, other: Method, level: float) -> Interval | None:
        return paired_difference(one, other, self.measure.name, "last", 1, self._noise, level)

    @cached_property
    def _noise(self) -> Noise | None:
        return noise_of([m for m, _ in (*self.ranked, *self.references)], self.measure.name, "last", 1)

    @property
    def is_above_chance(self) -> bool:
        """False where the best method is not better than a model that looks at no input, but by luck."""
        return self.chance is None or not self.ranked or self.ranked[0][1].mean > self.chance.limit

    @property
    def ahead(self) -> Interval | None:
        """Return how far the best is ahead of the runner-up: `gap`, positive where the best is better."""
        g = self.gap
        return g if g is None or self._up == 1 else Interval(-g.mean, -g.high, -g.low, g.count, g.most)

    @property
    def is_established(self) -> bool:
        """True where the interval of the difference lies wholly on the side of the best, and has a width.

        Without a width all differences are equal, which does not say how they vary: of few test examples, for instance.
        """
        return self.ahead is not None and self._sign(self.gap) > 0

    @property
    def is_contradicted(self) -> bool:
        """True where the runner-up is ahead over the seeds that both have: one of the two means is over more seeds."""
        return self.ahead is not None and self.ahead.mean < 0

    @property
    def _up(self) -> int:
        return 1 if self.measure.better == "high" else -1

    def _sign(self, gap: Interval | None) -> int:
        """Return 1 for a difference that is established to be better, -1 for worse, 0 for neither."""
        if gap is None or not gap.has_width or gap.low <= 0 <= gap.high:
            return 0
        return self._up if gap.mean > 0 else -self._up

    def open(self) -> list[str]:
        """Return the labels of the methods that may be as good as the best, all claims together with 95 %."""
        rest, (best, _) = self.ranked[1:], self.ranked[0]
        level = 1 - 0.05 / max(1, len(rest))
        return [m.label for m, _ in rest if self._sign(self._difference(best, m, level)) <= 0]

    def against(self, reference: Method) -> dict[int, list[str]]:
        """Return the labels of the methods established to be better (1) or worse (-1) than a reference, and of others.

        All claims together have 95 %.
        """
        found: dict[int, list[str]] = {1: [], 0: [], -1: []}
        for m, _ in self.ranked:
            found[self._sign(self._difference(m, reference, 1 - 0.05 / len(self.ranked)))].append(m.label)
        return found

    def better_than(self, spread: Spread) -> int:
        """Return how many methods have a better mean."""
        return sum(self._up * own.mean > self._up * spread.mean for _, own in self.ranked)


@dataclass(frozen=True)
class _Cell:
    """Cell that shows a text, and whose numbers stand in the CSV in full."""

    text: str
    number: Spread | Interval

    def __str__(self) -> str:
        return self.text.replace(" ", "\u00a0")  # which no line breaks

    def full(self) -> dict[str, float | str]:
        """Return the cells of a CSV, by the ends of the columns' names."""
        return dict(self.number.full())


def standings(methods: Sequence[Method]) -> list[Standing]:
    """Return the standing by each headline measure and by forgetting that some method has."""
    main, known = methods[0].headline.name, methods[0].measures
    names = (f"global_{main}", f"personal_{main}", "personal_worst_tenth", "forgetting")
    found = (standing_of(methods, known[name]) for name in names if name in known)
    return [one for one in found if one.ranked or one.references]


def standing_of(methods: Sequence[Method], measure: Measure) -> Standing:
    """Return the standing of methods by one measure."""
    measured = [(m, spread) for m in methods if (spread := m.last(measure.name)) is not None]
    up = 1 if measure.better == "high" else -1
    ranked = sorted((item for item in measured if not item[0].is_reference), key=lambda item: -up * item[1].mean)
    references = tuple(item for item in measured if item[0].is_reference)
    return Standing(measure, tuple(ranked), references, methods[0].chance(measure.name))


def verdict(methods: Sequence[Method], found: Sequence[Standing]) -> Iterator[str]:
    """Yield who is best, by how much and how sure, by measure; what references reach; and what else to know.

    `found`: as `standings` returns them, the most important first.
    """
    several, candidates = [one for one in found if len(one.ranked) > 1], [m for m in methods if not m.is_reference]
    if len(methods) == 1:
        for one in found:
            _, spread = (*one.ranked, *one.references)[0]
            no_better = f", which is not above chance ({chance_text(one)})" * (not one.is_above_chance)
            yield f"{one.measure.title} ends at {value_text(spread, one.measure.unit)}{no_better}."
    elif not candidates:
        yield "Only references ran, which are never called best."
    elif len(candidates) == 1:
        yield f"{candidates[0].label} beside references; no other method ran."
    yield from map(_claim, several)
    for one in found:
        if len(candidates) > 1 and len(one.ranked) == 1:
            yield f"{one.measure.title} was measured for {one.ranked[0][0].label} only."
    main = methods[0].headline.name
    for one in found:
        for reference, spread in one.references if one.ranked and one.measure.name.endswith(f"_{main}") else ():
            yield _beside(one, reference, spread)
    if told := [one for one in several if one.leading == 1 and one.is_above_chance]:
        yield _sureness(candidates, told)
    lost, selected = _lost(methods)
    if lost:
        yield f"{lost:,} of {selected:,} selected clients did not respond: see How it was run."


def _claim(one: Standing) -> str:
    """Say which method is best by a measure, and by how much, as far as its numbers allow."""
    unit, (best, spread) = one.measure.unit, one.ranked[0]
    if not one.is_above_chance:
        return f"No method is above chance in {_named(one.measure)} ({chance_text(one)})."
    if one.leading > 1:
        value = value_text(replace(spread, std=np.nan), unit)
        labels = [m.label for m, _ in one.equal_to(0)]
        return f"{_some(labels)} are equal in {_named(one.measure)}, {value}, and no other is better."
    (second, beside), value, show = one.ranked[1], value_text(spread, unit), format_of(unit)
    extreme, side = ("highest", "above") if one.measure.better == "high" else ("lowest", "below")
    has = f"{one.measure.title}: {best.label} has the {extreme} {'value' if spread.count == 1 else 'mean'}, {value}"
    ahead = one.ahead
    if ahead is None:
        return f"{has}, {_points(abs(spread.mean - beside.mean), unit)} {side} {second.label}."
    if one.is_contradicted:
        return f"{has}, but over the seeds that both have, {second.label} is ahead of it."
    limits = "no statement" if ahead.states_nothing else f"{show(ahead.low)} to {show(ahead.high)}"
    by = f"{_points(ahead.mean, unit)} ({limits})"
    if one.is_established:
        return f"{one.measure.title}: {best.label} is best, {value}, ahead of {second.label} by {by}: established."
    as_good = f" {_some(one.open())} may be as good." if len(one.ranked) > 2 else ""
    return f"{has}, {by} {side} {second.label}: not established.{as_good}"


def _beside(one: Standing, reference: Method, spread: Spread) -> str:
    """Say which methods are better than a reference, as far as its numbers allow."""
    reached = f"{reference.label}, a reference, reaches {value_text(spread, one.measure.unit)} in {_named(one.measure)}"
    found, count = one.against(reference), len(one.ranked)
    if not found[1] and not found[-1]:
        open_ = "" if spread.count == 1 else ", and no difference to it is established"
        return f"{reached}; {one.better_than(spread)} of {count} methods end{'s' * (count == 1)} better{open_}."
    names = {"better than it": found[1] or ["none"], "worse": found[-1], "open": found[0]}
    return f"{reached}. Established: " + "; ".join(f"{k}: {_some(v)}" for k, v in names.items() if v) + "."


def _sureness(candidates: Sequence[Method], told: Sequence[Standing]) -> str:
    """Say what the brackets of claims mean, and of what they say nothing."""
    counts = [one.gap.count for one in told if one.gap is not None]
    if counts:
        kinds = {one_partition(m) for m in candidates}
        on = " of one partition" if kinds == {True} else ", each with its own partition" if kinds == {False} else ""
        return (
            f"How sure: in brackets 95 % intervals, paired over {count_text(counts)}{on}; "
            f"established is what they exclude 0 from. Other {'partitions and ' * (kinds == {True})}data may differ."
        )
    seeds = seeds_text(candidates)
    unfinished = any(not run.finished for m in candidates for run in m.counted_runs)
    cause = "one seed each" if seeds == "1 seed" else f"{seeds} and fewer than two in common"
    cause = "runs that are not finished" if unfinished and seeds != "1 seed" else cause
    return f"How sure: nothing is established; with {cause}, a difference may be chance."


def _points(value: float, unit: str) -> str:
    """Return a difference of a measure with its unit; shares differ by points."""
    return with_unit(format_of(unit)(value), "points" if unit in ("%", "points") else unit)


def standing_table(methods: Sequence[Method], found: Sequence[Standing]) -> tuple[Table, str] | None:
    """Return best, runner-up and difference by measure, the references beside them, and the caption.

    `found`: as `standings` returns them. None for one method, whose numbers `verdict` has, and where nothing was
    measured.
    """
    if len(methods) == 1 or not found:
        return None
    several = max(len(one.ranked) for one in found) > 1
    references = [m for m in methods if m.is_reference]
    columns = [
        Column("measure", "measure"),
        Column("best", "best" if several else "method"),
        Column("best_value", "value"),
        Column("second", "runner-up"),
        Column("second_value", "value"),
        Column("difference", "difference"),
        *(Column(f"reference_{m.label}", m.label, group="references") for m in references),
    ]
    rows: list[list[object]] = []
    for one in found:
        unit = one.measure.unit
        title = one.measure.label.capitalize() if one.measure.name == "personal_worst_tenth" else one.measure.title
        row: list[object] = [with_unit(title, unit if unit in ("%", "points") else "", ", ")]
        for place in (0, one.leading):
            spread = one.ranked[place][1] if place < len(one.ranked) else None
            label = spread and _equal([m.label for m, _ in one.equal_to(place)])
            row += [label, spread and _Cell(spread_text(spread, unit), spread)]
        if several and not one.is_above_chance:
            row[1:5] = [f"none above chance ({chance_text(one)})", None, None, None]
        beside = {m.number: spread for m, spread in one.references}
        gap = one.gap if one.is_above_chance else None
        row.append(gap and _Cell(_gap_text(gap, unit), gap))
        row += [(s := beside.get(m.number)) and _Cell(spread_text(s, unit), s) for m in references]
        rows.append(row)
    return Table("standing", columns, rows), _caption(methods, found, several)


def _caption(methods: Sequence[Method], found: Sequence[Standing], several: bool) -> str:
    spread = f", mean ± standard deviation over {seeds_text(methods)}" * any(len(m.counted_runs) > 1 for m in methods)
    caption = f"After the last round{spread}."
    if any(one.gap is not None for one in found):
        caption += (
            f" Difference: best minus runner-up over common seeds [95 % interval, Student's t, {POOLED}, within what "
            "the measure can be]; where it contains 0, either may be better. It is not corrected for choosing these "
            "two."
        )
    if any(one.gap is not None and not one.gap.has_width for one in found):
        caption += " Equal differences in all seeds give no interval, and establish nothing."
    if several and any(m.is_reference for m in methods):
        caption += " References show what training alone or on pooled data reaches, and are never called best."
    return caption


def chance_text(one: Standing) -> str:
    """Return the chance of a measure as text: 10.0 %, by luck up to 10.6 %."""
    if one.chance is None:
        return ""
    show, unit = format_of(one.measure.unit), one.measure.unit
    most = f", by luck up to {with_unit(show(one.chance.limit), unit)}" * bool(one.chance.examples)
    return with_unit(show(one.chance.value), unit) + most


def _equal(labels: Sequence[str]) -> str:
    """Name methods that print the same: a, b (equal); one alone by its name."""
    if len(labels) == 1:
        return labels[0]
    more = f" and {len(labels) - _NAMED} more" * (len(labels) > _NAMED)
    return f"{', '.join(labels[:_NAMED])}{more} (equal)"


def _gap_text(gap: Interval, unit: str) -> str:
    return gap.text(format_of(unit))


def _lost(methods: Sequence[Method]) -> tuple[int, int]:
    """Count the selected clients without a response, and all selected, over all rounds of all runs."""
    records = [record for m in methods for run in m.runs for record in run.history.metrics]
    return sum(len(r.get("failed", ())) for r in records), sum(len(r.get("clients", ())) for r in records)


def _named(measure: Measure) -> str:
    return measure.title[:1].lower() + measure.title[1:]


def _some(labels: Sequence[str]) -> str:
    """Name methods in a sentence; of many the first and how many more."""
    more = len(labels) - _LISTED
    return listed([*labels[:_LISTED], f"{more} more"] if more > 0 else labels)


def listed(words: Sequence[str]) -> str:
    """Join words: one, two and three; "" where there is none."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def value_text(spread: Spread, unit: str) -> str:
    """Return a mean, its deviation and its unit as text."""
    return with_unit(spread_text(spread, unit), unit)


def spread_text(spread: Spread, unit: str) -> str:
    """Return a mean and its deviation, if it has one, as text."""
    show = format_of(unit)
    return show(spread.mean) + ("" if np.isnan(spread.std) else f" ± {show(spread.std)}")


def of_parts(methods: Sequence[Method]) -> str:
    """Return sentences of the numbers that runs' parts have declared, such as epsilon; "" where there are none."""
    out, declared = "", [columns_of(m.first.history.manifest) for m in methods]
    for name, column in {n: c for columns in declared for n, c in columns.items()}.items():
        pairs = [(m.label, m.last(name)) for m, columns in zip(methods, declared, strict=True) if name in columns]
        texts = ((label, "-" if found is None else spread_text(found, column.unit)) for label, found in pairs)
        values = ", ".join(f"{label} {text}" for label, text in texts)
        out += f" {column.title} after the last round: {values}. {column.meaning.partition('. ')[0].rstrip('.')}."
    return out
