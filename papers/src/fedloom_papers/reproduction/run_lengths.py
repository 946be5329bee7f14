"""Lengths of runs and counts of their seeds, as they stand on figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedloom_papers.reproduction.results import Result


def length(rounds: Iterable[int], published: int, seeds: Iterable[int]) -> str:
    """Return "40 of 100 rounds, 1 to 2 seeds". `seeds`: how many each cell has."""
    of_seeds = _span(seeds)
    return f"{_span(rounds)} of {published} rounds, {of_seeds} seed{'s' * (of_seeds != '1')}"


def length_of(results: Sequence[Result]) -> str:
    """Return the same of what a panel shows: the rounds after which numbers are taken, of the most published."""
    published = max(r.recipe.rounds for r in results)
    return length([r.rounds for r in results], published, [len(r.seeds) for r in results])


def _span(values: Iterable[int]) -> str:
    there = sorted(set(values))
    return f"{there[0]} to {there[-1]}" if len(there) > 1 else f"{there[0]}"
