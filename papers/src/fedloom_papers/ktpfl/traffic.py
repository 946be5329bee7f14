"""Count what a run has sent, beside what it would have cost to send the clients' models both ways, as FedAvg does."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import panels, title, whole_ticks
from fedloom.coordinator import History
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.report.style import WIDE, colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WAYS = ("down", "up")


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure the bytes of every round, beside those of sending each client's model down and up, as FedAvg does."""
    p = run.job.population
    sizes = {name: tree.nbytes(model.init(0)) for name, model in p.models.items()}
    asked = [(m, m["clients"]) for m in run.history.metrics if m.get("clients")]
    if not asked:
        raise SettingError(f"the run in {run.directory} has asked no client, so nothing was sent: analyse another run")
    rows = [
        [int(m["round"]), len(clients), m["bytes_down"], m["bytes_up"], sum(sizes[p.assignment[k]] for k in clients)]
        for m, clients in asked
    ]
    sent, models = sum(row[2] + row[3] for row in rows), sum(2 * row[4] for row in rows)
    mebi = [[f"{way}, this run", sum(row[i] for row in rows) / 2**20] for way, i in zip(WAYS, (2, 3), strict=True)]
    mebi += [[f"{way}, models", models / 2 / 2**20] for way in WAYS]
    return AnalysisResult(
        draw(rows),
        summary_table(f"MiB in {len(rows)} rounds", {"": None, "MiB": lambda v: f"{v:,.2f}"}, mebi),
        [csv_table("traffic", ["round", "clients", "down", "up", "models_each_way"], rows)],
        [sentence(run.history, sent, models)],
    )


def sentence(history: History, sent: int, models: int) -> str:
    """Say how many times the bytes of the run it takes to send the models both ways."""
    ratio = models / sent if sent else float("inf")
    return f"To send the models both ways takes {ratio:,.1f} times the bytes of this run of {history.algorithm}."


def draw(rows: list[list[int]]) -> Figure:
    """Draw bytes since the start, of this run and of models, on a logarithmic scale."""
    with drawing():
        figure, (axes,) = panels(1, (WIDE[0] * 0.62, WIDE[1]))
        rounds = [row[0] for row in rows]
        sent = [row[2] + row[3] for row in rows]
        models = [2 * row[4] for row in rows]
        for i, (name, values) in enumerate({"this run": sent, "models": models}.items()):
            total = [value / 2**20 for value in itertools.accumulate(values)]
            axes.plot(rounds, total, "o-", ms=3, color=colour(i), label=name)
        axes.set_yscale("log")
        axes.set_xlabel("round")
        axes.set_ylabel("MiB since the start")
        whole_ticks(axes, rounds)
        title(axes, "down and up, all clients")
        figure.legend(loc="outside lower right", ncols=2)
    return figure
