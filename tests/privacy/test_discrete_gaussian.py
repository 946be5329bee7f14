"""The discrete Gaussian: exact probabilities, by chi-square over small scales and by bins over large ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedloom.privacy.discrete_gaussian import LARGEST, _Trials, discrete_gaussian, seeded_bits, system_bits


def drawn(scale: int, count: int, seed: int = 0) -> np.ndarray:
    return discrete_gaussian(scale, count, seeded_bits(np.random.default_rng(seed)))


@pytest.mark.parametrize("scale", [1, 2, 7])
def test_small_numbers_have_their_probabilities(scale: int) -> None:
    found, count = drawn(scale, 100_000), 100_000
    x = np.arange(-20 * scale, 20 * scale + 1)
    weight = np.exp(-(x**2) / (2 * scale**2))
    expected = count * weight / weight.sum()
    seen = np.bincount(found - x[0], minlength=len(x))
    often = expected >= 10
    total = [seen[often], seen[~often].sum()], [expected[often], expected[~often].sum()]
    assert stats.chisquare(*(np.append(a, b) for a, b in total)).pvalue > 1e-3


@pytest.mark.parametrize("scale", [1000, 1 << 30, LARGEST])
def test_large_numbers_are_normal(scale: int) -> None:
    found = drawn(scale, 50_000) / scale
    assert stats.kstest(found, "norm").pvalue > 1e-3
    assert np.abs(found).max() < 6


def test_trials_succeed_as_often_as_they_should() -> None:
    trials, count = _Trials(seeded_bits(np.random.default_rng(1))), 100_000
    for x in (0.0, 0.3, 1.0):
        hits = trials.exp(count, lambda k, at: trials.below(10 * k, len(at)) < 10 * x).sum()  # noqa: B023
        assert stats.binomtest(int(hits), count, math.exp(-x)).pvalue > 1e-3
    times = np.repeat([0, 1, 3], count)
    good = trials.powers(times, lambda k, at: trials.below(2 * k, len(at)) == 0).reshape(3, -1).sum(1)
    for n, hits in zip((0, 1, 3), good.tolist(), strict=True):
        assert stats.binomtest(hits, count, math.exp(-n / 2)).pvalue > 1e-3
    ends = trials.magnitudes(3, count)
    seen = np.bincount(np.minimum(ends, 15), minlength=16)
    share = np.exp(-np.arange(15) / 3) * (1 - math.exp(-1 / 3))
    assert stats.chisquare(seen, len(ends) * np.append(share, 1 - share.sum())).pvalue > 1e-3


def test_whole_numbers_below_an_end_are_alike_also_where_it_divides_no_power_of_two() -> None:
    def ends(count: int) -> np.ndarray:
        """Words at the end of 64 bits, of which 3 divides all but the last, and then small ones."""
        return np.array([5, (1 << 64) - 1] if count > 1 else [4], np.uint64)

    assert _Trials(ends).below(3, 2).tolist() == [2, 1]  # the last word is drawn again
    assert _Trials(ends).below(4, 2).tolist() == [1, 3]


def test_the_seed_draws_and_the_system_draws_others() -> None:
    assert np.array_equal(drawn(9, 50), drawn(9, 50))
    assert not np.array_equal(drawn(9, 50), drawn(9, 50, seed=1))
    one, other = (discrete_gaussian(1 << 40, 20, system_bits) for _ in range(2))
    assert not set(one.tolist()) & set(other.tolist())
    assert len(drawn(3, 0)) == 0


@pytest.mark.parametrize("scale", [0, LARGEST + 1])
def test_scales_that_would_overflow_are_refused(scale: int) -> None:
    with pytest.raises(ValueError, match=r"a scale is from 1 to 2\^55, got"):
        drawn(scale, 1)
