"""Learning curves of any runs, over rounds, bytes or virtual time: the figure `curves`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.core.errors import SettingError
from fedloom.report import figures
from fedloom.report.cost_axes import OVER, check_over, cost_axis
from fedloom.report.grouping import by_problem, read_methods
from fedloom.report.number_table import format_of
from fedloom.report.printable import printable

NAME = "curves"


def curves(folders: Sequence[Path], over: str = "rounds") -> AnalysisResult:
    """Draw the headline of the runs in folders over rounds, bytes or virtual time (--over), a line for each method.

    Args:
        folders: with runs of one problem below them.
        over: a word of `OVER`.

    Raises:
        SettingError: there are no runs, or of several problems, or they cannot be drawn over this.
    """
    methods, remarks = read_methods(folders)
    if len(problems := by_problem(methods)) > 1:
        told = " and ".join(printable(problem.title) for problem, _ in problems[:2])
        raise SettingError(f"curves compare methods on one problem, got {told}: name folders of one (--known)")
    check_over(over, methods)
    main, x = methods[0].headline, OVER[over]
    named = [f"{whose}_{main.name}" for whose in ("global", "personal")]
    name = next((name for name in named if any(m.has(name) for m in methods)), named[0])
    measure, percent = methods[0].measures[name], main.unit == "%"
    figure = figures.curves(methods, name, measure.axis, x=x, percent=percent)
    if figure is None:
        raise SettingError(f"no run of these has measured {name}: name folders of others (--known)")
    found = [(m, curve) for m in methods if (curve := m.curve(name, x)) is not None]
    rows = [
        [m.label, *point]
        for m, curve in found
        for point in zip(curve.x, curve.mean, curve.low, curve.high, strict=True)
    ]
    axis = cost_axis(x, max(float(curve.x[-1]) for _, curve in found))
    ends = [[m.label, f"{curve.x[-1] / axis.unit:.4g}", float(curve.mean[-1])] for m, curve in found]
    return AnalysisResult(
        figure,
        summary_table(measure.title, {"method": None, axis.label: None, "at the end": format_of(measure.unit)}, ends),
        [csv_table(f"{NAME}-{over.replace('_', '-')}", ["method", x, name, "lowest", "highest"], rows)],
        remarks,
    )
