"""Verdicts on the claims of a paper, by runs of recipes or a computation.

A part of a claim is judged by the seeds that all of its cells have; `RULE` says how.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.wording import some_of
from fedloom_papers import claims, recipes, reduced
from fedloom_papers.reproduction.claims import FAILS, HOLDS, JUDGED, NOISE, NOT_RUN, SHORT, Claim, Finding
from fedloom_papers.reproduction.recipe import UNKNOWN_STD, Recipe
from fedloom_papers.reproduction.results import Result, read

RULE = (
    "**Within noise**: the 95 % interval of the mean difference over the seeds that both have contains 0, by Student's "
    "t. The deviation is that of paired differences, pooled over the cells with several seeds of the column in which "
    "the runs stand (of the whole table, where that has none, or where columns are compared), after the rounds that "
    "all of them have; or that of the pair, where it is larger. With one seed it is the pooled one; where no cells "
    f"tell it, the bound is twice the root of both squared deviations, the printed ones or {UNKNOWN_STD:g} point each, "
    "which nothing here has measured. A printed gain holds where ours is no smaller (one-sided), a printed number "
    "where ours is equal (two-sided), both within noise, ours and the printed one's, and in runs of the published "
    "length and settings alone; so does a claim that names a length. Others are a **short run**. Two methods hardly "
    f"differ where they are no further apart than the claim says, else {UNKNOWN_STD:g} point. What is yes or no of a "
    "run holds where it is so of every seed, and is within noise where it is so of some. A claim over a variable is "
    "not judged until two of its values were run. A claim fails where one of its comparisons that were run fails, is "
    "within noise where none fails and some are, and holds otherwise; **so far**, where less than half of them could "
    "be judged."
)
_SHOWN = 3  # parts of a claim that are told in its row
_COUNTED = {HOLDS: ("holds", "hold"), NOISE: ("within noise",) * 2, FAILS: ("fails", "fail")}
_ONE_VALUE = "The claim is over a variable, of which one value alone was run."


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim with what is known of each of its parts."""

    source: str
    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def judged(self) -> list[Finding]:
        """The parts that could be judged; none where a claim over a variable has runs of one value alone."""
        return [] if self._one_value else [f for f in self.findings if f.verdict in JUDGED]

    @property
    def verdict(self) -> str:
        """The verdict on all parts that could be judged."""
        found = {f.verdict for f in self.judged} or {f.verdict for f in self.findings} - set(JUDGED)
        return next((verdict for verdict in (FAILS, NOISE, HOLDS, SHORT) if verdict in found), NOT_RUN)

    @property
    def so_far(self) -> bool:
        """True where less than half of the parts could be judged."""
        return 0 < 2 * len(self.judged) < len(self.findings)

    @property
    def said(self) -> str:
        """The verdict in words, with the number of parts that it rests on where these are not all."""
        return f"{self.verdict}{' so far' * self.so_far}{f', {self.judged_parts}' * bool(self.judged_parts)}"

    @property
    def known(self) -> list[Finding]:
        """The parts of which something is known, those that do not hold first."""
        known = [f for f in self.findings if f.ours]
        return sorted(known, key=lambda f: (FAILS, NOISE, SHORT, NOT_RUN, HOLDS).index(f.verdict))

    @property
    def ours(self) -> str:
        """Say in words what our runs gave."""
        run = self.judged
        if not run:
            return some_of(list(dict.fromkeys(f.ours for f in self.known)), _SHOWN, "; ")
        if len(self.findings) == 1:
            return run[0].ours
        counts = Counter(f.verdict for f in run)
        said = ", ".join(f"{counts[v]} {words[counts[v] > 1]}" for v, words in _COUNTED.items() if counts[v])
        some = [f.ours for f in self.known if f.verdict in (FAILS, NOISE)] or [f.ours for f in self.known]
        return f"{said}; {some_of(some, _SHOWN, '; ')}"

    @property
    def judged_parts(self) -> str:
        """Say how many of the parts could be judged, where not all could."""
        count = len(self.judged)
        return f"{count} of {len(self.findings)}" if 0 < count < len(self.findings) else ""

    @property
    def _one_value(self) -> bool:
        over, parts = self.claim.over, zip(self.claim.parts, self.findings, strict=True)
        values = [over(cell) for part, f in parts if f.verdict in JUDGED for cell in part.cells] if over else []
        return len(set(values)) == 1

    @property
    def length(self) -> str:
        """Say how long and with what settings our runs trained, beside the published ones."""
        used = [r for f in self._told for r in f.results]
        if not used:
            return "computed" if self.judged else ""
        return "; ".join(dict.fromkeys(_length(self.source, r) for r in used))

    @property
    def seeds(self) -> str:
        """Say how many seeds the judged parts have."""
        counts = {len(f.results[0].numbers or f.results[0].runs) for f in self._told if f.results}
        return "" if not counts else f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"

    @property
    def tables(self) -> list[str]:
        """The tables in which the runs stand."""
        used = (r for f in self._told for r in f.results)
        return list(dict.fromkeys(r.recipe.place.partition("/")[0] for r in used))

    @property
    def _told(self) -> list[Finding]:
        """The parts whose runs are told: those that were judged, else all that were run."""
        return self.judged or [f for f in self.findings if f.verdict != NOT_RUN]

    def row(self) -> dict[str, Any]:
        """Return the claim and its verdict as plain values."""
        c, verdict = self.claim, self.verdict
        lacks = _ONE_VALUE if self._one_value else c.lacks
        return {
            "where": c.where, "claim": c.text, "published": c.published, "ours": self.ours, "length": self.length,
            "seeds": self.seeds, "verdict": verdict, "said": self.said, "tables": self.tables,
            "why": c.why if verdict in (FAILS, NOISE) else lacks if verdict in (SHORT, NOT_RUN) else "",
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


def comparisons(found: Iterable[ClaimVerdict]) -> Counter[str]:
    """Return how many comparisons of some claims have which verdict, each counted once, whatever claims it is in."""
    verdicts_by_part: dict[tuple[object, ...], str] = {}
    for one in found:
        for f in one.findings:
            if verdicts_by_part.get(f.about, NOT_RUN) not in JUDGED:
                verdicts_by_part[f.about] = f.verdict
    return Counter(verdicts_by_part.values())


def sentences(declared: Iterable[Claim], results: Sequence[Result]) -> list[str]:
    """Return a sentence on each part that some results, as those of a column, are enough to judge.

    What a row of the table of results says already is left out.
    """
    there = {_key(r.recipe): r for r in results}
    out = []
    for claim in declared:
        for part in claim.parts:
            found = part.of(there) if part.cells and not part.shown else None
            if found is not None and found.verdict in JUDGED:
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
