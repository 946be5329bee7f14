"""Verdicts on the claims of a paper, by runs of recipes or a computation.

A part of a claim is judged by the seeds that all of its cells have; `RULE` says how.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.papers import claims, recipes, reduced
from fedloom.papers.reproduction.claims import FAILS, HOLDS, NOISE, NOT_RUN, Claim, Finding
from fedloom.papers.reproduction.recipe import LEAST_STD, UNKNOWN_STD, Recipe
from fedloom.papers.reproduction.results import Result, read
from fedloom.wording import some_of

RULE = (
    "**Within noise**: the difference of two methods is at most twice its standard error over the seeds that both "
    f"have, no deviation taken to be less than {LEAST_STD:g} points; with one seed, at most twice the root of both "
    f"squared deviations, the printed ones or {UNKNOWN_STD:g} point each. A printed gain holds where ours is no "
    "smaller, a printed number where ours is equal, both within noise by the rule of the tables of results. Two "
    f"methods hardly differ where they are no further apart than the claim says, else {UNKNOWN_STD:g} point, or than "
    "noise is. What is yes or no of a run holds where it is so of every seed, and is within noise where it is so of "
    "some. A claim fails where one of its parts that were run fails, is within noise where none fails and some are, "
    "and holds otherwise."
)
_SHOWN = 3  # parts of a claim that are told in its row
_COUNTED = {HOLDS: ("holds", "hold"), NOISE: ("within noise",) * 2, FAILS: ("fails", "fail")}


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
        return f"{said}; {some_of(some, _SHOWN, '; ')}"

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
