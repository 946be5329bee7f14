"""Fixed point: sums are exact, errors bounded, and what does not fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedloom.privacy.fixed_point import FixedPoint, OutOfRange

WEIGHTS = st.lists(st.floats(0.01, 600), min_size=1, max_size=40)


@given(st.sampled_from((32, 64)), st.floats(1e-3, 1e3), WEIGHTS, st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_means_err_by_no_more_than_is_said(bits: Any, most: float, weights: list[float], seed: int) -> None:
    point = FixedPoint(bits, most, sum(weights), len(weights))
    values = np.random.default_rng(seed).uniform(-most, most, (len(weights), 8))
    values[:, 0], values[:, 1] = most, -most  # the ends of the range do not wrap
    total = np.zeros(8, point.dtype)
    for value, weight in zip(values, weights, strict=True):
        total += point.encode(value, weight)
    mean = point.decode(total) / sum(weights)
    exact = np.average(values, axis=0, weights=weights)
    assert np.abs(mean - exact).max() <= point.error + 1e-12 * most


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("weight", [1.0, 3.0, 1024.0, 1e6])
def test_the_ends_of_the_range_do_not_wrap_where_the_sum_is_a_power_of_two(bits: Any, weight: float) -> None:
    """2^63 - 1 is 2^63 in float64, and the logarithm of what is a little less than 2^62 is 62."""
    point = FixedPoint(bits, 1.0, weight, 1)
    both = point.decode(point.encode(np.array([1.0, -1.0]), weight)) / weight
    assert both == pytest.approx([1.0, -1.0], abs=point.error)


@given(st.permutations(range(12)))
@settings(max_examples=20, deadline=None)
def test_no_order_changes_a_bit(order: list[int]) -> None:
    point = FixedPoint(32, 4.0, 12.0, 12)
    values = np.random.default_rng(0).normal(size=(12, 5))
    sums = [sum((point.encode(values[k], 1.0) for k in some), np.zeros(5, point.dtype)) for some in (range(12), order)]
    assert np.array_equal(*sums)


def test_integer_weights_are_exact() -> None:
    point = FixedPoint(32, 1.0, 30_000.0, 10)
    assert sum(int(point.decode(point.encode(np.ones(1), n))[0]) for n in (2999, 1, 600)) == 3600


@pytest.mark.parametrize("bad", [8.001, -8.001, np.inf, -np.inf, np.nan])
def test_a_number_beyond_the_range_is_refused(bad: float) -> None:
    point = FixedPoint(32, 8.0, 10.0, 10)
    point.encode(np.array([8.0, -8.0]), 1.0)
    with pytest.raises(OutOfRange, match=r"is beyond the range of 8 in which sums are computed: raise the range"):
        point.encode(np.array([0.0, bad]), 1.0)


def test_32_bits_where_they_do() -> None:
    """With numbers up to 1, means of 500 clients err by less than 1e-6 in 32 bits; with numbers up to 100 by more."""
    assert FixedPoint.chosen(None, 1.0, 500.0, 500).bits == 32
    assert FixedPoint.chosen(None, 1.0, 500.0, 500).error < 1e-6
    assert FixedPoint.chosen(None, 100.0, 500.0, 500).bits == 64
    assert FixedPoint.chosen(32, 100.0, 500.0, 500).bits == 32


@pytest.mark.parametrize(
    ("most", "weight", "why"),
    [
        (0.0, 1.0, "range and weights are finite and above 0, got 0 and 1"),
        (np.inf, 1.0, "range and weights are finite and above 0, got inf and 1"),
        (1e20, 1e10, r"up to 1e\+20 does not fit 32 bits: declare a smaller range"),
    ],
)
def test_what_does_not_fit_is_refused(most: float, weight: float, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        FixedPoint(32, most, weight, 2)
