"""Confusion matrices: their figure, and those that an analysis of a run has written."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from fedloom.core.errors import SettingError
from fedloom.report.printable import printable
from fedloom.report.style import INK, WIDE, drawing, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_WRITTEN, _NAMED = 12, 24  # classes whose shares, and whose names, have room
_CLIENTS = 6  # matrices of clients that are read


class Confusion(NamedTuple):
    """Counts by true and predicted class, [C, C], with the classes' names, after a round.

    `client`: number of the client whose model it is; "" for the global model.
    """

    counts: Ints
    names: list[str]
    round: int
    client: str

    @property
    def whose(self) -> str:
        """The model, in words."""
        return f"the model of client {self.client}" if self.client else "the global model"

    def describe(self) -> str:
        """Say what is counted, after which round, and how many examples are right."""
        return (
            f"What {self.whose} takes the examples of each class (rows) for after round {self.round}: "
            f"{int(self.counts.trace()):,} of {int(self.counts.sum()):,} are right. Measured by fedloom analyse."
        )


def read_confusions(directory: Path) -> list[Confusion]:
    """Return the confusion matrices that `fedloom analyse` has written beside a run: global, then of a few clients.

    Raises:
        SettingError: a file is not as it writes them.
    """
    folder = directory / "analysis"
    of_clients = sorted(folder.glob("confusion-client-*.csv"), key=lambda file: (len(file.name), file.name))
    files = [file for file in [folder / "confusion.csv", *of_clients[:_CLIENTS]] if file.is_file()]
    return [_read(file) for file in files]


def _read(file: Path) -> Confusion:
    try:
        rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
        size = round(len(rows) ** 0.5)
        counts = np.array([int(row["count"]) for row in rows], np.int64).reshape(size, size)
        names = [printable(row["predicted"], 20) for row in rows[:size]]
        client = file.stem.removeprefix("confusion").removeprefix("-client-")
        return Confusion(counts, names, int(rows[0]["round"]), client)
    except (ValueError, KeyError, TypeError, IndexError):
        raise SettingError(
            f"{file} must be a table that fedloom analyse RUN confusion has written, and is not; remove it, or run "
            "that again"
        ) from None


def shares_of(counts: Ints) -> tuple[Floats, Floats]:
    """Return counts as shares of each true class and of each predicted one, [C, C] both; NaN where there is none."""
    with np.errstate(invalid="ignore"):
        return counts / counts.sum(1, keepdims=True), counts / counts.sum(0, keepdims=True)


def draw_confusion(counts: Ints, names: Sequence[str]) -> Figure:
    """Draw counts by true and predicted class, [C, C], as shares of the true class and of the predicted one."""
    size, short = len(counts), [plain(n if len(n) <= 16 else f"{n[:8]}…{n[-7:]}") for n in names]
    step = -(-size // _NAMED)
    with drawing():
        import matplotlib
        from matplotlib.figure import Figure

        shades = matplotlib.colormaps["Blues"].with_extremes(bad="#e5e7eb")
        figure = Figure(figsize=(WIDE[0], min(7.0, 2.2 + 0.25 * size)), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for ax, table, text in zip(axes, shares_of(counts), ("true", "predicted"), strict=True):
            shown = np.ma.masked_invalid(100 * table)
            image = ax.imshow(shown, aspect="auto", cmap=shades, vmin=0, vmax=100, interpolation="none")
            ax.grid(False)
            for spine in ax.spines.values():
                spine.set_visible(False)
            ax.set_title(f"share of the {text} class (%)", loc="left", fontsize=10.5, color=INK)
            ax.set_xticks(range(0, size, step), short[::step], rotation=90 if max(map(len, short)) > 2 else 0)
            ax.set_yticks(range(0, size, step), short[::step])
            ax.set_xlabel("predicted")
            for i, j in np.argwhere(counts) if size <= _WRITTEN else ():
                ink = "white" if table[i, j] > 0.6 else INK
                ax.text(j, i, f"{100 * table[i, j]:.0f}", ha="center", va="center", fontsize=8, color=ink)
        axes[0].set_ylabel("true")
        figure.colorbar(image, ax=axes, pad=0.02, aspect=18).outline.set_visible(False)
    return figure
