"""Several seeds of several methods: means, deviations and differences, for a terminal, a notebook and a paper."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from fedloom.coordinator.history import History, newest
from fedloom.core.errors import SettingError
from fedloom.core.naming import meant
from fedloom.core.output import as_csv, publish
from fedloom.report.console import fitted
from fedloom.report.grouping import read_methods
from fedloom.report.methods import Method, Run, Spread
from fedloom.report.number_table import Column, Interval, Table, percent, whole
from fedloom.report.printable import part, printable
from fedloom.report.style import looks

WAYS = {  # a field of Readings: what it is
    "last": "last round",
    "tail": "mean of last {many}",
    "validated": "chosen on validation",
    "best": "best on test (optimistic)",
    "mean": "mean over rounds",
}
_KINDS = {"global_accuracy": "global", "personal_accuracy": "personal"}
_T = (  # 97.5 % quantile of Student's t with 1, 2, ... degrees of freedom
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)

Runs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, History | Sequence[History]]


def summary(runs: Runs, *, against: str | None = None, reading: str = "last") -> Summary:
    """Means and standard deviations over seeds, and differences between methods over the same seeds.

    Args:
        runs: one or several folders with runs below them, or the histories of each method, by its name.
        against: the method that others are compared with; by default the first that is not local-only training.
        reading: what differences are of, a field of what `History.readings` gives: last, tail, validated, best or
            mean.

    Raises:
        SettingError: there is no run, no such method or reading, or a file of a run is damaged.
    """
    remarks: list[str] = []
    if isinstance(runs, History) or (isinstance(runs, Sequence) and any(isinstance(of, History) for of in runs)):
        raise SettingError(
            "a summary takes directories, or histories by the name of their method, got histories without names: "
            "write summary({'fedavg': [first, second]})"
        )
    if isinstance(runs, Mapping):
        methods = _of_histories(runs)
    else:
        methods, remarks = read_methods([runs] if isinstance(runs, (str, os.PathLike)) else list(runs))
    labels = [m.label for m in methods]
    reference = against or next((m.label for m in methods if not m.alone), labels[0])
    if reference not in labels:
        raise SettingError(
            f"against must be one of the methods {', '.join(labels)}, got {reference!r}{meant(reference, labels)}"
        )
    if reading not in WAYS:
        raise SettingError(f"reading must be one of {', '.join(WAYS)}, got {reading!r}{meant(reading, WAYS)}")
    return Summary(tuple(methods), reference, reading, tuple(remarks))


def _of_histories(runs: Mapping[str, History | Sequence[History]]) -> list[Method]:
    groups = {name: [of] if isinstance(of, History) else list(of) for name, of in runs.items()}
    empty = [name for name, of in groups.items() if not of or any(not history.metrics for history in of)]
    if empty or not groups:
        raise SettingError(
            f"a summary takes histories of at least one round, got none of {', '.join(empty) or 'any method'}: run "
            "each method first"
        )
    return [
        Method(name, number, tuple(Run(f"{name}/{i}", history) for i, history in enumerate(of)))
        for (name, of), number in zip(groups.items(), looks(list(groups)), strict=True)
    ]


@dataclass(frozen=True)
class Summary:
    """Methods over their seeds, as tables: printed by rich, shown by a notebook, and written as LaTeX, Markdown, CSV.

    Numbers are in %: mean ± sample standard deviation over seeds. `against`: the method of the differences; `reading`:
    what they are of; `remarks`: what to know of the runs.
    """

    methods: tuple[Method, ...]
    against: str
    reading: str = "last"
    remarks: tuple[str, ...] = ()

    @property
    def several(self) -> bool:
        """Whether a method has more than one seed."""
        return any(len(m.counted) > 1 for m in self.methods)

    def tables(self) -> list[Table]:
        """The readings of global and of personal accuracy, and the differences over seeds, as far as there are any."""
        found = [readings(self.methods, [kind]) for kind in _KINDS]
        return [table for table in (*found, self.differences()) if table is not None]

    def differences(self) -> Table | None:
        """What each method has more than `against`, seed by seed, with 95 % intervals; None without two common seeds.

        Where local-only training is among the methods, also what clients gain over it.
        """
        by_label = {m.label: m for m in self.methods}
        alone = next((m for m in self.methods if m.alone and m.label != self.against), None)
        wanted = [(kind, by_label[self.against]) for kind in _KINDS]
        wanted += [] if alone is None else [("personal_accuracy", alone)]
        columns, cells, many = [], [], tail(self.methods)
        for kind, other in wanted:
            own = [None if m is other else paired(m, other, kind, self.reading, many) for m in self.methods]
            if any(cell is not None for cell in own):
                name, heading = f"{kind}_{self.reading}_less_{other.label}", f"{_KINDS[kind]}, less {other.label}"
                columns.append(Column(name, heading, percent))
                cells.append(own)
        rows = [
            [m.label, *values]
            for m, *values in zip(self.methods, *cells, strict=True)
            if any(v is not None for v in values)
        ]
        numbers = [m.number for m in self.methods if m.label in {row[0] for row in rows}]
        return Table("differences", [Column("method", "method"), *columns], rows, numbers) if rows else None

    def captions(self) -> dict[str, str]:
        """What stands above each table, by its name."""
        each = f" over {seeds(self.methods)}" if self.several else ""
        spread = f", mean ± standard deviation{each}: {partitions(self.methods)}" if each else ", one seed each"
        way = WAYS[self.reading].format(many=tail(self.methods))
        return {
            "global_accuracy": f"Global accuracy in %{spread}.",
            "personal_accuracy": f"Personal accuracy in %, mean over clients{spread}.",
            "differences": f"Differences in points ({way}), mean over common seeds [95 % interval, Student's t, paired "
            "by seed]. An interval that holds 0 leaves open which is better.",
        }

    def markdown(self) -> str:
        """The tables in Markdown, each below its caption."""
        captions = self.captions()
        return "\n".join(f"{captions[t.name]}\n\n{t.markdown()}" for t in self.tables())

    def latex(self) -> str:
        """The tables in LaTeX, for the package booktabs."""
        captions = self.captions()
        return "\n".join(t.latex(captions[t.name]) for t in self.tables())

    def csv(self) -> str:
        """One row for each method, accuracy and reading, in full precision; shares, not %."""
        names = ("mean", "std", "seeds", "partition", "against", "difference", "low", "high", "pairs")
        rows: list[list[Any]] = [["method", "metric", "reading", *names]]
        other, many = next(m for m in self.methods if m.label == self.against), tail(self.methods)
        for m in self.methods:
            for kind in _KINDS:
                for way in WAYS:
                    if (found := reading_of(m, kind, way, many)) is None:
                        continue
                    row = [m.label, kind, way, found.mean, "" if math.isnan(found.std) else found.std, found.count]
                    gap = None if m is other else paired(m, other, kind, way, many)
                    row += [_PARTITION[_one_partition(m)], self.against]
                    rows.append([*row, *((gap.mean, gap.low, gap.high, gap.count) if gap else [""] * 4)])
        return as_csv(rows)

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write summary.tex, summary.md and summary.csv into a folder, and return their paths."""
        return [publish(Path(folder), name, data) for name, data in self.files().items()]

    def files(self) -> dict[str, bytes]:
        """What `write` writes."""
        made = {"summary.tex": self.latex(), "summary.md": self.markdown(), "summary.csv": self.csv()}
        return {name: text.encode("utf-8") for name, text in made.items()}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        captions = self.captions()
        for i, table in enumerate(self.tables()):
            yield from [""] * (i > 0)
            yield fitted(captions[table.name], table)
        yield from (Text(remark, style="yellow") for remark in self.remarks)

    def _repr_html_(self) -> str:
        captions = self.captions()
        return "".join(f"<p>{escape(captions[t.name])}</p>{t.html()}" for t in self.tables())

    def __repr__(self) -> str:
        return f"Summary({', '.join(m.label for m in self.methods)}; {seeds(self.methods)})"


def readings(methods: Sequence[Method], kinds: Sequence[str]) -> Table | None:
    """Accuracies, each read in as many ways as it was measured for (`History.readings`); None where none was."""
    many = tail(methods)
    columns, cells = [], []
    for kind in kinds:
        for way, heading in WAYS.items():
            found = [reading_of(m, kind, way, many) for m in methods]
            if any(spread is not None for spread in found) and (way != "tail" or many > 1):
                group = f"{_KINDS[kind]} accuracy, %" if len(kinds) > 1 else ""
                columns.append(Column(f"{kind}_{way}", heading.format(many=many), percent, "high", group))
                cells.append(found)
    if not columns:
        return None
    head, rows = [Column("method", "method")], [list[Any]([m.label]) for m in methods]
    if len(kinds) == 1 and any(len(m.counted) > 1 for m in methods):
        head.append(Column("seeds", "seeds", whole))
        rows = [[*row, len(m.counted)] for row, m in zip(rows, methods, strict=True)]
    rows = [[*row, *values] for row, *values in zip(rows, *cells, strict=True)]
    return Table(kinds[0] if len(kinds) == 1 else "readings", [*head, *columns], rows, [m.number for m in methods])


def reading_of(method: Method, name: str, way: str, many: int) -> Spread | None:
    """A measured number, read in one way, over the seeds of a method."""
    return method.spread(lambda run: float(getattr(run.history.readings(name, many), way)))


def tail(methods: Sequence[Method]) -> int:
    """Over how many of the last rounds `tail` is a mean: as many for all methods."""
    return newest(min(run.rounds for m in methods for run in m.counted))


def paired(method: Method, other: Method, name: str, way: str, many: int) -> Interval | None:
    """What a method has more than another, over the seeds that both have; None where these are fewer than two.

    `many`: how many of the last rounds `tail` is a mean of, as of the table beside it.
    """
    mine, theirs = (
        {run.seed: float(getattr(run.history.readings(name, many), way)) for run in m.counted if run.seed is not None}
        for m in (method, other)
    )
    gaps = np.array([mine[seed] - theirs[seed] for seed in mine if seed in theirs])
    if len(gaps) < 2 or np.isnan(gaps).any():
        return None
    n = len(gaps)
    # Beyond the table, the first terms of the quantile's expansion in 1 / (n - 1): right to 0.001.
    t = _T[n - 2] if n - 2 < len(_T) else 1.95996 + 2.37227 / (n - 1) + 2.8225 / (n - 1) ** 2
    half = t * float(np.std(gaps, ddof=1)) / math.sqrt(n)
    mean = float(gaps.mean())
    return Interval(mean, mean - half, mean + half, n)


def seeds(methods: Sequence[Method]) -> str:
    """How many seeds methods have, in words."""
    counts = sorted({len(m.counted) for m in methods})
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{span} seed{'s' * (span != '1')}"


_PARTITION = {True: "fixed", False: "varied", None: ""}


def partitions(methods: Sequence[Method]) -> str:
    """What ± is of: whether the partition was the same for all seeds of each method."""
    found = {_one_partition(m) for m in methods if len(m.counted) > 1}
    if found == {True}:
        return "one partition for all seeds, which vary initial weights, cohorts and batches"
    if found == {False}:
        return "every seed draws its own partition (data.partition_seed fixes one)"
    return "whether seeds share a partition is not known of all runs" if None in found else "some share a partition"


def _one_partition(method: Method) -> bool | None:
    """Whether all seeds have the same clients; None where the runs do not tell, or there is one seed."""
    known = {_clients(run.history) for run in method.counted}
    return None if len(method.counted) < 2 or None in known else len(known) == 1


def _clients(history: History) -> str | None:
    """Who holds what: the partition's fingerprint, or the examples by client and class."""
    known = part(history.manifest, "federation", "parts", "partition") or history.federation.get("train")
    return None if known is None else printable(str(known), 10**6)
