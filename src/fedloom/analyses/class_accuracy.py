"""Accuracy of the global model by class and round (FedNTD, fig. 10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.measures import normalised_rows
from fedloom.analyses.panels import bare, panels, title, whole_ticks
from fedloom.report.number_table import percent
from fedloom.report.style import WIDE, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure accuracy of the global model by class and round, and the same as shares of its sum (fig. 10)."""
    log = run.logged_accuracy()
    rounds = [t for t, shown in zip(log.rounds, log.shown, strict=True) if shown]
    per_class = log.per_class[log.shown]
    parts = normalised_rows(per_class)
    classes = per_class.shape[1]
    names = ["round", *(f"accuracy_{c}" for c in range(classes)), *(f"share_{c}" for c in range(classes))]
    table = csv_table("class-accuracy", names, [[t, *a, *p] for t, a, p in zip(rounds, per_class, parts, strict=True)])
    rows = [[c, per_class[-1, c], log.per_class[:, c].max(), parts[-1, c]] for c in range(classes)]
    last = rounds[-1]
    heads = {"class": None, f"round {last}, %": percent, "best, %": percent, "share of the sum, %": percent}
    shown = summary_table("Accuracy by class", heads, rows)
    return AnalysisResult(draw(rounds, per_class, parts), shown, [table], log.remarks)


def draw(rounds: Sequence[int], per_class: Floats, parts: Floats) -> Figure:
    """Draw accuracy by class and round, and the rows as shares of their sum."""
    import matplotlib

    shades = matplotlib.colormaps["YlGnBu"].with_extremes(bad="#d1d5db")
    with drawing():
        figure, axes = panels(2, (WIDE[0], min(6.0, 1.6 + 0.2 * per_class.shape[1])), sharey=True)
        t = np.asarray(rounds, np.float64)  # not every round needs to be among them
        between = (t[1:] + t[:-1]) / 2
        edges = np.array([t[0] - 0.5, *between, t[-1] + 0.5])
        sides = np.arange(per_class.shape[1] + 1) - 0.5
        for ax, table, text, top in (
            (axes[0], per_class, "accuracy (%)", 1.0),
            (axes[1], parts, "share of the sum over classes (%)", max(float(np.nanmax(parts)), 1e-9)),
        ):
            image = ax.pcolormesh(
                edges, sides, np.ma.masked_invalid(table.T * 100), cmap=shades, vmin=0, vmax=100 * top, rasterized=True
            )
            bare(ax)
            title(ax, text)
            whole_ticks(ax, rounds)
            ax.set_xlabel("round")
            bar = figure.colorbar(image, ax=ax, pad=0.02, aspect=18)
            bar.outline.set_visible(False)
        axes[0].set_ylabel("class")
        axes[0].set_ylim(per_class.shape[1] - 0.5, -0.5)
        if per_class.shape[1] <= 20:
            axes[0].set_yticks(range(per_class.shape[1]))
    return figure
