"""The disagreement of clients' gradients (FedNTD, definition 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.measures import cosines, gradient, gradient_diversity, gram
from fedloom.analyses.panels import cosine_map, panels, title, whole_ticks
from fedloom.report.number_table import amount
from fedloom.report.style import FAINT, colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure gradient diversity of a round's clients at the global model that they receive (definition 2).

    It is the mean squared norm of the clients' gradients over the squared norm of their mean, at w^t.
    """
    rows: list[list[Any]] = []
    for m in run.replayed_rounds():
        table = torch.stack([gradient(run.network, m.start, run.task, m.own(i)) for i in range(len(m.clients))])
        mean = float(table.double().mean(0).norm())
        norms = table.double().norm(dim=1)
        rows.append([m.number, len(m.clients), gradient_diversity(table), float(norms.mean()), mean])
        clients, between = m.clients, cosines(gram(table))  # in the end those of the last round
    names = ["round", "clients", "diversity", "mean_norm", "norm_of_mean"]
    pairs = [[k, *row] for k, row in zip(clients, between, strict=True)]
    heads = {"round": None, "clients": None, "diversity": amount, "mean norm": amount, "norm of the mean": amount}
    return AnalysisResult(
        draw(np.array(rows, np.float64), clients, between),
        summary_table("Gradient diversity: 1 where all clients agree", heads, rows),
        [
            csv_table("gradient-diversity", names, rows),
            csv_table("gradient-diversity-cosines", ["client", *map(str, clients)], pairs),
        ],
        [
            "Full gradients over each client's training examples, not augmented, in evaluation mode.",
            *run.left_out(row[0] for row in rows),
        ],
    )


def draw(curve: Floats, clients: Sequence[int], between: Floats) -> Figure:
    """Draw gradient diversity over rounds, and cosines between clients, [K, K].

    `curve`: round, clients, diversity, mean norm, norm of the mean, [T, 5].
    """
    with drawing():
        figure, axes = panels(2)
        axes[0].plot(curve[:, 0], curve[:, 2], "o-", ms=4, color=colour(0))
        axes[0].axhline(1, color=FAINT, lw=0.8, ls=(0, (4, 3)))
        axes[0].set_ylim(bottom=0)
        axes[0].set_xlabel("round")
        axes[0].set_ylabel("gradient diversity Λ")
        whole_ticks(axes[0], curve[:, 0])
        title(axes[0], "at the model that the clients receive (1: all agree)")
        cosine_map(figure, axes[1], between, [str(k) for k in clients], "client")
        title(axes[1], f"cosine between clients' gradients, round {curve[-1, 0]:.0f}")
    return figure
