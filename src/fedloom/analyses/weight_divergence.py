"""The distance that local models move, beside how unlike their data are (FedNTD, fig. 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, ratio, summary_table
from fedloom.analyses.measures import Correlation, correlation, distribution_distance, shares, weight_divergence
from fedloom.analyses.panels import panels, title, whole_ticks
from fedloom.core.errors import SettingError
from fedloom.report.style import colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]


def measure(run: AnalysedRun) -> AnalysisResult:
    """Compare how far local models move with how unlike clients' classes are what the global model knows (fig. 8).

    The norm of w_k - w^t against the norm of a / sum(a) - p_k, L1 and L2, with Pearson's and Spearman's correlation.
    """
    rows: list[list[Any]] = []
    for m in run.replayed_rounds():
        for k, counts, trained in zip(m.clients, m.counts, m.trained, strict=True):
            w, p = weight_divergence(m.start, trained), distribution_distance(m.start_accuracy, shares(counts))
            rows.append([m.number, k, p.l1, p.l2, w.l1, w.l2])
    table = np.array(rows, np.float64)
    if not np.isfinite(table).all(1).any():
        raise SettingError("no client has training examples of a class that is in the test set: name other rounds")
    found: dict[str, Correlation] = {
        name: correlation(table[:, i], table[:, i + 2]) for i, name in ((2, "L1"), (3, "L2"))
    }
    names = ["round", "client", "distribution_l1", "distribution_l2", "weights_l1", "weights_l2"]
    summary = [[name, c.pearson, c.spearman, c.n] for name, c in found.items()]
    return AnalysisResult(
        draw(table, found["L2"]),
        summary_table("Correlation", {"norm": None, "Pearson": ratio, "Spearman": ratio, "pairs": None}, summary),
        [csv_table("weight-divergence", names, rows)],
        [
            "Distances move over rounds too: what both share with time is part of this correlation.",
            *run.left_out(row[0] for row in rows),
        ],
    )


def draw(table: Floats, found: Correlation) -> Figure:
    """Draw round, client, L1 and L2 of the distributions' distance, L1 and L2 of the weights', [n, 6].

    Clients without a distance of distributions, a NaN, are left out.
    """
    table = table[np.isfinite(table).all(1)]
    rounds = np.unique(table[:, 0])
    with drawing():
        figure, axes = panels(2)
        strength = 0.15 + 0.85 * (table[:, 0] - rounds[0] + 1) / (rounds[-1] - rounds[0] + 1)
        axes[0].scatter(table[:, 3], table[:, 5], s=26, color=colour(0), alpha=strength, linewidths=0)
        axes[0].set_xlabel("distance of distributions, L2: ‖Â − p‖")
        axes[0].set_ylabel("divergence of weights, L2: ‖w − wₖ‖")
        axes[0].grid(True, axis="x")
        pearson, spearman = (f"{r:.2f}" if np.isfinite(r) else "–" for r in (found.pearson, found.spearman))
        title(axes[0], f"Pearson {pearson}, Spearman {spearman}; darker: later rounds")
        for column, name, number in ((5, "weights", 0), (3, "distributions", 1)):
            mean = np.array([table[table[:, 0] == t, column].mean() for t in rounds])
            axes[1].plot(
                rounds, mean / mean[0] if mean[0] > 0 else mean, "o-", ms=3.5, color=colour(number), label=name
            )
        axes[1].set_xlabel("round")
        axes[1].set_ylabel(f"mean, as a multiple of round {rounds[0]:.0f}")
        axes[1].set_ylim(bottom=0)
        axes[1].legend(loc="best")
        whole_ticks(axes[1], rounds)
        title(axes[1], "both over rounds")
    return figure
