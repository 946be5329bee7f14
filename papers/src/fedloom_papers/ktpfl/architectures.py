"""The accuracy of personal models by architecture, in a run with several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import panels, title, whole_ticks
from fedloom.coordinator import History
from fedloom.core.errors import SettingError
from fedloom.report.number_table import percent
from fedloom.report.style import WIDE, colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure the accuracy of the personal models by architecture, after each round."""
    rounds, found = by_architecture(run.history)
    if not rounds:
        raise SettingError(f"the run in {run.directory} has evaluated no personal model by client: analyse another run")
    rows = [[t, name, *line[i]] for i, t in enumerate(rounds) for name, line in found.items()]
    heads = {"model": None, "clients": None, "mean": percent, "least": percent}
    summary = [[name, *line[-1]] for name, line in found.items()]
    return AnalysisResult(
        draw(rounds, found),
        summary_table(f"Accuracy on what clients hold out after round {rounds[-1]}, %, by model", heads, summary),
        [csv_table("architectures", ["round", "model", "clients", "mean", "least"], rows)],
    )


def by_architecture(history: History) -> tuple[list[int], dict[str, list[tuple[int, float, float]]]]:
    """Return the rounds that evaluated clients, and by model how many clients, mean and least accuracy in each.

    Clients have the run's models in turn, as every run in words gives them.
    """
    names = list(history.manifest.get("models", ()))
    evaluated = {
        int(m["round"]): {int(k): a for k, a in m["personal_by_client"].items() if a is not None}
        for m in history.metrics
        if m["round"] > 0 and m.get("personal_by_client")
    }
    out: dict[str, list[tuple[int, float, float]]] = {}
    for i, name in enumerate(names):
        of = [[a for k, a in accuracies.items() if k % len(names) == i] for accuracies in evaluated.values()]
        if all(of):
            out[name] = [(len(values), float(np.mean(values)), min(values)) for values in of]
    return list(evaluated), out


def draw(rounds: list[int], found: Mapping[str, list[tuple[int, float, float]]]) -> Figure:
    """Draw a line for each model."""
    with drawing():
        figure, (axes,) = panels(1, (WIDE[0] * 0.62, WIDE[1]))
        for i, (name, line) in enumerate(found.items()):
            axes.plot(rounds, [100 * mean for _, mean, _ in line], "o-", ms=3, color=colour(i), label=name)
        axes.set_xlabel("round")
        axes.set_ylabel("personal accuracy (%)")
        whole_ticks(axes, rounds)
        title(axes, "mean over the clients with each model")
        figure.legend(loc="outside lower right", ncols=4)
    return figure
