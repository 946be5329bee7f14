"""Examples by client and class: on a terminal and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from fedloom.core.errors import SettingError
from fedloom.report.printable import printable
from fedloom.report.style import FAINT, INK, WIDE, canvas, drawing, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Counts = npt.NDArray[np.int64]  # examples by client and class, [N, C]

_BLOCK = 1 << 16  # clients at a time, so that a million of them cost no second table of floats
_LONGEST = 20  # letters of a client's name
_MOST_CIRCLES = 30  # classes; beyond, circles are too small to compare
_LIGHT, _DARK = (222, 235, 247), (8, 48, 107)
_BARS, _BLOCKS = " ▁▂▃▄▅▆▇█", "░▒▓█"


@dataclass(frozen=True)
class Heterogeneity:
    """Measures of the differences between the clients of a federation.

    Clients without examples count in `sizes` and `clients_by_classes` only.

    `sizes`: smallest, median and largest number of examples. `clients_by_classes`: the number of clients with exactly c
    classes, [C + 1]. `entropy`: mean over clients of the entropy of their class distribution, in bits (at most log2 C).
    `distance`: mean total-variation distance between a client's class distribution and that of all examples, in 0..1.
    """

    sizes: tuple[int, float, int]
    clients_by_classes: Counts
    entropy: float
    distance: float


def heterogeneity(counts: Counts) -> Heterogeneity:
    """Describe examples by client and class, [N, C].

    Raises:
        SettingError: this is no such table, or it is empty.
    """
    counts = _checked(counts)
    sizes = counts.sum(1)
    share = counts.sum(0) / max(1, sizes.sum())
    by_classes = np.zeros(counts.shape[1] + 1, np.int64)
    entropy = distance = 0.0
    for start in range(0, len(counts), _BLOCK):
        block = counts[start : start + _BLOCK]
        by_classes += np.bincount((block > 0).sum(1), minlength=len(by_classes))
        p = block[block.any(1)] / block[block.any(1)].sum(1, keepdims=True)
        entropy -= float((p * np.log2(np.where(p > 0, p, 1))).sum())
        distance += float(np.abs(p - share).sum()) / 2
    filled = max(1, int((sizes > 0).sum()))
    return Heterogeneity(
        (int(sizes.min()), float(np.median(sizes)), int(sizes.max())), by_classes, entropy / filled, distance / filled
    )


class FederationTable:
    """Table of clients by classes as shaded cells, for a terminal of any width, with a summary of all clients below.

    Args:
        counts: examples by client and class, [N, C]; ten clients or a million.
        shown: number of clients with a row, the first ones.
        names: names of the clients; empty if they have numbers alone.

    Raises:
        SettingError: `counts` is no such table, or it is empty.
    """

    def __init__(self, counts: Counts, shown: int = 20, names: Sequence[str] = ()) -> None:
        self.counts, self.shown, self.facts = _checked(counts), shown, heterogeneity(counts)
        self.names = [printable(name, _LONGEST) for name in names]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        top = self.counts[: self.shown]
        classes = self.counts.shape[1]
        name = max(6, len(f"{len(top) - 1:,}"), *(len(called) for called in self.names[: self.shown]))
        number = max(4, len(f"{top.max(initial=0):,}") + 1)
        total = max(5, len(f"{top.sum(1).max(initial=0):,}"))
        room = options.max_width - name - total - 3
        if classes * number <= room:
            width, merged = number, 1
        else:
            merged = -(-classes // max(1, room))  # neighbouring classes that share a cell
            width = min(number, max(1, room // -(-classes // merged)))
        edges = range(0, classes, merged)
        cells = np.add.reduceat(top, list(edges), axis=1)
        most = max(1, int(cells.max(initial=1)))
        written = width >= number  # else shades only
        step = 1 if written else -(-4 // width)  # cells under one class number
        heading = Text("client".rjust(name) + " ")
        for i in range(0, len(edges), step):
            label = f"{edges[i]}"
            heading.append(label.rjust(width) if written else label.ljust(width * min(step, len(edges) - i)))
        yield Text.assemble((f"{heading.plain[: name + 1 + width * len(edges)]}{'all'.rjust(total + 2)}", "bold"))
        for client, row in enumerate(cells.tolist()):
            line = Text((self.names[client] if self.names else f"{client:,}").rjust(name) + " ")
            for count in row:
                if not count:
                    line.append("·".rjust(width), "dim")
                elif written:
                    line.append(f"{count:,}".rjust(width), _shade(count / most))
                else:  # blocks tell without colours too
                    line.append(_BLOCKS[-(-len(_BLOCKS) * count // most) - 1] * width, "rgb(49,130,189)")
            line.append(f"{int(top[client].sum()):,}".rjust(total + 2))
            yield line
        yield from self._summary(merged, most, written)

    def _summary(self, merged: int, most: int, written: bool) -> RenderResult:
        n, classes = self.counts.shape
        f = self.facts
        if len(self.counts) > self.shown:
            yield Text(f"... and {n - self.shown:,} more clients", style="dim")
        if not written:
            each = f", {merged} neighbouring classes a cell" if merged > 1 else ""
            yield Text(f"{_BLOCKS[-1]}: {most:,} examples{each}", style="dim")
        yield Text("")
        low, median, high = f.sizes
        yield Text(f"{n:,} clients, {int(self.counts.sum()):,} examples, {classes} classes")
        yield Text(f"examples a client: {low:,}" + (f" to {high:,}, median {median:,.10g}" if low < high else ""))
        held = np.flatnonzero(f.clients_by_classes)
        first, last = int(held[0]), int(held[-1])
        bars = "".join(
            _BARS[-(-8 * int(count) // int(f.clients_by_classes.max()))]
            for count in f.clients_by_classes[first : last + 1]
        )
        span = f"{first}" if first == last else f"{first} to {last}"
        middle = int(np.searchsorted(np.cumsum(f.clients_by_classes), n / 2))
        yield Text(f"classes a client: {span}, median {middle}" + (f"  {bars}" if first < last else ""))
        yield Text(f"entropy of a client's classes: {f.entropy:.2f} of at most {np.log2(classes):.2f} bits, mean")
        yield Text(f"distance from all examples' classes (total variation, 0 to 1): {f.distance:.2f}, mean")


def draw_federation(
    counts: Counts, *, clients: Sequence[object] | Counts | None = None, classes: Sequence[str] = (), title: str = ""
) -> Figure:
    """Draw the examples by client and class: a circle for each, its area the number of examples.

    Many classes are drawn as shades instead.

    Args:
        counts: examples by client and class, [N, C]; the first 100 clients are drawn.
        clients: numbers or names of the clients, [N]; 0, 1, ... by default.
        classes: names of the classes, [C]; likewise.
        title: above the figure.

    Raises:
        SettingError: `counts` is no such table or is empty, or matplotlib is not installed.
    """
    counts = _checked(counts)[:100]
    n, number = counts.shape
    names = [str(name) for name in (range(n) if clients is None else clients[:n])]
    with drawing():
        figure, axes = canvas((WIDE[0], min(6.5, 1.3 + 0.26 * min(number, 26))))
        if number <= _MOST_CIRCLES:
            k, c = np.nonzero(counts)
            examples = counts[k, c]
            across = 9.6 * 72 / max(n, 12)  # points between neighbours
            largest = min(across, 0.26 * 72) * 0.95
            axes.scatter(
                k,
                c,
                s=largest**2 * examples / max(1, examples.max(initial=1)),
                color="#0072B2",
                linewidths=0,
                alpha=0.85,
            )
            axes.set_xlim(-1, n)
            axes.set_ylim(number - 0.3, -0.7)
        else:
            image = axes.imshow(counts.T, aspect="auto", cmap="Blues", interpolation="none", vmin=0)
            bar = figure.colorbar(image, ax=axes, pad=0.01, label="examples")
            bar.outline.set_visible(False)
        axes.grid(False)
        if number <= 12:
            axes.set_yticks(range(number), [plain(name) for name in classes] or None)
        step = max(1, -(-n * max(2, *map(len, names)) // 40))
        axes.set_xticks(range(0, n, step), [plain(name) for name in names[::step]])
        axes.set_xlabel("client")
        axes.set_ylabel("class")
        axes.spines["left"].set_visible(False)
        if title:
            axes.set_title(plain(title), loc="left", fontsize=10, color=INK)
        axes.tick_params(colors=FAINT)
    return figure


def _checked(counts: Counts) -> Counts:
    counts = np.asarray(counts)
    if counts.ndim != 2 or not counts.size or counts.dtype.kind not in "iu" or counts.min() < 0:
        raise SettingError(
            f"counts must be integers >= 0 by client and class, [N, C], got {counts.dtype} {counts.shape}; "
            "Federation.counts() gives them"
        )
    return counts


def _shade(share: float) -> Style:
    """Return the shade of a share, from light to dark blue; the text on it stays legible."""
    share = min(1.0, max(0.0, share)) ** 0.7  # the eye sees small shares too
    r, g, b = (round(light + share * (dark - light)) for light, dark in zip(_LIGHT, _DARK, strict=True))
    return Style(color="white" if share > 0.5 else "black", bgcolor=f"rgb({r},{g},{b})")
