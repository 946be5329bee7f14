"""Epsilon of the sampled Gaussian computed otherwise than fedloom does: losses by cells, convolved by FFT."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

CELLS = 1 << 17


def convolved(rounds: int, rate: float, noise: float, delta: float) -> float:
    """Epsilon of the sampled Gaussian, the larger one of adding and of removing a client."""
    return max(_one_way(rounds, rate, noise, delta, sign) for sign in (1, -1))


def _one_way(rounds: int, rate: float, noise: float, delta: float, sign: int) -> float:
    """`sign`: 1, with the client against without, or the other way round; losses are those of x ~ the first."""

    def loss(x: np.ndarray) -> np.ndarray:
        return sign * np.logaddexp(
            np.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + (2 * x - 1) / (2 * noise**2)
        )

    def mass(edges: np.ndarray) -> np.ndarray:
        without, there = np.diff(ndtr(edges / noise)), np.diff(ndtr((edges - 1) / noise))
        return (1 - rate) * without + rate * there if sign == 1 else without

    x = np.linspace(-14 * noise, 1 + 14 * noise, 400_001)
    p, middle = mass(x), loss((x[1:] + x[:-1]) / 2)
    mean, std = float((p * middle).sum()), float(np.sqrt((p * (middle - (p * middle).sum()) ** 2).sum()))
    span = 2 * (12 * std * math.sqrt(rounds) + float(np.abs(middle[p > 1e-18]).max()))
    width = span / CELLS
    cells = np.floor(middle / width).astype(int)
    upper = middle / width - cells  # a loss between two cells is shared, so that its mean stays
    counts = np.zeros(CELLS)
    np.add.at(counts, cells % CELLS, p * (1 - upper))
    np.add.at(counts, (cells + 1) % CELLS, p * upper)
    total = np.fft.irfft(np.fft.rfft(counts) ** rounds, CELLS).clip(min=0)
    centre = round(rounds * mean / width)
    losses = (np.arange(CELLS) - CELLS // 2 + centre) * width
    total = total[np.arange(centre - CELLS // 2, centre + CELLS // 2) % CELLS]

    low, high = 0.0, float(losses[-1])
    for _ in range(60):
        middle_epsilon = (low + high) / 2
        beyond = losses > middle_epsilon
        found = float((total[beyond] * -np.expm1(middle_epsilon - losses[beyond])).sum())
        low, high = (middle_epsilon, high) if found > delta else (low, middle_epsilon)
    return high
