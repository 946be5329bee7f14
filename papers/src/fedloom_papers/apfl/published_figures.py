"""Figures 1 to 3 of APFL, of runs of its recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import panels, title, whole_ticks
from fedloom.core.errors import SettingError
from fedloom.report.style import WIDE, colour, drawing
from fedloom_papers import recipes
from fedloom_papers.apfl.claims import ALL_CLIENTS, measured
from fedloom_papers.apfl.recipes import EPOCHS, FIGURE_3, RATES
from fedloom_papers.reproduction.results import Result, curve, read
from fedloom_papers.reproduction.run_lengths import length, length_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

METHODS = {
    "fedavg": "FedAvg", "fedprox": "FedProx", "fedcurv_ni": "FedCurv", "fedmeta": "FedMeta", "apfl_ni": "APFL",
    "iid": "IID reference",
}  # fmt: skip
SWEPT = ("fedavg", "fedprox", "apfl_ni")  # in figure 3
ACCURACY = "personal_accuracy_by_samples"
COHORT = "train_loss"


def figure_1(folders: Sequence[Path]) -> AnalysisResult:
    """Compare mean and best accuracy of the methods on each data set (figure 1)."""
    found = _there("apfl-comparison", folders)
    rows = [[r.recipe.column, r.recipe.row, r.accuracy, r.best, r.rounds, len(r.numbers)] for r in found]
    heads = ["data", "method", "mean", "best", "rounds", "seeds"]
    return AnalysisResult(
        _bars(found),
        summary_table("Accuracy, %", {h: _two if h in ("mean", "best") else None for h in heads}, rows),
        [csv_table("apfl-figure-1", heads, rows)],
        ["Bars: the mean over all rounds; a line above each: the best round, chosen on the test examples."],
    )


def figure_2(folders: Sequence[Path]) -> AnalysisResult:
    """Compare accuracy and training loss by round, with a star where importance was measured (figure 2).

    The loss of a data set is that over all clients, as in the paper, where each method there has a run that logs it.
    """
    found = [r for r in _there("apfl-comparison", folders) if r.recipe.row != "iid"]
    losses = {column: _loss(mine) for column, mine in _of_each(found).items()}
    rows = [
        [r.recipe.column, r.recipe.row, name, t, value]
        for r in found
        for name in (ACCURACY, losses[r.recipe.column])
        for t, value in zip(*curve(r, name), strict=True)
    ]
    old = [column for column, name in losses.items() if name == COHORT]
    lacks = (
        f"On {', '.join(old)} not every method has a run with the training loss over all clients, which recipes ask "
        "for since (run.evaluate_training): the loss drawn is that of the clients of a round as they train, with a "
        "method's own terms."
    )
    marks = [[r.recipe.column, seed, t] for r in found for seed, rounds in stars(r).items() for t in rounds]
    return AnalysisResult(
        _curves(found, losses),
        summary_table("Rounds in which importance was measured", {"data": None, "seed": None, "round": None}, marks),
        [
            csv_table("apfl-figure-2", ["data", "method", "number", "round", "value"], rows),
            csv_table("apfl-figure-2-measured", ["data", "seed", "round"], marks),
        ],
        ["Means over seeds.", *[lacks] * bool(old)],
    )


def figure_3(folders: Sequence[Path]) -> AnalysisResult:
    """Compare mean accuracy of APFL, FedAvg and FedProx over local epochs and over rates (figure 3).

    Means of one data set are over as many rounds as all of its runs have.
    """
    swept = {"apfl-epochs": ("e", EPOCHS), "apfl-rate": ("lr", RATES)}
    lines: dict[tuple[str, str], dict[str, Floats]] = {}
    lengths: dict[tuple[str, str], str] = {}
    rows: list[list[object]] = []
    unequal: list[str] = []
    for table, (short, values) in swept.items():
        there = {(r.recipe.column, r.recipe.row): r for r in read(recipes(table), folders) if r.accuracy is not None}
        over = table.removeprefix("apfl-")
        for data in FIGURE_3[table]:
            places = {(row, value): (f"{data}-{short}{value:g}", row) for row in SWEPT for value in values}
            found = {at: there[place] for at, place in places.items() if place in there}
            if not found:
                continue
            curves = {at: curve(r, ACCURACY) for at, r in found.items()}
            ends = {rounds[-1] for rounds, _ in curves.values()}
            until = min(ends)
            means = {at: 100 * shares[np.array(rounds) <= until].mean() for at, (rounds, shares) in curves.items()}
            rows += [[data, over, *at, means[at], until, len(r.numbers)] for at, r in found.items()]
            lines[data, table] = {
                row: np.array([means.get((row, value), np.nan) for value in values])
                for row in dict.fromkeys(row for row, _ in found)
            }
            published, seeds = max(r.recipe.rounds for r in found.values()), [len(r.numbers) for r in found.values()]
            lengths[data, table] = length([until], published, seeds)
            if len(ends) > 1:
                unequal.append(f"the first {until} of up to {max(ends)} on {data} over {over}")
    if not lines:
        raise _nothing(folders, " or ".join(swept))
    heads = ["data", "over", "method", "value", "accuracy", "rounds", "seeds"]
    return AnalysisResult(
        _lines(lines, lengths, {table: values for table, (_, values) in swept.items()}),
        summary_table("Mean accuracy, %", {h: _two if h == "accuracy" else _plain for h in heads}, rows),
        [csv_table("apfl-figure-3", heads, rows)],
        [f"Not all runs are equally long. Means are over {'; '.join(unequal)}."] if unequal else [],
    )


def stars(r: Result) -> Mapping[int, list[int]]:
    """Return the rounds in which runs have measured importance, by seed."""
    found = {seed: measured(r.runs[seed], r.rounds) for seed in r.seeds}
    return {seed: rounds for seed, rounds in found.items() if rounds}


def _loss(found: Sequence[Result]) -> str:
    """Return the name of the loss that all methods of a data set can be compared by."""
    return ALL_CLIENTS if all(curve(r, ALL_CLIENTS)[0] for r in found) else COHORT


def _there(table: str, folders: Sequence[Path]) -> list[Result]:
    found = [r for r in read(recipes(table), folders) if r.recipe.row in METHODS and r.accuracy is not None]
    if not found:
        raise _nothing(folders, table)
    return found


def _nothing(folders: Sequence[Path], table: str) -> SettingError:
    return SettingError(f"{', '.join(map(str, folders))} holds no runs of {table}; name what --out named")


def _of_each(found: Sequence[Result]) -> dict[str, list[Result]]:
    out: dict[str, list[Result]] = {}
    for r in found:
        out.setdefault(r.recipe.column, []).append(r)
    return out


def _two(value: float) -> str:
    return f"{value:.2f}"


def _plain(value: float) -> str:
    return f"{value:g}"


def _bars(found: Sequence[Result]) -> Figure:
    columns = _of_each(found)
    with drawing():
        figure, (axes,) = panels(1)
        for place, mine in enumerate(columns.values()):
            for r in mine:
                i = list(METHODS).index(r.recipe.row)
                x, label = place + 0.13 * (i - 2.5), METHODS[r.recipe.row]
                axes.bar(x, r.accuracy or 0, 0.12, color=colour(i), label=label)
                if r.best is not None:
                    axes.hlines(r.best, x - 0.055, x + 0.055, lw=2, color=colour(i))
        long = {column: length_of(mine).replace(", ", "\n") for column, mine in columns.items()}
        axes.set_xticks(range(len(columns)), [f"{column}\n{text}" for column, text in long.items()])
        axes.set_ylabel("accuracy (%)")
        title(axes, "mean over rounds (bar) and best round (line)")
        _legend(figure, [axes])
    return figure


def _curves(found: Sequence[Result], losses: Mapping[str, str]) -> Figure:
    from matplotlib.figure import Figure

    columns = _of_each(found)
    with drawing():
        figure = Figure(figsize=(max(WIDE[0], 2.7 * len(columns)), 6), layout="constrained")
        axes = figure.subplots(2, len(columns), squeeze=False)
        for place, (column, mine) in enumerate(columns.items()):
            of_whom = "all clients" if losses[column] == ALL_CLIENTS else "clients of a round"
            for row, (name, label) in enumerate(((ACCURACY, "accuracy (%)"), (losses[column], "training loss"))):
                ax, scale = axes[row][place], 100 if name == ACCURACY else 1
                for r in mine:
                    i = list(METHODS).index(r.recipe.row)
                    rounds, values = curve(r, name)
                    dashed = {"ls": (0, (3, 2))} if r.recipe.row == "fedcurv_ni" else {}  # often on FedAvg's line
                    ax.plot(rounds, scale * values, color=colour(i), lw=1.2, label=METHODS[r.recipe.row], **dashed)
                    at = sorted({t for late in stars(r).values() for t in late} & set(rounds))
                    there = [scale * values[rounds.index(t)] for t in at]
                    ax.plot(at, there, ls="", marker="*", ms=9, mec="white", mew=0.5, color=colour(i))
                whole_ticks(ax, rounds)
                ax.set_xlabel("round")
                if place == 0:
                    ax.set_ylabel(label)
                title(ax, of_whom if row else f"{column}\n{length_of(mine)}")
        _legend(figure, list(axes.flat))
    return figure


def _lines(
    lines: Mapping[tuple[str, str], Mapping[str, Floats]],
    lengths: Mapping[tuple[str, str], str],
    values: Mapping[str, Sequence[float]],
) -> Figure:
    with drawing():
        figure, axes = panels(len(lines))
        for ax, ((data, table), found) in zip(axes, lines.items(), strict=True):
            for row, line in found.items():
                i = list(METHODS).index(row)
                ax.plot(range(len(line)), line, marker="o", ms=3.5, color=colour(i), label=METHODS[row])
            ax.set_xticks(range(len(values[table])), [f"{value:g}" for value in values[table]])
            ax.set_xlim(-0.3, len(values[table]) - 0.7)  # also where one value alone was run
            ax.set_xlabel("local epochs" if table == "apfl-epochs" else "rate")
            title(ax, f"{data}\n{lengths[data, table]}")
        axes[0].set_ylabel("mean accuracy (%)")
        _legend(figure, axes)
    return figure


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    handles = {label: h for ax in axes for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6)
