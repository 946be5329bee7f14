"""What a paper claims, a declaration for each claim, and what runs of recipes or a computation say of it.

A claim has parts: comparisons of cells of recipes, yes or no of each run, or a computation. A part is judged by the
seeds that all of its cells have; `RULE` says how.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedloom.papers import claims, recipes, reduced
from fedloom.papers.reproduction.recipe import LEAST_STD, UNKNOWN_STD, Recipe
from fedloom.papers.reproduction.results import Result, read

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
_SHOWN = 3  # parts of a claim that are told in its row
_COUNTED = {HOLDS: ("holds", "hold"), NOISE: ("within noise",) * 2, FAILS: ("fails", "fail")}

Reading = Literal["last", "best", "mean"]


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
    """Record what is known of one part of a claim.

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
        decide: gives the finding on their results, in the order of the cells, and then those of `instead`.
        instead: a cell from which the last number can be taken too.
        shown: its verdict is that of a row of the table of results.
    """

    cells: tuple[Cell, ...]
    decide: Callable[..., Finding]
    instead: Cell | None = None
    shown: bool = False

    def of(self, results: Mapping[tuple[str, str, str], Result]) -> Finding | None:
        """Return the finding on results by table, column and row; None where one that it needs is not among them."""
        if not all(cell.key in results for cell in self.cells):
            return None
        more = [] if self.instead is None or self.instead.key not in results else [self.instead]
        return self.decide(*(cell.of(results[cell.key]) for cell in (*self.cells, *more)))


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
class ClaimVerdict:
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
    def known(self) -> list[Finding]:
        """The parts of which something is known, those that do not hold first."""
        known = [f for f in self.findings if f.ours]
        return sorted(known, key=lambda f: (FAILS, NOISE, NOT_RUN, HOLDS).index(f.verdict))

    @property
    def ours(self) -> str:
        """Say in words what our runs gave."""
        run = [f for f in self.findings if f.verdict != NOT_RUN]
        if not run:
            return "; ".join(dict.fromkeys(f.ours for f in self.known))
        if len(self.findings) == 1:
            return run[0].ours
        counts = Counter(f.verdict for f in run)
        said = ", ".join(f"{counts[v]} {words[counts[v] > 1]}" for v, words in _COUNTED.items() if counts[v])
        some = [f.ours for f in self.known if f.verdict in (FAILS, NOISE)] or [f.ours for f in self.known]
        more = f" and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
        return f"{said}; {'; '.join(some[:_SHOWN])}{more}"

    @property
    def judged_parts(self) -> str:
        """Say how many of the parts could be judged, where not all could."""
        count = sum(f.verdict != NOT_RUN for f in self.findings)
        return f"{count} of {len(self.findings)}" if 0 < count < len(self.findings) else ""

    @property
    def length(self) -> str:
        """Say how long and with what settings our runs trained, beside the published ones."""
        used = [r for f in self.findings if f.verdict != NOT_RUN for r in f.results]
        if not used:
            return "" if self.verdict == NOT_RUN else "computed"
        return "; ".join(dict.fromkeys(_length(self.source, r) for r in used))

    @property
    def seeds(self) -> str:
        """Say how many seeds the judged parts have."""
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
            "seeds": self.seeds, "verdict": verdict, "judged": self.judged_parts, "tables": self.tables,
            "why": c.why if verdict in (FAILS, NOISE) else c.lacks if verdict == NOT_RUN else "",
        }  # fmt: skip


def verdicts(
    source: str, folders: Sequence[Path], rounds: int | None = None, declared: Sequence[Claim] | None = None
) -> list[ClaimVerdict]:
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
        ClaimVerdict(source, claim, tuple(part.of(results) or Finding(NOT_RUN) for part in claim.parts))
        for claim in declared
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


def _key(recipe: Recipe) -> tuple[str, str, str]:
    return recipe.table, recipe.column, recipe.row


def _length(source: str, r: Result) -> str:
    """Say in what the runs of a result are less than the published ones."""
    said = [reduced(source)[r.recipe.table]] if r.recipe.table in reduced(source) else []
    until = r.rounds or max((run.rounds for run in r.runs.values()), default=0)
    said += [f"{until} of {r.recipe.rounds} rounds"] * (until < r.recipe.rounds)
    said += [f"{key} {', '.join(map(str, values))}" for key, values in r.changed.items()]
    return ", ".join(said) or "full"
