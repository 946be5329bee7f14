"""Style of figures: one colour per method on a page, by its place, and the same bytes for the same numbers."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from fedloom.core.errors import SettingError
from fedloom.wording import install

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish; without yellow, which is too light for a line.
# Then colours as far as possible from those before (in OKLab; also without red or green cones), with 3:1 to white.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222", "#96004B", "#005A00", "#9678FF",
    "#692D96", "#B43C96", "#875A4B", "#005A69", "#874BD2", "#4B7800", "#969600", "#B40F00", "#3C96B4", "#D24B69",
    "#004BC3", "#2D7878", "#C38769", "#784B78", "#1E78F0", "#A569C3", "#FF5A78", "#966987", "#783C2D", "#96784B",
    "#B42D5A", "#1E9600", "#3C96F0", "#695A00", "#B44B00", "#0F694B", "#004B87", "#A50F78", "#D269E1", "#962DA5",
)  # fmt: skip
_ON_DARK = {"#56B4E9": "#8FE3FF", "#96004B": "#FF5C8A", "#005A00": "#A3D468"}  # which would be near others there
SOLID = 10  # kinds of lines that colour alone tells apart
DASHES: tuple[Any, ...] = (
    "-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 1.5, 1, 1.5)), (0, (4, 1.2, 1, 1.2, 1, 1.2)), (0, (10, 1.6)),
)  # fmt: skip
_SVG = "{http://www.w3.org/2000/svg}"
ElementTree.register_namespace("", _SVG[1:-1])
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
INK, FAINT, GRID, WORST = "#1f2328", "#6b7280", "#e5e7eb", "#b91c1c"
FigureKind = Literal["png", "svg", "pdf"]
HALF, WIDE = (4.6, 3.2), (10.6, 3.9)  # inches

_DARK_GROUND = "#1c2027"  # the background of figures in the dark theme

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
    "path.simplify": False,  # the page reads values from the path
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # fonts that journals accept, and searchable text
    "svg.hashsalt": "fedloom",
}


@contextmanager
def drawing() -> Iterator[None]:
    """Draw figures within the context in this style, independent of the user's settings of matplotlib.

    Raises:
        SettingError: matplotlib is not installed.
    """
    try:
        from matplotlib import style
    except ImportError:
        raise SettingError(f"figures need matplotlib: {install('report')}") from None
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser has more letters
        yield


def canvas(size: tuple[float, float] = HALF) -> tuple[Figure, Axes]:
    """Return an empty figure of a size in inches with one pair of axes; call within `drawing`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.add_subplot()


def colour(number: int) -> str:
    """Give the colour of the method at this place of a comparison, counted from 0."""
    return COLOURS[number % len(COLOURS)]


def dashes(number: int) -> Any:
    """Give the line style of this method: each has another than its neighbours, since not everybody sees colours."""
    return DASHES[number % len(DASHES)]


def ink(number: int | None) -> str:
    """Return the colour of text about a method: its own, dark enough to read; with None, that of other text."""
    return INK if number is None else _legible(colour(number), "#ffffff", 0)


def dark_colour(number: int) -> str:
    """Return the colour of a method and of text about it in the dark theme."""
    return _legible(_ON_DARK.get(colour(number), colour(number)), _DARK_GROUND, 255)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21 (WCAG 2)."""
    lights = []
    for text in (one, other):
        parts = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in _rgb(text))]
        lights.append(0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05)
    return max(lights) / min(lights)


def _legible(text: str, ground: str, towards: int) -> str:
    """Mix a colour with black (0) or white (255) until its contrast is 4.5."""
    mixed = text
    for step in range(1, 21):
        if contrast(mixed, ground) >= 4.5:
            break
        mixed = "#" + "".join(f"{round(c + (towards - c) * step / 20):02x}" for c in _rgb(text))
    return mixed.lower()


def _rgb(text: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(text[1:]))


def even_step(span: int) -> int:
    """Return a round step between ticks, with at most seven steps in `span` rounds."""
    steps = (int(digit + "0" * zeros) for zeros in range(20) for digit in "125")
    return next(step for step in steps if span / step <= 7)


def plain(text: str) -> str:
    """Escape a text so that matplotlib does not take it for a formula."""
    return text.replace("$", r"\$")


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, int | None, str]]) -> None:
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
            color=ink(number),
            fontsize=9.5,
            annotation_clip=False,
            gid=None if number is None else f"label.{number}",
        )


def _rising(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the numbers in rising order that are nearest to `values` (isotonic regression by pooling neighbours)."""
    pools: list[tuple[float, int]] = []  # mean and how many
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (b, m), (a, n) = pools.pop(), pools.pop()
            pools.append(((a * n + b * m) / (n + m), n + m))
    return np.repeat([mean for mean, _ in pools], [count for _, count in pools])


FIGURES: tuple[FigureKind, ...] = ("png", "svg", "pdf")


def rendered(figure: Figure, kind: FigureKind) -> bytes:
    """Return a figure as a file: the same bytes for the same numbers, without a date or a program's name."""
    out = io.BytesIO()
    names = {
        "png": ("Software",),
        "svg": ("Date", "Creator", "Format", "Type"),
        "pdf": ("CreationDate", "Creator", "Producer"),
    }
    nothing: dict[str, Any] = dict.fromkeys(names[kind])
    figure.savefig(out, format=kind, dpi=170, metadata=nothing)
    return out.getvalue()


def inline(svg: bytes, name: str, description: str, more: Mapping[str, str] | None = None) -> str:
    """Return an SVG for use within a page, styled by attributes alone, which the page's style sheet overrides.

    An element with gid="line.3" gets data-part="line" and data-method="3", the axis along x data-axis="x".
    `description` is for screen readers, `more` are attributes of the svg.
    """
    root = ElementTree.fromstring(svg)
    link = "{http://www.w3.org/1999/xlink}href"
    referenced = set(re.findall(r'(?:xlink:href="|url\()#([^")]+)', svg.decode("utf-8")))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)
    for path in root.iterfind(f".//{_SVG}defs/{_SVG}path"):
        path.attrib.pop("style", None)  # of a marker: it inherits the style of its uses
    for e in root.iter():
        for attribute, value in _presentation(e.attrib.pop("style", "")):
            e.set(attribute, value)
        if part := re.fullmatch(r"([a-z]+)\.(\d+)", element_id := e.attrib.pop("id", "")):
            e.set("data-part", part[1])
            e.set("data-method", part[2])
        elif element_id == "matplotlib.axis_1":
            e.set("data-axis", "x")
        elif element_id in referenced:
            e.set("id", f"{name}-{element_id}")
        if e.get(link, "").startswith("#"):
            e.set(link, f"#{name}-{e.get(link, '')[1:]}")
        if "clip-path" in e.attrib:
            e.set("clip-path", e.attrib["clip-path"].replace("url(#", f"url(#{name}-"))
        if "d" in e.attrib:
            e.set("d", re.sub(r"(\.\d{4})\d+", r"\1", " ".join(e.attrib["d"].split())))
        e.tail = None
        e.text = e.text if e.tag in (f"{_SVG}text", f"{_SVG}tspan") else None
    shape = {"stroke-linejoin": "round", "role": "img", "aria-label": description, "viewBox": root.get("viewBox", "")}
    root.attrib.clear()
    root.attrib.update(shape | dict(more or {}))
    return ElementTree.tostring(root, encoding="unicode")


def _presentation(style: str) -> Iterator[tuple[str, str]]:
    """Yield the declarations of a style attribute as attributes; of fonts only the size, the rest is the page's."""
    for declaration in filter(None, style.split(";")):
        name, _, value = (word.strip() for word in declaration.partition(":"))
        if name == "font":  # before matplotlib 3.11: 10px 'DejaVu Sans', sans-serif
            yield "font-size", next(iter(re.findall(r"[\d.]+px", value)), "10px")
        elif name != "font-family":
            yield name, value


def scales(figure: Figure) -> dict[str, str]:
    """Return two places in the SVG and their values for each axis, x and y, from which the page reads values."""
    axes = figure.axes[0]
    box, (width, height) = axes.get_position(), figure.get_size_inches() * 72
    x = (box.x0 * width, box.x1 * width, *axes.get_xlim())
    y = ((1 - box.y0) * height, (1 - box.y1) * height, *axes.get_ylim())
    return {
        "data-x": " ".join(f"{v:.8g}" for v in x),
        "data-y": " ".join(f"{v:.8g}" for v in y),
        "data-unit": axes.get_xlabel(),
    }
