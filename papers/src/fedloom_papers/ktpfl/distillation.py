"""Measure what distillation does to the models that clients have just trained: accuracy before it and after it.

The paper evaluates clients at the end of a round, after distillation; its released code after local training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.algorithms.shared.transfer import Transfer
from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import moves, panels, title
from fedloom.core.errors import SettingError
from fedloom.report.number_table import percent
from fedloom.report.style import WIDE, drawing
from fedloom_papers.reproduction.evidence import rows_of
from fedloom_papers.reproduction.results import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

TABLE = "distillation"


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure accuracy of clients after local training and after distillation, in one round (KT-pFL and its kin)."""
    job, number = run.job, run.single_round
    if not isinstance(job.algorithm, Transfer):
        raise SettingError(
            f"{type(job.algorithm).__name__} distils nothing on clients after they have trained: analyse a run of "
            "kt_pfl, fedmd_kt, fedmd, sim_pfl or topk_pfl"
        )
    trained, evaluated = run.past.replay(number).trained(), run.past.accuracies(number)
    clients = [k for k in sorted(trained) if k in evaluated]
    if not clients:
        raise SettingError(f"no client that trained in round {number} holds out examples: data.test_fraction above 0")
    names = [job.population.assignment[k] for k in clients]
    before = run.held_out_accuracy({k: trained[k] for k in clients})
    after = np.array([evaluated[k] for k in clients])
    rows = [[number, *row] for row in zip(clients, names, before.tolist(), after.tolist(), strict=True)]
    models = np.array(names)
    heads = {"model": None, "clients": None, "after local training": percent, "after distillation": percent}
    summary = [[name, *_means(before, after, models == name)] for name in dict.fromkeys(names)]
    if len(summary) > 1:
        summary.append(["all", *_means(before, after, models != "")])
    return AnalysisResult(
        draw(clients, before, after),
        summary_table(f"Accuracy on what clients hold out in round {number}, %, by model", heads, summary),
        [csv_table(TABLE, ["round", "client", "model", "trained", "distilled"], rows)],
        [sentence(number, before, after)],
    )


def sentence(number: int, before: Floats, after: Floats) -> str:
    """State both means in words."""
    return (
        f"in round {number} clients have {100 * float(before.mean()):.2f} % after local training and "
        f"{100 * float(after.mean()):.2f} % after distillation, which {int((after > before).sum())} of {len(after)} "
        f"gain by and {int((after < before).sum())} lose by."
    )


def told(run: Run) -> str | None:
    """Return the sentence of a run that was analysed, None where it was not.

    Raises:
        SettingError: the file is not what the analysis wrote.
    """
    with rows_of(run, TABLE) as rows:
        if rows is None:
            return None
        before, after = (np.array([float(row[name]) for row in rows]) for name in ("trained", "distilled"))
        return sentence(int(rows[0]["round"]), before, after)


def draw(clients: Sequence[int], before: Floats, after: Floats) -> Figure:
    """Draw each client's model as it was trained (ring) and as distillation left it (dot)."""
    with drawing():
        figure, (axes,) = panels(1, (WIDE[0] * 0.62, WIDE[1]))
        moves(axes, clients, {"": (before, after)})
        title(axes, "after local training (ring) and after distillation (dot)")
        axes.set_ylabel("accuracy (%)")
    return figure


def _means(before: Floats, after: Floats, which: npt.NDArray[np.bool_]) -> tuple[int, float, float]:
    return int(which.sum()), float(before[which].mean()), float(after[which].mean())
