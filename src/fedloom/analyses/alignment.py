"""The share of neurons that keep the class that they prefer (FedNTD, section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.measures import alignment, class_activations
from fedloom.analyses.panels import panels
from fedloom.report.number_table import percent
from fedloom.report.style import WIDE, colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure the share of neurons that prefer the same class in received, local, aggregated models (section 5.1)."""
    m = run.replayed()
    network, test = run.network, run.test
    start, after = (class_activations(network, w, test) for w in (m.start, m.after))
    others = {str(k): class_activations(network, w, test) for k, w in zip(m.clients, m.trained, strict=True)}
    others["aggregated"] = after
    rows: list[list[Any]] = []
    for layer, means in start.items():
        for name, found in others.items():
            a = alignment(means, found[layer])
            rows.append([layer, name, a.neurons, a.share, a.alive, *a.dead])
    names = ["layer", "model", "neurons", "share", "share_alive", "dead_in_received", "dead_in_model"]
    summary: list[list[Any]] = []
    for layer in start:
        mine = np.array([r[3:7] for r in rows if r[0] == layer and r[1] != "aggregated"], np.float64)
        whole = next(r for r in rows if r[0] == layer and r[1] == "aggregated")
        finite = mine[np.isfinite(mine[:, 1]), 1]
        alive = finite.mean() if len(finite) else np.nan
        dead = f"{whole[5]}, {mine[:, 3].mean():.1f}, {whole[6]}"
        summary.append([layer, whole[2], mine[:, 0].mean(), alive, whole[3], whole[4], dead])
    heads = {"layer": None, "neurons": None, "local, %": percent, "alive, %": percent, "aggregated, %": percent}
    heads |= {"alive, % ": percent, "dead: received, local, aggregated": None}
    return AnalysisResult(
        draw(rows, list(start)),
        summary_table(
            f"Neurons that prefer the same class as in the model received in round {m.number}", heads, summary
        ),
        [csv_table("alignment", ["round", *names], [[m.number, *row] for row in rows])],
        [
            "On the test set, after the non-linearity; a channel is one neuron. A dead neuron counts as preferring "
            "class 0; alive: only neurons that are alive in both models."
        ],
    )


def draw(rows: Sequence[Sequence[Any]], layers: Sequence[str]) -> Figure:
    """Draw rows: layer, model, neurons, share, share of the living, ...; the aggregated model is that of this name."""
    with drawing():
        figure, (axes,) = panels(1, (WIDE[0], 1.3 + 0.62 * len(layers)))
        for place, layer in enumerate(layers):
            mine = [r for r in rows if r[0] == layer]
            for shift, column, number in ((-0.16, 3, 0), (0.16, 4, 1)):
                local = np.array([r[column] for r in mine if r[1] != "aggregated"], np.float64) * 100
                whole = [r[column] * 100 for r in mine if r[1] == "aggregated"]
                first = place == 0
                kind = ("all neurons", "alive in both")[number]
                at = np.full(len(local), place + shift)
                axes.plot(
                    local,
                    at,
                    "o",
                    ms=5,
                    alpha=0.45,
                    mew=0,
                    color=colour(number),
                    label=f"local, {kind}" if first else None,
                )
                axes.plot(
                    whole, [place + shift], "D", ms=7, mfc="white", mec=colour(number), mew=1.6,
                    label=f"aggregated, {kind}" if first else None,
                )  # fmt: skip
        axes.set_yticks(
            range(len(layers)), [f"{layer} ({next(r[2] for r in rows if r[0] == layer)})" for layer in layers]
        )
        axes.set_ylim(len(layers) - 0.5, -0.5)
        axes.set_xlim(-1, 101)
        axes.set_xlabel("neurons that prefer the same class as in the received model (%)")
        axes.set_ylabel("layer (neurons)")
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        figure.legend(loc="outside lower right", ncols=4)
    return figure
