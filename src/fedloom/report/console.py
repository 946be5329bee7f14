"""Tables on a terminal: they fit into 80 columns, and into fewer by leaving out columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.text import Text

from fedloom.coordinator import History
from fedloom.coordinator.chosen_rounds import newest
from fedloom.coordinator.record_entries import columns_of
from fedloom.display.terminal import table
from fedloom.report.methods import evaluation_seconds, training_seconds
from fedloom.report.number_table import Table, two_lines


class _Column(NamedTuple):
    heading: str
    cells: list[str]
    leaves: int  # columns with higher numbers are left out first; 0: never
    below: bool = False  # where it is left out, it stands in a table below


class _FittedTable:
    """Table with a row for each run and as many columns as a terminal has room for; columns of dashes are left out.

    `split`: all columns without room go into a table below instead of being left out, not only those with `below`.
    """

    def __init__(self, title: str, labels: Sequence[str], columns: Sequence[_Column], *, split: bool = False) -> None:
        self.title, self.labels, self.split = title, labels, split
        self.columns = [c for c in columns if not set(c.cells) <= {_number(math.nan), "–"}]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown, first = list(self.columns), _widest(["algorithm", *self.labels])
        left_out: list[_Column] = []
        while first + sum(2 + _widest([c.heading, *c.cells]) for c in shown) > options.max_width:
            least_important = max(reversed(shown), key=lambda c: c.leaves)
            if not least_important.leaves:
                break
            shown.remove(least_important)
            left_out.insert(0, least_important)
        out = table(self.title)
        out.add_column("algorithm", overflow="fold")
        for column in shown:
            out.add_column(
                Text(column.heading), justify="left" if column.heading == "engine" else "right", no_wrap=True
            )
        for label, *cells in zip(self.labels, *(column.cells for column in shown), strict=True):
            out.add_row(Text(label), *cells)
        yield out
        if rest := [c for c in left_out if self.split or c.below]:
            yield _FittedTable("", self.labels, [rest[0]._replace(leaves=0), *rest[1:]], split=self.split)


def fit_terminal(title: str, numbers: Table, *, split: bool = False) -> ConsoleRenderable:
    """Return a table of numbers that fits a terminal.

    Where the terminal is too narrow, columns are left out, the last first. With `split`, they stand in a table below.
    """
    first, *others = zip(numbers.columns, zip(*numbers.texts(), strict=True), strict=True)
    columns = [_Column(two_lines(c.heading), list(cells), i) for i, (c, cells) in enumerate(others)]
    return _FittedTable(title, list(first[1]), columns, split=split)


def comparison_table(results: Sequence[tuple[str, History]], prefix: str = "") -> ConsoleRenderable:
    """Return one row per run: its last measures and its cost.

    New clients, and the number of lost responses, have columns if there are any. On a narrow terminal whole columns are
    left out, the least important first; measures beside the headline, columns of parts, what a method notes, and the
    threshold stand in a table below. No number is cut off. `prefix` stands before the title.
    """
    histories = [history for _, history in results]
    last_rounds = newest(min((h.metrics[-1]["round"] for h in histories), default=0))

    def numbers(name: str, count: int = 1, digits: int = 4) -> list[str]:
        names = [name.format(history.headline.name) for history in histories]
        pairs = zip(histories, names, strict=True)
        return [_number(h.last(own, count) if h.has(own) else math.nan, digits) for h, own in pairs]

    means = [_Column(f"global\nmean {last_rounds}", numbers("global_{}", last_rounds), 0)] * (last_rounds > 1)
    new_clients = [_Column(f"new\n{heading}", numbers(f"new_{way}_{{}}"), 2) for way, heading in _NEW.items()]
    others = {one.name: one.title for history in histories for one in history.task_measures[1:]}
    beside = [
        _Column(f"{whose}\n{title}", numbers(f"{whose}_{name}"), 2, below=True)
        for name, title in others.items()
        for whose in ("global", "personal")
    ]
    beside += [
        _Column(f"without\n{title}", numbers(f"personal_{name}_undefined", digits=0), 3)
        for name, title in others.items()
    ]
    own = {name: c.title for history in histories for name, c in history.columns.items()}
    declared = {c.name: c for history in histories for c in columns_of(history.manifest).values()}
    own |= {name: c.label for name, c in declared.items()}
    beside += [_Column(two_lines(heading), numbers(name), 1, below=True) for name, heading in own.items()]
    dropped = [sum(len(m.get("failed", ())) for m in history.metrics) for history in histories]
    megabytes = [history.rows()[-1]["bytes"] / max(1, len(history.metrics) - 1) / 1e6 for history in histories]
    columns = [
        _Column("global\nlast", numbers("global_{}"), 0),
        *means,
        _Column("forget-\nting", numbers("forgetting"), 2),
        _Column("personal\nlast", numbers("personal_{}"), 1),
        _Column("worst\ndecile", numbers("personal_worst_tenth"), 3),
        *beside,
        _Column("thresh-\nold", numbers("threshold"), 2, below=True),
        *[column for column in new_clients if set(column.cells) != {_number(math.nan)}],
        _Column("MB a\nround", [f"{m:.2f}" for m in megabytes], 6),
        _Column("train s\na round", [_number(training_seconds(h), 2) for h in histories], 5),
        _Column("eval s\na round", [_number(evaluation_seconds(h), 2) for h in histories], 7),
        *[_Column("lost", [str(count) for count in dropped], 4)] * any(dropped),
        _Column("engine", [history.engine for history in histories], 8),
    ]
    explained = f"; mean {last_rounds}: over the last {last_rounds}" * (last_rounds > 1)
    explained += "".join(f"; {c.label}: {c.meaning.partition('. ')[0].rstrip('.')}" for c in declared.values())
    title = f"{prefix}{_titles(histories)} after the last round{explained}"
    return _FittedTable(title, [label for label, _ in results], columns)


def _titles(histories: Sequence[History]) -> str:
    titles = " or ".join(dict.fromkeys(history.headline.title for history in histories))
    return titles[:1].upper() + titles[1:]


_NEW = {"global": "global", "fine_tuned": "tuned", "personalised": "own"}
_WAYS = {  # field of Summaries: the heading of its column, and its meaning
    "last": ("last", "last round"),
    "tail": ("mean {many}", "mean of the last {many}"),
    "validated": ("by val.", "chosen by validation"),
    "best": ("best*", "*best on test, which is optimistic"),
    "mean": ("mean", "mean of all rounds"),
}


def readings_table(results: Sequence[tuple[str, History]]) -> ConsoleRenderable:
    """Return one row per run: the headline of global and personal models, each read in five ways (`History.summaries`).

    Beside them stand the round that validation data choose, and its headline on these. What a narrow terminal has no
    room for stands in a table below.
    """
    columns, ways = [], set[str]()
    last_rounds = newest(min((h.metrics[-1]["round"] for _, h in results), default=0))
    for kind in ("global", "personal"):
        readings = [h.summaries(f"{kind}_{h.headline.name}", last_rounds)._asdict() for _, h in results]
        for leaves, (way, (heading, _)) in enumerate(_WAYS.items()):
            cells = [_number(values[way]) for values in readings]
            if set(cells) != {_number(math.nan)} and (way != "tail" or last_rounds > 1):
                columns.append(_Column(f"{kind}\n{heading.format(many=last_rounds)}", cells, leaves))
                ways.add(way)
    if "validated" in ways:
        rounds = [history.validated_round for _, history in results]
        columns.append(_Column("val.\nround", ["-" if t is None else str(t) for t in rounds], 2))
        best = [h.summaries(f"val_{h.headline.name}").validated for _, h in results]
        columns.append(_Column("val.\nbest", list(map(_number, best)), 2))
    explanation = "; ".join(what.format(many=last_rounds) for way, (_, what) in _WAYS.items() if way in ways)
    weighed = [(h, f"personal_{h.headline.name}_by_samples") for _, h in results]
    if any(h.has(name) for h, name in weighed):
        cells = [_number(h.last(name) if h.has(name) else math.nan) for h, name in weighed]
        columns.append(_Column("personal\nsamples", cells, 1))
        explanation += "; samples: last round, by samples (others: mean over clients)"
    return _FittedTable(f"Which number: {explanation or 'none'}", [label for label, _ in results], columns, split=True)


def _widest(texts: Sequence[str]) -> int:
    return max(cell_len(line) for text in texts for line in text.split("\n"))


def _number(value: float, digits: int = 4) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
