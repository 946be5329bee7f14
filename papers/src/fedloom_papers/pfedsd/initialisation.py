"""Figure 2 of pFedSD: personal accuracy of local models and of the global model that replaces them, by round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import title, whole_ticks
from fedloom.core.errors import SettingError
from fedloom.report.number_table import percent
from fedloom.report.style import WIDE, colour, drawing
from fedloom_papers import recipes
from fedloom_papers.pfedsd.claims import alike
from fedloom_papers.pfedsd.scenarios import SCENARIOS
from fedloom_papers.reproduction.results import Result, Run, read
from fedloom_papers.reproduction.run_lengths import length

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

METHODS = {"fedavg": "FedAvg", "pfedsd": "pFedSD"}
ALL, COHORT = "all clients", "a round's clients"
_PER_ROW = 4  # panels


class Curves(NamedTuple):
    """Accuracies by round, means over seeds: of local models, and of the global model from which clients start."""

    table: str
    column: str
    method: str
    clients: str  # over whom they are means
    seeds: int
    rounds: list[int]
    local: Floats
    received: Floats


def figure_2(folders: Sequence[Path]) -> AnalysisResult:
    """Compare clients' local models with the global model that they start from, by round (pFedSD, figure 2)."""
    found = [curves for table in SCENARIOS for curves in _of(table, folders)]
    if not found:
        raise SettingError(
            f"{', '.join(map(str, folders))} holds neither runs of fedavg and fedavg_stored of the same column and "
            "seed, which train the same models, nor runs of fedavg or pfedsd with run.per_client: name what --out named"
        )
    rows = [
        [c.table, c.column, c.method, c.clients, t, local, received]
        for c in found
        for t, local, received in zip(c.rounds, c.local, c.received, strict=True)
    ]
    heads = ["table", "column", "method", "clients", "round", "local", "received"]
    summary = [
        [c.column, c.method, c.clients, c.seeds, len(c.rounds), c.local.mean(), c.received.mean(), _drop(c)]
        for c in found
    ]
    shown = ["column", "method", "clients", "seeds", "rounds", "local", "received", "drop"]
    return AnalysisResult(
        draw(found),
        summary_table("Mean accuracy over rounds, %", {h: percent if h in shown[5:] else None for h in shown}, summary),
        [csv_table("pfedsd-figure-2", heads, rows)],
        [
            f"Of {ALL}: of each the model that it trained last, and the global model, both after the round. Of "
            f"{COHORT}: of each the model that it received, and what it trained of it in that round."
        ],
    )


def _drop(c: Curves) -> float:
    return float((c.local - c.received).mean())


def _of(table: str, folders: Sequence[Path]) -> Iterator[Curves]:
    """Yield the curves of each column of a table that has runs for them."""
    there = {(r.recipe.column, r.recipe.row): r for r in read(recipes(table), folders) if r.seeds}
    for column in dict.fromkeys(column for column, _ in there):
        for row in METHODS:
            logged = _logged(there.get((column, row)))
            if logged:
                yield _mean(table, column, row, COHORT, logged)
            elif row == "fedavg" and (pairs := _pairs(there.get((column, row)), there.get((column, "fedavg_stored")))):
                yield _mean(table, column, row, ALL, pairs)


def _logged(r: Result | None) -> list[dict[int, tuple[float, float]]]:
    """Return both accuracies by round of each run that has measured its clients around local training."""
    found = [_both(r.runs[s], "trained_accuracy", r.runs[s], "received_accuracy") for s in r.seeds] if r else []
    return [one for one in found if one]


def _pairs(received: Result | None, stored: Result | None) -> list[dict[int, tuple[float, float]]]:
    """Return both accuracies by round of each seed of FedAvg that was run with either model as the personal one."""
    if received is None or stored is None:
        return []
    out = []
    for seed in sorted(set(received.seeds) & set(stored.seeds)):
        one, other = received.runs[seed], stored.runs[seed]
        if alike(one, other, "train_loss", received.wanted)[1] is None:  # the same models
            out.append(_both(other, "personal_accuracy", one, "personal_accuracy"))
    return [one for one in out if one]


def _both(local: Run, name: str, received: Run, other: str) -> dict[int, tuple[float, float]]:
    values = {m["round"]: m.get(name) for m in local.history.metrics}
    pairs = {m["round"]: (values.get(m["round"]), m.get(other)) for m in received.history.metrics if m["round"]}
    return {t: (float(a), float(b)) for t, (a, b) in pairs.items() if a is not None and b is not None}


def _mean(table: str, column: str, row: str, clients: str, found: Sequence[dict[int, tuple[float, float]]]) -> Curves:
    rounds = sorted(set.intersection(*map(set, found)))
    means = np.array([[one[t] for t in rounds] for one in found], np.float64).reshape(len(found), -1, 2).mean(0)
    return Curves(table, column, row, clients, len(found), rounds, means[:, 0], means[:, 1])


def draw(found: Sequence[Curves]) -> Figure:
    """Draw a panel for each column: local models (solid) and the global model that replaces them (dashed)."""
    from matplotlib.figure import Figure

    columns = list(dict.fromkeys((c.table, c.column) for c in found))
    wide, high = min(_PER_ROW, len(columns)), -(-len(columns) // _PER_ROW)
    with drawing():
        figure = Figure(figsize=(WIDE[0], WIDE[1] * high), layout="constrained")
        axes = figure.subplots(high, wide, squeeze=False, sharey=True)
        for ax, place in zip(axes.flat, columns, strict=False):
            mine = [c for c in found if (c.table, c.column) == place]
            for c in mine:
                look = colour(list(METHODS).index(c.method))
                ax.plot(c.rounds, 100 * c.local, color=look, label=f"{METHODS[c.method]}, local models")
                ax.plot(
                    c.rounds, 100 * c.received, color=look, ls=(0, (4, 2)), label=f"{METHODS[c.method]}, global model"
                )
                ax.fill_between(c.rounds, 100 * c.local, 100 * c.received, color=look, alpha=0.08, lw=0)
                whole_ticks(ax, c.rounds)
            ax.set_ylim(0, 102)
            ax.set_xlabel("round")
            long = length([c.rounds[-1] for c in mine], SCENARIOS[place[0]].rounds, [c.seeds for c in mine])
            title(ax, f"{place[1]}\n{long}")
        for ax in list(axes.flat)[len(columns) :]:
            ax.set_visible(False)
        for ax in axes[:, 0]:
            ax.set_ylabel("personal accuracy (%)")
        handles = {label: h for ax in axes.flat for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    return figure
