"""Accuracy and forgetting of FedNTD over its two settings (figures 15 and 16)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.analyses.analysis_result import AnalysisResult, csv_table, ratio, summary_table
from fedloom.analyses.panels import panels, shared_legend, title
from fedloom.core.errors import SettingError
from fedloom.report.style import INK, colour, drawing
from fedloom_papers import find, recipes
from fedloom_papers.fedntd.recipes import BETAS, SWEPT, TAUS
from fedloom_papers.reproduction.results import Result, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE = "fedntd-beta-tau"
_DASHED = (0, (4, 2))


def beta_and_tau(folders: Sequence[Path]) -> AnalysisResult:
    """Compare accuracy and forgetting of FedNTD over beta and over tau (figures 15 and 16)."""
    found = {(r.recipe.column, r.recipe.row): r for r in read(recipes(TABLE), folders) if r.accuracy is not None}
    if not found:
        raise SettingError(f"{', '.join(map(str, folders))} holds no runs of {TABLE}; name what --out named")
    baseline = {
        r.recipe.column: r.forgetting
        for r in read(find("fedntd-table1", SWEPT, ["fedavg"]), folders)
        if r.forgetting is not None
    }
    rows = [
        [column, name, value, r.accuracy, r.forgetting, r.rounds, len(r.numbers)]
        for column in SWEPT
        for name, values in (("beta", BETAS), ("tau", TAUS))
        for value in values
        if (r := found.get((column, f"fedntd-{name}{value:g}"))) is not None
    ]
    heads = {"data": None, "setting": None, "value": None, "accuracy": lambda v: f"{v:.2f}", "F": ratio}
    return AnalysisResult(
        draw(found, baseline),
        summary_table("FedNTD over beta and tau", heads, [row[:5] for row in rows]),
        [csv_table(TABLE, [*heads, "rounds", "seeds"], rows)],
        ["Which values the paper has is lost: these are ours. The setting that is not varied is 1."],
    )


def draw(found: Mapping[tuple[str, str], Result], baseline: Mapping[str, float]) -> Figure:
    """Draw accuracy and forgetting over each setting: a line for each column, dashed that of FedAvg's forgetting."""
    with drawing():
        figure, axes = panels(4)
        for place, (name, values) in enumerate((("beta", BETAS), ("tau", TAUS))):
            for i, column in enumerate(SWEPT):
                mine = [(x, found.get((column, f"fedntd-{name}{value:g}"))) for x, value in enumerate(values)]
                there = [(x, r) for x, r in mine if r is not None]
                at, numbers = [x for x, _ in there], [r.accuracy or 0.0 for _, r in there]
                axes[2 * place].plot(at, numbers, "o-", ms=4, color=colour(i), label=column)
                forgotten = [(x, r.forgetting) for x, r in there if r.forgetting is not None]
                axes[2 * place + 1].plot(
                    [x for x, _ in forgotten], [y for _, y in forgotten], "o-", ms=4, color=colour(i)
                )
                if column in baseline:
                    axes[2 * place + 1].axhline(baseline[column], ls=_DASHED, lw=1.3, color=colour(i))
            for ax, what in zip(axes[2 * place : 2 * place + 2], ("accuracy (%)", "forgetting F"), strict=True):
                ax.set_xticks(range(len(values)), [f"{value:g}" for value in values])
                ax.set_xlim(-0.5, len(values) - 0.5)
                ax.set_xlabel(name)
                title(ax, what)
        if baseline:
            axes[-1].plot([], [], ls=_DASHED, lw=1.3, color=INK, label="FedAvg")
        shared_legend(figure, axes, 3)
    return figure
