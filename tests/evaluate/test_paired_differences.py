"""What of paired differences is beyond noise: by hand, beside SciPy, and by simulation."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest

from fedloom.evaluate.paired_differences import (
    Block,
    Difference,
    Noise,
    _noisy,
    difference,
    false_alarms,
    pooled,
)


def block(values: list[list[float]]) -> Block:
    return {i: dict(enumerate(of)) for i, of in enumerate(values)}


def test_two_cells_have_the_deviation_of_their_differences() -> None:
    found = pooled([block([[1.0, 5.0, 2.0], [4.0, 4.0, 9.0]])])
    assert found == (pytest.approx(statistics.stdev([-3.0, 1.0, -7.0])), 2)
    stats = pytest.importorskip("scipy.stats")
    interval = stats.ttest_rel([1.0, 5.0, 2.0], [4.0, 4.0, 9.0]).confidence_interval()
    for noise in (None, found):
        gap = difference([-3.0, 1.0, -7.0], noise)
        assert gap is not None
        assert (gap.mean - gap.half, gap.mean + gap.half) == pytest.approx((interval.low, interval.high))


def test_more_cells_have_the_mean_variance_of_all_pairs() -> None:
    values = np.random.default_rng(0).normal(size=(5, 3))
    variances = [np.var(a - b, ddof=1) for a, b in itertools.combinations(values, 2)]
    found = pooled([block(values.tolist())])
    assert found == (pytest.approx(math.sqrt(np.mean(variances))), 4 * 2)
    shifted = pooled([block((values + [0.0, 100.0, -7.0] + np.arange(5)[:, None]).tolist())])
    assert shifted == (pytest.approx(found.deviation), 8)  # seeds and cells have levels of their own


def test_blocks_are_pooled_by_their_degrees_of_freedom() -> None:
    one, two = block([[0.0, 0.0], [1.0, 3.0]]), block([[0.0, 0.0, 0.0], [3.0, 5.0, 7.0]])
    assert pooled([one, two]) == (pytest.approx(math.sqrt((1 * 2 + 2 * 4) / 3)), 3)


def test_what_tells_nothing_counts_for_nothing() -> None:
    both: Block = {"a": {0: 1.0, 1: 2.0, 2: 9.0}, "b": {0: 2.0, 1: 4.0}, "alone": {2: 5.0}}
    assert pooled([both]) == (pytest.approx(statistics.stdev([-1.0, -2.0])), 1)
    assert pooled([]) is None
    assert pooled([{"a": {0: 1.0, 1: 2.0}}, {"a": {0: 1.0}, "b": {0: 2.0}}]) is None


def test_a_cell_that_is_another_counts_once() -> None:
    """Ditto's global model is FedAvg's: their difference of 0 does not say how large noise is."""
    cells: Block = {"fedavg": {0: 1.0, 1: 5.0}, "moon": {0: 4.0, 1: 2.0}}
    assert pooled([{**cells, "ditto": {1: 5.0, 0: 1.0}}]) == pooled([cells])


@pytest.mark.parametrize(
    ("gaps", "noise", "half"),
    [
        ([2.0, 2.0], Noise(1.0, 9), 2.2621572 / math.sqrt(2)),  # the table's, where the pair's is smaller
        ([0.0, 10.0], Noise(1.0, 9), 2.2621572 * math.sqrt(50) / math.sqrt(2)),  # the pair's, where it is larger
        ([0.0, 10.0], None, 12.7062047 * math.sqrt(50) / math.sqrt(2)),
        ([3.0], Noise(1.0, 9), 2.2621572),
        ([0.0, 0.0], Noise(1.0, 9), 0.0),  # the same
        ([0.0], Noise(1.0, 9), 2.2621572),  # of one seed that is no proof
    ],
)
def test_the_larger_deviation_counts(gaps: list[float], noise: Noise | None, half: float) -> None:
    found = difference(gaps, noise)
    assert found == (pytest.approx(statistics.fmean(gaps)), pytest.approx(half, rel=1e-6), len(gaps))


def test_nothing_is_known_of_one_pair_alone_or_of_none() -> None:
    assert difference([1.0]) is None
    assert difference([], Noise(1.0, 3)) is None


def test_a_wider_level_gives_a_wider_interval() -> None:
    halves = [difference([1.0, 2.0], Noise(1.0, 5), level).half for level in (0.5, 0.95, 0.999)]  # type: ignore[union-attr]
    assert halves == sorted(halves)
    assert halves[1] == pytest.approx(2.5705818 / math.sqrt(2))


@pytest.mark.parametrize(
    ("mean", "half", "sign"), [(2.0, 1.9, 1), (-2.0, 1.9, -1), (1.9, 1.9, 0), (2.0, 0.0, 0), (2.0, 1e-12, 0)]
)
def test_beyond_noise_is_outside_an_interval_that_has_a_width(mean: float, half: float, sign: int) -> None:
    assert Difference(mean, half, 2).sign == sign


@pytest.mark.slow
def test_false_alarms_are_few_with_equal_and_unequal_noise() -> None:
    """A pair's own differences alone, taken twice their standard error, would give 0.30 with two seeds."""
    random = np.random.default_rng(1)
    equal = [block(random.normal(size=(5, 2)).tolist()) for _ in range(6)]
    unequal = [block((random.normal(size=(5, 2)) * [[1], [1], [2], [5], [0.2]]).tolist()) for _ in range(6)]
    even, uneven = (false_alarms(blocks, 60) for blocks in (equal, unequal))
    assert 0.01 < even.several < 0.07
    assert 0.01 < uneven.several < 0.07
    assert 0.02 < even.one < 0.09
    assert 0.03 < uneven.one < 0.15  # where nothing tells that a cell is noisier than the others, more are called
    assert false_alarms(equal, 5) == false_alarms(equal, 5)


def test_cells_of_a_simulation_have_the_noise_of_their_block() -> None:
    """Their variances, by their numbers of seeds, are what the fit leaves by degrees of freedom: half of a pair's."""
    one = block([[1.0, 5.0, 2.0], [4.0, 4.0, 9.0], [0.0, 3.0, 3.0]]) | {3: {0: 7.0, 2: 1.0}}
    noise = pooled([one])
    assert noise is not None
    cells = _noisy(one)
    assert [len(seeds) for _, seeds in cells] == [3, 3, 3, 2]
    mean = sum(len(seeds) * deviation**2 for deviation, seeds in cells) / 11
    assert mean == pytest.approx(noise.deviation**2 / 2)
