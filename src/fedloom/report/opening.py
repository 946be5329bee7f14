"""Opening of a page or a part of it: what is established, the first curve, and curves over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedloom.report import figures, sentences
from fedloom.report.cost_axes import OVER
from fedloom.report.methods import Method
from fedloom.report.over_seeds import compared, undefined
from fedloom.report.standings import chance_text, standing_of, standing_table, standings, verdict

if TYPE_CHECKING:
    from fedloom.report.page import Page, PageFigure, ShownTable


def first_screen(page: Page, methods: Sequence[Method]) -> tuple[list[str], PageFigure | None, ShownTable | None]:
    """Return what is established, the first curve, and the best methods by measure."""
    first = first_measure(methods)
    found = sorted(standings(methods), key=lambda one: one.measure.name != first)
    table = standing_table(methods, found)
    return list(verdict(methods, found)), _first_curve(page, methods), None if table is None else page.keep(*table)


def first_measure(methods: Sequence[Method]) -> str | None:
    """Return the measure of the first curve: of global models, or of personal ones if more methods have it.

    None where none was measured. Of a single method it stands for all accuracies, which its figure has together.
    """
    names = compared(methods, headline=True) if len(methods) > 1 else sentences.series(methods[0])
    counts = {name: sum(m.curve(name) is not None for m in methods) for name in names}
    return max(counts, key=lambda name: counts[name]) if any(counts.values()) else None


def _first_curve(page: Page, methods: Sequence[Method]) -> PageFigure | None:
    """Return the curve of the first screen; None where no accuracy was measured."""
    name = first_measure(methods)
    if name is None:
        return None
    if len(methods) > 1:
        return over_rounds(page, methods, name)
    main, measures = methods[0].headline, sentences.series(methods[0])
    series, share = {name: measure.label for name, measure in measures.items()}, main.unit == "%"
    drawn = [
        figures.together(methods[0], series, measures[f"global_{main.name}"].axis, x=x, percent=share)
        for x in dict.fromkeys(("round", OVER[page.over]))
    ]
    if (figure := drawn[0]) is None:
        return None
    meanings = [
        f"{label.capitalize()}: {measures[name].meaning}" for name, label in series.items() if methods[0].curve(name)
    ]
    chances = [
        f"{label} {chance_text(standing_of(methods, measures[name]))}"
        for name, label in series.items()
        if methods[0].chance(name) is not None and methods[0].curve(name)
    ]
    meanings += [f"Dotted, straight, in a line's colour: its chance, where it is near ({', '.join(chances)})."] * bool(
        chances
    )
    caption = f"{' '.join(meanings)}{sentences.describe_bands(methods)}"
    names = dict(enumerate(series.values()))
    title, digits = capital(main.title), 1 if share else 3
    return page.figure(figure, main.name, title, caption, wide=True, names=names, digits=digits, kept=drawn[-1])


def over_rounds(page: Page, methods: Sequence[Method], name: str) -> PageFigure | None:
    """Return the figure of a measure over rounds, a line per method; None where no run has measured it."""
    measure = methods[0].measures[name]
    caption, share = measure.caption, measure.unit in ("%", "points")
    drawn = [
        figures.curves(methods, name, measure.axis, x=x, percent=share)
        for x in dict.fromkeys(("round", OVER[page.over]))
    ]
    if (figure := drawn[0]) is None:
        return None
    caption += sentences.describe_levels(methods, name, figure)
    if (name == "personal_worst_tenth" or name in compared(methods)) and len(methods) > 1:
        caption += f" {sentences.describe_ending(methods, name)}"
    caption = caption.rstrip() + sentences.describe_same(methods, name)
    caption += undefined(methods, name) + sentences.describe_missing(methods, name)
    caption += sentences.describe_bands(methods)
    return page.figure(figure, name, measure.title, caption, digits=1 if share else 3, kept=drawn[-1])


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]
