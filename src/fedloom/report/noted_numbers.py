"""Numbers that clients and servers have noted (`client.note`, `cohort.note`), as a table of methods."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from fedloom.coordinator.record_entries import noted_measures
from fedloom.evaluate.measure import Measure
from fedloom.report.methods import Method
from fedloom.report.number_table import Column, Table, format_of
from fedloom.report.over_seeds import WAYS, of_methods, reading_of, seeds_text, tail_length

NOTED = "noted"


def noted(methods: Sequence[Method]) -> dict[str, Measure]:
    """Return descriptions of the numbers that runs of some methods have noted, by name."""
    return {name: one for m in methods for name, one in noted_measures(m.first.history.metrics).items()}


def noted_table(methods: Sequence[Method], way: str, chosen: Collection[str]) -> tuple[str, Table] | None:
    """Return a caption, and a row for each method with numbers that were noted; None where there are none.

    `way`: the reading. A note has no best round, and is read after the last one in its place. `chosen`: names of the
    numbers, or "noted" for all of them.
    """
    way, last_rounds = "last" if way == "best" else way, tail_length(methods)
    columns, cells = [Column("method", "method")], list[list[Any]]([[m.label for m in methods]])
    for name, of in noted(methods).items():
        values = [reading_of(m, name, way, last_rounds) if name in m.measures else None for m in methods]
        if {name, NOTED} & {*chosen} and any(value is not None for value in values):
            columns.append(Column(name, of.title, format_of(of.unit), of.better))
            cells.append(values)
    if len(columns) == 1:
        return None
    several = any(len(m.counted_runs) > 1 for m in methods)
    spread = f", mean ± standard deviation over {seeds_text(methods)}" if several else ", one seed each"
    caption = (
        f"Numbers of one's own ({WAYS[way].format(many=last_rounds)}){spread}. Of clients they are means over those of "
        "a round."
    )
    return caption, Table(NOTED, columns, [list(row) for row in zip(*cells, strict=True)], *of_methods(methods))
