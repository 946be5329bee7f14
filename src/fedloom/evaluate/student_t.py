"""Compute Student's t distribution: the tail beyond a value, and quantiles."""

from __future__ import annotations

import functools
import math


def student_tail(t: float, df: float) -> float:
    """Return the probability that Student's t exceeds `t`; NaN of a value that is not a number.

    Args:
        t: the value, which may be infinite.
        df: degrees of freedom, above 0; infinite: the normal distribution.
    """
    if math.isinf(df):
        return math.erfc(t / math.sqrt(2)) / 2
    square = t * t
    inside, outside = (0.0, 1.0) if math.isinf(square) else (df / (df + square), square / (df + square))
    half = _beta(df / 2, 0.5, inside, outside) / 2
    return half if t >= 0 else 1 - half


@functools.lru_cache(maxsize=4096)
def student_quantile(p: float, df: float) -> float:
    """Return the value that Student's t exceeds with probability 1 - p.

    Args:
        p: probability, between 0 and 1; 0.975 for an interval of 95 %.
        df: degrees of freedom, above 0; infinite: the normal distribution.

    Raises:
        ValueError: there is no such quantile.
    """
    if not (0 < p < 1 and df > 0):
        raise ValueError(f"a quantile needs 0 < p < 1 and degrees of freedom above 0, got p = {p:g} and {df:g}")
    if p == 0.5:
        return 0.0
    tail, low, high = min(p, 1 - p), 0.0, 1.0
    while student_tail(high, df) > tail:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:  # until no number lies between
        low, high = (middle, high) if student_tail(middle, df) > tail else (low, middle)
    return math.copysign(high, p - 0.5)


def _beta(a: float, b: float, x: float, rest: float) -> float:
    """Return the regularised incomplete beta function of `x` (DLMF 8.17), `rest` being 1 - x without rounding."""
    if not (x > 0 and rest > 0):
        return x  # 0, 1 or NaN
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1 - _beta(b, a, rest, x)
    front = math.exp(a * math.log(x) + b * math.log(rest) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)) / a
    return front / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction 1 + d_1 / (1 + d_2 / ...) of DLMF 8.17.22, from its front (Lentz)."""
    value, above, below = 1.0, 1.0, 0.0
    for k in range(1, 100_000):
        m = k // 2
        numerator = (
            m * (b - m) / ((a + k - 1) * (a + k)) if k % 2 == 0 else -(a + m) * (a + b + m) / ((a + k - 1) * (a + k))
        )
        below = 1 / (1 + numerator * x * below)
        above = 1 + numerator * x / above
        value *= above * below
        if abs(above * below - 1) < 1e-16:
            break
    return value
