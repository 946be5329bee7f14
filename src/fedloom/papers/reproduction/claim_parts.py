"""Parts of claims: what is compared, and when it holds. Each function here makes one kind."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from fedloom.papers.reproduction.claims import FAILS, HOLDS, NOISE, NOT_RUN, Cell, Finding, Part
from fedloom.papers.reproduction.recipe import LEAST_STD, UNKNOWN_STD, noise
from fedloom.papers.reproduction.results import Result, Run, comparable, seeds_against, seeds_of

_NO_PAIR = "not comparable (other settings or no common seed)"

BySeed = Mapping[int, float]


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

    def decide(a: Result, b: Result, *more: Result) -> Finding:
        b = next((r for r in (b, *more) if together(a, r)), b)
        pair = together(a, b)
        if not pair:
            return incomparable(a, b)
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

    return Part((high, low), decide, instead)


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

    def decide(a: Result, b: Result) -> Finding:
        pair = together(a, b)
        if not pair:
            return incomparable(a, b)
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

    return Part((high, low), decide)


def level(one: Cell, other: Cell, within: float = UNKNOWN_STD) -> Part:
    """Return a part that holds where two methods are no further apart than some points."""

    def decide(a: Result, b: Result) -> Finding:
        pair = together(a, b)
        if not pair:
            return incomparable(a, b)
        differences = [pair[0].numbers[seed] - pair[1].numbers[seed] for seed in pair[0].numbers]
        near = abs(statistics.fmean(differences)) <= within or order(differences) == NOISE
        ours = _beside(pair, [statistics.fmean(r.numbers.values()) for r in pair]) + seeds_of(pair, a, b)
        return Finding(HOLDS if near else FAILS, ours, "", tuple(pair))

    return Part((one, other), decide)


def number(cell: Cell) -> Part:
    """Return a part that holds where runs as long as published give the printed number."""

    def decide(r: Result) -> Finding:
        if r.accuracy is None or r.recipe.accuracy is None:
            return Finding(NOT_RUN)
        ours = f"{r.recipe.column} {r.recipe.row} {r.accuracy:.2f} for {r.recipe.accuracy:.2f}"
        if r.changed or r.failures or r.rounds < r.recipe.rounds:
            return Finding(NOT_RUN)  # a number of other runs is no attempt at it
        near = abs(r.accuracy - r.recipe.accuracy) <= r.noise
        return Finding(HOLDS if near else FAILS, ours, f"{r.recipe.accuracy:.2f}", (r,))

    return Part((cell,), decide, shown=True)


def diverges(cell: Cell) -> Part:
    """Return a part that holds where the runs of a recipe fail."""

    def decide(r: Result) -> Finding:
        if not r.runs or (not r.failures and r.rounds < r.recipe.rounds):
            return Finding(NOT_RUN)
        said = f"{r.recipe.column} {r.recipe.row}: {len(r.failures)} of {len(r.runs)} runs diverge"
        return Finding(_of_each([s in r.failures for s in r.runs]), said, "", (r,))

    return Part((cell,), decide)


Observation = tuple[bool, str] | None
"""A verdict on a claim in one run, True or False, and its numbers in words; None where the run does not tell."""


def observed(cells: Sequence[Cell], observe: Callable[..., Observation]) -> Part:
    """Return a part that holds where something is so of each seed.

    `observe` gets the runs of a seed, one of each cell, and then the number of rounds that all of them have.
    """

    def decide(*results: Result) -> Finding:
        if failed := [r for r in results if r.failures]:
            return Finding(NOT_RUN, f"{failed[0].recipe.column}: a run of {failed[0].recipe.row} failed")
        common = [s for s in results[0].runs if all(s in r.runs for r in results)]
        changes = [[r.recipe.changed(r.runs[s].history.settings) for s in common] for r in results]
        if any(other != changes[0] for other in changes):
            return incomparable(*results)
        found: dict[int, tuple[bool, str]] = {}
        for s in common:
            runs = [r.runs[s] for r in results]
            if (told := observe(*runs, min(r.wanted for r in results))) is not None:
                found[s] = told
        if not found:
            return Finding(NOT_RUN)
        alike = len({text for _, text in found.values()}) == 1
        said = [next(iter(found.values()))[1]] if alike else [f"seed {s}: {text}" for s, (_, text) in found.items()]
        read_from = tuple(dataclasses.replace(r, runs={s: r.runs[s] for s in found}) for r in results)
        rows = " and ".join(dict.fromkeys(r.recipe.row for r in results))
        ours = f"{results[0].recipe.column} {rows}: {', '.join(said)}"
        return Finding(_of_each([yes for yes, _ in found.values()]), ours, "", read_from)

    return Part(tuple(cells), decide)


def computed(compute: Callable[[], tuple[bool, str]]) -> Part:
    """Return a part that is judged by a computation without runs."""

    def decide() -> Finding:
        holds, said = compute()
        return Finding(HOLDS if holds else FAILS, said)

    return Part((), decide)


def total(run: Run, rounds: int, *names: str) -> float:
    """Return the sum of some logged numbers over the rounds 1 to `rounds`."""
    return float(sum(m.get(name) or 0 for m in run.history.metrics if 1 <= m["round"] <= rounds for name in names))


def same_traffic(one: Cell, other: Cell) -> Part:
    """Return a part that holds where a method sends no more bytes than another, in neither direction."""

    def observe(a: Run, b: Run, rounds: int) -> Observation:
        until = min(rounds, a.rounds, b.rounds)
        if until == 0:
            return None
        ratios = [total(a, until, name) / max(total(b, until, name), 1.0) for name in ("bytes_down", "bytes_up")]
        return max(ratios) <= 1, "{:.3g} times the bytes down, {:.3g} times up".format(*ratios)

    return observed((one, other), observe)


def _of_each(answers: Sequence[bool]) -> str:
    return HOLDS if all(answers) else NOISE if any(answers) else FAILS


def incomparable(*results: Result) -> Finding:
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
