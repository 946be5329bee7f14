"""Parts of claims: what is compared, and when it holds. Each function here makes one kind."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from fedloom.evaluate.paired_differences import Difference, Noise, difference
from fedloom_papers.reproduction.claims import FAILS, HOLDS, NOISE, NOT_RUN, SHORT, Cell, Finding, Part
from fedloom_papers.reproduction.recipe import UNKNOWN_STD
from fedloom_papers.reproduction.results import Result, Run, comparable, seeds_against, seeds_of
from fedloom_papers.reproduction.table_noise import BySeed, noise_of, numbers

_NO_PAIR = "not comparable (other settings or no common seed)"


def jumps(result: Result) -> BySeed:
    """Return by how many points a number changes from round to round, mean over the rounds, of each seed."""
    return _jumps(result, 1)


def late_jumps(result: Result) -> BySeed:
    """Return the same of the second half of the rounds alone."""
    return _jumps(result, result.rounds // 2)


def _jumps(result: Result, first: int) -> BySeed:
    out = {}
    for seed, run in result.runs.items():
        values = (m.get(result.recipe.measure) for m in run.history.metrics if first <= m["round"] <= result.rounds)
        curve = [100 * value for value in values if value is not None]
        if len(curve) > 1:
            out[seed] = statistics.fmean(abs(b - a) for a, b in itertools.pairwise(curve))
    return out


def early(result: Result) -> BySeed:
    """Return the mean of a number over the first tenth of the published rounds, of each seed that has them."""
    until, out = max(1, result.recipe.rounds // 10), {}
    for seed, run in result.runs.items():
        curve = [m.get(result.recipe.measure) for m in run.history.metrics if 1 <= m["round"] <= until]
        there = [100 * value for value in curve if value is not None]
        if len(there) == until:
            out[seed] = statistics.fmean(there)
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
        gaps = [values[0][seed] - values[1][seed] for seed in values[0].keys() & values[1].keys()]
        if not gaps:
            return Finding(NOT_RUN)
        stds = [r.recipe.std for r in pair] if of is numbers else [None, None]
        found = judged(gaps, noise_of(pair, of), stds)
        ours = _beside(pair, [statistics.fmean(v.values()) for v in values], unit) + seeds_of(pair, a, b)
        if of is numbers and not found.sign and found.mean > 0:
            against = seeds_against(*pair)
            ours += f"; in the mean, not in seed {', '.join(map(str, against))}" if against else ""
        return Finding(order(found), ours, _printed(*pair), tuple(pair))

    return Part((high, low), decide, instead, kind=f"above in {name_of(of)}")


def last_word(cell: Cell) -> str:
    """Return the last word of a cell's column, where recipes have the value of a variable: e5 of cifar10-s2-e5."""
    return cell.column.rpartition("-")[2]


def together(*results: Result) -> list[Result]:
    """Return results as `comparable` does; of runs that got unequally far, those after as many rounds as all have."""
    found = comparable(*results)
    if found or not all(r.numbers for r in results):
        return found
    until = min(r.rounds for r in results)
    return comparable(*(dataclasses.replace(r, until=until) for r in results))


def judged(
    gaps: Sequence[float], noise: Noise | None = None, stds: Iterable[float | None] = (None, None)
) -> Difference:
    """Return the mean of differences by seed, and how large it must be to be beyond noise, by `RULE`.

    Args:
        gaps: one for each seed.
        noise: of the tables in which the runs stand.
        stds: the printed deviations of what is compared, which count for one seed where no cells tell the noise.
    """
    found = difference(gaps, noise)
    if found is not None:
        return found
    return Difference(gaps[0], 2 * math.sqrt(sum((UNKNOWN_STD if std is None else std) ** 2 for std in stds)), 1)


def order(found: Difference) -> str:
    """Return the verdict on an order of two methods, from the difference of the first to the second."""
    return {1: HOLDS, 0: NOISE, -1: FAILS}[found.sign]


def gain(high: Cell, low: Cell, published: float) -> Part:
    """Return a part that holds where one method is above another by no less than is printed, in runs as long."""

    def decide(a: Result, b: Result) -> Finding:
        pair = together(a, b)
        if not pair:
            return incomparable(a, b)
        stds = [r.recipe.std for r in pair]
        found = judged(
            [pair[0].numbers[seed] - pair[1].numbers[seed] for seed in pair[0].numbers], noise_of(pair), stds
        )
        theirs = math.hypot(*(std for std in stds if std is not None)) or UNKNOWN_STD
        verdict = order(found)
        if verdict == HOLDS and found.mean < published - math.hypot(2 * theirs, found.half):
            verdict = FAILS
        ours = f"{a.recipe.column} {found.mean:+.2f}{seeds_of(pair, a, b)}"
        return Finding(verdict, ours, f"{published:+.2f} or more", tuple(pair))

    return whole(Part((high, low), decide, kind="gain"))


def larger_gain(more: tuple[Cell, Cell], less: tuple[Cell, Cell], said: str) -> Part:
    """Return a part that holds where one method's gain over another is larger in one place than in another.

    `said`: how the two gains are told.
    """

    def decide(*asked: Result) -> Finding:
        found = together(*asked)
        if not found:
            return incomparable(*asked)
        gains = [{s: high.numbers[s] - low.numbers[s] for s in high.numbers} for high, low in (found[:2], found[2:])]
        one = noise_of(found[:2])
        two = None if one is None else one._replace(deviation=one.deviation * math.sqrt(2))
        verdict = order(judged([gains[0][s] - gains[1][s] for s in gains[0]], two, [None] * len(found)))
        ours = said.format(*(statistics.fmean(values.values()) for values in gains)) + seeds_of(found, *asked)
        return Finding(verdict, ours, "", tuple(found))

    return Part((*more, *less), decide, kind="larger gain")


def level(one: Cell, other: Cell, within: float = UNKNOWN_STD, below_alone: bool = False) -> Part:
    """Return a part that holds where two methods are no further apart than some points, whatever noise is.

    Where they are further apart, but not beyond noise, it is within noise. `below_alone`: the first may be above.
    """

    def decide(a: Result, b: Result) -> Finding:
        pair = together(a, b)
        if not pair:
            return incomparable(a, b)
        gaps = [pair[0].numbers[seed] - pair[1].numbers[seed] for seed in pair[0].numbers]
        found = judged(gaps, noise_of(pair), [r.recipe.std for r in pair])
        near = found.mean >= -within if below_alone else abs(found.mean) <= within
        ours = _beside(pair, [statistics.fmean(r.numbers.values()) for r in pair]) + seeds_of(pair, a, b)
        return Finding(HOLDS if near else FAILS if found.sign else NOISE, ours, "", tuple(pair))

    return Part((one, other), decide, kind=f"level by {within:g}{' from below' * below_alone}")


def whole(part: Part) -> Part:
    """Return a part that is judged by runs of the published length and settings alone; others are a short run."""

    def decide(*results: Result) -> Finding:
        found = part.decide(*results)
        if found.verdict == NOT_RUN or all(r.full for r in found.results):
            return found
        return found._replace(verdict=SHORT)

    return dataclasses.replace(part, decide=decide)


def number(cell: Cell) -> Part:
    """Return a part that holds where runs as long as published give the printed number."""

    def decide(r: Result) -> Finding:
        if r.accuracy is None or r.recipe.accuracy is None:
            return Finding(NOT_RUN)
        ours = f"{r.recipe.column} {r.recipe.row} {r.accuracy:.2f} for {r.recipe.accuracy:.2f}"
        near = abs(r.accuracy - r.recipe.accuracy) <= r.noise
        return Finding(HOLDS if near else FAILS, ours, f"{r.recipe.accuracy:.2f}", (r,))

    return whole(Part((cell,), decide, shown=True, kind="number"))


def diverges(cell: Cell) -> Part:
    """Return a part that holds where the runs of a recipe fail."""

    def decide(r: Result) -> Finding:
        if not r.runs or (not r.failures and r.rounds < r.recipe.rounds):
            return Finding(NOT_RUN)
        said = f"{r.recipe.column} {r.recipe.row}: {len(r.failures)} of {len(r.runs)} runs diverge"
        return Finding(_of_each([s in r.failures for s in r.runs]), said, "", (r,))

    return Part((cell,), decide, kind="diverges")


Observation = tuple[bool, str] | None
"""A verdict on a claim in one run, True or False, and its numbers in words; None where the run does not tell."""


def observed(cells: Sequence[Cell], observe: Callable[..., Observation], kind: str = "") -> Part:
    """Return a part that holds where something is so of each seed.

    `kind`: what is observed, where the name of `observe` does not say it. `observe` gets the runs of a seed, one of
    each cell, and then the number of rounds that all of them have.
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

    return Part(tuple(cells), decide, kind=kind or name_of(observe))


def computed(compute: Callable[[], tuple[bool, str]]) -> Part:
    """Return a part that is judged by a computation without runs."""

    def decide() -> Finding:
        holds, said = compute()
        return Finding(HOLDS if holds else FAILS, said)

    return Part((), decide, kind=name_of(compute))


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a function, with its module and what it was given."""
    if isinstance(function, functools.partial):
        return f"{name_of(function.func)} {function.args}"
    return f"{function.__module__}.{function.__qualname__}"


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
