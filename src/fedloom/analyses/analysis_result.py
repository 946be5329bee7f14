"""Result of an analysis: a figure, tables of numbers, and sentences about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.data import Examples
from fedloom.report.number_table import Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class AnalysisResult:
    """Result of an analysis of a run.

    Attributes:
        figure: a figure of matplotlib.
        summary: a short table for a terminal.
        tables: all numbers, one CSV file each.
        remarks: sentences about what the numbers mean and assume.
    """

    figure: Figure
    summary: Table
    tables: Sequence[Table]
    remarks: Sequence[str] = ()


def csv_table(name: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Return a table with every number in full, written as `name`.csv."""
    return Table(name, [Column(n, n) for n in names], [[finite(v) for v in row] for row in rows])


def summary_table(
    title: str, columns: Mapping[str, Callable[[float], str] | None], rows: Sequence[Sequence[Any]]
) -> Table:
    """Return a table for a terminal.

    `columns`: by heading, how each column writes its numbers; None for text, or whole numbers.
    """
    made = [Column(heading, heading, show) for heading, show in columns.items()]
    return Table(title, made, [[finite(v) for v in row] for row in rows])


def by_class(examples: Examples, which: str) -> str:
    """Say how many examples there are, and of each class: "32 test examples, 14 to 18 of each class"."""
    counts = np.unique(examples.y.cpu().numpy(), return_counts=True)[1]
    span = f"{counts.min()}" + f" to {counts.max()}" * bool(counts.min() < counts.max())
    return f"{len(examples):,} {which} examples, {span} of each class"


def ratio(value: float) -> str:
    """Write a number with three decimals: 0.123."""
    return f"{value + 0.0:.3f}"


def finite(value: Any) -> Any:
    """Return a value as tables hold it: a number of Python's own, or None where it is not finite."""
    plain = value.item() if hasattr(value, "item") else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
