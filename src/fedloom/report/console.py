"""Tables on a terminal; everything fits into 80 columns, and into fewer with less in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.markup import escape
from rich.text import Text

from fedloom.coordinator import History
from fedloom.coordinator.history import newest
from fedloom.display.terminal import table
from fedloom.evaluate.measure import VALIDATION
from fedloom.report.methods import evaluation_seconds, training_seconds
from fedloom.report.number_table import Table, two_lines


class _Column(NamedTuple):
    heading: str
    cells: list[str]
    leaves: int  # the higher, the earlier it goes where there is no room


class _Fitted:
    """A table with a row for each run and as many columns as a terminal has room for; columns of dashes are left out.

    `parted`: the columns without room stand in a table below, since every column counts.
    """

    def __init__(self, title: str, labels: Sequence[str], columns: Sequence[_Column], *, parted: bool = False) -> None:
        self.title, self.labels, self.parted = title, labels, parted
        self.columns = [c for c in columns if not set(c.cells) <= {_number(math.nan), "–"}]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept, first = list(self.columns), _widest(["algorithm", *self.labels])
        rest: list[_Column] = []
        while first + sum(2 + _widest([c.heading, *c.cells]) for c in kept) > options.max_width:
            least = max(kept, key=lambda c: c.leaves)
            if not least.leaves:
                break
            kept.remove(least)
            rest.insert(0, least)
        out = table(self.title)
        out.add_column("algorithm", overflow="fold")
        for column in kept:
            out.add_column(
                Text(column.heading), justify="left" if column.heading == "engine" else "right", no_wrap=True
            )
        for label, *cells in zip(self.labels, *(column.cells for column in kept), strict=True):
            out.add_row(escape(label), *cells)
        yield out
        if self.parted and rest:
            yield _Fitted("", self.labels, [rest[0]._replace(leaves=0), *rest[1:]], parted=True)


def fitted(title: str, found: Table, *, parted: bool = False) -> ConsoleRenderable:
    """Return a table of numbers that fits a terminal.

    Where the terminal is too narrow, columns are left out, the last first. With `parted`, they stand in a table below.
    """
    first, *others = zip(found.columns, zip(*found.texts(), strict=True), strict=True)
    columns = [_Column(two_lines(c.heading), list(cells), i) for i, (c, cells) in enumerate(others)]
    return _Fitted(title, list(first[1]), columns, parted=parted)


def comparison_table(results: Sequence[tuple[str, History]], called: str = "") -> ConsoleRenderable:
    """Return one row per run: where it ended and what it cost.

    New clients, and clients lost over all rounds, have columns if there are any. Where a terminal is too narrow, whole
    columns are left out, those of least importance first; no number is cut off. `called` stands before the title.
    """
    histories = [history for _, history in results]
    many = newest(min((h.metrics[-1]["round"] for h in histories), default=0))

    def numbers(name: str, count: int = 1) -> list[str]:
        return [_number(history.last(name, count)) for history in histories]

    means = [_Column(f"global\nmean {many}", numbers("global_accuracy", many), 0)] * (many > 1)
    new = [_Column(f"new\n{heading}", numbers(f"new_{way}_accuracy"), 2) for way, heading in _NEW.items()]
    lost = [sum(len(m.get("failed", ())) for m in history.metrics) for history in histories]
    moved = [history.rows()[-1]["bytes"] / max(1, len(history.metrics) - 1) / 1e6 for history in histories]
    columns = [
        _Column("global\nlast", numbers("global_accuracy"), 0),
        *means,
        _Column("forget-\nting", numbers("forgetting"), 2),
        _Column("personal\nlast", numbers("personal_accuracy"), 1),
        _Column("worst\n10th", numbers("personal_worst_tenth"), 3),
        *[column for column in new if set(column.cells) != {_number(math.nan)}],
        _Column("MB a\nround", [f"{m:.2f}" for m in moved], 6),
        _Column("train s\na round", [_number(training_seconds(h), 2) for h in histories], 5),
        _Column("eval s\na round", [_number(evaluation_seconds(h), 2) for h in histories], 7),
        *[_Column("lost", [str(count) for count in lost], 4)] * any(lost),
        _Column("engine", [history.engine for history in histories], 8),
    ]
    explained = f"; mean {many}: over the last {many}" * (many > 1)
    return _Fitted(f"{called}Accuracy after the last round{explained}", [label for label, _ in results], columns)


_NEW = {"global": "global", "fine_tuned": "tuned", "personalised": "own"}
_WAYS = {  # a field of Readings: the heading of its column, and what it is
    "last": ("last", "last round"),
    "tail": ("mean {many}", "mean of the last {many}"),
    "validated": ("by val.", "chosen by validation"),
    "best": ("best*", "*best on test, which is optimistic"),
    "mean": ("mean", "mean of all rounds"),
}


def readings_table(results: Sequence[tuple[str, History]]) -> ConsoleRenderable:
    """Return one row per run: global and personal accuracy, each read in five ways (`History.readings`).

    Beside them stand the round that validation data choose, and its accuracy on these.
    """
    columns, shown = [], set[str]()
    many = newest(min((h.metrics[-1]["round"] for _, h in results), default=0))
    for kind in ("global", "personal"):
        found = [history.readings(f"{kind}_accuracy", many)._asdict() for _, history in results]
        for leaves, (way, (heading, _)) in enumerate(_WAYS.items()):
            cells = [_number(values[way]) for values in found]
            if set(cells) != {_number(math.nan)} and (way != "tail" or many > 1):
                columns.append(_Column(f"{kind}\n{heading.format(many=many)}", cells, leaves))
                shown.add(way)
    if "validated" in shown:
        rounds = [history.validated_round for _, history in results]
        columns.append(_Column("val.\nround", ["-" if t is None else str(t) for t in rounds], 2))
        columns.append(_Column("val.\nbest", [_number(h.readings(VALIDATION).validated) for _, h in results], 2))
    said = "; ".join(what.format(many=many) for way, (_, what) in _WAYS.items() if way in shown)
    return _Fitted(f"Which number: {said or 'none'}", [label for label, _ in results], columns)


def _widest(texts: Sequence[str]) -> int:
    return max(cell_len(line) for text in texts for line in text.split("\n"))


def _number(value: float, digits: int = 4) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
