"""First screen of a report: the best method, the runner-up, and which difference is established."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedloom.coordinator.chance_level import Chance
from fedloom.evaluate.measure import Measure
from fedloom.report.methods import Method, Spread
from fedloom.report.number_table import Column, Interval, Table, format_of, with_unit
from fedloom.report.over_seeds import POOLED, count_text, noise_of, paired_difference, seeds_text

_NAMED = 4  # methods in a cell


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
        name, measured = self.measure.name, (*self.ranked, *self.references)
        noise = noise_of([m for m, _ in measured], name, "last", 1)
        return paired_difference(self.ranked[0][0], self.ranked[1][0], name, "last", 1, noise)

    @property
    def is_above_chance(self) -> bool:
        """False where the best method is not better than a model that looks at no input, but by luck."""
        return self.chance is None or not self.ranked or self.ranked[0][1].mean > self.chance.limit

    @property
    def is_established(self) -> bool:
        """True where the interval of the difference lies wholly on the side of the best, and has a width.

        Without a width all differences are equal, which does not say how they vary: of few test examples, for instance.
        """
        return (
            self.gap is not None and self.gap.has_width and min(self._up * self.gap.low, self._up * self.gap.high) > 0
        )

    @property
    def is_contradicted(self) -> bool:
        """True where the runner-up is ahead over the seeds that both have: one of the two means is over more seeds."""
        return self.gap is not None and self._up * self.gap.mean < 0

    @property
    def _up(self) -> int:
        return 1 if self.measure.better == "high" else -1

    @property
    def beaten_by(self) -> list[str]:
        """Names of the references that are better than the best method."""
        best = self._up * self.ranked[0][1].mean if self.ranked else -np.inf
        return [m.label for m, spread in self.references if self._up * spread.mean > best] if self.ranked else []


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
    """Yield what the runs establish about the best methods, what their seeds leave open, and what to know of both.

    `found`: as `standings` returns them.
    """
    several = [one for one in found if len(one.ranked) > 1]
    compared = [one for one in several if one.leading == 1 and one.is_above_chance]
    if len(methods) == 1:
        for one in found:
            _, spread = (*one.ranked, *one.references)[0]
            no_better = f", which is not above chance ({chance_text(one)})" * (not one.is_above_chance)
            yield f"{one.measure.title} ends at {value_text(spread, one.measure.unit)}{no_better}."
    for one in several:
        if not one.is_above_chance:
            yield f"No method is above chance in {_named(one.measure)} ({chance_text(one)})."
    if len(methods) == 1 or (several and not compared):
        pass
    elif compared:
        yield from _of_differences(methods, compared)
    elif len(candidates := [m.label for m in methods if not m.is_reference]) == 1:
        yield f"{candidates[0]} beside references; no other method ran."
    elif not candidates:
        yield "Only references ran, which are never called best."
    for one in several:
        if one.leading > 1 and one.is_above_chance:
            names = [m.label for m, _ in one.equal_to(0)]
            value = value_text(replace(one.ranked[0][1], std=np.nan), one.measure.unit)
            yield f"{listed(names)} are equal in {_named(one.measure)}, {value}, and no other is better."
    for one in found:
        if len(methods) > 1 and len(one.ranked) == 1 and sum(not m.is_reference for m in methods) > 1:
            yield f"{one.measure.title} was measured for {one.ranked[0][0].label} only."
    by_reference: dict[str, list[str]] = {}
    for one in found:
        for label in one.beaten_by:
            by_reference.setdefault(label, []).append(_named(one.measure))
    for label, measures in by_reference.items():
        yield f"{label}, a reference, is ahead of every method in {listed(measures)}."
    lost, selected = _lost(methods)
    if lost:
        yield f"{lost:,} of {selected:,} selected clients did not respond: see How it was run."


def _of_differences(methods: Sequence[Method], compared: Sequence[Standing]) -> Iterator[str]:
    candidates = [m for m in methods if not m.is_reference]
    if all(one.gap is None for one in compared):
        seeds = seeds_text(candidates)
        unfinished = any(not run.finished for m in candidates for run in m.counted_runs)
        cause = "one seed each" if seeds == "1 seed" else f"{seeds} and fewer than two in common"
        cause = "runs that are not finished" if unfinished and seeds != "1 seed" else cause
        yield f"Nothing is established: with {cause}, a difference may be chance."
        return
    seeds = count_text(one.gap.count for one in compared if one.gap is not None)
    for one in compared:
        if one.is_contradicted:
            best, second = (m.label for m, _ in one.ranked[:2])
            yield (
                f"Over the seeds that both have, {second} is ahead of {best} in {_named(one.measure)}; the means below "
                "are over all seeds of each."
            )
    established = [one for one in compared if one.is_established]
    if not established:
        yield f"With {seeds}, no difference between the best method and the runner-up is established."
        return
    by_label: dict[str, list[str]] = {}
    for one in established:
        by_label.setdefault(one.ranked[0][0].label, []).append(_named(one.measure))
    leads = "; ".join(f"{label} leads in {listed(measures)}" for label, measures in by_label.items())
    yield f"Established over {seeds}: {leads}."
    if still := [_named(one.measure) for one in compared if not one.is_established]:
        yield f"Left open: {listed(still)}."


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


def listed(words: Sequence[str]) -> str:
    """Join words: one, two and three."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def value_text(spread: Spread, unit: str) -> str:
    """Return a mean, its deviation and its unit as text."""
    return with_unit(spread_text(spread, unit), unit)


def spread_text(spread: Spread, unit: str) -> str:
    """Return a mean and its deviation, if it has one, as text."""
    show = format_of(unit)
    return show(spread.mean) + ("" if np.isnan(spread.std) else f" ± {show(spread.std)}")
