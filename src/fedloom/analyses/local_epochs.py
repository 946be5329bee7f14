"""In-local and out-local accuracy after each local epoch (FedNTD, fig. 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.measures import finite_mean, local_accuracy
from fedloom.analyses.panels import IN, OUT, panels, whole_ticks
from fedloom.report.number_table import percent
from fedloom.report.style import WIDE, colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure in-local and out-local accuracy after each local epoch of one round (fig. 6)."""
    m = run.replayed()
    found = [local_accuracy(m.counts, m.start_accuracy)]
    for trained in run.past.by_epoch(m.number):
        found.append(local_accuracy(m.counts, np.array([run.per_class(trained[k]) for k in m.clients])))
    rows = [[e, k, a, b] for e, f in enumerate(found) for k, a, b in zip(m.clients, f.inside, f.outside, strict=True)]
    heads = {"epoch": None, "in, %": percent, "std": percent, "out, %": percent, "std ": percent}
    summary = [[e, f.mean()[0], f.std()[0], f.mean()[1], f.std()[1]] for e, f in enumerate(found)]
    inside, outside = np.array([f.inside for f in found]), np.array([f.outside for f in found])
    return AnalysisResult(
        draw(inside, outside),
        summary_table(
            f"Accuracy by local epoch in round {m.number}, mean over {len(m.clients)} clients", heads, summary
        ),
        [csv_table("local-epochs", ["epoch", "client", "in_local", "out_local"], rows)],
    )


def draw(inside: Floats, outside: Floats) -> Figure:
    """Draw means over clients and, faint, each client, by local epoch from 0 (before training), [E + 1, K] each."""
    with drawing():
        figure, (axes,) = panels(1, (WIDE[0] * 0.62, WIDE[1]))
        epochs = np.arange(len(inside))
        for table, name, number in ((inside, "in-local", IN), (outside, "out-local", OUT)):
            axes.plot(epochs, table * 100, color=colour(number), lw=0.7, alpha=0.35)
            mean = np.array([finite_mean(row) for row in table])
            axes.plot(epochs, mean * 100, "o-", ms=4, color=colour(number), label=f"{name}, mean")
        axes.set_xlabel("local epochs (0: the global model)")
        axes.set_ylabel("accuracy (%)")
        axes.set_ylim(0, 102)
        whole_ticks(axes, epochs)
        figure.legend(loc="outside lower right", ncols=2)
    return figure
