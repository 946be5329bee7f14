"""What a paper claims, a declaration for each claim, and what runs of recipes or a computation say of it.

A claim has parts: comparisons of cells of recipes, yes or no of each run, or a computation. A part is judged by the
seeds that all of its cells have; `RULE` says how.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedloom.papers import claims, recipes, reduced
from fedloom.papers.reproduction.recipe import LEAST_STD, UNKNOWN_STD, Recipe, noise
from fedloom.papers.reproduction.results import Result, Run, comparable, read, seeds_against, seeds_of

HOLDS, NOISE, FAILS, NOT_RUN = VERDICTS = ("holds", "within noise", "fails", "not run")
IN_WORDS = "in words"
RULE = (
    "**Within noise**: the difference of two methods is at most twice its standard error over the seeds that both "
    f"have, no deviation taken to be less than {LEAST_STD:g} points; with one seed, at most twice the root of both "
    f"squared deviations, the printed ones or {UNKNOWN_STD:g} point each. A printed gain holds where ours is no "
    "smaller, a printed number where ours is equal, both within noise by the rule of the tables of results. What is "
    "yes or no of a run holds where it is so of every seed, and is within noise where it is so of some. A claim fails "
    "where one of its parts that were run fails, is within noise where none fails and some are, and holds otherwise."
)
_NO_PAIR = "not comparable (other settings or no common seed)"
_SHOWN = 3  # parts of a claim that are told in its row
_COUNTED = {HOLDS: ("holds", "hold"), NOISE: ("within noise",) * 2, FAILS: ("fails", "fail")}

Reading = Literal["last", "best", "mean"]
BySeed = Mapping[int, float]


class Cell(NamedTuple):
    """A recipe, the number that is read of its runs where that is another than its own, and then what it is called."""

    table: str
    column: str
    row: str
    measure: str | None = None
    reading: Reading | None = None
    called: str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Table, column and row."""
        return self[:3]

    def of(self, result: Result) -> Result:
        """Return the result of its recipe with the number that is asked for."""
        r = result.recipe
        if self == (*self.key, None, None, None):
            return result
        forgetting = 100 * r.forgetting if self.measure == "forgetting" and r.forgetting is not None else None
        other = dataclasses.replace(
            r,
            row=self.called or r.row,
            measure=self.measure or r.measure,
            reading=self.reading or r.reading,
            accuracy=forgetting,
            std=None,
        )
        return dataclasses.replace(result, recipe=other)


class Finding(NamedTuple):
    """What is known of one part of a claim.

    Attributes:
        verdict: one of `VERDICTS`.
        ours: the numbers in words, "" where nothing was run.
        published: the same as they are printed, "" where they are not.
        results: those that it was read from.
    """

    verdict: str
    ours: str = ""
    published: str = ""
    results: tuple[Result, ...] = ()


@dataclass(frozen=True)
class Part:
    """One comparison.

    Attributes:
        cells: those that it needs.
        judge: judges their results, in the order of the cells, and then those of `instead`.
        instead: a cell from which the last number can be taken too.
        shown: its verdict is that of a row of the table of results.
    """

    cells: tuple[Cell, ...]
    judge: Callable[..., Finding]
    instead: Cell | None = None
    shown: bool = False

    def of(self, results: Mapping[tuple[str, str, str], Result]) -> Finding | None:
        """Return the finding on results by table, column and row; None where one that it needs is not among them."""
        if not all(cell.key in results for cell in self.cells):
            return None
        more = [] if self.instead is None or self.instead.key not in results else [self.instead]
        return self.judge(*(cell.of(results[cell.key]) for cell in (*self.cells, *more)))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper.

    Attributes:
        where: in the paper it stands.
        text: the claim, a sentence.
        parts: what it is judged by; none: nothing that could be run stands for it, and `lacks` says what.
        published: the numbers that are printed for it.
        why: a sentence that explains where it does not hold; it is told only there.
        lacks: what stands in the way of judging it.
    """

    where: str
    text: str
    parts: Sequence[Part] = ()
    published: str = IN_WORDS
    why: str = ""
    lacks: str = ""


@dataclass(frozen=True)
class Judged:
    """A claim with what is known of each of its parts."""

    source: str
    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        """The verdict on all parts that could be judged."""
        found = {f.verdict for f in self.findings} - {NOT_RUN}
        return next((verdict for verdict in (FAILS, NOISE, HOLDS) if verdict in found), NOT_RUN)

    @property
    def told(self) -> list[Finding]:
        """The parts of which something is known, those that do not hold first."""
        known = [f for f in self.findings if f.ours]
        return sorted(known, key=lambda f: (FAILS, NOISE, NOT_RUN, HOLDS).index(f.verdict))

    @property
    def ours(self) -> str:
        """What our runs say, in words."""
        run = [f for f in self.findings if f.verdict != NOT_RUN]
        if not run:
            return "; ".join(dict.fromkeys(f.ours for f in self.told))
        if len(self.findings) == 1:
            return run[0].ours
        counts = Counter(f.verdict for f in run)
        said = ", ".join(f"{counts[v]} {words[counts[v] > 1]}" for v, words in _COUNTED.items() if counts[v])
        some = [f.ours for f in self.told if f.verdict in (FAILS, NOISE)] or [f.ours for f in self.told]
        more = f" and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
        return f"{said}; {'; '.join(some[:_SHOWN])}{more}"

    @property
    def judged(self) -> str:
        """How many of the parts could be judged, where not all of them could."""
        count = sum(f.verdict != NOT_RUN for f in self.findings)
        return f"{count} of {len(self.findings)}" if 0 < count < len(self.findings) else ""

    @property
    def length(self) -> str:
        """How long and with what our runs trained, beside what is published."""
        used = [r for f in self.findings if f.verdict != NOT_RUN for r in f.results]
        if not used:
            return "" if self.verdict == NOT_RUN else "computed"
        return "; ".join(dict.fromkeys(_length(self.source, r) for r in used))

    @property
    def seeds(self) -> str:
        """How many seeds the parts have that were judged."""
        counts = {len(f.results[0].numbers or f.results[0].runs) for f in self.findings if f.results}
        return "" if not counts else f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"

    @property
    def tables(self) -> list[str]:
        """The tables in which the runs stand."""
        used = (r for f in self.findings if f.verdict != NOT_RUN for r in f.results)
        return list(dict.fromkeys(r.recipe.place.partition("/")[0] for r in used))

    def row(self) -> dict[str, Any]:
        """Return the claim and its verdict as plain values."""
        c, verdict = self.claim, self.verdict
        return {
            "where": c.where, "claim": c.text, "published": c.published, "ours": self.ours, "length": self.length,
            "seeds": self.seeds, "verdict": verdict, "judged": self.judged, "tables": self.tables,
            "why": c.why if verdict in (FAILS, NOISE) else c.lacks if verdict == NOT_RUN else "",
        }  # fmt: skip


def judge(
    source: str, folders: Sequence[Path], rounds: int | None = None, declared: Sequence[Claim] | None = None
) -> list[Judged]:
    """Return the claims of a source with a verdict on each, from the runs below some folders.

    Args:
        source: its study, as `STUDIES` names it.
        folders: of results, as `fedloom reproduce --out` names them.
        rounds: take numbers after at most so many.
        declared: the claims; None: all of the source.

    Raises:
        SettingError: there is no such source, or a file of a run is damaged.
    """
    declared = claims(source) if declared is None else declared
    parts = [part for claim in declared for part in claim.parts]
    wanted = {cell.key for part in parts for cell in (*part.cells, *filter(None, [part.instead]))}
    asked = [
        r for table in dict.fromkeys(key[0] for key in sorted(wanted)) for r in recipes(table) if _key(r) in wanted
    ]
    results = {_key(r.recipe): r for r in read(asked, folders, rounds)}
    return [
        Judged(source, claim, tuple(part.of(results) or Finding(NOT_RUN) for part in claim.parts)) for claim in declared
    ]


def sentences(declared: Iterable[Claim], results: Sequence[Result]) -> list[str]:
    """Return a sentence on each part that some results, as those of a column, are enough to judge.

    What a row of the table of results says already is left out.
    """
    there = {_key(r.recipe): r for r in results}
    out = []
    for claim in declared:
        for part in claim.parts:
            found = part.of(there) if part.cells and not part.shown else None
            if found is not None and found.verdict != NOT_RUN:
                out.append(f"{claim.text}: {found.verdict} ({found.ours}).")
    return out


def numbers(result: Result) -> BySeed:
    """Return the number of each seed by which a recipe is judged."""
    return result.numbers


def jumps(result: Result) -> BySeed:
    """Return by how many points a number changes from round to round, mean over the rounds, of each seed."""
    out = {}
    for seed, run in result.runs.items():
        values = (m.get(result.recipe.measure) for m in run.history.metrics if 1 <= m["round"] <= result.rounds)
        curve = [100 * value for value in values if value is not None]
        if len(curve) > 1:
            out[seed] = statistics.fmean(abs(b - a) for a, b in itertools.pairwise(curve))
    return out


def above(
    high: Cell,
    low: Cell,
    of: Callable[[Result], BySeed] = numbers,
    unit: str = "",
    instead: Cell | None = None,
) -> Part:
    """Return a part that holds where `high` is above `low` in a number of each seed.

    `unit`: of that number. `instead`: where the number of `low` is found too, if its own runs cannot be compared.
    """

    def judged(a: Result, b: Result, *more: Result) -> Finding:
        b = next((r for r in (b, *more) if together(a, r)), b)
        pair = together(a, b)
        if not pair:
            return _apart(a, b)
        values = [dict(of(r)) for r in pair]
        differences = [values[0][seed] - values[1][seed] for seed in values[0].keys() & values[1].keys()]
        if not differences:
            return Finding(NOT_RUN)
        verdict = order(differences, [r.recipe.std for r in pair])
        ours = _beside(pair, [statistics.fmean(v.values()) for v in values], unit) + seeds_of(pair, a, b)
        if of is numbers and verdict == NOISE and statistics.fmean(differences) > 0:
            against = seeds_against(*pair)
            ours += f"; in the mean, not in seed {', '.join(map(str, against))}" if against else ""
        return Finding(verdict, ours, _printed(*pair), tuple(pair))

    return Part((high, low), judged, instead)


def together(*results: Result) -> list[Result]:
    """Return results as `comparable` does; of runs that got unequally far, those after as many rounds as all have."""
    found = comparable(*results)
    if found or not all(r.numbers for r in results):
        return found
    until = min(r.rounds for r in results)
    return comparable(*(dataclasses.replace(r, until=until) for r in results))


def order(differences: Sequence[float], stds: Iterable[float | None] = (None, None)) -> str:
    """Return the verdict on an order of two methods from their differences by seed, by `RULE`.

    `stds`: the printed deviations of both, which count where there is one seed.
    """
    mean, n = statistics.fmean(differences), len(differences)
    if n > 1:
        bound = 2 * max(statistics.stdev(differences), LEAST_STD) / math.sqrt(n)
    else:
        bound = 2 * math.sqrt(sum((UNKNOWN_STD if std is None else std) ** 2 for std in stds))
    return NOISE if abs(mean) <= bound else HOLDS if mean > 0 else FAILS


def gain(high: Cell, low: Cell, published: float) -> Part:
    """Return a part that holds where one method is above another by no less than is printed."""

    def judged(a: Result, b: Result) -> Finding:
        pair = together(a, b)
        if not pair:
            return _apart(a, b)
        differences = [pair[0].numbers[seed] - pair[1].numbers[seed] for seed in pair[0].numbers]
        mean, n = statistics.fmean(differences), len(differences)
        deviation = statistics.stdev(differences) if n > 1 else None
        stds = [r.recipe.std for r in pair if r.recipe.std is not None]
        band = noise(math.hypot(*stds) if stds else UNKNOWN_STD, deviation, n)
        verdict = order(differences, [r.recipe.std for r in pair])
        if verdict == HOLDS and mean < published - band:
            verdict = FAILS
        where = a.recipe.column
        return Finding(verdict, f"{where} {mean:+.2f}{seeds_of(pair, a, b)}", f"{published:+.2f}", tuple(pair))

    return Part((high, low), judged)


def level(one: Cell, other: Cell, within: float = UNKNOWN_STD) -> Part:
    """Return a part that holds where two methods are no further apart than some points."""

    def judged(a: Result, b: Result) -> Finding:
        pair = together(a, b)
        if not pair:
            return _apart(a, b)
        differences = [pair[0].numbers[seed] - pair[1].numbers[seed] for seed in pair[0].numbers]
        near = abs(statistics.fmean(differences)) <= within or order(differences) == NOISE
        ours = _beside(pair, [statistics.fmean(r.numbers.values()) for r in pair]) + seeds_of(pair, a, b)
        return Finding(HOLDS if near else FAILS, ours, "", tuple(pair))

    return Part((one, other), judged)


def number(cell: Cell) -> Part:
    """Return a part that holds where runs as long as published give the printed number."""

    def judged(r: Result) -> Finding:
        if r.accuracy is None or r.recipe.accuracy is None:
            return Finding(NOT_RUN)
        ours = f"{r.recipe.column} {r.recipe.row} {r.accuracy:.2f} for {r.recipe.accuracy:.2f}"
        if r.changed or r.failures or r.rounds < r.recipe.rounds:
            return Finding(NOT_RUN)  # a number of other runs is no attempt at it
        near = abs(r.accuracy - r.recipe.accuracy) <= r.noise
        return Finding(HOLDS if near else FAILS, ours, f"{r.recipe.accuracy:.2f}", (r,))

    return Part((cell,), judged, shown=True)


def diverges(cell: Cell) -> Part:
    """Return a part that holds where the runs of a recipe fail."""

    def judged(r: Result) -> Finding:
        if not r.runs or (not r.failures and r.rounds < r.recipe.rounds):
            return Finding(NOT_RUN)
        said = f"{r.recipe.column} {r.recipe.row}: {len(r.failures)} of {len(r.runs)} runs diverge"
        return Finding(_of_each([s in r.failures for s in r.runs]), said, "", (r,))

    return Part((cell,), judged)


Seen = tuple[bool, str] | None
"""Whether a claim is so of a run, and its numbers in words; None where the run does not tell."""


def seen(cells: Sequence[Cell], look: Callable[..., Seen]) -> Part:
    """Return a part that holds where something is so of each seed.

    `look` gets the runs of a seed, one of each cell, and then the number of rounds that all of them have.
    """

    def judged(*results: Result) -> Finding:
        if failed := [r for r in results if r.failures]:
            return Finding(NOT_RUN, f"{failed[0].recipe.column}: a run of {failed[0].recipe.row} failed")
        common = [s for s in results[0].runs if all(s in r.runs for r in results)]
        changes = [[r.recipe.changed(r.runs[s].history.settings) for s in common] for r in results]
        if any(other != changes[0] for other in changes):
            return _apart(*results)
        found: dict[int, tuple[bool, str]] = {}
        for s in common:
            runs = [r.runs[s] for r in results]
            if (told := look(*runs, min(r.wanted for r in results))) is not None:
                found[s] = told
        if not found:
            return Finding(NOT_RUN)
        alike = len({text for _, text in found.values()}) == 1
        said = [next(iter(found.values()))[1]] if alike else [f"seed {s}: {text}" for s, (_, text) in found.items()]
        read_from = tuple(dataclasses.replace(r, runs={s: r.runs[s] for s in found}) for r in results)
        rows = " and ".join(dict.fromkeys(r.recipe.row for r in results))
        ours = f"{results[0].recipe.column} {rows}: {', '.join(said)}"
        return Finding(_of_each([yes for yes, _ in found.values()]), ours, "", read_from)

    return Part(tuple(cells), judged)


def computed(compute: Callable[[], tuple[bool, str]]) -> Part:
    """Return a part that is judged by a computation without runs."""

    def judged() -> Finding:
        holds, said = compute()
        return Finding(HOLDS if holds else FAILS, said)

    return Part((), judged)


def total(run: Run, rounds: int, *names: str) -> float:
    """Return the sum of some logged numbers over the rounds 1 to `rounds`."""
    return float(sum(m.get(name) or 0 for m in run.history.metrics if 1 <= m["round"] <= rounds for name in names))


def same_traffic(one: Cell, other: Cell) -> Part:
    """Return a part that holds where a method sends no more bytes than another, in neither direction."""

    def look(a: Run, b: Run, rounds: int) -> Seen:
        until = min(rounds, a.rounds, b.rounds)
        if until == 0:
            return None
        ratios = [total(a, until, name) / max(total(b, until, name), 1.0) for name in ("bytes_down", "bytes_up")]
        return max(ratios) <= 1, "{:.3g} times the bytes down, {:.3g} times up".format(*ratios)

    return seen((one, other), look)


def _of_each(answers: Sequence[bool]) -> str:
    return HOLDS if all(answers) else NOISE if any(answers) else FAILS


def _key(recipe: Recipe) -> tuple[str, str, str]:
    return recipe.table, recipe.column, recipe.row


def _apart(*results: Result) -> Finding:
    """Return the finding on results that cannot be compared: why not, where all of them have runs."""
    if failed := [r for r in results if r.failures and not r.seeds]:
        return Finding(NOT_RUN, f"{failed[0].recipe.column}: {failed[0].recipe.row} failed in every seed")
    if any(r.accuracy is None for r in results):
        return Finding(NOT_RUN)
    rows = " and ".join(dict.fromkeys(r.recipe.row for r in results))
    return Finding(NOT_RUN, f"{results[0].recipe.column} {rows} {_NO_PAIR}")


def _beside(results: Sequence[Result], values: Sequence[float], unit: str = "") -> str:
    """Return the numbers of some results beside one another, each with what tells it from the others."""
    columns = dict.fromkeys(r.recipe.column for r in results)
    rows = dict.fromkeys(r.recipe.row for r in results)
    names = [
        " ".join([r.recipe.row] * (len(rows) > 1 or len(columns) > 1) + [f"at {r.recipe.column}"] * (len(columns) > 1))
        for r in results
    ]
    return f"{results[0].recipe.column} " * (len(columns) == 1) + ", ".join(
        f"{name} {value:.2f}{unit}" for name, value in zip(names, values, strict=True)
    )


def _printed(*results: Result) -> str:
    values = [r.recipe.accuracy for r in results]
    return "" if None in values else ", ".join(f"{value:.2f}" for value in values)


def _length(source: str, r: Result) -> str:
    """Say in what the runs of a result are less than the published ones."""
    said = [reduced(source)[r.recipe.table]] if r.recipe.table in reduced(source) else []
    until = r.rounds or max((run.rounds for run in r.runs.values()), default=0)
    said += [f"{until} of {r.recipe.rounds} rounds"] * (until < r.recipe.rounds)
    said += [f"{key} {', '.join(map(str, values))}" for key, values in r.changed.items()]
    return ", ".join(said) or "full"
