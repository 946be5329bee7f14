"""The spread of methods' accuracies over label skew and participation, from runs of recipes (pFedSD's robustness)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import panels, title
from fedloom.core.errors import SettingError
from fedloom.report.style import WIDE, colour, dashes, drawing
from fedloom_papers import recipes
from fedloom_papers.reproduction.results import Result, read
from fedloom_papers.reproduction.run_lengths import length_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Curves = dict[str, dict[str, Floats]]  # by data set and method: accuracy in % by column, NaN where there is no run


def spread(table: str, folders: Sequence[Path], rounds: int | None = None) -> AnalysisResult:
    """Measure the accuracy of every method against label skew and participation, and how far it moves over them.

    Args:
        table: a table of this study.
        folders: of results, as `fedloom reproduce --out` names them.
        rounds: take numbers after at most so many.

    Returns:
        Of the runs with as many rounds and the settings that most have; a remark names the others.

    Raises:
        SettingError: there is no such table, or none of its recipes has runs.
    """
    there = [r for r in read(recipes(table), folders, rounds) if r.accuracy is not None]
    if not there:
        raise SettingError(f"{', '.join(map(str, folders))} holds no runs of {table}; name what --out named")
    (usual, _), *_ = Counter(map(_asked, there)).most_common()
    found = [r for r in there if _asked(r) == usual]
    odd = [f"{r.recipe.column} {r.recipe.row} ({r.rounds} rounds, {_settings(r)})" for r in there if _asked(r) != usual]
    others = f"Left out, with other rounds or settings than {_settings(found[0])} after {usual[0]} rounds: "
    columns, curves = _curves(found)
    names = ["data", "column", "method", "accuracy", "std", "last", "rounds", "seeds"]
    rows = [[*_parts(r), r.recipe.row, r.accuracy, r.std, r.last, r.rounds, len(r.seeds)] for r in found]
    summary = [
        [data, method, int(np.isfinite(line).sum()), low := np.nanmin(line), high := np.nanmax(line), high - low]
        for data, lines in curves.items() for method, line in lines.items()
    ]  # fmt: skip
    heads = {"data": None, "method": None, "columns": None, "lowest": _two, "highest": _two, "spread": _two}
    return AnalysisResult(
        draw(columns, curves, {data: length_of([r for r in found if _parts(r)[0] == data]) for data in columns}),
        summary_table("Personal accuracy over label skew and participation, %", heads, summary),
        [csv_table(f"{table}-spread", names, rows)],
        [f"{others}{'; '.join(odd)}."] * bool(odd),
    )


def _asked(r: Result) -> tuple[int, str]:
    """Return what runs must have alike for their accuracies to be compared: rounds, and changes to their recipes."""
    return r.rounds, _settings(r)


def _settings(r: Result) -> str:
    changed = ", ".join(f"{key} = {', '.join(map(str, values))}" for key, values in sorted(r.changed.items()))
    return changed or "the recipe's settings"


def _two(value: float) -> str:
    return f"{value:.2f}"


def _parts(r: Result) -> tuple[str, str]:
    """Return the data set of a column, and the rest of its name."""
    data, _, rest = r.recipe.column.partition("-")
    return data, rest


def _curves(found: Sequence[Result]) -> tuple[dict[str, list[str]], Curves]:
    """Return the columns of each data set that have runs, and the accuracies of each method over these."""
    columns: dict[str, list[str]] = {}
    for r in found:
        data, column = _parts(r)
        if column not in columns.setdefault(data, []):
            columns[data].append(column)
    curves: Curves = {data: {} for data in columns}
    for r in found:
        data, column = _parts(r)
        line = curves[data].setdefault(r.recipe.row, np.full(len(columns[data]), np.nan))
        line[columns[data].index(column)] = r.accuracy
    return columns, curves


def draw(columns: dict[str, list[str]], curves: Curves, lengths: dict[str, str]) -> Figure:
    """Draw a panel for each data set, with the length of its runs: a line for each method over its columns."""
    methods = list(dict.fromkeys(method for lines in curves.values() for method in lines))
    number = {method: place for place, method in enumerate(methods)}
    with drawing():
        most = sum(map(len, columns.values()))
        figure, axes = panels(len(columns), (min(WIDE[0], 3.0 + 1.5 * most), WIDE[1]))
        for ax, (data, lines) in zip(axes, curves.items(), strict=True):
            for method, line in lines.items():
                look = {"color": colour(number[method]), "ls": dashes(number[method])}
                aside = 0.02 * (number[method] - (len(methods) - 1) / 2)  # methods that are level lie beside each other
                ax.plot(np.arange(len(line)) + aside, line, marker="o", ms=3.5, lw=1.2, label=method, **look)
            ax.set_xticks(range(len(columns[data])), columns[data], rotation=30, ha="right")
            ax.set_xlim(-0.5, len(columns[data]) - 0.5)
            title(ax, f"{data}, {lengths[data]}")
        axes[0].set_ylabel("personal accuracy (%)")
        handles = {label: h for ax in axes for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=min(6, round(figure.get_figwidth() / 1.6)),
        )
    return figure
