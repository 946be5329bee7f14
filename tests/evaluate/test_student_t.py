"""Student's t: against closed forms, SciPy, and what holds of every distribution."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st

from fedloom.evaluate.student_t import student_quantile, student_tail

PROBABILITIES = (1e-9, 0.001, 0.025, 0.2, 0.5, 0.51, 0.9, 0.975, 0.999, 0.9999999)
FREEDOM = (0.5, 1, 1.5, 2, 3, 4.7, 19, 20, 21, 200, 5000.5)


def test_quantiles_of_one_and_two_degrees_of_freedom_are_the_closed_forms() -> None:
    for p in (0.001, 0.3, 0.6, 0.975, 0.9995):
        assert student_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-11)
        assert student_quantile(p, 2) == pytest.approx((2 * p - 1) / math.sqrt(2 * p * (1 - p)), rel=1e-11)
    for t in (1e-9, 1e-8, 1e-3, 1.0, 1e6):
        assert student_tail(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, abs=1e-15)


def test_an_interval_of_95_percent_takes_the_exact_quantile() -> None:
    # Percentage points of Student's t to eight digits (SciPy); a table of three decimals moves printed interval ends.
    known = {1: 12.7062047, 2: 4.3026527, 3: 3.1824463, 4: 2.7764451, 9: 2.2621572, 20: 2.0859634, 21: 2.0796138}
    for df, t in known.items():
        assert student_quantile(0.975, df) == pytest.approx(t, rel=3e-8)
    assert student_quantile(0.975, math.inf) == pytest.approx(1.9599639845400545, rel=1e-14)


def test_quantiles_and_tails_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for df in FREEDOM:
        for p in PROBABILITIES:
            assert student_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-9, abs=1e-12)
        for t in (-40.0, -1.0, -1e-3, 0.0, 0.1, 1.0, 3.0, 60.0, 1e200, math.inf, -math.inf):
            assert student_tail(t, df) == pytest.approx(stats.t.sf(t, df), rel=1e-10)


@settings(deadline=None)
@given(st.floats(1e-6, 1 - 1e-6), st.floats(0.2, 500))
def test_a_quantile_is_exceeded_by_what_is_left_and_is_odd(p: float, df: float) -> None:
    t = student_quantile(p, df)
    assert student_tail(t, df) == pytest.approx(1 - p, rel=1e-8)
    assert student_tail(t, df) + student_tail(-t, df) == pytest.approx(1, rel=1e-13)


def test_no_number_has_no_tail_and_no_share_no_quantile() -> None:
    assert math.isnan(student_tail(math.nan, 3))
    for p, df in ((0.0, 3), (1.0, 3), (math.nan, 3), (0.5, 0), (0.5, -1), (0.5, math.nan)):
        with pytest.raises(ValueError, match="0 < p < 1 and degrees of freedom above 0, got"):
            student_quantile(p, df)
