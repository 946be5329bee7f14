"""What an analysis has found: a figure, numbers, sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedloom.report.comparison import Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Finding:
    """`shown`: a short table for a terminal; `tables`: all numbers, for CSV; `said`: what they mean and assume."""

    figure: Figure
    shown: Table
    tables: Sequence[Table]
    said: Sequence[str] = ()


def numbers(name: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Every number of something, for a CSV file; the file of an analysis bears `name`."""
    return Table(name, [Column(n, n) for n in names], [[known(v) for v in row] for row in rows])


def short(title: str, columns: Mapping[str, Callable[[float], str] | None], rows: Sequence[Sequence[Any]]) -> Table:
    """A table for a terminal: columns by heading, and how each writes its numbers (None: text, or whole numbers)."""
    made = [Column(heading, heading, show) for heading, show in columns.items()]
    return Table(title, made, [[known(v) for v in row] for row in rows])


def ratio(value: float) -> str:
    """Three decimals: 0.123."""
    return f"{value + 0.0:.3f}"


def known(value: Any) -> Any:
    """As a table has it: a number of Python's own, None where it is not finite."""
    plain = value.item() if hasattr(value, "item") else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
