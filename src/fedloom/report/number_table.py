"""A table of numbers: in full as CSV, and as people read it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedloom.core.output import as_csv
from fedloom.report.methods import Spread


@dataclass(frozen=True)
class Column:
    """One column: `name` in the CSV, `heading` on the page, and how a number is written there."""

    name: str
    heading: str
    show: Callable[[float], str] | None = None  # None: text
    best: Literal["high", "low"] | None = None


@dataclass(frozen=True)
class Table:
    """Columns, and rows of texts, numbers, Spreads and None.

    `name` is that of the CSV file. `numbers` are those of the methods in the rows, for their colours.
    """

    name: str
    columns: Sequence[Column]
    rows: list[list[Any]]
    numbers: list[int] = field(default_factory=list)  # of the method in each row, for its colour

    def csv(self) -> str:
        """The table as CSV with every number in full; a Spread becomes three columns."""
        spread = [any(isinstance(row[i], Spread) for row in self.rows) for i in range(len(self.columns))]
        heads = [
            [c.name, f"{c.name}_std", f"{c.name}_runs"] if s else [c.name]
            for c, s in zip(self.columns, spread, strict=True)
        ]
        rows: list[list[Any]] = [[name for names in heads for name in names]]
        for row in self.rows:
            cells: list[Any] = []
            for value, s in zip(row, spread, strict=True):
                if isinstance(value, Spread):
                    cells += [value.mean, "" if math.isnan(value.std) else value.std, value.count]
                else:
                    cells += ["" if value is None else value] + ["", ""] * s
            rows.append(cells)
        return as_csv(rows)

    def text(self, value: Any, column: Column) -> str:
        """A cell as the page shows it."""
        if value is None:
            return "–"
        if column.show is None:
            return str(value)
        if not isinstance(value, Spread):
            return column.show(value)
        if math.isnan(value.std):
            return column.show(value.mean)
        std = amount(value.std, value.mean) if column.show is amount else column.show(value.std)
        return column.show(value.mean) + (f" ± {std}" if std.strip("0.") else "")

    def winners(self, i: int) -> set[int]:
        """The rows that are best in column i, equal ones included; none where all are equal."""
        column = self.columns[i]
        means = {
            k: v.mean if isinstance(v, Spread) else v for k, row in enumerate(self.rows) if (v := row[i]) is not None
        }
        if column.best is None or len(set(means.values())) < 2:
            return set()
        best = max(means.values()) if column.best == "high" else min(means.values())
        return {k for k, v in means.items() if v == best}


def percent(value: float) -> str:
    """A share as a percentage without its sign: 0.7085 -> 70.9 (-0.0 is 0.0)."""
    return f"{round(100 * value, 1) + 0.0:.1f}"


def amount(value: float, like: float | None = None) -> str:
    """Three digits that matter, without an exponent: 0.0123, 1.23, 12.3, 1,235; or as many decimals as `like` has."""
    if not value or not math.isfinite(value):
        return "0" if not value else "–"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(like or value))))}f}"


def whole(value: float) -> str:
    """A number of things as text: 3, 1,200; a mean of such numbers has one decimal: 7.5."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
