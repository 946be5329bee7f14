"""Accuracy by round in the protocol of FedAlign, from runs of Table 13 (figure 13)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import blank, shared_legend, title, whole_ticks
from fedloom.core.errors import SettingError
from fedloom.report.style import colour, drawing
from fedloom_papers import recipes
from fedloom_papers.reproduction.results import Result, curve, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE, FIGURE = "fedntd-table13", "fedntd-fedalign"
METHODS = {"fedavg": "FedAvg", "fedntd": "FedNTD", "fedalign": "FedAlign"}
CLIENTS, ALPHAS = (16, 64), ("0.05", "0.1", "0.5")


def fedalign_curves(folders: Sequence[Path]) -> AnalysisResult:
    """Compare test accuracy by round of FedAvg, FedAlign and FedNTD in the protocol of FedAlign (figure 13)."""
    found = [r for r in read(recipes(TABLE), folders) if r.accuracy is not None]
    if not found:
        raise SettingError(f"{', '.join(map(str, folders))} holds no runs of {TABLE}; name what --out named")
    rows = [
        [r.recipe.column, r.recipe.row, t, 100 * value]
        for r in found
        for t, value in zip(*curve(r, "global_accuracy"), strict=True)
    ]
    heads = {"column": None, "method": None, "accuracy": _two, "published": _two, "rounds": None, "seeds": None}
    summary = [[r.recipe.column, r.recipe.row, r.accuracy, r.recipe.accuracy, r.rounds, len(r.numbers)] for r in found]
    return AnalysisResult(
        draw(found),
        summary_table("Test accuracy, %, in the protocol of FedAlign", heads, summary),
        [csv_table(FIGURE, ["column", "method", "round", "accuracy"], rows)],
        ["Means over seeds. The published number of rounds is lost: 25 is the default of FedAlign's code."],
    )


def draw(found: Sequence[Result]) -> Figure:
    """Draw a panel for each number of clients and alpha, one above the other for 16 and 64 clients."""
    from matplotlib.figure import Figure

    by_place = {(r.recipe.column, r.recipe.row): r for r in found}
    with drawing():
        figure = Figure(figsize=(10.6, 5.6), layout="constrained")
        axes = figure.subplots(len(CLIENTS), len(ALPHAS), squeeze=False)
        for i, clients in enumerate(CLIENTS):
            for j, alpha in enumerate(ALPHAS):
                ax = axes[i][j]
                title(ax, f"{clients} clients, LDA {alpha}")
                mine = [(row, by_place.get((f"cifar10-lda{alpha}-k{clients}", row))) for row in METHODS]
                for number, (row, r) in enumerate(mine):
                    if r is not None:
                        rounds, values = curve(r, "global_accuracy")
                        ax.plot(rounds, 100 * values, color=colour(number), label=METHODS[row])
                        whole_ticks(ax, rounds)
                if not any(r is not None for _, r in mine):
                    blank(ax, "not run")
                    continue
                ax.set_xlabel("round")
                if j == 0:
                    ax.set_ylabel("test accuracy (%)")
        shared_legend(figure, axes.flat, len(METHODS))
    return figure


def _two(value: float) -> str:
    return f"{value:.2f}"
