"""Summary over seeds and methods: means, deviations and differences, for a terminal, a notebook and a paper."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from fedloom.coordinator.history import History
from fedloom.core.errors import SettingError
from fedloom.evaluate.measure import Measure
from fedloom.experiments.catalogue import label
from fedloom.report.class_recall import class_recall
from fedloom.report.console import fit_terminal
from fedloom.report.grouping import by_problem, methods_of, read_methods, remarks_of, rename_methods
from fedloom.report.level_costs import COSTS, SHOWN, TO, Reached, check_level, cost_rows, cost_table, reached
from fedloom.report.methods import Method, Run, free_in_a_method, reference_numbers
from fedloom.report.noted_numbers import NOTED, noted, noted_table
from fedloom.report.number_table import Column, Table, format_of, literal, with_unit
from fedloom.report.over_seeds import (
    PARTITION,
    POOLED,
    WAYS,
    compared,
    noise_of,
    one_partition,
    paired_difference,
    partitions_text,
    reading_of,
    readings,
    seeds_text,
    tail_length,
    undefined,
)
from fedloom.report.printable import printable
from fedloom.report.problems import Problem
from fedloom.report.standings import chance_text, of_parts, standing_of
from fedloom.storage.files import path_of
from fedloom.storage.output import as_csv, publish
from fedloom.wording import did_you_mean

DIFFERENCES = "differences"
Directory = str | os.PathLike[str]
Runs = Directory | History | Sequence[Directory | History] | Mapping[str, History | Sequence[History]]


def summary(
    *runs: Runs,
    against: str | None = None,
    reading: str = "last",
    names: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    to: str | float | None = None,
) -> Summary:
    """Compute means and standard deviations over seeds, and differences between methods over the same seeds.

    Runs on several data sets, or on other problems (`Problem`), stand in tables of their own.

    Args:
        runs: folders with runs below them, or histories, or those of each method by its name.
        against: the method that others are compared with; by default the first that is not local-only training.
        reading: the reading of differences, a field of `Summaries`: last, tail, validated, best or mean.
        names: new names of methods and problems, by their old ones.
        columns: columns of the tables of accuracies in this order, seeds or a reading; differences for their table;
            noted for that of what the methods have noted, or some of it by name (client_gap); by default all of these.
            Of what it costs to reach a level: rounds_to, bytes_to, bytes_down_to, bytes_up_to, seconds_to.
        to: that level, a value of the headline (0.8) or a share of where the method ends that others are compared with
            ("95%", the default). Given, what it costs is shown: rounds_to, bytes_to and seconds_to, if none is chosen.

    Returns:
        The tables, which print themselves; `.latex()`, `.markdown()` and `.csv()` give text.

    Raises:
        SettingError: there is no run, no such method, reading, column or level, or a file of a run is damaged.
    """
    remarks: list[str] = []
    listed: list[Any] = []
    for given in runs:
        listed += list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    mappings = [source for source in listed if isinstance(source, Mapping)]
    histories = [source for source in listed if isinstance(source, History)]
    if mappings and mappings == listed:
        methods = _of_histories({name: source for mapping in mappings for name, source in mapping.items()})
    elif histories and len(histories) == len(listed):
        methods = _unnamed(histories)
        remarks = remarks_of(methods)
    elif all(isinstance(source, (str, os.PathLike)) for source in listed):
        methods, remarks = read_methods(listed)
    else:
        kinds = ", ".join(dict.fromkeys(type(source).__name__ for source in listed))
        raise SettingError(
            f"a summary takes directories, or histories, or a mapping of names to histories, got {kinds}: write "
            "summary('runs/three'), summary(first, second) or summary({'fedavg': [first, second]})"
        )
    labels = list(dict.fromkeys(m.label for m in methods))
    if against is not None and against not in labels:
        against = next((old for old, new in (names or {}).items() if new == against and old in labels), against)
    if against is not None and against not in labels:
        raise SettingError(
            f"against must be one of the methods {', '.join(labels)}, got {against!r}"
            f"{did_you_mean(against, labels)} [FL-RUN-013]"
        )
    if reading not in WAYS:
        raise SettingError(f"reading must be one of {', '.join(WAYS)}, got {reading!r}{did_you_mean(reading, WAYS)}")
    usual = ("seeds", *WAYS, DIFFERENCES, NOTED, *noted(methods))
    known = (*usual, *COSTS)
    if wrong := [name for name in columns or () if name not in known]:
        raise SettingError(f"columns are {', '.join(known)}, got {wrong[0]!r}{did_you_mean(wrong[0], known)}")
    if columns is not None and not set(columns) & set(WAYS):
        raise SettingError(f"columns need at least one of the readings {', '.join(WAYS)}, got {', '.join(columns)!r}")
    chosen = against or next((m.label for m in methods if not m.is_local_only), labels[0])
    shown = usual if columns is None else tuple(columns)
    shown += SHOWN if to is not None and not COSTS.keys() & set(shown) else ()
    level = TO if to is None else str(to)
    check_level(level, methods)
    methods = rename_methods(methods, names or {})
    return Summary(tuple(methods), (names or {}).get(chosen, chosen), reading, tuple(remarks), shown, level)


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

    Shares are in %: mean ± sample standard deviation over seeds. `against`: the method of the differences, where a
    problem has it; `reading`: what they are of; `remarks`: what to know of the runs; `columns`: which are shown; `to`:
    the level of costs.
    """

    methods: tuple[Method, ...]
    against: str
    reading: str = "last"
    remarks: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("seeds", *WAYS, DIFFERENCES, NOTED)
    to: str = TO

    @property
    def several(self) -> bool:
        """True where a method has more than one seed."""
        return any(len(m.counted_runs) > 1 for m in self.methods)

    def by_problem(self) -> list[tuple[Problem, Summary]]:
        """Return the methods on each problem, such as a data set: only these are compared with each other."""
        return [(problem, replace(self, methods=tuple(of), remarks=())) for problem, of in by_problem(self.methods)]

    @property
    def reference(self) -> Method:
        """The method of the differences of the first problem: `against`, or else the first that is not alone."""
        first = by_problem(self.methods)[0][1]
        named = next((m for m in first if m.label == self.against), None)
        return named or next((m for m in first if not m.is_local_only), first[0])

    def tables(self) -> list[Table]:
        """Return the readings of global and personal models, and the differences over seeds, if there are any.

        Then come the numbers that the methods have noted, and where a class is rare, recall by class. With several
        problems, methods by problem come first, then those tables for each.
        """
        return [table for section in self._sections() for _, table in section.tables]

    def _sections(self) -> list[_Section]:
        parts = self.by_problem()
        if len(parts) == 1:
            ways = [name for name in self.columns if name in WAYS]
            kinds = compared(self.methods)
            made = [readings(self.methods, [kind], ways, "seeds" in self.columns) for kind in kinds]
            tables = [t for t in (*made, self.differences() if DIFFERENCES in self.columns else None) if t is not None]
            captions, own = self.captions(), noted_table(self.methods, self.reading, self.columns)
            found = [*((captions[table.name], table) for table in tables), *([] if own is None else [own])]
            with_gaps = DIFFERENCES in self.columns
            costs = [cost_table(one, self.to, self.reading, with_gaps=with_gaps) for one in self.reached()]
            return [_Section("", [*found, *costs, *self.recalls()])]
        sections = [_Section("", self.tables_by_problem())]
        for problem, part_ in parts:
            (only,) = part_._sections()
            sections.append(_Section(problem.title, [(f"{problem.title}: {c}", table) for c, table in only.tables]))
        return sections

    def reached(self) -> list[Reached]:
        """Return what it costs to reach the level of each headline, of the costs that are shown, on one problem."""
        shown, first = COSTS.keys() & set(self.columns), self.reference
        found = [
            reached(self.methods, first, name, self.to, self.reading, shown)
            for name in (compared([first], headline=True) if shown else ())
        ]
        return [one for one in found if one is not None and one.costs]

    def recalls(self) -> list[tuple[str, Table]]:
        """Return a table of recall by class, with its caption, for each problem that has a rare class."""
        found = [class_recall(of.methods, rare_alone=True) for _, of in self.by_problem()]
        return [one for one in found if one is not None]

    def tables_by_problem(self) -> list[tuple[str, Table]]:
        """Return a table of methods by problem, with its caption, for each measure of models.

        They are read in the way that the differences are.
        """
        kinds = compared(self.methods)
        return [(self._caption_across(of), t) for of in kinds.values() if (t := across_problems(self, of)) is not None]

    def _caption_across(self, measure: Measure) -> str:
        way = WAYS[self.reading].format(many="rounds" if self.reading == "tail" else "")
        spread = f", mean ± standard deviation over {seeds_text(self.methods)}" if self.several else ""
        return (
            f"{with_unit(measure.title, measure.unit, ' in ')} ({way}){spread}: methods by problem. Each column is "
            f"another problem; compare numbers within a column alone. {differing_settings(self.methods)}"
        )

    def differences(self) -> Table | None:
        """Return the difference of each method to `against` over common seeds, with 95 % intervals.

        None without two common seeds, and with several problems, which `by_problem` separates. If local-only training
        is among the methods, the table also has the gains over it.
        """
        if len(by_problem(self.methods)) > 1:
            return None
        first = self.reference
        local_only = next((m for m in self.methods if m.is_local_only and m is not first), None)
        kinds = compared([first], headline=True)
        wanted = [(kind, first) for kind in kinds]
        wanted += [] if local_only is None else [(f"personal_{first.headline.name}", local_only)]
        columns, cells, last_rounds = [], [], tail_length(self.methods)
        for kind, other in wanted:
            noise = noise_of(self.methods, kind, self.reading, last_rounds)
            values = [
                None if m is other else paired_difference(m, other, kind, self.reading, last_rounds, noise)
                for m in self.methods
            ]
            if any(cell is not None for cell in values):
                name, heading = f"{kind}_{self.reading}_less_{other.label}", f"{kinds[kind].label} minus {other.label}"
                group, show = f"minus {other.label}", format_of(first.headline.unit)
                columns.append(Column(name, heading, show, group=group, brief=kinds[kind].label))
                cells.append(values)
        rows = [
            [m.label, *values]
            for m, *values in zip(self.methods, *cells, strict=True)
            if any(v is not None for v in values)
        ]
        numbers = [m.number for m in self.methods if m.label in {row[0] for row in rows}]
        return Table("differences", [Column("method", "method"), *columns], rows, numbers) if rows else None

    def captions(self) -> dict[str, str]:
        """Return the caption that stands above each table, by the table's name."""
        each = f" over {seeds_text(self.methods)}" if self.several else ""
        spread = f", mean ± standard deviation{each}: {partitions_text(self.methods)}" if each else ", one seed each"
        way = WAYS[self.reading].format(many=tail_length(self.methods))
        main = self.reference.headline
        of_what = "points" if main.unit == "%" else main.title
        captions = {
            "differences": f"Differences in {of_what} ({way}), mean over common seeds [95 % interval, Student's t, "
            f"paired by seed, {POOLED}]. If an interval contains 0, either may be better.",
        }
        for name, of in compared(self.methods).items():
            whose = ", mean over clients" * name.startswith("personal_")
            caption = f"{with_unit(of.title, of.unit, ' in ')}{whose}{spread}."
            caption += undefined(self.methods, name) + no_better_than_chance(self.methods, of)
            captions[name] = caption + of_parts(self.methods)
        return captions

    def markdown(self) -> str:
        """Return the tables in Markdown, each below its caption."""
        out = []
        for section in self._sections():
            out += [f"## {literal(section.title)}\n"] * bool(section.title)
            out += [f"{literal(caption + table.bold_note)}\n\n{table.markdown()}" for caption, table in section.tables]
        return "\n".join(out)

    def latex(self) -> str:
        """Return the tables in LaTeX, for the package booktabs."""
        return "\n".join(table.latex(caption) for section in self._sections() for caption, table in section.tables)

    def csv(self) -> str:
        """Return one row for each method, measure and reading, in full precision; shares, not %."""
        names = ["mean", "std", "seeds", "partition", "against", "difference", "low", "high", "pairs"]
        names += ["reached"] * bool(COSTS.keys() & set(self.columns))
        rows: list[list[Any]] = [["problem", "method", "metric", "reading", *names]]
        for problem, only in self.by_problem():
            rows += [[problem.title, *row] for row in only._rows()]
            rows += [[problem.title, *row] for one in only.reached() for row in cost_rows(one)]
        return as_csv(rows)

    def _rows(self) -> Iterator[list[Any]]:
        other, last_rounds = self.reference, tail_length(self.methods)
        read = [(kind, way) for kind in compared(self.methods) for way in WAYS]
        read += [(kind, way) for kind in noted(self.methods) for way in WAYS if way != "best"]
        noises = {(kind, way): noise_of(self.methods, kind, way, last_rounds) for kind, way in read}
        for m, known in ((m, m.measures) for m in self.methods):
            for kind, way in read:
                if kind not in known or (found := reading_of(m, kind, way, last_rounds)) is None:
                    continue
                row = [m.label, kind, way, found.mean, "" if math.isnan(found.std) else found.std, found.count]
                gap = None
                if m is not other:
                    gap = paired_difference(m, other, kind, way, last_rounds, noises[kind, way])
                row += [PARTITION[one_partition(m)], other.label]
                yield [*row, *((gap.mean, gap.low, gap.high, gap.count) if gap else [""] * 4)]

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write summary.tex, summary.md and summary.csv into a folder, and return their paths."""
        return [publish(path_of(folder), name, data) for name, data in self.files().items()]

    def files(self) -> dict[str, bytes]:
        """Return the files that `write` writes, by name."""
        made = {"summary.tex": self.latex(), "summary.md": self.markdown(), "summary.csv": self.csv()}
        return {name: text.encode("utf-8") for name, text in made.items()}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        shown = [(not section.title, *one) for section in self._sections() for one in section.tables]
        for i, (whole_, caption, table) in enumerate(shown):
            yield from [""] * (i > 0)
            whole_ = (whole_ and len(self.by_problem()) > 1) or table.name.startswith((NOTED, "cost_"))
            yield fit_terminal(caption, table, split=whole_)
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
        return f"Summary({', '.join(labels)}{on}; {seeds_text(self.methods)})"


class _Section(NamedTuple):
    """Tables and their captions below a title; the title is "" where they are of all problems."""

    title: str
    tables: list[tuple[str, Table]]


def no_better_than_chance(methods: Sequence[Method], measure: Measure) -> str:
    """Return a sentence where no method is above chance in a measure; "" elsewhere."""
    one = standing_of(methods, measure)
    return "" if one.is_above_chance else f" No method is above chance ({chance_text(one)})."


def across_problems(summary_: Summary, measure: Measure) -> Table | None:
    """Return one measure, a row for each method and a column for each problem; None where it was not measured."""
    kind = measure.name
    rows: dict[str, list[Any]] = {m.label: [m.label] for m in summary_.methods}
    columns = [Column("method", "method")]
    for problem, only in summary_.by_problem():
        spreads = {m.label: reading_of(m, kind, summary_.reading, tail_length(only.methods)) for m in only.methods}
        if any(spread is not None for spread in spreads.values()):
            chance = only.methods[0].chance(kind)
            columns.append(Column(problem.title, problem.title, format_of(measure.unit), measure.better, chance=chance))
            for label_, row in rows.items():
                row.append(spreads.get(label_))
    if len(columns) == 1:
        return None
    numbers = {m.label: m.number for m in summary_.methods}
    references = reference_numbers(summary_.methods)
    return Table(f"{kind}_by_problem", columns, list(rows.values()), list(numbers.values()), references)


def differing_settings(methods: Sequence[Method]) -> str:
    """Name the settings that differ between problems and agree within each, in the problems' order."""
    groups = [[m.first.facts for m in methods_] for _, methods_ in by_problem(methods)]
    texts = []
    for name in dict.fromkeys(k for methods_ in groups for facts in methods_ for k in facts if not free_in_a_method(k)):
        values = [{facts.get(name) for facts in methods_} for methods_ in groups]
        if all(len(methods_) == 1 for methods_ in values) and len(set.union(*values)) > 1:
            texts.append(f"{name} ({', '.join(printable(next(iter(methods_)) or '–', 40) for methods_ in values)})")
    return f"They differ in {'; '.join(texts)}." if texts else "They differ in their data."
