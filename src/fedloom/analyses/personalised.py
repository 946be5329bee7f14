"""Measure what local training gives the client itself (FedNTD, fig. 11 and 12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.measures import finite_mean, finite_std, personalised
from fedloom.analyses.panels import moves, panels, title
from fedloom.report.number_table import percent
from fedloom.report.style import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure what local training gives a client on its training examples and test ones of its classes (fig. 11-12)."""
    m = run.replayed()
    rows: list[list[Any]] = []
    for i, (k, trained) in enumerate(zip(m.clients, m.trained, strict=True)):
        own = m.own(i)
        before = personalised(run.network, m.start, run.task, own, m.start_accuracy)
        after = personalised(run.network, trained, run.task, own, m.trained_accuracy[i])
        rows.append([k, len(own), before.own, after.own, before.test, after.test])
    names = ["client", "examples", "own_before", "own_after", "test_before", "test_after"]
    heads = {"": None, "own examples: before, %": percent, "after, %": percent} | {
        "test, own classes: before, %": percent, "after, % ": percent
    }  # fmt: skip
    table = np.array([row[2:] for row in rows], np.float64)
    summary = [[name, *(of(column) for column in table.T)] for name, of in (("mean", finite_mean), ("std", finite_std))]
    return AnalysisResult(
        draw(m.clients, table),
        summary_table(f"Personalised performance in round {m.number}, {len(rows)} clients", heads, summary),
        [csv_table("personalised", ["round", *names], [[m.number, *row] for row in rows])],
        ["Test: sum of p_c a_c over classes, exactly what test examples drawn with the client's classes would give."],
    )


def draw(clients: Sequence[int], table: Floats) -> Figure:
    """Draw own examples before and after, test examples of the client's classes before and after, [K, 4]."""
    with drawing():
        figure, (axes,) = panels(1)
        names = ("own training examples", "test examples, own classes")
        moves(axes, clients, {name: (table[:, 2 * i], table[:, 2 * i + 1]) for i, name in enumerate(names)})
        title(axes, "each client before (ring) and after (dot) its local training")
        figure.legend(loc="outside lower right", ncols=2)
        axes.set_ylabel("accuracy (%)")
    return figure
