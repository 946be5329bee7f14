"""Accuracy by round with 1 and 10 local epochs: of local models, and of the global one (figure 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import blank, shared_legend, title, whole_ticks
from fedloom.core.errors import SettingError
from fedloom.report.number_table import percent
from fedloom.report.style import colour, drawing
from fedloom_papers import recipes
from fedloom_papers.fedntd.recipes import EPOCHS, SKEWS
from fedloom_papers.reproduction.evidence import rows_of
from fedloom_papers.reproduction.results import Result, curve, mean_curve, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = tuple[list[int], npt.NDArray[np.float64]]  # rounds, and an accuracy after each
Curves = dict[tuple[str, str, int, str], Curve]  # by skew, method, local epochs and what is measured

TABLE = "fedntd-learning-curves"
LOCAL = "local-accuracy-rounds"  # what `fedloom analyse RUN local-accuracy` writes of each round
METHODS = {"fedavg": "FedAvg", "fedntd": "FedNTD"}
ROWS = {  # from top to bottom
    "in_after_mean": "local models,\nown classes (%)",
    "out_after_mean": "local models,\nother classes (%)",
    "global_accuracy": "global model (%)",
}


def learning_curves(folders: Sequence[Path]) -> AnalysisResult:
    """Compare accuracy by round of FedAvg and FedNTD, local and global, with 1 and 10 local epochs (figure 7)."""
    found = {(r.recipe.column, r.recipe.row): r for r in read(recipes(TABLE), folders) if r.accuracy is not None}
    if not found:
        raise SettingError(f"{', '.join(map(str, folders))} holds no runs of {TABLE}; name what --out named")
    curves: Curves = {}
    unmeasured: list[str] = []
    skews = [skew for mine in SKEWS.values() for skew in mine]
    for skew in skews:
        for epochs in EPOCHS:
            for row in METHODS:
                if (r := found.get((f"cifar10-{skew}-e{epochs}", row))) is None:
                    continue
                curves[skew, row, epochs, "global_accuracy"] = curve(r, "global_accuracy")
                local = local_curves(r)
                curves |= {(skew, row, epochs, name): line for name, line in local.items()}
                if not local:
                    unmeasured.append(f"{r.recipe.column} {row}")
    rows = [
        [skew, row, epochs, name, t, value]
        for (skew, row, epochs, name), line in curves.items()
        for t, value in zip(*line, strict=True)
    ]
    remarks = ["Which heterogeneity the paper shows is lost: this is that of Table 1. Local models are evaluated after "
               "their training, mean over the clients of a round; all are means over seeds."]  # fmt: skip
    if unmeasured:
        remarks.append(
            f"Without accuracy of local models: {', '.join(unmeasured)}; fedloom analyse RUN local-accuracy measures "
            "it where checkpoints are kept, in the folder of the run."
        )
    heads = {"skew": None, "method": None, "E": None, "round": None} | {
        "own classes, %": percent, "other classes, %": percent, "global, %": percent,
    }  # fmt: skip
    return AnalysisResult(
        draw(curves),
        summary_table("Accuracy after the last round", heads, _last(curves)),
        [csv_table(TABLE, ["skew", "method", "local_epochs", "number", "round", "accuracy"], rows)],
        remarks,
    )


def local_curves(r: Result) -> dict[str, Curve]:
    """Return in-local and out-local accuracy of local models by round, mean over the seeds that were analysed so."""
    series: dict[str, list[dict[int, float]]] = {}
    for seed in r.seeds:
        with rows_of(r.runs[seed], LOCAL) as rows:
            for name in ("in_after_mean", "out_after_mean") if rows else ():
                series.setdefault(name, []).append(
                    {int(row["round"]): float(row[name]) for row in rows or () if row[name]}
                )
    return {name: mean_curve(all_seeds) for name, all_seeds in series.items()}


def _last(curves: Mapping[tuple[str, str, int, str], Curve]) -> list[list[object]]:
    out: list[list[object]] = []
    for skew, row, epochs, name in curves:
        if name == "global_accuracy":
            lines = [curves.get((skew, row, epochs, number), ([], np.empty(0))) for number in ROWS]
            out.append([skew, METHODS[row], epochs, lines[-1][0][-1], *(v[-1] if len(v) else np.nan for _, v in lines)])
    return out


def draw(curves: Mapping[tuple[str, str, int, str], Curve]) -> Figure:
    """Draw a row for each of the three accuracies and a column for each skew; FedAvg is blue, FedNTD red."""
    from matplotlib.figure import Figure

    skews = list(dict.fromkeys(skew for skew, *_ in curves))
    with drawing():
        figure = Figure(figsize=(max(5.3, 1.0 + 2.1 * len(skews)), 6.2), layout="constrained")
        axes = figure.subplots(len(ROWS), len(skews), squeeze=False)
        for j, skew in enumerate(skews):
            last = max(line[0][-1] for (of, *_), line in curves.items() if of == skew and line[0])
            for i, name in enumerate(ROWS):
                ax = axes[i][j]
                for number, row in enumerate(METHODS):
                    for epochs, style in zip(EPOCHS, ((0, (2.5, 1.2)), "-"), strict=True):
                        rounds, values = curves.get((skew, row, epochs, name), ([], np.empty(0)))
                        if not rounds:
                            continue
                        few = "o" if len(rounds) <= 20 else None  # rounds that lie far from each other
                        ax.plot(
                            rounds, 100 * values, color=colour(number), ls=style, lw=1.3, marker=few, ms=3,
                            label=f"{METHODS[row]}, E = {epochs}",
                        )  # fmt: skip
                if not ax.lines:
                    blank(ax, "not measured")
                else:
                    ax.set_xlim(0, last)
                    ax.set_ylim(0, 100)
                    whole_ticks(ax, [0, last])
                if i == 0:
                    title(ax, _called(skew))
            axes[-1][j].set_xlabel("round")
        for ax, label in zip(axes[:, 0], ROWS.values(), strict=True):
            ax.set_ylabel(label)
        shared_legend(figure, axes.flat, 4)
    return figure


def _called(skew: str) -> str:
    """Return the heterogeneity in words: s2 is two shards a client."""
    return f"LDA, alpha = {skew.removeprefix('lda')}" if skew.startswith("lda") else f"shards, s = {skew[1:]}"
