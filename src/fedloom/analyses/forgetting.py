"""Measure what the global model has forgotten, over rounds and by class (FedNTD, eq. 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import panels, title, whole_ticks
from fedloom.evaluate import forgetting, relative_forgetting
from fedloom.report.number_table import percent
from fedloom.report.style import FAINT, colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure forgetting F over rounds and by class, in both conventions and relative to the mean peak (eq. 5).

    F is the mean over classes of the best a of an earlier round minus a now.
    """
    log = run.logged_accuracy()
    per_class = log.per_class
    rows = [
        [
            t,
            np.nanmean(forgetting(per_class[: i + 1])) if i else np.nan,
            np.nanmean(forgetting(per_class[: i + 1], "all")),
            relative_forgetting(per_class[: i + 1]) if i else np.nan,
            np.nanmean(per_class[i]),
        ]
        for i, t in enumerate(log.rounds)
        if log.shown[i]
    ]
    lost = forgetting(per_class)
    names = ["round", "forgetting_earlier", "forgetting_all", "relative_to_peak", "accuracy"]
    by_class = [[c, f, per_class[:, c].max(), per_class[-1, c]] for c, f in enumerate(lost)]
    tables = [
        csv_table("forgetting", names, rows),
        csv_table("forgetting-by-class", ["class", "forgetting_earlier", "best", "accuracy"], by_class),
    ]
    end = rows[-1]
    shown = summary_table(
        f"Forgetting after round {log.rounds[-1]}",
        {
            "F (t < T), points": percent, "F (t <= T), points": percent, "final accuracy, %": percent,
            "mean peak, %": percent, "F / mean peak, %": percent,
        },
        [[end[1], end[2], end[4], end[1] + end[4], end[3]]],
    )  # fmt: skip
    remarks = ["F + final accuracy = mean peak: F alone falls wherever accuracy rises, so compare F / mean peak too."]
    return AnalysisResult(draw(np.array(rows, np.float64), lost), shown, tables, [*remarks, *log.remarks])


def draw(curve: Floats, by_class: Floats) -> Figure:
    """Draw forgetting over rounds and by class.

    `curve`: round, F (t < T), F (t <= T), F / mean peak, accuracy, [T, 5]; `by_class`: F in the end, [C].
    """
    with drawing():
        figure, axes = panels(2)
        lines = ((1, "F, over earlier rounds (t < T)", 0, "-"), (2, "F, over all rounds (t ≤ T)", 5, (0, (4, 2))))
        for column, label, number, dash in (*lines, (3, "F / mean peak", 1, "-")):
            dots = "o" if len(curve) <= 12 else None
            axes[0].plot(
                curve[:, 0], curve[:, column] * 100, color=colour(number), ls=dash, marker=dots, ms=3.5, label=label
            )
        figure.legend(loc="outside lower left", ncols=3)
        axes[0].axhline(0, color=FAINT, lw=0.8)
        low, high = axes[0].get_ylim()
        axes[0].set_ylim(
            max(low, -60), high
        )  # of the first rounds, of which little is known, the share can be anything
        axes[0].set_xlabel("round T")
        axes[0].set_ylabel("points, and % of the peak")
        whole_ticks(axes[0], curve[:, 0])
        title(axes[0], "forgetting over rounds")
        axes[1].bar(range(len(by_class)), by_class * 100, color=[colour(0 if f >= 0 else 2) for f in by_class])
        axes[1].axhline(0, color=FAINT, lw=0.8)
        axes[1].set_xlabel("class")
        axes[1].set_ylabel("points below its best earlier round")
        if len(by_class) <= 20:
            axes[1].set_xticks(range(len(by_class)))
        title(axes[1], f"by class after round {curve[-1, 0]:.0f} (below 0: at its best)")
    return figure
