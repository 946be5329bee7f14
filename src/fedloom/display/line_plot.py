"""Figure of measured numbers over rounds, for a script or a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from fedloom.core.errors import SettingError
from fedloom.wording import install

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (6.4, 3.6)  # inches


def lines(series: Mapping[str, Sequence[tuple[int, float]]], ax: Axes | None = None) -> Axes:
    """Draw numbers over rounds.

    Args:
        series: (round, number) of each line, by its name in the legend.
        ax: axes to draw on; by default those of a new figure, which a notebook shows.

    Returns:
        The axes.

    Raises:
        SettingError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingError(f"a figure needs matplotlib: {install('report')}") from None
    axes = ax
    if axes is None and Console().is_jupyter:
        from matplotlib import pyplot

        _, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
    elif axes is None:
        axes = Figure(figsize=SIZE, layout="constrained").add_subplot()
    for name, points in series.items():
        rounds, values = zip(*points, strict=True)
        axes.plot(rounds, values, label=name)
    axes.set_xlabel("round")
    axes.legend(frameon=False)
    return axes
