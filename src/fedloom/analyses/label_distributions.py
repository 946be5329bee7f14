"""Class distributions of clients and their complements (FedNTD, eq. 6 and 7; fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, ratio, summary_table
from fedloom.analyses.measures import complement, shares
from fedloom.analyses.panels import bare, panels, title
from fedloom.core.errors import SettingError
from fedloom.report.style import WIDE, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

_CLIENTS = 10


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure class distributions p of ten clients, and the out-local ones (1 - p) / (C - 1) (eq. 6 and 7; fig. 3).

    They are the first ten that have examples.
    """
    held = run.history.federation
    if not held:
        raise SettingError(
            f"the run in {run.directory} has no federation.json, which says how many examples of each class a client "
            "has: restore it, or resume the run, which writes it"
        )
    if held["classes"] < 2:
        raise SettingError(f"an out-local distribution needs at least two classes, got {held['classes']}")
    filled = [(k, counts) for k, counts in zip(held["shown"], held["train"], strict=True) if any(counts)][:_CLIENTS]
    clients, counts = [k for k, _ in filled], np.array([row for _, row in filled], np.int64)
    inside = shares(counts)
    outside = complement(inside)
    rows = [
        [k, c, int(counts[i, c]), inside[i, c], outside[i, c]]
        for i, k in enumerate(clients)
        for c in range(held["classes"])
    ]
    largest = counts.argmax(1)
    summary = [
        [k, int(counts[i].sum()), int((counts[i] > 0).sum()), int(c), inside[i, c], outside[i, c]]
        for i, (k, c) in enumerate(zip(clients, largest, strict=True))
    ]
    heads = {"client": None, "examples": None, "classes": None, "largest class": None, "its share": ratio}
    return AnalysisResult(
        draw(clients, inside, outside),
        summary_table("Class distributions of clients", heads | {"out-local": ratio}, summary),
        [csv_table("label-distributions", ["client", "class", "examples", "in_local", "out_local"], rows)],
        [f"Both distributions of a client sum to 1; out-local no class has more than 1 / {held['classes'] - 1}."],
    )


def draw(clients: Sequence[int], inside: Floats, outside: Floats) -> Figure:
    """Draw both distributions by client and class, [K, C] each: in-local on the left, out-local on the right."""
    classes = inside.shape[1]
    with drawing():
        figure, axes = panels(2, (WIDE[0], min(6.5, 1.8 + 0.24 * classes)), sharey=True)
        for ax, table, text, top in (
            (axes[0], inside, "in-local distribution p (%)", 100.0),
            (axes[1], outside, "out-local distribution (1 − p) / (C − 1) (%)", 100 / (classes - 1)),
        ):
            image = ax.imshow(100 * table.T, aspect="auto", cmap="Blues", vmin=0, vmax=top, interpolation="none")
            bare(ax)
            title(ax, text)
            ax.set_xticks(range(len(clients)), [str(k) for k in clients])
            ax.set_xlabel("client")
            figure.colorbar(image, ax=ax, pad=0.02, aspect=18).outline.set_visible(False)
        if classes <= 20:
            axes[0].set_yticks(range(classes))
        axes[0].set_ylabel("class")
    return figure
