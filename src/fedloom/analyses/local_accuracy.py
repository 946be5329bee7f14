"""Accuracy on clients' own class distributions and on the others (FedNTD, eq. 6 and 7; fig. 4 and 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.measures import LocalAccuracy, local_accuracy, pooled_accuracy
from fedloom.analyses.panels import IN, OUT, WHOLE, moves, panels, title, whole_ticks
from fedloom.report.number_table import percent
from fedloom.report.style import colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

_DOTS = (0, (1, 1.2))


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure in-local and out-local accuracy before and after local training (eq. 6 and 7; fig. 4 and 7).

    They are sum p a and sum (1 - p) a / (C - 1), by client and round; of the aggregated model on pooled examples.
    """
    rows: list[list[Any]] = []
    means: list[dict[str, Any]] = []
    last: tuple[Sequence[int], LocalAccuracy, LocalAccuracy] | None = None
    for m in run.replayed_rounds():
        before, after = local_accuracy(m.counts, m.start_accuracy), local_accuracy(m.counts, m.trained_accuracy)
        four = zip(before.inside, after.inside, before.outside, after.outside, strict=True)
        rows += [[m.number, k, int(n), *values] for k, n, values in zip(m.clients, before.sizes, four, strict=True)]
        both: dict[str, tuple[float, float]] = {}
        for when, found in (("before", before), ("after", after)):
            both |= {f"{when}_mean": found.mean(), f"{when}_std": found.std(), f"{when}_weighted": found.weighted()}
        both["aggregated"] = pooled_accuracy(m.counts, m.after_accuracy)
        row = {f"{where}_{name}": pair[i] for name, pair in both.items() for i, where in enumerate(("in", "out"))}
        means.append({"round": m.number} | row | {"accuracy_aggregated": float(np.nanmean(m.after_accuracy))})
        last = (m.clients, before, after)
    assert last is not None  # else `replayed_rounds` has raised
    names = ["round", "client", "examples", "in_before", "in_after", "out_before", "out_after"]
    curves = {name: np.array([row[name] for row in means]) for name in means[0]}
    summary = [list(row.values()) for row in means]
    tables = [csv_table("local-accuracy", names, rows), csv_table("local-accuracy-rounds", list(curves), summary)]
    heads = {
        "round": "round",
        "in: before": "in_before_mean", "after": "in_after_mean", "aggregated": "in_aggregated",
        "out: before": "out_before_mean", "after ": "out_after_mean", "aggregated ": "out_aggregated",
    }  # fmt: skip
    shown = summary_table(
        "Accuracy on clients' own classes (in) and the others (out), %, mean over clients",
        {h: None if h == "round" else percent for h in heads},
        [[row[name] for name in heads.values()] for row in means],
    )
    remarks = ["Aggregated: the global model after the round, on the pooled classes of the round's clients."]
    remarks += run.left_out(row["round"] for row in means)
    return AnalysisResult(draw(*last, curves), shown, tables, remarks)


def draw(clients: Sequence[int], before: LocalAccuracy, after: LocalAccuracy, curves: Mapping[str, Floats]) -> Figure:
    """Draw the clients of the last round and, where there are several rounds, means by `round`, [T] each.

    The clients are on the left, the means on the right.
    Drawn of `curves`: {in,out}_{before_mean,after_mean,aggregated} and accuracy_aggregated.
    """
    rounds = curves["round"]
    with drawing():
        figure, axes = panels(2 if len(rounds) > 1 else 1)
        moves(
            axes[0], clients, {"in-local": (before.inside, after.inside), "out-local": (before.outside, after.outside)}
        )
        title(axes[0], f"clients of round {rounds[-1]}: before (ring) and after (dot)")
        axes[0].set_ylabel("accuracy (%)")
        for when, style in (("before_mean", (0, (4, 2))), ("after_mean", "-"), ("aggregated", _DOTS)):
            for where, number in (("in", IN), ("out", OUT)):
                line, name = curves[f"{where}_{when}"] * 100, f"{where}-local, {when.removesuffix('_mean')}"
                if len(rounds) > 1:
                    axes[1].plot(rounds, line, ls=style, marker="o", ms=3.5, color=colour(number), label=name)
                if when == "aggregated":
                    axes[0].axhline(line[-1], ls=style, lw=1.3, color=colour(number), label=name)
        if len(rounds) > 1:
            whole = curves["accuracy_aggregated"] * 100
            axes[1].plot(
                rounds, whole, marker="o", ms=3.5, color=colour(WHOLE), lw=1.3, label="all classes, aggregated"
            )
            axes[1].set_xlabel("round")
            axes[1].set_ylim(0, 102)
            whole_ticks(axes[1], rounds)
            title(axes[1], "mean over the clients of a round")
        figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower right", ncols=4, handlelength=2.4)
    return figure
