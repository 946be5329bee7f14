"""Forgetting and accuracy over the heterogeneity of clients, from runs of Table 1 and of section 2 (figure 2c)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.analyses.analysis_result import AnalysisResult, csv_table, ratio, summary_table
from fedloom.analyses.panels import panels, shared_legend, title
from fedloom.core.errors import SettingError
from fedloom.report.style import INK, colour, drawing
from fedloom_papers import recipes
from fedloom_papers.fedntd.recipes import CONSTANT, SKEWS
from fedloom_papers.reproduction.results import Result, read
from fedloom_papers.reproduction.run_lengths import length_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {  # of each: table, data set and skews, mildest first
    "shards": ("fedntd-table1", "cifar10", SKEWS["shards"]),
    "LDA": ("fedntd-table1", "cifar10", SKEWS["LDA"]),
    "LDA, constant rate": ("fedntd-section2", "cifar10", CONSTANT),
    "CIFAR-100, LDA, constant rate": ("fedntd-section2", "cifar100", CONSTANT),
}
_WIDTH = 0.6  # of the methods at a skew


def forgetting_over_skew(folders: Sequence[Path]) -> AnalysisResult:
    """Compare forgetting of the methods over the strength of shards and LDA, and at a constant rate (figure 2c)."""
    there = {
        table: [r for r in read(recipes(table), folders) if r.forgetting is not None]
        for table in dict.fromkeys(table for table, *_ in KINDS.values())
    }
    found = {
        kind: [(x, r) for x, skew in enumerate(skews) for r in there[table] if r.recipe.column == f"{data}-{skew}"]
        for kind, (table, data, skews) in KINDS.items()
    }
    if not any(found.values()):
        raise SettingError(
            f"{', '.join(map(str, folders))} holds no runs of {' or '.join(there)}; name what --out named"
        )
    rows = [
        [kind, KINDS[kind][2][x], r.recipe.row, r.forgetting, r.recipe.forgetting, r.accuracy, r.rounds, len(r.seeds)]
        for kind, mine in found.items()
        for x, r in mine
    ]
    heads = ["kind", "skew", "method", "F", "F published", "accuracy", "rounds", "seeds"]
    return AnalysisResult(
        draw(found),
        summary_table("Forgetting", {h: ratio if h.startswith("F") else None for h in heads}, rows),
        [csv_table("fedntd-forgetting", heads, rows)],
        ["On CIFAR-10 where nothing else is said. Each run is taken after as many rounds as it has; the CSV says how "
         "many."],
    )  # fmt: skip


def draw(found: Mapping[str, Sequence[tuple[int, Result]]]) -> Figure:
    """Draw forgetting over each kind of skew: a line for each method, hollow dots for what is published.

    Methods stand side by side at each skew, and below each panel the rounds that its runs have.

    `found`: by kind, results and where their skew stands among those of the kind.
    """
    kinds = {kind: mine for kind, mine in found.items() if mine}
    methods = list(dict.fromkeys(r.recipe.row for mine in kinds.values() for _, r in mine))
    with drawing():
        figure, axes = panels(len(kinds), sharey=True)
        for ax, (kind, mine) in zip(axes, kinds.items(), strict=True):
            for i, method in enumerate(methods):
                beside = (i - (len(methods) - 1) / 2) * _WIDTH / len(methods)
                own = [(x + beside, r) for x, r in mine if r.recipe.row == method]
                ours = [(x, r.forgetting) for x, r in own if r.forgetting is not None]
                printed = [(x, r.recipe.forgetting) for x, r in own if r.recipe.forgetting is not None]
                if ours:
                    look: dict[str, Any] = {"marker": "o", "color": colour(i)}
                    ax.plot([x for x, _ in ours], [F for _, F in ours], ms=4, label=method, **look)
                    ax.plot([x for x, _ in printed], [F for _, F in printed], ls="", ms=8, mfc="none", **look)
            skews = KINDS[kind][2]
            ax.set_xticks(range(len(skews)), [skew.removeprefix("lda").removeprefix("s") for skew in skews])
            ax.set_xlim(-0.5, len(skews) - 0.5)
            ax.set_xlabel(f"{'shards a client' if kind == 'shards' else 'alpha'}\n{length_of([r for _, r in mine])}")
            title(ax, kind if kind.startswith("CIFAR") else f"CIFAR-10, {kind}")
        axes[0].set_ylabel("forgetting F")
        if any(r.recipe.forgetting is not None for mine in kinds.values() for _, r in mine):
            axes[-1].plot([], [], "o", ms=8, mfc="none", color=INK, label="published")
        shared_legend(figure, axes, 6)
    return figure
