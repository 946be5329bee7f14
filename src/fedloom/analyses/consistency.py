"""The steadiness of the global model's accuracy by class from round to round (FedNTD, fig. 2b)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, ratio, summary_table
from fedloom.analyses.measures import consistency
from fedloom.analyses.panels import panels, whole_ticks
from fedloom.core.errors import SettingError
from fedloom.report.style import FAINT, WIDE, colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure the cosine between the accuracies by class of neighbouring rounds (fig. 2b)."""
    log = run.logged_accuracy()
    if log.total == 1:
        raise SettingError("consistency compares rounds with the one before, and this run has one round only")
    if (np.diff(log.rounds) > 1).any():
        raise SettingError(
            "consistency compares rounds with the one before, and this run has evaluated its global model in rounds "
            f"{log.rounds[0]}, {log.rounds[1]}, ... only: take a run with global_every = 1"
        )
    if not log.shown[1:].any():
        raise SettingError(f"consistency compares rounds with the one before: name one after {log.rounds[0]}")
    cosine = consistency(log.per_class)[log.shown[1:]]
    rounds = [t for t, shown in zip(log.rounds[1:], log.shown[1:], strict=True) if shown]
    table = csv_table("consistency", ["round", "cosine"], list(zip(rounds, cosine, strict=True)))
    finite = cosine[np.isfinite(cosine)]
    ends = [finite.mean(), finite.min(), finite.max()] if len(finite) else [np.nan] * 3
    shown = summary_table("Consistency", {"mean": ratio, "lowest": ratio, "highest": ratio}, [ends])
    remarks = ["1: neighbouring rounds know the same classes. Left out: rounds in which no class was ever right."]
    return AnalysisResult(draw(rounds, cosine), shown, [table], [*remarks, *log.remarks])


def draw(rounds: Sequence[int], cosine: Floats) -> Figure:
    """Draw the cosine between neighbouring rounds, over rounds."""
    with drawing():
        figure, (axes,) = panels(1, (WIDE[0] * 0.62, WIDE[1]))
        axes.axhline(1, color=FAINT, lw=0.8, ls=(0, (4, 3)))
        axes.plot(rounds, cosine, "o-", ms=3.5, color=colour(0), clip_on=False)
        axes.set_ylim(min(0.0, float(np.nanmin(cosine, initial=0.0))), 1.04)
        axes.set_xlabel("round")
        axes.set_ylabel("cosine with the round before")
        whole_ticks(axes, rounds)
    return figure
