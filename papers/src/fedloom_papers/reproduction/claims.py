"""Declarations of what a paper claims.

A claim has parts: comparisons of cells of recipes, yes or no of each run, or a computation. `claim_verdicts` says what
runs make of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fedloom_papers.reproduction.results import Result

HOLDS, NOISE, FAILS, SHORT, NOT_RUN = VERDICTS = ("holds", "within noise", "fails", "short run", "not run")
JUDGED = (HOLDS, NOISE, FAILS)
IN_WORDS = "in words"

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
        about: what it compares, the same for parts of several claims that say the same of the same runs.
    """

    verdict: str
    ours: str = ""
    published: str = ""
    results: tuple[Result, ...] = ()
    about: tuple[object, ...] = ()


@dataclass(frozen=True)
class Part:
    """One comparison.

    Attributes:
        cells: those that it needs.
        decide: gives the finding on their results, in the order of the cells, and then those of `instead`.
        instead: a cell from which the last number can be taken too.
        shown: its verdict is that of a row of the table of results.
        kind: what is compared.
    """

    cells: tuple[Cell, ...]
    decide: Callable[..., Finding]
    instead: Cell | None = None
    shown: bool = False
    kind: str = ""

    def of(self, results: Mapping[tuple[str, str, str], Result]) -> Finding | None:
        """Return the finding on results by table, column and row; None where one that it needs is not among them."""
        if not all(cell.key in results for cell in self.cells):
            return None
        more = [] if self.instead is None or self.instead.key not in results else [self.instead]
        places = [(results[cell.key].recipe.place, cell.measure, cell.reading) for cell in self.cells]
        found = self.decide(*(cell.of(results[cell.key]) for cell in (*self.cells, *more)))
        return found._replace(about=(self.kind, *places))


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
        over: gives the value of the variable that the claim is about, of a cell; None: it is about none. It is not
            judged until two values were run.
    """

    where: str
    text: str
    parts: Sequence[Part] = ()
    published: str = IN_WORDS
    why: str = ""
    lacks: str = ""
    over: Callable[[Cell], str] | None = None
