"""The loss around a model under Gaussian noise on its weights (FedNTD, fig. 14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, by_class, csv_table, summary_table
from fedloom.analyses.measures import Noise, balanced, perturbed
from fedloom.analyses.panels import panels, title
from fedloom.report.number_table import amount, percent
from fedloom.report.style import colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STRENGTHS = (0.0, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0)


_SIGMAS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2)


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure loss and accuracy of the global model after a round under Gaussian noise (fig. 14)."""
    number, model = run.aggregated()
    test = balanced(run.test, max(1, 1000 // run.test.num_classes))
    found = {
        kind: perturbed(run.network, model, run.task, test, at, relative=kind == "relative")
        for kind, at in (("relative", _STRENGTHS), ("absolute", _SIGMAS))
    }
    rows = [
        [kind, s, r, f.loss[i, r], f.accuracy[i, r]]
        for kind, f in found.items()
        for i, s in enumerate(f.sigma)
        for r in range(f.loss.shape[1])
    ]
    summary = [
        [kind, f"{s:g}", f.loss[i].mean(), f.accuracy[i].mean()]
        for kind, f in found.items()
        for i, s in enumerate(f.sigma)
    ]
    names = ["noise", "strength", "draw", "loss", "accuracy"]
    heads = {"noise": None, "strength": None, "loss": amount, "accuracy, %": percent}
    return AnalysisResult(
        draw(found),
        summary_table(f"Global model after round {number} under noise, mean of 5 draws", heads, summary),
        [csv_table("landscape-noise", ["round", *names], [[number, *row] for row in rows])],
        ["Relative: as a share of each tensor's norm. Absolute: standard deviation of each weight. "
         f"{by_class(test, 'test')}."],
    )  # fmt: skip


def draw(found: Mapping[str, Noise]) -> Figure:
    """Draw loss and accuracy against the strength of noise, mean and range over draws, of each kind."""
    xlabels = {"relative": "noise, as a share of each tensor's norm", "absolute": "standard deviation of each weight"}
    with drawing():
        figure, axes = panels(len(found))
        for ax, (kind, f) in zip(axes, found.items(), strict=True):
            right = ax.twinx()
            for a, values, number in ((ax, f.loss, 1), (right, f.accuracy * 100, 0)):
                a.fill_between(f.sigma, values.min(1), values.max(1), color=colour(number), alpha=0.15, linewidth=0)
                a.plot(f.sigma, values.mean(1), "o-", ms=3.5, color=colour(number))
                a.set_ylim(bottom=0)
            ax.set_xlabel(xlabels[kind])
            ax.set_ylabel("loss", color=colour(1))
            right.set_ylabel("accuracy (%)", color=colour(0))
            right.set_ylim(0, 100)
            right.grid(False)
            title(ax, f"{kind} noise: mean and range over draws")
    return figure
