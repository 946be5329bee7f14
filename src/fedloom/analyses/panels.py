"""Panels of figures, and what several figures of analyses have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedloom.report.style import FAINT, INK, WIDE, colour, even_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

IN, OUT, WHOLE = 0, 1, 6  # colours of in-local, out-local and all classes


def panels(count: int, size: tuple[float, float] = WIDE, **more: Any) -> tuple[Figure, list[Axes]]:
    """Make several axes beside each other; call within `drawing`."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.06))
    return figure, list(np.atleast_1d(figure.subplots(1, count, **more)))


def title(axes: Axes, text: str) -> None:
    """Write a title above a panel, on its left."""
    axes.set_title(text, loc="left", fontsize=10.5, color=INK)


def whole_ticks(axes: Axes, values: Sequence[int] | npt.NDArray[Any]) -> None:
    """Set ticks of rounds or epochs, which have no fractions, at the multiples of a round number."""
    first, last = int(values[0]), int(values[-1])
    step = even_step(last - first)
    axes.set_xticks(range(-(-first // step) * step, last + 1, step))


def bare(axes: Axes) -> None:
    """Take grid and frame off axes, as images want it."""
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def blank(axes: Axes, text: str) -> None:
    """Write on a panel that has nothing to draw why it is empty."""
    bare(axes)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=FAINT, fontsize=9)


def shared_legend(figure: Figure, axes: Iterable[Axes], columns: int) -> None:
    """Put one legend below all panels, in which each label stands once."""
    handles = {label: h for ax in axes for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)


def moves(axes: Axes, clients: Sequence[int], series: dict[str, tuple[Floats, Floats]]) -> None:
    """Draw for each client where it moves, from before (ring) to after (dot), in each series."""
    x = np.arange(len(clients))
    for i, (name, (before, after)) in enumerate(series.items()):
        at = x + (i - (len(series) - 1) / 2) * 0.28
        axes.vlines(at, before * 100, after * 100, color=colour(i), lw=1.2, alpha=0.6)
        axes.plot(at, after * 100, "o", ms=5, mew=0, color=colour(i), label=name, clip_on=False)
        axes.plot(at, before * 100, "o", ms=8.5, mfc="none", mec=colour(i), clip_on=False)  # seen around an equal dot
    step = max(1, -(-len(clients) // 20))
    axes.set_xticks(x[::step], [str(k) for k in clients[::step]])
    axes.set_xlabel("client")
    axes.set_ylim(0, 102)


def cosine_map(figure: Figure, axes: Axes, table: Floats, names: Sequence[str], what: str) -> None:
    """Draw cosines as colours, with their values where there is room."""
    n = len(table)
    image = axes.imshow(table, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="none")
    bare(axes)
    step = max(1, -(-n // 20))
    axes.set_xticks(range(0, n, step), names[::step])
    axes.set_yticks(range(0, n, step), names[::step])
    axes.set_xlabel(what)
    axes.set_ylabel(what)
    if n <= 12:
        for i in range(n):
            for j in range(n):
                if i != j and np.isfinite(table[i, j]):
                    ink = "white" if abs(table[i, j]) > 0.6 else "#1f2328"
                    axes.text(
                        j,
                        i,
                        f"{table[i, j]:.1f}".replace("-0.0", "0.0"),
                        ha="center",
                        va="center",
                        fontsize=7,
                        color=ink,
                    )
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=18, ticks=[-1, 0, 1])
    bar.outline.set_visible(False)
