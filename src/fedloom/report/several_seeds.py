"""Several seeds of several methods: means, deviations and differences, for a terminal, a notebook and a paper."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from fedloom.coordinator.history import History, newest
from fedloom.core.errors import SettingError
from fedloom.core.naming import did_you_mean
from fedloom.evaluate.measure import MEASURES, VALIDATION
from fedloom.experiments.catalogue import label
from fedloom.report.console import fitted
from fedloom.report.grouping import by_problem, methods_of, read_methods, remarks_on
from fedloom.report.methods import Method, Run, Spread, free_in_a_method
from fedloom.report.number_table import Column, Interval, Table, literal, percent, whole
from fedloom.report.printable import printable
from fedloom.report.problems import Problem
from fedloom.storage.output import as_csv, publish

WAYS = {  # a field of Readings: what it is
    "last": "last round",
    "tail": "mean of last {many}",
    "validated": "chosen on validation",
    "best": "best on test (optimistic)",
    "mean": "mean over rounds",
}
DIFFERENCES = "differences"
_KINDS = {name: MEASURES[name].label for name in ("global_accuracy", "personal_accuracy")}
_T = (  # 97.5 % quantile of Student's t with 1, 2, ... degrees of freedom
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)

Directory = str | os.PathLike[str]
Runs = Directory | History | Sequence[Directory | History] | Mapping[str, History | Sequence[History]]


def summary(
    *runs: Runs,
    against: str | None = None,
    reading: str = "last",
    names: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
) -> Summary:
    """Compute means and standard deviations over seeds, and differences between methods over the same seeds.

    Runs on several data sets, or on other problems (`Problem`), stand in tables of their own.

    Args:
        runs: folders with runs below them, or histories, or those of each method by its name.
        against: the method that others are compared with; by default the first that is not local-only training.
        reading: what differences are of, a field of what `History.readings` gives: last, tail, validated, best or
            mean.
        names: what methods and problems are called instead, by what they are called otherwise.
        columns: those of the tables of accuracies, in this order: seeds, or a reading; and differences, for their
            table; by default all.

    Raises:
        SettingError: there is no run, no such method, reading or column, or a file of a run is damaged.
    """
    remarks: list[str] = []
    listed: list[Any] = []
    for given in runs:
        listed += list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    mappings = [of for of in listed if isinstance(of, Mapping)]
    histories = [of for of in listed if isinstance(of, History)]
    if mappings and mappings == listed:
        methods = _of_histories({name: of for mapping in mappings for name, of in mapping.items()})
    elif histories and len(histories) == len(listed):
        methods = _unnamed(histories)
        remarks = remarks_on(methods)
    elif all(isinstance(of, (str, os.PathLike)) for of in listed):
        methods, remarks = read_methods(listed)
    else:
        kinds = ", ".join(dict.fromkeys(type(of).__name__ for of in listed))
        raise SettingError(
            f"a summary takes directories, or histories, or a mapping of names to histories, got {kinds}: write "
            "summary('runs/three'), summary(first, second) or summary({'fedavg': [first, second]})"
        )
    labels = list(dict.fromkeys(m.label for m in methods))
    if against is not None and against not in labels:
        against = next((old for old, new in (names or {}).items() if new == against and old in labels), against)
    if against is not None and against not in labels:
        raise SettingError(
            f"against must be one of the methods {', '.join(labels)}, got {against!r}{did_you_mean(against, labels)}"
        )
    if reading not in WAYS:
        raise SettingError(f"reading must be one of {', '.join(WAYS)}, got {reading!r}{did_you_mean(reading, WAYS)}")
    known = ("seeds", *WAYS, DIFFERENCES)
    if wrong := [name for name in columns or () if name not in known]:
        raise SettingError(f"columns are {', '.join(known)}, got {wrong[0]!r}{did_you_mean(wrong[0], known)}")
    if columns is not None and not set(columns) & set(WAYS):
        raise SettingError(f"columns need at least one of the readings {', '.join(WAYS)}, got {', '.join(columns)!r}")
    chosen = against or next((m.label for m in methods if not m.alone), labels[0])
    shown = known if columns is None else tuple(columns)
    methods = renamed(methods, names or {})
    return Summary(tuple(methods), (names or {}).get(chosen, chosen), reading, tuple(remarks), shown)


def _unnamed(histories: Sequence[History]) -> list[Method]:
    """Group histories that nobody has named into methods: those whose settings differ in the seed alone are one."""
    if not all(history.metrics for history in histories):
        raise SettingError("a summary takes histories of at least one round: run each first")
    return methods_of([Run(f"{label(history.algorithm)}/{i}", history) for i, history in enumerate(histories)])


def _of_histories(runs: Mapping[str, History | Sequence[History]]) -> list[Method]:
    groups = {name: [of] if isinstance(of, History) else list(of) for name, of in runs.items()}
    empty = [name for name, of in groups.items() if not of or any(not history.metrics for history in of)]
    if empty or not groups:
        raise SettingError(
            f"a summary takes histories of at least one round, got none of {', '.join(empty) or 'any method'}: run "
            "each method first"
        )
    named = [(name, Run(f"{name}/{i}", history)) for name, of in groups.items() for i, history in enumerate(of)]
    return methods_of([run for _, run in named], [name for name, _ in named])


@dataclass(frozen=True)
class Summary:
    """Methods over their seeds, as tables: printed by rich, shown by a notebook, and written as LaTeX, Markdown, CSV.

    Numbers are in %: mean ± sample standard deviation over seeds. `against`: the method of the differences, where a
    problem has it; `reading`: what they are of; `remarks`: what to know of the runs; `columns`: which are shown.
    """

    methods: tuple[Method, ...]
    against: str
    reading: str = "last"
    remarks: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("seeds", *WAYS, DIFFERENCES)

    @property
    def several(self) -> bool:
        """True where a method has more than one seed."""
        return any(len(m.counted) > 1 for m in self.methods)

    def by_problem(self) -> list[tuple[Problem, Summary]]:
        """Return the methods on each problem, such as a data set: only these are compared with each other."""
        return [(problem, replace(self, methods=tuple(of), remarks=())) for problem, of in by_problem(self.methods)]

    @property
    def reference(self) -> Method:
        """The method of the differences of the first problem: `against`, or else the first that is not alone."""
        first = by_problem(self.methods)[0][1]
        named = next((m for m in first if m.label == self.against), None)
        return named or next((m for m in first if not m.alone), first[0])

    def tables(self) -> list[Table]:
        """Return the readings of global and personal accuracy, and the differences over seeds, if there are any.

        With several problems, methods by problem come first, then those tables for each.
        """
        return [table for section in self._sections() for _, table in section.tables]

    def _sections(self) -> list[_Section]:
        parts = self.by_problem()
        if len(parts) == 1:
            ways = [name for name in self.columns if name in WAYS]
            found = [readings(self.methods, [kind], ways, "seeds" in self.columns) for kind in _KINDS]
            tables = [t for t in (*found, self.differences() if DIFFERENCES in self.columns else None) if t is not None]
            captions = self.captions()
            return [_Section("", [(captions[table.name], table) for table in tables])]
        sections = [_Section("", self.across())]
        for problem, part_ in parts:
            (only,) = part_._sections()
            sections.append(_Section(problem.title, [(f"{problem.title}: {c}", table) for c, table in only.tables]))
        return sections

    def across(self) -> list[tuple[str, Table]]:
        """Return a table of methods by problem, with its caption, for each accuracy that was measured.

        Accuracies are read in the way that the differences are.
        """
        return [(self._caption_across(kind), t) for kind in _KINDS if (t := across_problems(self, kind)) is not None]

    def _caption_across(self, kind: str) -> str:
        way = WAYS[self.reading].format(many="rounds" if self.reading == "tail" else "")
        spread = f", mean ± standard deviation over {seeds(self.methods)}" if self.several else ""
        return (
            f"{_KINDS[kind].capitalize()} accuracy in % ({way}){spread}: methods by problem. A column is a problem of "
            f"its own; numbers are compared within it alone. {differing(self.methods)}"
        )

    def differences(self) -> Table | None:
        """Return how far each method is ahead of `against`, seed by seed, with 95 % intervals.

        None without two common seeds, and with several problems, which `by_problem` separates. Where local-only
        training is among the methods, the table also has what clients gain over it.
        """
        if len(by_problem(self.methods)) > 1:
            return None
        first = self.reference
        alone = next((m for m in self.methods if m.alone and m is not first), None)
        wanted = [(kind, first) for kind in _KINDS]
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
        """Return the caption that stands above each table, by the table's name."""
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
        """Return the tables in Markdown, each below its caption."""
        out = []
        for section in self._sections():
            out += [f"## {literal(section.title)}\n"] * bool(section.title)
            out += [f"{literal(caption)}\n\n{table.markdown()}" for caption, table in section.tables]
        return "\n".join(out)

    def latex(self) -> str:
        """Return the tables in LaTeX, for the package booktabs."""
        return "\n".join(table.latex(caption) for section in self._sections() for caption, table in section.tables)

    def csv(self) -> str:
        """Return one row for each method, accuracy and reading, in full precision; shares, not %."""
        names = ("mean", "std", "seeds", "partition", "against", "difference", "low", "high", "pairs")
        rows: list[list[Any]] = [["problem", "method", "metric", "reading", *names]]
        for problem, only in self.by_problem():
            rows += [[problem.title, *row] for row in only._rows()]
        return as_csv(rows)

    def _rows(self) -> Iterator[list[Any]]:
        other, many = self.reference, tail(self.methods)
        for m in self.methods:
            for kind in _KINDS:
                for way in WAYS:
                    if (found := reading_of(m, kind, way, many)) is None:
                        continue
                    row = [m.label, kind, way, found.mean, "" if math.isnan(found.std) else found.std, found.count]
                    gap = None if m is other else paired(m, other, kind, way, many)
                    row += [_PARTITION[_one_partition(m)], other.label]
                    yield [*row, *((gap.mean, gap.low, gap.high, gap.count) if gap else [""] * 4)]

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write summary.tex, summary.md and summary.csv into a folder, and return their paths."""
        return [publish(Path(folder), name, data) for name, data in self.files().items()]

    def files(self) -> dict[str, bytes]:
        """Return the files that `write` writes, by name."""
        made = {"summary.tex": self.latex(), "summary.md": self.markdown(), "summary.csv": self.csv()}
        return {name: text.encode("utf-8") for name, text in made.items()}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        shown = [(not section.title, *one) for section in self._sections() for one in section.tables]
        for i, (whole_, caption, table) in enumerate(shown):
            yield from [""] * (i > 0)
            yield fitted(caption, table, parted=whole_ and len(self.by_problem()) > 1)
        yield from (Text(remark, style="yellow") for remark in self.remarks)

    def _repr_html_(self) -> str:
        out = ""
        for section in self._sections():
            out += f"<h3>{escape(section.title)}</h3>" if section.title else ""
            out += "".join(f"<p>{escape(caption)}</p>{table.html()}" for caption, table in section.tables)
        return out

    def __repr__(self) -> str:
        labels = dict.fromkeys(m.label for m in self.methods)
        problems = [problem.title for problem, _ in self.by_problem()]
        on = f" on {', '.join(problems)}" * (len(problems) > 1)
        return f"Summary({', '.join(labels)}{on}; {seeds(self.methods)})"


class _Section(NamedTuple):
    """Tables and their captions below a title; the title is "" where they are of all problems."""

    title: str
    tables: list[tuple[str, Table]]


def across_problems(of: Summary, kind: str) -> Table | None:
    """Return one accuracy, a row for each method and a column for each problem; None where it was not measured."""
    rows: dict[str, list[Any]] = {m.label: [m.label] for m in of.methods}
    columns = [Column("method", "method")]
    for problem, only in of.by_problem():
        found = {m.label: reading_of(m, kind, of.reading, tail(only.methods)) for m in only.methods}
        if any(spread is not None for spread in found.values()):
            columns.append(Column(problem.title, problem.title, percent, "high"))
            for label_, row in rows.items():
                row.append(found.get(label_))
    if len(columns) == 1:
        return None
    numbers = {m.label: m.number for m in of.methods}
    return Table(f"{kind}_by_problem", columns, list(rows.values()), list(numbers.values()))


def differing(methods: Sequence[Method]) -> str:
    """Say which settings are not the same for all problems, in the problems' order, where methods agree within each."""
    groups = [[m.first.facts for m in of] for _, of in by_problem(methods)]
    found = []
    for name in dict.fromkeys(k for of in groups for facts in of for k in facts if not free_in_a_method(k)):
        values = [{facts.get(name) for facts in of} for of in groups]
        if all(len(of) == 1 for of in values) and len(set.union(*values)) > 1:
            found.append(f"{name} ({', '.join(printable(next(iter(of)) or '–', 40) for of in values)})")
    return f"They differ in {'; '.join(found)}." if found else "They differ in their data."


def renamed(methods: Sequence[Method], names: Mapping[str, str]) -> list[Method]:
    """Rename methods and problems: `names` has what each is called instead, by its name otherwise.

    Raises:
        SettingError: there is no method or problem of a name, or two would have the same name.
    """
    kinds = [list(dict.fromkeys(of)) for of in ([m.label for m in methods], [m.problem.title for m in methods])]
    known = [name for of in kinds for name in of if name]
    for old, new in names.items():
        if old not in known:
            raise SettingError(
                f"there is no {old!r} to be named {new!r}: there are {', '.join(known)}{did_you_mean(old, known)}"
            )
    for of in kinds:
        called = [names.get(name, name) for name in of]
        if twice := [name for name in called if not name.strip() or called.count(name) > 1]:
            raise SettingError(f"each is called otherwise, got the name {twice[0]!r} {called.count(twice[0])} times")
    return [
        replace(m, label=printable(names.get(m.label, m.label)), problem=replace(m.problem, title=printable(title)))
        for m in methods
        for title in [names.get(m.problem.title, m.problem.title)]
    ]


def readings(
    methods: Sequence[Method], kinds: Sequence[str], ways: Sequence[str] = tuple(WAYS), counted: bool = True
) -> Table | None:
    """Return accuracies, each read in as many ways as it was measured for (`History.readings`); None where none was.

    `ways`: those that are shown, in this order; `counted`: with the number of seeds. Where several kinds stand beside
    each other, so do the round that validation data choose and its accuracy on these.
    """
    many = tail(methods)
    columns, cells = [], []
    for kind in kinds:
        for way in ways:
            heading, found = WAYS[way], [reading_of(m, kind, way, many) for m in methods]
            if any(spread is not None for spread in found) and (way != "tail" or many > 1):
                group = f"{_KINDS[kind]} accuracy, %" if len(kinds) > 1 else ""
                columns.append(Column(f"{kind}_{way}", heading.format(many=many), percent, "high", group))
                cells.append(found)
    if not columns:
        return None
    if len(kinds) > 1 and any(c.name.endswith("_validated") for c in columns):
        group = "chosen on validation"
        columns.append(Column("validated_round", "round", whole, group=group))
        cells.append([m.spread(lambda run: run.history.validated_round) for m in methods])
        columns.append(Column(f"{VALIDATION}_validated", "validation accuracy, %", percent, "high", group))
        cells.append([reading_of(m, VALIDATION, "validated", many) for m in methods])
    head, rows = [Column("method", "method")], [list[Any]([m.label]) for m in methods]
    if counted and len(kinds) == 1 and any(len(m.counted) > 1 for m in methods):
        head.append(Column("seeds", "seeds", whole))
        rows = [[*row, len(m.counted)] for row, m in zip(rows, methods, strict=True)]
    rows = [[*row, *values] for row, *values in zip(rows, *cells, strict=True)]
    return Table(kinds[0] if len(kinds) == 1 else "readings", [*head, *columns], rows, [m.number for m in methods])


def reading_of(method: Method, name: str, way: str, many: int) -> Spread | None:
    """Return a measured number, read in one way, over the seeds of a method."""
    return method.spread(lambda run: _read(run, name, way, many))


def tail(methods: Sequence[Method]) -> int:
    """Return the number of last rounds that `tail` is a mean over: the same for all methods."""
    return newest(min(run.rounds for m in methods for run in m.counted))


def paired(method: Method, other: Method, name: str, way: str, many: int) -> Interval | None:
    """Return how far a method is ahead of another over the seeds that both have; None where these are fewer than two.

    `many`: how many of the last rounds `tail` is a mean of, as of the table beside it.
    """
    if method.problem != other.problem:
        return None
    both = [(run, beside) for run in method.counted for beside in other.counted if run.pairs_with(beside)]
    pairs = {
        (run.draw, str(run.clients)): (run, beside) for run, beside in both
    }  # a seed that occurs twice counts once
    gaps = np.array([_read(a, name, way, many) - _read(b, name, way, many) for a, b in pairs.values()])
    if len(gaps) < 2 or np.isnan(gaps).any():
        return None
    n = len(gaps)
    # Beyond the table, the first terms of the quantile's expansion in 1 / (n - 1): right to 0.001.
    t = _T[n - 2] if n - 2 < len(_T) else 1.95996 + 2.37227 / (n - 1) + 2.8225 / (n - 1) ** 2
    half = t * float(np.std(gaps, ddof=1)) / math.sqrt(n)
    mean = float(gaps.mean())
    return Interval(mean, mean - half, mean + half, n)


def _read(run: Run, name: str, way: str, many: int) -> float:
    return float(getattr(run.history.readings(name, many), way))


def seeds(methods: Sequence[Method]) -> str:
    """Say how many seeds methods have."""
    counts = sorted({len(m.counted) for m in methods})
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{span} seed{'s' * (span != '1')}"


_PARTITION = {True: "fixed", False: "varied", None: ""}


def partitions(methods: Sequence[Method]) -> str:
    """Say what ± is of: whether the partition was the same for all seeds of each method."""
    found = {_one_partition(m) for m in methods if len(m.counted) > 1}
    if found == {True}:
        return "one partition for all seeds, which vary initial weights, cohorts and batches"
    if found == {False}:
        return "every seed draws its own partition (data.partition_seed fixes one)"
    return "whether seeds share a partition is not known of all runs" if None in found else "some share a partition"


def _one_partition(method: Method) -> bool | None:
    """Return whether all seeds have the same clients; None where the runs do not tell, or there is one seed."""
    known = [run.clients for run in method.counted]
    if len(known) < 2 or not all(known):
        return None
    return all(clients == known[0] for clients in known)
