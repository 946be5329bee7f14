"""Table of numbers: in full precision as CSV, and rounded for people."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal

from fedloom.coordinator.chance_level import Chance
from fedloom.report.methods import Spread
from fedloom.storage.output import as_csv


@dataclass(frozen=True)
class Interval:
    """A mean difference over `count` pairs, and the ends of its interval.

    `most`: the largest difference that the measure can have.
    """

    mean: float
    low: float
    high: float
    count: int
    most: float = math.inf

    @property
    def has_width(self) -> bool:
        """False where all pairs differ by the same, but for rounding."""
        return self.high - self.low > 1e-9 * max(1.0, abs(self.mean))

    @property
    def states_nothing(self) -> bool:
        """True where the interval has all values that there can be."""
        return -self.low >= self.most <= self.high

    def text(self, show: Callable[[float], str]) -> str:
        """Return the difference with its sign and its interval, if this states anything."""
        if self.states_nothing:
            return f"{signed(self.mean, show)} (no statement)"
        return f"{signed(self.mean, show)} [{show(self.low)}, {show(self.high)}]"

    def full(self) -> dict[str, float]:
        """Return the cells of a CSV, by the ends of the columns' names."""
        return {"": self.mean, "_low": self.low, "_high": self.high, "_pairs": self.count}


@dataclass(frozen=True)
class Column:
    """Column: `name` in the CSV; `heading`, `group` above it and format `show` on the page."""

    name: str
    heading: str
    show: Callable[[float], str] | None = None  # None: text
    best: Literal["high", "low"] | None = None
    group: str = ""
    brief: str = ""  # heading on the page, where a group above it and a caption say the rest
    chance: Chance | None = None  # no value up to its limit is a best one


@dataclass(frozen=True)
class Table:
    """Columns, and rows of texts, numbers, Spreads and None.

    `name` is that of the CSV file. `numbers` are those of the methods in the rows, for their colours; `references`
    those of methods that are never best.
    """

    name: str
    columns: Sequence[Column]
    rows: list[list[Any]]
    numbers: list[int] = field(default_factory=list)  # of the method in each row, for its colour
    references: frozenset[int] = frozenset()

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Groups of neighbouring columns that stand above the headings, and the number of columns in each."""
        return [(name, len(list(of))) for name, of in itertools.groupby(c.group for c in self.columns)]

    @property
    def begins(self) -> list[int]:
        """Columns that begin a group or follow one; none where there are no groups."""
        return list(itertools.accumulate(span for _, span in self.groups))[:-1]

    def csv(self) -> str:
        """Return the table as CSV with every number in full; a Spread becomes three columns, an Interval four."""
        measured = [[row[i] for row in self.rows if hasattr(row[i], "full")] for i in range(len(self.columns))]
        ends = [list(values[0].full()) if values else [""] for values in measured]
        rows: list[list[Any]] = [[c.name + end for c, its in zip(self.columns, ends, strict=True) for end in its]]
        for row in self.rows:
            cells: list[Any] = []
            for value, its in zip(row, ends, strict=True):
                full = value.full() if hasattr(value, "full") else {"": "" if value is None else value}
                cells += [full.get(end, "") for end in its]
            rows.append(cells)
        return as_csv(rows)

    def filled(self) -> Table:
        """Return the table without columns that are empty below their headings."""
        kept = [i for i, c in enumerate(self.columns) if not self.rows or any(row[i] is not None for row in self.rows)]
        rows = [[row[i] for i in kept] for row in self.rows]
        return replace(self, columns=[self.columns[i] for i in kept], rows=rows)

    def texts(self) -> list[list[str]]:
        """Return the cells as text, rounded for people."""
        return [[self.text(v, c) for v, c in zip(row, self.columns, strict=True)] for row in self.rows]

    def markdown(self) -> str:
        """Return the table in Markdown; the best of each column is bold."""
        rows = [[literal(c.heading) for c in self.columns], ["---", *["---:"] * (len(self.columns) - 1)]]
        best = [self.winners(i) for i in range(len(self.columns))]
        for k, cells in enumerate(self.texts()):
            clean = [literal(cell) for cell in cells]
            rows.append([f"**{cell}**" if k in best[i] else cell for i, cell in enumerate(clean)])
        return "".join(f"| {' | '.join(row)} |\n" for row in rows)

    @property
    def bold_note(self) -> str:
        """Sentence of a caption that says which numbers are bold, and which references are left out; "" if none is."""
        if not any(self.winners(i) for i in range(len(self.columns))):
            return ""
        references = [str(row[0]) for k, row in enumerate(self.rows) if self.is_reference(k)]
        left_out = f", references ({', '.join(references)}) left out" if references else ""
        return f" Bold: the best of each column{left_out}; no test of significance."

    def latex(self, caption: str) -> str:
        """Return the table in LaTeX, with the rules of booktabs; its caption says what is bold."""
        best = [self.winners(i) for i in range(len(self.columns))]
        rows = [
            [rf"\textbf{{{_tex(cell)}}}" if k in best[i] else _tex(cell) for i, cell in enumerate(cells)]
            for k, cells in enumerate(self.texts())
        ]
        heads = [r"\shortstack[r]{" + _tex(two_lines(c.heading)).replace("\n", r"\\") + "}" for c in self.columns]
        lines = [" & ".join(row) + r" \\" for row in [heads, *rows]]
        body = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
        kinds = "l" + "r" * (len(self.columns) - 1)
        return (
            f"\\begin{{table}}\n\\centering\n\\small\n\\caption{{{_tex(caption + self.bold_note)}}}\n\\smallskip\n"
            f"\\begin{{tabular}}{{{kinds}}}\n{body}\n\\end{{tabular}}\n\\end{{table}}\n"
        )

    def html(self) -> str:
        """Return the table in plain HTML, for a notebook."""
        head = "".join(f'<th scope="col">{escape(c.heading)}</th>' for c in self.columns)
        body = "".join(
            f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
            for first, *cells in self.texts()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def text(self, value: Any, column: Column) -> str:
        """Return a cell as the page shows it."""
        if value is None:
            return "–"
        if column.show is None:
            return str(value)
        if hasattr(value, "text"):  # an interval, a cost of reaching a level
            return str(value.text(column.show))
        if not isinstance(value, Spread):
            return column.show(value)
        if math.isnan(value.std):
            return column.show(value.mean)
        std = amount(value.std, value.mean) if column.show is amount else column.show(value.std)
        return f"{column.show(value.mean)} ± {std}"

    def is_reference(self, k: int) -> bool:
        """Return whether row k is of a reference."""
        return bool(self.numbers) and self.numbers[k] in self.references

    def winners(self, i: int) -> set[int]:
        """Return the rows that are best in column i, those that print the same included; none where all are equal.

        References are left out: training alone, or on pooled data, is no method that could be chosen. So is a best that
        is not above chance.
        """
        column = self.columns[i]
        means = {
            k: mean
            for k, row in enumerate(self.rows)
            if (v := row[i]) is not None and not self.is_reference(k) and (mean := getattr(v, "mean", v)) != math.inf
        }
        show = column.show or str
        if column.best is None or len({show(v) for v in means.values()}) < 2:
            return set()
        best = max(means.values()) if column.best == "high" else min(means.values())
        if column.chance is not None and best <= column.chance.limit:
            return set()
        return {k for k, v in means.items() if show(v) == show(best)}


def literal(text: str) -> str:
    """Escape a text for Markdown."""
    return re.sub(r"([|*_`<])", r"\\\1", text)


def _tex(text: str) -> str:
    """Escape a text for LaTeX."""
    special = {**{c: f"\\{c}" for c in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
    special |= {"^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--"}
    special |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", "".join(special.get(c, c) for c in text))


def two_lines(heading: str) -> str:
    """Break a heading into two lines, as narrow as it can be."""
    words = heading.split()
    return min(
        (" ".join(words[:i]) + "\n" + " ".join(words[i:]) for i in range(1, len(words) + 1)),
        key=lambda text: max(map(len, text.split("\n"))),
    ).strip()


def percent(value: float) -> str:
    """Return a share as a percentage, without the % sign: 0.7085 -> 70.9 (-0.0 is 0.0)."""
    return f"{round(100 * value, 1) + 0.0:.1f}"


def signed(value: float, show: Callable[[float], str] = percent) -> str:
    """Return points, or another number, with their sign: +3.1, -0.4; 0.0 has none."""
    text = show(value)
    return text if text.startswith("-") or text in ("0.0", "0") else f"+{text}"


def format_of(unit: str) -> Callable[[float], str]:
    """Return how numbers of a unit are printed: shares and their differences as percentages."""
    return percent if unit in ("%", "points") else amount


def with_unit(text: str, unit: str, between: str = " ") -> str:
    """Return a number or a heading and its unit, where it has one."""
    return f"{text}{between}{unit}" if unit else text


def amount(value: float, like: float | None = None) -> str:
    """Return a number with three digits that matter and no exponent: 0.0123, 1.23, 12.3, 1,235.

    With `like`, it has as many decimals as `like` has.
    """
    if not math.isfinite(value):
        return "–"
    if not (like or value):
        return "0"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(like or value))))}f}"


def whole(value: float) -> str:
    """Return a number of things as text: 3, 1,200; a mean of such numbers has one decimal: 7.5."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
