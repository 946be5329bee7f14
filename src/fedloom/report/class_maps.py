"""Accuracy by class and round: methods as small multiples with one scale, and their weakest classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedloom.report.methods import Floats, Method
from fedloom.report.number_table import Column, Table, percent, whole
from fedloom.report.over_seeds import of_methods
from fedloom.report.printable import class_names
from fedloom.report.style import HALF, WIDE, drawing, even_step, ink, plain
from fedloom.wording import some_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BESIDE = 8  # maps in a row
_NAMED = 20  # classes whose names have room
_LETTERS = 130  # of the titles of a row
_MOST_NAMED = 3  # classes in a sentence
_FORGOTTEN = 0.2  # below its best


class Weakest(NamedTuple):
    """Classes that end lowest: their names, their accuracy, and how many classes of how many lie far below their best.

    `when`: the last round that all seeds have, where they end in different ones.
    """

    classes: str
    accuracy: float
    forgotten: int
    measured: int
    when: str


def class_maps(methods: Sequence[Method]) -> Figure | None:
    """Draw the accuracy of the global model by class and round, mean over seeds, a map for each method that has it.

    All have one scale. None where none was measured.
    """
    maps = [(m, rounds, mean.T * 100) for m in methods for rounds, mean in [class_accuracy(m)] if rounds]
    if not maps:
        return None
    beside = min(len(maps), _BESIDE)
    rows, classes = -(-len(maps) // beside), max(len(table) for *_, table in maps)
    with drawing():
        import matplotlib
        from matplotlib.figure import Figure

        height = 0.9 + rows * min(4.5, 0.45 + (0.16 if len(maps) > 1 else 0.19) * classes)
        figure = Figure(figsize=(WIDE[0] if len(maps) > 1 else HALF[0], height), layout="constrained")
        grid = figure.subplots(rows, beside, squeeze=False)
        shades = matplotlib.colormaps["YlGnBu"].with_extremes(bad="#d1d5db")  # white: never right; grey: not measured
        for at, axes in enumerate(grid.flat):
            axes.grid(False)
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_visible(False)
            if at >= len(maps):
                axes.set_xticks([])
                continue
            method, rounds, table = maps[at]
            style: dict[str, Any] = {"aspect": "auto", "cmap": shades, "interpolation": "none"}
            image = axes.imshow(table, vmin=0, vmax=100, gid=f"map.{method.number}", **style)
            step = even_step(rounds[-1]) if len(maps) == 1 else max(1, rounds[-1])
            ticks = [i for i, t in enumerate(rounds) if t % step == 0]
            axes.set_xticks(ticks, [str(rounds[i]) for i in ticks])
            if len(maps) > 1:
                label = (
                    method.label
                    if len(method.label) <= _LETTERS // beside
                    else f"{method.label[: _LETTERS // beside - 1]}…"
                )
                title: dict[str, Any] = {"color": ink(method.number), "gid": f"label.{method.number}"}
                axes.set_title(plain(label), loc="left", fontsize=9, **title)
            if at % beside == 0 and classes <= _NAMED:
                names = class_names(method.first.history.federation)
                axes.set_yticks(range(len(table)), [plain(n) for n in names] if len(names) == len(table) else None)
            if at >= len(maps) - beside:
                axes.set_xlabel("round")
        grid[0, 0].set_ylabel("class")
        bar = figure.colorbar(image, ax=grid, pad=0.02, aspect=18 * rows, ticks=[0, 50, 100])
        bar.outline.set_visible(False)
        bar.set_label("accuracy (%)", fontsize=9)
    return figure


def class_accuracy(method: Method) -> tuple[list[int], Floats]:
    """Return the rounds in which every counted run has accuracies by class, and their means over runs, [T, C]."""
    by_run = [
        {
            m["round"]: [np.nan if a is None else a for a in m["class_accuracy"]]
            for m in run.history.metrics
            if m.get("class_accuracy") is not None
        }
        for run in method.counted_runs
    ]
    classes = {len(row) for by_round in by_run for row in by_round.values()}
    rounds = sorted(set.intersection(*map(set, by_run))) if len(classes) == 1 else []
    return rounds, np.array([np.mean([by_round[t] for by_round in by_run], 0) for t in rounds], np.float64)


def weakest(method: Method) -> Weakest | None:
    """Return the classes that end lowest, mean over seeds; None where there is no round, or no class has examples."""
    rounds, table = class_accuracy(method)
    table = table[[t > 0 for t in rounds]]
    if not len(table) or np.isnan(table[-1]).all():
        return None
    last, best = table[-1], np.nanmax(np.where(np.isnan(table), -1, table), axis=0)
    measured, shown = np.flatnonzero(~np.isnan(last)), [percent(float(value)) for value in last]
    lowest = measured[np.argmin(last[measured])]
    names = class_names(method.first.history.federation)
    called = [str(names[k] if k < len(names) else k) for k in measured if shown[k] == shown[lowest]]
    which = f"class {called[0]}" if len(called) == 1 else f"{len(called)} classes ({some_of(called, _MOST_NAMED)})"
    ends_differ = len({run.rounds for run in method.counted_runs}) > 1
    when = f"after round {rounds[-1]}, the last that all seeds have" if ends_differ else "at the end"
    forgotten = int((best[measured] - last[measured] > _FORGOTTEN).sum())
    return Weakest(which, float(last[lowest]), forgotten, len(measured), when)


def describe_weakest(method: Method) -> str:
    """Name the class that ends lowest, and count those more than 20 points below their best."""
    found = weakest(method)
    if found is None:
        return "Before training only, or the test set has no examples."
    more = f"; {found.forgotten} of {found.measured} classes are more than 20 points below their best"
    return f"Lowest {found.when}: {found.classes}, {percent(found.accuracy)} %{more * bool(found.forgotten)}."


def weakest_table(methods: Sequence[Method]) -> Table:
    """Return a row for each method whose classes were measured: which ends lowest, and how many were forgotten."""
    found = [(m, one) for m in methods if (one := weakest(m)) is not None]
    columns = [
        Column("method", "method"),
        Column("lowest", "lowest"),
        Column("accuracy", "its accuracy, %", percent, "high"),
        Column("forgotten", "forgotten", whole, "low"),
        Column("when", "when"),
    ]
    rows: list[list[Any]] = [[m.label, one.classes, one.accuracy, one.forgotten, one.when] for m, one in found]
    return Table("weakest_classes", columns, rows, *of_methods([m for m, _ in found]))
