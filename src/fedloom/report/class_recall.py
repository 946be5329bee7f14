"""Recall by class of the global model at the end of runs, and the share of each class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.data.rare_classes import rare_classes
from fedloom.report.methods import Method, Run
from fedloom.report.number_table import Column, Table, percent
from fedloom.report.over_seeds import of_methods
from fedloom.report.printable import class_names

_MOST = 10  # classes in a table; of more the rare ones


def class_recall(methods: Sequence[Method], *, rare_alone: bool = False) -> tuple[str, Table] | None:
    """Return a caption, and a row for each method with the recall of each class after the last round.

    Of more than ten classes the rarest of the rare ones are shown. None where no run has measured it, where of many
    classes none is rare, and with `rare_alone` where none is rare at all.
    """
    counts = _counts(methods[0].first.history.federation)
    rare = [] if counts is None else sorted(rare_classes(counts).tolist(), key=lambda c: counts[c])[:_MOST]
    last = [row for m in methods for run in m.counted_runs if (row := _last(run))]
    sizes = {len(row) for row in last}
    if len(sizes) != 1 or (rare_alone and not rare):
        return None
    shown = list(range(*sizes)) if max(sizes) <= _MOST else sorted(rare)
    if not shown:
        return None
    columns = [Column("method", "method")]
    names = class_names(methods[0].first.history.federation)
    for c in shown:
        share = "" if counts is None or len(counts) <= c else f" ({percent(float(counts[c] / counts.sum()))} %)"
        heading = f"{names[c] if c < len(names) else c}{share}"
        columns.append(Column(f"recall_{c}", heading, percent, "high", "rare" if c in rare else ""))
    rows: list[list[Any]] = [[m.label, *(m.spread(_recall_of(c)) for c in shown)] for m in methods]
    of_examples = "" if counts is None else "; in brackets its share of the training examples"
    marked = (
        f" Rare: below a tenth of an equal share, {', '.join(c.heading for c in columns if c.group)}." if rare else ""
    )
    caption = (
        f"Recall in %: how many test examples of a class the global model finds after the last round{of_examples}."
        f"{marked}"
    )
    return caption, Table("recall_by_class", columns, rows, *of_methods(methods))


def _last(run: Run) -> list[float | None]:
    """Return the recall of each class in the last round that has it; nothing where none has."""
    rows = [m["class_accuracy"] for m in run.history.metrics if m.get("class_accuracy") is not None]
    return list(rows[-1]) if rows else []


def _recall_of(c: int) -> Callable[[Run], float | None]:
    return lambda run: row[c] if (row := _last(run)) else None


def _counts(federation: Mapping[str, Any]) -> npt.NDArray[np.int64] | None:
    """Return the training examples of all clients by class; None where a federation.json does not have them.

    Before `train_by_class` it had those of the first 100 clients alone.
    """
    counts = np.array(federation.get("train") or [], np.int64)
    if (known := federation.get("train_by_class")) is not None:
        counts = np.array([known], np.int64)
    elif len(counts) != federation.get("clients"):
        return None
    return counts.sum(0) if counts.ndim == 2 and counts.sum() else None
