"""Forgetting and accuracy over the heterogeneity of clients, from runs of Table 1 (figure 2c)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.analyses.analysis_result import AnalysisResult, csv_table, ratio, summary_table
from fedloom.analyses.panels import panels, shared_legend, title
from fedloom.core.errors import SettingError
from fedloom.papers import recipes
from fedloom.papers.fedntd.recipes import SKEWS
from fedloom.papers.reproduction.results import Result, read
from fedloom.report.style import colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def forgetting_over_skew(folders: Sequence[Path]) -> AnalysisResult:
    """Compare forgetting of the methods on CIFAR-10 over the strength of shards and LDA (figure 2c)."""
    found = [
        r
        for r in read(recipes("fedntd-table1"), folders)
        if r.forgetting is not None and r.recipe.column.startswith("cifar10-")
    ]
    if not found:
        raise SettingError(f"{', '.join(map(str, folders))} holds no runs of fedntd-table1; name what --out named")
    rows = [
        [kind, skew, r.recipe.row, r.forgetting, r.recipe.forgetting, r.accuracy, r.rounds, len(r.seeds)]
        for kind, skews in SKEWS.items()
        for skew in skews
        for r in found
        if r.recipe.column == f"cifar10-{skew}"
    ]
    heads = ["kind", "skew", "method", "F", "F published", "accuracy", "rounds", "seeds"]
    return AnalysisResult(
        draw(found),
        summary_table("Forgetting", {h: ratio if h.startswith("F") else None for h in heads}, rows),
        [csv_table("fedntd-forgetting", heads, rows)],
        ["Each run is taken after as many rounds as it has; the CSV says how many."],
    )


def draw(found: Sequence[Result]) -> Figure:
    """Draw forgetting over shards and over LDA: a line for each method, hollow dots for what is published."""
    methods = list(dict.fromkeys(r.recipe.row for r in found))
    with drawing():
        figure, axes = panels(2, sharey=True)
        for ax, (kind, skews) in zip(axes, SKEWS.items(), strict=True):
            for i, method in enumerate(methods):
                mine = {r.recipe.column: r for r in found if r.recipe.row == method}
                there = [(x, mine[f"cifar10-{skew}"]) for x, skew in enumerate(skews) if f"cifar10-{skew}" in mine]
                ours = [(x, r.forgetting) for x, r in there if r.forgetting is not None]
                printed = [(x, r.recipe.forgetting) for x, r in there if r.recipe.forgetting is not None]
                look: dict[str, Any] = {"marker": "o", "color": colour(i)}
                ax.plot([x for x, _ in ours], [y for _, y in ours], ms=4, label=method, **look)
                ax.plot([x for x, _ in printed], [y for _, y in printed], ls="", ms=8, mfc="none", **look)
            ax.set_xticks(range(len(skews)), skews)
            ax.set_xlim(-0.5, len(skews) - 0.5)
            title(ax, f"CIFAR-10, {kind} (hollow: published)")
        axes[0].set_ylabel("forgetting F")
        shared_legend(figure, axes, 6)
    return figure
