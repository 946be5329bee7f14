"""Tell which differences of two methods are beyond noise, by a deviation that is pooled over the cells of a table."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedloom.evaluate.student_t import student_quantile

Floats = npt.NDArray[np.float64]
Block = Mapping[Any, Mapping[Any, float]]
"""Numbers by cell and seed, of cells that can be compared, such as the methods of a column."""


class Noise(NamedTuple):
    """Deviation of the difference of two cells with the same seed, and its degrees of freedom."""

    deviation: float
    df: int


class Difference(NamedTuple):
    """Mean difference of two cells over common seeds, and half the width of its interval."""

    mean: float
    half: float
    pairs: int

    @property
    def sign(self) -> int:
        """1 or -1 where the difference is beyond noise; 0 where it is not, or where nothing tells the noise."""
        told = self.half > 1e-9 * max(1.0, abs(self.mean))
        return 0 if not told or abs(self.mean) <= self.half else 1 if self.mean > 0 else -1


def pooled(blocks: Iterable[Block]) -> Noise | None:
    """Return the deviation of paired differences over the cells of a table; None where nothing tells it.

    In a block the number of a cell with a seed is taken to be that of the cell, plus that of the seed, plus noise. What
    the best fit leaves is pooled over the blocks, with as many degrees of freedom as it leaves. Cells with the very
    same numbers, as those of Ditto's and FedAvg's global models, count once.
    """
    fits = [_fit(block) for block in blocks]
    df = sum(free for _, free in fits)
    squares = sum(float(values @ values) for left, free in fits if free for values in left)
    return Noise(math.sqrt(2 * squares / df), df) if df else None


def _fit(block: Block) -> tuple[list[Floats], int]:
    """Return what the fit leaves of each of the cells with numbers of their own, and the degrees of freedom."""
    cells = list({tuple(sorted(of.items(), key=str)): of for of in block.values()}.values())
    seeds = list(dict.fromkeys(seed for of in cells for seed in of))
    points = [(i, seeds.index(seed), value) for i, of in enumerate(cells) for seed, value in of.items()]
    design = np.zeros((len(points), len(cells) + len(seeds)))
    for at, (cell, seed, _) in enumerate(points):
        design[at, [cell, len(cells) + seed]] = 1
    values = np.array([value for *_, value in points])
    fit, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    left, of_cell = values - design @ fit, np.array([cell for cell, *_ in points])
    return [left[of_cell == i] for i in range(len(cells))], len(points) - int(rank)


class FalseAlarms(NamedTuple):
    """Shares of comparisons of equal cells that are called different: over all of their seeds, and over one alone."""

    several: float
    one: float


def false_alarms(blocks: Sequence[Block], draws: int = 200, seed: int = 0) -> FalseAlarms:
    """Return how often equal cells are called different, all pairs of each of the blocks whose noise is pooled.

    It is simulated: cells and seeds are those of the blocks, all cells are equal, and each has noise of its own, as
    large as what the fit leaves of it there. A seed alone is one more than those that tell the noise.
    """
    random, cells = np.random.default_rng(seed), [_noisy(block) for block in blocks]
    calls, pairs = np.zeros(2), np.zeros(2)
    for _ in range(draws):
        made = [
            {i: dict(zip(seeds, random.normal(0, d, len(seeds)), strict=True)) for i, (d, seeds) in enumerate(noisy)}
            for noisy in cells
        ]
        noise = pooled(made)
        for noisy, block in zip(cells, made, strict=True):
            for i, j in itertools.combinations(range(len(noisy)), 2):
                alone = random.normal(0, math.hypot(noisy[i][0], noisy[j][0]))
                both = [block[i][s] - block[j][s] for s in block[i].keys() & block[j].keys()]
                found = [difference(gaps, noise) for gaps in (both, [alone])]
                pairs += [one is not None for one in found]
                calls += [one is not None and one.sign != 0 for one in found]
    return FalseAlarms(*(calls / np.maximum(pairs, 1)).tolist())


def _noisy(block: Block) -> list[tuple[float, list[Hashable]]]:
    """Return the deviation and the seeds of each cell with numbers of its own; none of a block that tells no noise."""
    left, free = _fit(block)
    own = {tuple(sorted(of.items(), key=str)): list(of) for of in block.values()}
    points = sum(map(len, left))
    deviations = [float(np.sqrt(np.mean(v**2) * points / free)) for v in left] if free else []
    return list(zip(deviations, own.values(), strict=True)) if free else []


def difference(
    gaps: Sequence[float], noise: Noise | None = None, level: float = 0.95, least: float = 0.0
) -> Difference | None:
    """Return the mean of paired differences with its interval by Student's t; None where nothing tells their deviation.

    The deviation is that of the table, or that of these differences where it is larger; of one pair the table's alone.
    Where all differences are 0 the two are the same, and there is no noise.

    Args:
        gaps: one for each common seed.
        noise: of the table (`pooled`); None: these differences are all that is known.
        level: the probability with which an interval has the true difference.
        least: the deviation is no smaller, as that of numbers that were rounded: equal ones may differ.
    """
    n = len(gaps)
    own = Noise(statistics.stdev(gaps), n - 1) if n > 1 else None
    known = [one for one in (noise, own) if one is not None]
    if not n or not known:
        return None
    deviation, df = max(least, *(one.deviation for one in known)), max(one.df for one in known)
    half = student_quantile((1 + level) / 2, df) * deviation / math.sqrt(n) if n == 1 or any(gaps) or least else 0.0
    return Difference(statistics.fmean(gaps), half, n)
