"""Epsilon of Gaussian noise without sampling, in closed form: a device needs no library for it.

Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration and Optimal Denoising",
ICML 2018, arXiv:1805.06530, theorem 8:

    delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu),    mu = sensitivity / deviation of noise

Releases with mu_1, mu_2, ... are together one with mu = sqrt(mu_1^2 + mu_2^2 + ...), also where each depends on those
before: Dong, Roth, Su, "Gaussian Differential Privacy", JRSS B 2022, arXiv:1905.02383, corollary 3.3.
"""

from __future__ import annotations

import math

import torch

_DIGITS = 4  # of a noise multiplier that is found
_HALVINGS = 60


def epsilon(mu: float, delta: float) -> float:
    """Return the least epsilon at a delta, from above; infinity without noise, where mu is infinite."""
    if not math.isfinite(mu):
        return math.inf
    if not mu or _delta(0.0, mu) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while _delta(high, mu) > delta:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(middle, mu) > delta else (low, middle)
    return high


def noise_for(most: float, releases: int, sensitivity: float, delta: float) -> float:
    """Return the least noise, to 4 digits, with which some releases have an epsilon up to `most`.

    Args:
        most: epsilon.
        releases: each with noise of its own.
        sensitivity: of each, in the unit of the noise.
        delta: of (epsilon, delta).
    """
    low, high = 0.0, 1.0
    while _delta(most, high) <= delta:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(most, middle) <= delta else (low, middle)
    noise = sensitivity * math.sqrt(releases) / low
    scale: float = 10 ** (_DIGITS - 1 - math.floor(math.log10(noise)))
    return math.ceil(noise * scale) / scale


def _delta(epsilon: float, mu: float) -> float:
    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    scaled = torch.special.erfcx(torch.tensor(far / math.sqrt(2), dtype=torch.float64))  # else exp(epsilon) * 0 far out
    return 0.5 * (math.erfc(near / math.sqrt(2)) - math.exp(-near * near / 2) * float(scaled))
