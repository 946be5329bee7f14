"""What a paper claims beside its numbers, and what runs of recipes say of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedloom.papers.reproduction.results import NOT_COMPARABLE, Result, comparable, seeds_against, seeds_of

HOLDS, BROKEN, NOT_RUN = "holds", "does not hold", "not run"


class Claim(NamedTuple):
    """A claim about one column of a table, with what runs say of it.

    `verdict`: `HOLDS`, `BROKEN`, `NOT_RUN` or `NOT_COMPARABLE`; `numbers`: in words, "" where not run.
    """

    text: str
    where: str
    verdict: str
    numbers: str


def verdict_of(holds: bool) -> str:
    """Return the verdict on what was run."""
    return HOLDS if holds else BROKEN


def above(text: str, where: str, high: Result | None, low: Result | None, of_high: str = "", of_low: str = "") -> Claim:
    """Judge whether `high` is above `low`, by the seeds that both have, if they can be compared.

    `of_high`, `of_low`: what tells them apart beside their rows.
    """
    if high is None or low is None or high.accuracy is None or low.accuracy is None:
        return Claim(text, where, NOT_RUN, "")
    pair = comparable(high, low)
    a, b = (r.accuracy or 0.0 for r in pair or (high, low))
    seeds = seeds_of(pair, high, low) if pair else ""
    numbers = f"{high.recipe.row}{of_high} {a:.2f}, {low.recipe.row}{of_low} {b:.2f}{seeds}"
    if pair and a > b and (against := seeds_against(*pair)):
        numbers += f"; in the mean, not in seed {', '.join(map(str, against))}"
    return Claim(text, where, verdict_of(a > b) if pair else NOT_COMPARABLE, numbers)


def sentences(claims: Sequence[Claim]) -> list[str]:
    """Return a sentence on each claim that holds or does not; others have none."""
    return [f"{c.text}: {c.verdict} ({c.numbers})." for c in claims if c.verdict in (HOLDS, BROKEN)]


def claims_page(title: str, claims: Sequence[Claim]) -> str:
    """Return claims as Markdown: each with how often it holds, and the numbers of what was run."""
    lines = [f"# {title}", ""]
    for text in dict.fromkeys(c.text for c in claims):
        mine = [c for c in claims if c.text == text]
        run = [c for c in mine if c.verdict != NOT_RUN]
        held, broken = (sum(c.verdict == verdict for c in run) for verdict in (HOLDS, BROKEN))
        lines += [f"**{text}**: holds in {held} of {held + broken} that can be judged, of {len(mine)}.", ""]
        if run:
            lines += ["| column | numbers | verdict |", "|---|---|---|"]
            lines += [f"| {c.where} | {c.numbers} | {c.verdict} |" for c in run]
            lines.append("")
    return "\n".join(lines)
