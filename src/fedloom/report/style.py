"""How figures look: one colour per method everywhere, and the same bytes for the same numbers."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from fedloom.algorithms import ALGORITHMS
from fedloom.core.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers; without yellow, which is too light for a line
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = (
    "-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 1.5, 1, 1.5)), (0, (4, 1.2, 1, 1.2, 1, 1.2)), (0, (10, 1.6)),
)  # fmt: skip
# as many as colours: the methods that papers compare most; each has a colour that no other of them has
_COMPARED = {"fedavg", "fedprox", "fednova", "fedcurv", "scaffold", "moon", "fedntd"}
_OWN = {name.replace("_", ""): i for i, name in enumerate(sorted(ALGORITHMS, key=lambda name: name not in _COMPARED))}
INK, FAINT, GRID = "#1f2328", "#6b7280", "#e5e7eb"
HALF, WIDE = (5.2, 3.5), (10.6, 3.9)  # inches

_STYLE = {
    "figure.facecolor": "white",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "axes.facecolor": "none",
    "axes.edgecolor": "#9ca3af",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedloom",
}


@contextmanager
def drawing() -> Iterator[None]:
    """Within: figures in this style, whatever the user's own settings of matplotlib are.

    Raises:
        SettingError: matplotlib is not installed.
    """
    try:
        from matplotlib import style
    except ImportError:
        raise SettingError("figures need matplotlib: pip install 'fedloom[report]'") from None
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser has more letters
        yield


def canvas(size: tuple[float, float] = HALF) -> tuple[Figure, Axes]:
    """An empty figure of a size in inches with one pair of axes; call within `drawing`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.add_subplot()


def looks(names: Sequence[str]) -> list[int]:
    """Numbers for `colour` and `dashes`, different ones, of methods that are compared: by algorithm, then by place.

    An algorithm of this package has the same colour in every comparison, unless one that is compared more often has
    it there. Names may be those of runs: fednova-released, mine/fedntd/seed-1. A second method of an algorithm, and
    others, get the colours that are left.
    """
    places = [_place(name) for name in names]
    found: dict[int, int] = {}
    used = [0] * len(COLOURS)
    for i in sorted(range(len(names)), key=lambda i: (places[i], i)):
        own = places[i] % len(COLOURS)
        if places[i] < len(_OWN) and not used[own]:
            found[i], used[own] = own, 1
    for i in range(len(names)):
        if i not in found:
            free = min(range(len(COLOURS)), key=lambda c: (used[c], c))
            found[i] = free + used[free] * len(COLOURS)
            used[free] += 1
    return [found[i] for i in range(len(names))]


def _place(name: str) -> int:
    """Of the algorithm that a method's name names first, or the one after all."""
    words = (word.replace("_", "") for word in re.split(r"[^a-z0-9_]+", name.lower()))
    return next((_OWN[word] for word in words if word in _OWN), len(_OWN))


def colour(number: int) -> str:
    """The colour of a method."""
    return COLOURS[number % len(COLOURS)]


def dashes(number: int) -> Any:
    """The line style of a method: another one where the colours begin again."""
    return DASHES[number // len(COLOURS) % len(DASHES)]


def even_step(span: int) -> int:
    """A round number that goes at most seven times into a number of rounds: from tick to tick."""
    steps = (int(digit + "0" * zeros) for zeros in range(20) for digit in "125")
    return next(step for step in steps if span / step <= 7)


def plain(text: str) -> str:
    """Text that matplotlib does not take for a formula."""
    return text.replace("$", r"\$")


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, int, str]]) -> None:
    """Name lines where they end, (x, y, number, label) each, in their colours and without overlap."""
    if not ends:
        return
    low, high = axes.get_ylim()
    height = axes.get_window_extent().height / axes.figure.dpi * 72  # points, before the layout shrinks it
    gap = 12.5 / (0.8 * height) * (high - low)
    order = sorted(range(len(ends)), key=lambda i: (ends[i][1], i))
    steps = gap * np.arange(len(order))
    at = np.clip(_rising([ends[i][1] - step for i, step in zip(order, steps, strict=True)]), low, high - steps[-1])
    at += steps
    right = axes.get_xlim()[1]
    for position, i in zip(at, order, strict=True):
        _, _, number, label = ends[i]
        text = label if len(label) <= 22 else label[:21] + "…"
        axes.annotate(
            plain(text),
            (right, position),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=colour(number),
            fontsize=9.5,
            annotation_clip=False,
        )


def _rising(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """The numbers in rising order that are nearest to some (isotonic regression by pooling neighbours)."""
    pools: list[tuple[float, int]] = []  # mean and how many
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (b, m), (a, n) = pools.pop(), pools.pop()
            pools.append(((a * n + b * m) / (n + m), n + m))
    return np.repeat([mean for mean, _ in pools], [count for _, count in pools])


def rendered(figure: Figure, kind: Literal["svg", "png"]) -> bytes:
    """A figure as a file: the same bytes for the same numbers, without a date or a program's name."""
    out = io.BytesIO()
    nothing: dict[str, Any] = {"Software": None}
    if kind == "svg":
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(out, format=kind, dpi=170, metadata=nothing)
    return out.getvalue()


def inline(svg: bytes, name: str, description: str) -> str:
    """An SVG for the inside of a page: no prologue, no metadata, names of its own, a description (escaped already)."""
    text = svg.decode("utf-8")
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    used = set(re.findall(r'(?:xlink:href="|url\()#([^")]+)', text))
    text = text.replace("fill: #ffffff", "fill: none", 1)  # the page has a ground of its own
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'(xlink:href="|url\()#', rf"\1#{name}-", text)
    box = re.search(r'viewBox="[^"]*"', text)
    head = f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" {box and box[0]} role="img" aria-label="{description}">'
    return head + text[text.index(">") + 1 :].strip()
