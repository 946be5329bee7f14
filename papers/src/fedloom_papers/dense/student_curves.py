"""Accuracy of DENSE's student by epoch, beside the models that it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import panels, title, whole_ticks
from fedloom.core.errors import SettingError
from fedloom.report.number_table import percent
from fedloom.report.style import FAINT, INK, colour, drawing
from fedloom_papers import recipes
from fedloom_papers.dense.published import ABOUT
from fedloom_papers.reproduction.results import Run, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curves(folders: Sequence[Path]) -> AnalysisResult:
    """Compare DENSE's student by epoch with every local model, their ensemble and their mean, in each of its runs."""
    found: dict[str, tuple[str, Run, int]] = {}  # by folder, with the published epochs: tables share runs
    for table in ABOUT:
        for r in read([r for r in recipes(table) if r.row == "dense"], folders):
            for seed, run in r.runs.items():
                if uploaded(run) and run.rounds > 1:
                    found.setdefault(str(run.folder), (f"{r.recipe.column}, seed {seed}", run, r.recipe.rounds - 1))
    if not found:
        raise SettingError(f"{', '.join(map(str, folders))} holds no runs of dense; name what --out named")
    rows: list[list[Any]] = []
    summary: list[list[Any]] = []
    for name, run, _ in found.values():
        upload = uploaded(run)
        singly = {f"client {k}": value for k, value in upload["upload_accuracy"].items()}
        both = {"ensemble": upload.get("ensemble_accuracy"), "mean of weights": upload.get("mean_accuracy")}
        rows += [[name, who, 0, value] for who, value in (singly | both).items()]
        rows += [[name, "student", t, value] for t, value in zip(*epochs(run), strict=True)]
        summary.append([name, min(singly.values()), max(singly.values()), *both.values(), epochs(run)[1][-1]])
    heads = ["run", "lowest client", "highest client", "ensemble", "mean of weights", "student"]
    return AnalysisResult(
        draw(list(found.values())),
        summary_table("Accuracy, %", {h: None if h == "run" else percent for h in heads}, summary),
        [csv_table("dense-curves", ["run", "model", "epoch", "accuracy"], rows)],
    )


def uploaded(run: Run) -> dict[str, Any]:
    """Return the record of the upload, empty where it has no accuracy of each client."""
    found = next((m for m in run.history.metrics if m.get("upload_accuracy")), None)
    return dict(found or {})


def epochs(run: Run) -> tuple[list[int], list[float]]:
    """Return the epochs of the server, from 1, and the student's accuracy after each."""
    found = [(m["round"] - 1, m["global_accuracy"]) for m in run.history.metrics if m["round"] > 1]
    return [t for t, _ in found], [float(value) for _, value in found]


def draw(found: Sequence[tuple[str, Run, int]]) -> Figure:
    """Draw a panel for each run: the student's curve, and a line for each other model."""
    with drawing():
        figure, axes = panels(len(found))
        for ax, (name, run, published) in zip(axes, found, strict=True):
            upload, (at, values) = uploaded(run), epochs(run)
            for i, accuracy in enumerate(upload["upload_accuracy"].values()):
                ax.axhline(100 * accuracy, color=FAINT, lw=0.8, label="local models" if i == 0 else None)
            for number, key, label in ((1, "ensemble_accuracy", "ensemble"), (2, "mean_accuracy", "mean of weights")):
                if key in upload:
                    ax.axhline(100 * upload[key], color=colour(number), ls=(0, (4, 2)), label=label)
            ax.plot(at, [100 * value for value in values], color=INK, label="student")
            whole_ticks(ax, at)
            ax.set_xlabel("epoch of the server")
            title(ax, f"{name}\n{at[-1]} of {published} epochs")
        axes[0].set_ylabel("accuracy (%)")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
