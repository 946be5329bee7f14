"""Targets that are no classes by client: on a terminal and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from fedloom.core.errors import SettingError
from fedloom.data import Partition
from fedloom.display.terminal import table
from fedloom.report.printable import printable
from fedloom.report.style import INK, WIDE, canvas, drawing, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = npt.NDArray[np.float64]

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
_LONGEST = 20  # letters of a client's name
_MOST_BOXES = 100  # clients in a figure
_BOX = 20  # letters of a box on a terminal


@dataclass(frozen=True)
class TargetHeterogeneity:
    """Measures of the differences between the targets of clients; clients without examples count in `sizes` only.

    `sizes`: smallest, median and largest number of examples. `between`: the part of the target's variance that lies
    between the means of clients, 0..1. `distance`: mean Kolmogorov-Smirnov distance between the targets of a client and
    those of all, 0..1.
    """

    sizes: tuple[int, float, int]
    between: float
    distance: float


def target_heterogeneity(values: npt.ArrayLike, partition: Partition) -> TargetHeterogeneity:
    """Describe one target of the examples of each client.

    `values`: the target of every example, (n,).

    Raises:
        SettingError: these are no numbers for every row of the partition.
    """
    numbers = _checked(values, partition)
    own = numbers[partition.indices]
    everyone = np.sort(own)
    whole, total = float(own.mean()), float(((own - own.mean()) ** 2).sum())
    spread = distance = 0.0
    filled = 0
    for client in np.flatnonzero(partition.sizes).tolist():
        mine = np.sort(own[partition.indptr[client] : partition.indptr[client + 1]])
        spread += len(mine) * (float(mine.mean()) - whole) ** 2
        distance += _kolmogorov(mine, everyone)
        filled += 1
    sizes = partition.sizes
    between = spread / total if total > 0 else 0.0
    return TargetHeterogeneity(
        (int(sizes.min()), float(np.median(sizes)), int(sizes.max())), between, distance / max(1, filled)
    )


def _kolmogorov(mine: Numbers, everyone: Numbers) -> float:
    """Return the largest distance between two distribution functions; both sorted, every value of the first in both."""
    steps = np.unique(mine)
    after = np.searchsorted(mine, steps, "right") / len(mine) - np.searchsorted(everyone, steps, "right") / len(
        everyone
    )
    before = np.searchsorted(mine, steps, "left") / len(mine) - np.searchsorted(everyone, steps, "left") / len(everyone)
    return float(max(np.abs(after).max(), np.abs(before).max()))


class TargetTable:
    """Table of clients by quantiles of one target, for a terminal, with a summary of all clients below.

    Args:
        values: the target of every example, (n,).
        partition: the rows of each client.
        name: what the target is called.
        shown: number of clients with a row, the first ones.

    Raises:
        SettingError: these are no numbers for every row of the partition.
    """

    def __init__(self, values: npt.ArrayLike, partition: Partition, name: str = "target", shown: int = 20) -> None:
        self.values, self.partition = _checked(values, partition), partition
        self.name, self.shown, self.facts = name, shown, target_heterogeneity(values, partition)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        p, own = self.partition, self.values[self.partition.indices]
        low, high = float(own.min()), float(own.max())
        made = table(f"{printable(self.name, 40)} by client", f"box: {low:.4g} to {high:.4g}")
        for heading in ("client", "examples", "mean", "min", "25 %", "median", "75 %", "max"):
            made.add_column(heading, justify="left" if heading == "client" else "right")
        made.add_column("")
        for client in range(min(self.shown, p.num_clients)):
            name = printable(p.clients[client], _LONGEST) if p.clients else f"{client:,}"
            mine = self.values[p.rows(client)]
            if not len(mine):
                made.add_row(name, "0")
                continue
            quantiles = np.quantile(mine, _QUANTILES)
            numbers = [f"{number:.4g}" for number in (mine.mean(), *quantiles)]
            made.add_row(Text(name), f"{len(mine):,}", *numbers, _box(quantiles, low, high))
        yield made
        if p.num_clients > self.shown:
            yield Text(f"... and {p.num_clients - self.shown:,} more clients", style="dim")
        f = self.facts
        low_size, median, high_size = f.sizes
        yield Text("")
        yield Text(f"{p.num_clients:,} clients, {len(own):,} examples")
        span = f" to {high_size:,}, median {median:,.10g}" if low_size < high_size else ""
        yield Text(f"examples a client: {low_size:,}{span}")
        yield Text(f"variance between the means of clients: {100 * f.between:.1f} % of all")
        yield Text(f"distance from all examples' targets (Kolmogorov-Smirnov, 0 to 1): {f.distance:.2f}, mean")


def _box(quantiles: Numbers, low: float, high: float) -> str:
    """Return a box of letters: a line from the smallest to the largest, a block over the middle half, its median."""
    scale = (_BOX - 1) / (high - low) if high > low else 0.0
    first, left, middle, right, last = (round((value - low) * scale) for value in quantiles.tolist())
    letters = [" "] * _BOX
    letters[first : last + 1] = "─" * (last + 1 - first)
    letters[left : right + 1] = "█" * (right + 1 - left)
    letters[middle] = "┃"
    return "".join(letters)


def draw_targets(values: npt.ArrayLike, partition: Partition, *, name: str = "target", title: str = "") -> Figure:
    """Draw a box of one target for each of the first 100 clients: quartiles, and whiskers from smallest to largest.

    Raises:
        SettingError: these are no numbers for every row of the partition, or matplotlib is not installed.
    """
    numbers = _checked(values, partition)
    shown = range(min(partition.num_clients, _MOST_BOXES))
    names: Sequence[object] = partition.clients or range(partition.num_clients)
    with drawing():
        figure, axes = canvas(WIDE)
        axes.boxplot(
            [numbers[partition.rows(client)] for client in shown], positions=list(shown), whis=(0, 100), widths=0.6
        )
        axes.axhline(float(np.median(numbers[partition.indices])), color="#0072B2", linewidth=0.8)
        step = max(1, -(-len(shown) * max(2, *(len(str(names[k])) for k in shown)) // 60))
        axes.set_xticks(list(shown)[::step], [plain(str(names[k])) for k in list(shown)[::step]])
        axes.set_xlabel("client; line: median of all")
        axes.set_ylabel(plain(name))
        if title:
            axes.set_title(plain(title), loc="left", fontsize=10, color=INK)
    return figure


def _checked(values: npt.ArrayLike, partition: Partition) -> Numbers:
    numbers = np.asarray(values)
    rows = partition.indices
    if numbers.ndim != 1 or numbers.dtype.kind not in "fiu" or not len(rows) or rows.max() >= len(numbers):
        raise SettingError(
            f"values must be a number for each row of the partition, (n,), got {numbers.dtype} of shape "
            f"{numbers.shape}: pass one column of train.y"
        )
    return numbers.astype(np.float64)
