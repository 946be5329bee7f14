"""Confusion matrix of the global model, or of one client's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import bare, panels, title
from fedloom.experiments.prediction_rows import NewRows, RowReader, held_out_by
from fedloom.experiments.predictions import predict_by
from fedloom.experiments.trained_model import task_of, trained_model
from fedloom.report.number_table import percent
from fedloom.report.style import WIDE, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_WRITTEN, _NAMED = 12, 24  # classes whose shares, and whose names, have room


def measure(run: AnalysedRun) -> AnalysisResult:
    """Count what the global model, or that of `--client`, takes the examples of each class for.

    The global model is measured on the global test set, or on all that clients hold out where there is none; a
    client's on what it holds out itself. Rounds are those that have a checkpoint.
    """
    run.require_classes("a confusion matrix")
    job, at = run.job, max(run.rounds) if run.rounds else None
    own, test = run.client is not None or job.federation.test is None, job.federation.test
    examples = job.federation.train.select(held_out_by(job.federation, run.client)) if test is None or own else test
    found = trained_model(run.directory, job, client=run.client, at=at, model=run.model)
    rows = NewRows(examples, np.arange(len(examples)))
    by, y = predict_by(found, RowReader(job.federation.train), task_of(found, run.directory), rows), examples.y.numpy()
    counts = confusion(y, by.values, job.federation.num_classes)
    names = [*by.names, *map(str, range(len(by.names), len(counts)))]
    recall, precision = shares_of(counts)
    each = [
        [names[i], names[j], int(counts[i, j]), recall[i, j], precision[i, j]]
        for i in range(len(counts))
        for j in range(len(counts))
    ]
    right = int(counts.trace())
    return AnalysisResult(
        draw(counts, names),
        _summary(counts, names, f"Confusion of the {found.whose} after round {found.round}"),
        [csv_table("confusion", ["true", "predicted", "count", "share_of_true", "share_of_predicted"], each)],
        [f"{right:,} of {len(y):,} {'held-out' if own else 'test'} examples are right, {100 * right / len(y):.1f} %."],
    )


def confusion(y: Ints, predicted: Ints, num_classes: int) -> Ints:
    """Count examples by true and predicted class, [C, C]; where a model names further classes, C is larger."""
    size = max(num_classes, int(predicted.max()) + 1)
    return np.bincount(y * size + predicted, minlength=size * size).reshape(size, size)


def shares_of(counts: Ints) -> tuple[Floats, Floats]:
    """Return counts as shares of each true class and of each predicted one, [C, C] both; NaN where there is none."""
    with np.errstate(invalid="ignore"):
        return counts / counts.sum(1, keepdims=True), counts / counts.sum(0, keepdims=True)


def _summary(counts: Ints, names: Sequence[str], text: str) -> Any:
    recall, precision = shares_of(counts)
    wrong = counts * (1 - np.eye(len(counts), dtype=np.int64))
    most = wrong.argmax(1)
    rows = [
        [names[c], int(counts[c].sum()), recall[c, c], precision[c, c]]
        + ([names[m], recall[c, m]] if wrong[c, m] else ["-", None])
        for c, m in enumerate(most)
    ]
    heads = {"class": None, "examples": None, "found, %": percent, "of those said, %": percent}
    return summary_table(text, heads | {"most often taken for": None, "%": percent}, rows)


def draw(counts: Ints, names: Sequence[str]) -> Figure:
    """Draw counts by true and predicted class, [C, C], as shares of the true class and of the predicted one."""
    import matplotlib

    shades = matplotlib.colormaps["Blues"].with_extremes(bad="#e5e7eb")
    size, short = len(counts), [n if len(n) <= 16 else f"{n[:8]}…{n[-7:]}" for n in names]
    step = -(-size // _NAMED)
    with drawing():
        figure, axes = panels(2, (WIDE[0], min(7.0, 2.2 + 0.25 * size)), sharey=True)
        for ax, table, text in zip(axes, shares_of(counts), ("true", "predicted"), strict=True):
            shown = np.ma.masked_invalid(100 * table)
            image = ax.imshow(shown, aspect="auto", cmap=shades, vmin=0, vmax=100, interpolation="none")
            bare(ax)
            title(ax, f"share of the {text} class (%)")
            ax.set_xticks(range(0, size, step), short[::step], rotation=90 if max(map(len, short)) > 2 else 0)
            ax.set_yticks(range(0, size, step), short[::step])
            ax.set_xlabel("predicted")
            for i, j in np.argwhere(counts) if size <= _WRITTEN else ():
                ink = "white" if table[i, j] > 0.6 else "#1f2328"
                ax.text(j, i, f"{100 * table[i, j]:.0f}", ha="center", va="center", fontsize=8, color=ink)
        axes[0].set_ylabel("true")
        figure.colorbar(image, ax=axes, pad=0.02, aspect=18).outline.set_visible(False)
    return figure
