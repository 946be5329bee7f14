"""Figures of a report that compare methods; each function leaves out methods without the measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.report.comparison import all_gains, last_personal
from fedloom.report.cost_axes import cost_axis
from fedloom.report.methods import Curve, Floats, Method
from fedloom.report.number_table import format_of, with_unit
from fedloom.report.style import (
    FAINT,
    HALF,
    INK,
    WIDE,
    WORST,
    canvas,
    colour,
    dashes,
    drawing,
    label_ends,
    plain,
)
from fedloom.report.sweeps import SweepResult, order, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHANCE = "chance"
MOST_BANDS = 8  # methods with bands; more would hide each other
_MOST_LABELS = 8  # lines named at their ends; more get a legend
_COLUMNS = 2  # of that legend
_DASH = 4.0  # widths of a line, of lines that take turns
MOST_POINTS = 300  # dots in a row of clients; more clients are shown as this number of quantiles


def curves(
    methods: Sequence[Method], name: str, ylabel: str, *, x: str = "round", percent: bool = True
) -> Figure | None:
    """Draw a measure over rounds, or a cost so far (`x="bytes"`): mean over seeds, and a band from lowest to highest.

    None where no method has it.
    """
    scale = 100.0 if percent else 1.0
    measured = [(m, c) for m in methods if (c := m.curve(name, x)) is not None]
    if not measured:
        return None
    axis = cost_axis(x, max(float(c.x[-1]) for _, c in measured))
    with drawing():
        names_at_ends = 1 < len(methods) <= _MOST_LABELS
        width, height = HALF
        if len(methods) > 1 and not (names_at_ends and x == "round"):
            height += 0.22 * -(-len(measured) // _COLUMNS)
        figure, axes = canvas((width, height))
        banded = len(methods) <= MOST_BANDS
        same = {m.number: (group.index(m), len(group)) for group in same_lines(methods, name, x) for m in group}
        for method, curve in measured:
            label, place = plain(f" {method.label}"), same[method.number]
            with_band = banded and len(method.counted_runs) > 1
            _line(axes, curve.x / axis.unit, curve, scale, method.number, with_band, label, place)
        _frame(axes, axis.label, ylabel, share=percent and "forgetting" not in name)
        if (chance := methods[0].chance(name)) is not None:
            _chance_line(axes, chance.value * scale, percent)
        for method, curve in measured:
            if method.is_reference and len(measured) > 1:
                level: dict[str, Any] = {"color": colour(method.number), "lw": 0.9, "alpha": 0.7, "zorder": 1}
                axes.axhline(float(curve.mean[-1]) * scale, gid=f"level.{method.number}", **level)
        right = max(float(c.x[-1]) for _, c in measured) / axis.unit
        axes.set_xlim(0, right or 1)
        if names_at_ends and x == "round":
            called = {m.number: f"{m.label} (same)" if same[m.number][0] else m.label for m, _ in measured}
            label_ends(axes, [(c.x[-1], c.mean[-1] * scale, m.number, called[m.number]) for m, c in measured])
        elif len(methods) > 1:
            legend = figure.legend(loc="outside lower left", ncols=_COLUMNS, handlelength=2.2)
            for (method, _), handle in zip(measured, legend.get_lines(), strict=True):  # not the dashes that take turns
                handle.set_linestyle(dashes(method.number))
    return figure


def same_lines(methods: Sequence[Method], name: str, x: str = "round") -> list[list[Method]]:
    """Group the methods that have a measure by their lines: those of a group print the same in every round."""
    groups: list[tuple[Curve, list[Method]]] = []
    show = format_of(methods[0].measures[name].unit)
    for method in methods:
        if (curve := method.curve(name, x)) is None:
            continue
        for other, group in groups:
            if np.array_equal(other.x, curve.x) and list(map(show, other.mean)) == list(map(show, curve.mean)):
                group.append(method)
                break
        else:
            groups.append((curve, [method]))
    return [group for _, group in groups]


def together(
    method: Method, series: Mapping[str, str], ylabel: str, *, x: str = "round", percent: bool = True
) -> Figure | None:
    """Draw several measures of one method, `series` their labels; `x` as of `curves`. None where none was measured."""
    measured = [
        (i, label, c) for i, (name, label) in enumerate(series.items()) if (c := method.curve(name, x)) is not None
    ]
    if not measured:
        return None
    axis = cost_axis(x, max(float(c.x[-1]) for *_, c in measured))
    scale = 100.0 if percent else 1.0
    with drawing():
        figure, axes = canvas(WIDE)
        for i, _, curve in measured:
            _line(axes, curve.x / axis.unit, curve, scale, i, len(method.counted_runs) > 1)
        _frame(axes, axis.label, ylabel, share=percent)
        for i, name in enumerate(series):
            if (chance := method.chance(name)) is not None:
                _chance_line(axes, chance.value * scale, percent, colour(i))
        axes.set_xlim(0, max(float(c.x[-1]) for *_, c in measured) / axis.unit or 1)
        label_ends(axes, [(c.x[-1], c.mean[-1] * scale, i, label) for i, label, c in measured])
    return figure


def personal(methods: Sequence[Method]) -> Figure | None:
    """Draw the headline of each client's model at the end, a row per method; None where it was not measured."""
    main = methods[0].headline
    scale = 100 if main.unit == "%" else 1
    measured = [(m, values * scale) for m in methods if len(values := all_personal(m))]
    if not measured:
        return None
    xlabel = with_unit(f"{main.title} of a client's model on its own held-out examples", f"({main.unit})" * (scale > 1))
    limits = (-1.0, 101.0) if scale > 1 else _room(np.concatenate([values for _, values in measured]))
    figure = _rows(measured, xlabel, limits, main.better)
    if (chance := methods[0].chance(f"personal_{main.name}")) is not None:
        figure.axes[0].axvline(chance.value * scale, color=FAINT, lw=1.2, ls=(0, (1, 2)), zorder=1, gid=CHANCE)
    for m, values in measured:
        if m.is_reference and len(measured) > 1:
            style: dict[str, Any] = {"color": colour(m.number), "lw": 0.9, "alpha": 0.7, "zorder": 1}
            figure.axes[0].axvline(float(values.mean()), gid=f"level.{m.number}", **style)
    return figure


def gain(methods: Sequence[Method]) -> Figure | None:
    """Draw each client's gain over training alone, a row per method; None without local-only runs beside them."""
    main = methods[0].headline
    scale = 100 if main.unit == "%" else 1
    measured = [(m, values * scale) for m in methods if len(values := all_gains(m, methods))]
    if not measured:
        return None
    all_values = np.concatenate([values for _, values in measured])
    least = 5.0 if scale > 1 else 0.0
    limits = _room(np.array([-least, least, *all_values]))
    mine, alone = f"personal {main.title}", "that of local-only training"
    compared = f"{mine} minus {alone}" if main.better == "high" else f"{alone} minus {mine}"
    figure = _rows(measured, with_unit(compared, "(points)" * (scale > 1)), limits)
    figure.axes[0].axvline(0, color=FAINT, lw=1, zorder=1)
    return figure


def _room(values: Floats) -> tuple[float, float]:
    """Return the limits of an axis with a little room around values."""
    low, high = float(values.min()), float(values.max())
    room = 0.02 * (high - low)
    return low - room, high + room


def _rows(
    rows: Sequence[tuple[Method, Floats]], xlabel: str, limits: tuple[float, float], better: str = "high"
) -> Figure:
    """Draw a row per method: a dot per client, the middle half, the median and the mean of the worst decile."""
    with drawing():
        figure, axes = canvas((WIDE[0], 1.1 + 0.52 * len(rows)))
        for row, (method, values) in enumerate(rows):
            n = method.number
            dots = values
            if len(values) > MOST_POINTS:
                dots = np.quantile(values, (np.arange(MOST_POINTS) + 0.5) / MOST_POINTS)
            height = row + 0.5 * ((np.arange(len(dots)) * 0.618034) % 1 - 0.5)  # even, and the same every time
            dot_style: dict[str, Any] = {"ms": 4, "mew": 0, "alpha": 0.5, "color": colour(n), "clip_on": False}
            axes.plot(dots, height, "o", gid=f"dots.{n}", **dot_style)
            quarter, median, three = np.quantile(values, (0.25, 0.5, 0.75))
            worst_first = np.sort(values) if better == "high" else -np.sort(-values)
            tenth = worst_first[: max(1, len(values) // 10)].mean()
            ring_style: dict[str, Any] = {"ms": 7, "mfc": "white", "mec": INK, "mew": 1.4, "clip_on": False}
            axes.plot([quarter, three], [row, row], color=INK, lw=1.4, zorder=3, gid=f"half.{n}")
            axes.plot([median], [row], "o", zorder=4, gid=f"median.{n}", **ring_style)
            axes.plot([tenth], [row], "|", ms=17, mec=WORST, mew=2.4, zorder=5, clip_on=False, gid=f"tenth.{n}")
        axes.set_yticks(range(len(rows)), [plain(_short(m.label)) for m, _ in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(*limits)
        axes.set_xlabel(xlabel)
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", colors=INK, labelsize=10)
    return figure


def sweep(swept: SweepResult, name: str) -> Figure:
    """Draw the results of a sweep over one of its settings; lines join trials that have all other settings alike."""
    ticks = sorted({t.settings[name] for t in swept.trials}, key=order)
    other_settings = [", ".join(f"{short(k)}={v}" for k, v in t.settings.items() if k != name) for t in swept.trials]
    measure = swept.trials[0].method.measures[swept.measure]
    scale = 100 if measure.unit == "%" else 1
    groups: dict[str, list[tuple[float, float]]] = {label: [] for label in sorted(other_settings)}
    offset = min(0.1, 0.5 / len(groups))  # so that bars of neighbours do not hide each other
    with drawing():
        figure, axes = canvas()
        for (m, own, result), other in zip(swept.trials, other_settings, strict=True):
            x = ticks.index(own[name]) + offset * (list(groups).index(other) - (len(groups) - 1) / 2)
            y, n = result.mean * scale, m.number
            groups[other].append((x, y))
            if not np.isnan(result.std):
                half = result.std * scale
                axes.plot([x, x], [y - half, y + half], color=colour(n), lw=1.2, alpha=0.6, gid=f"half.{n}")
            axes.plot([x], [y], "o", ms=6.5, mew=0, color=colour(n), zorder=3, clip_on=False, gid=f"dots.{n}")
        lines = {label: sorted(points) for label, points in groups.items() if len(points) > 1}
        for points in lines.values():
            axes.plot(*zip(*points, strict=True), color=FAINT, lw=1, zorder=2)
        axes.set_xticks(range(len(ticks)), [plain(_short(tick)) for tick in ticks])
        axes.set_xlim(-0.4, len(ticks) - 0.6)
        axes.set_xlabel(plain(name))
        axes.set_ylabel(measure.axis)
        axes.margins(y=0.1)
        axes.tick_params(colors=FAINT)
        if len(lines) <= _MOST_LABELS:
            label_ends(axes, [(*points[-1], None, label) for label, points in lines.items() if label])
    return figure


def all_personal(method: Method) -> Floats:
    """Return the headline of every evaluated client at its run's last evaluation, of all counted runs together."""
    return np.array([a for run in method.counted_runs for a in last_personal(run).values()], np.float64)


def _line(
    axes: Axes,
    x: Floats,
    curve: Curve,
    scale: float,
    number: int,
    banded: bool,
    label: str | None = None,
    same: tuple[int, int] = (0, 1),
) -> None:
    """Draw a line. `same`: its place among those that are the same, and their number: they take turns in dashes."""
    if banded:
        band_style: dict[str, Any] = {"color": colour(number), "alpha": 0.13, "linewidth": 0}
        axes.fill_between(x, curve.low * scale, curve.high * scale, gid=f"band.{number}", **band_style)
    dot = "o" if len(x) == 1 else ""
    place, count = same
    style = dashes(number) if count == 1 else (_DASH * place, (_DASH, _DASH * (count - 1)))
    line: dict[str, Any] = {"color": colour(number), "linestyle": style, "label": label, "gid": f"line.{number}"}
    axes.plot(x, curve.mean * scale, marker=dot, markersize=4, **line)


def _chance_line(axes: Axes, value: float, share: bool, color: str = FAINT) -> None:
    """Draw chance across, and make room for it where it is near the lines."""
    low, high = axes.get_ylim()
    if low - (high - low) / 2 <= value <= high + (high - low) / 2:
        axes.axhline(value, color=color, lw=1.2, ls=(0, (1, 2)), zorder=1, gid=CHANCE)
        room = 0.03 * (high - low)
        low, high = min(low, value - room), max(high, value + room)
        axes.set_ylim(max(0.0, low) if share else low, high)


def shows_chance(figure: Figure) -> bool:
    """Return whether a figure has a line of chance; where it would lie far from the others there is none."""
    return any(line.get_gid() == CHANCE for line in figure.axes[0].lines)


def _frame(axes: Axes, xlabel: str, ylabel: str, share: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.margins(y=0.06)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=xlabel == "round"))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.tick_params(colors=FAINT)
    if share:  # a share of 100 %: no room below nothing and above everything
        low, high = axes.get_ylim()
        axes.set_ylim(max(0.0, low), min(100.0, high) if high > 100 else high)


def _short(label: str) -> str:
    return label if len(label) <= 28 else label[:27] + "…"
