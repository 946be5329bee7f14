"""Whole numbers of the discrete Gaussian distribution, drawn exactly: trials compare whole numbers, never floats.

Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, arXiv:2004.00010, algorithms 1
to 3: a number of the discrete Laplace distribution is taken with a probability exp(-x). Here all numbers are drawn at
once, and the scale is whole, so that each x is a sum of products of fractions below one whose trials fit into 64 bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]
Bits = Callable[[int], npt.NDArray[np.uint64]]  # a count -> so many words of 64 random bits
LARGEST = 1 << 55  # scale, with which whole numbers up to 128 times the scale are drawn without overflow
_SPARE = 1.6  # of how many numbers one is taken, about


def system_bits(count: int) -> npt.NDArray[np.uint64]:
    """Return words of the system's entropy."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def seeded_bits(draw: np.random.Generator) -> Bits:
    """Return what draws words by a seed."""
    return lambda count: draw.integers(1 << 64, size=count, dtype=np.uint64)


def discrete_gaussian(scale: int, count: int, bits: Bits) -> Integers:
    """Return numbers x, each with a probability proportional to exp(-x^2 / (2 scale^2)).

    Args:
        scale: nearly the standard deviation.
        count: of numbers.
        bits: where they come from.
    """
    if not 1 <= scale <= LARGEST:
        raise ValueError(f"a scale is from 1 to 2^55, got {scale}")
    trials, found = _Trials(bits), np.zeros(0, np.int64)
    while (missing := count - len(found)) > 0:
        found = np.concatenate([found, trials.gaussian(scale, int(_SPARE * missing) + 16)])
    return found[:count]


@dataclass
class _Trials:
    """Trials with exact probabilities, many at once."""

    bits: Bits

    def below(self, end: int, count: int) -> Integers:
        """Return whole numbers from 0 to end - 1."""
        out, last = self.bits(count).copy(), np.uint64((1 << 64) - (1 << 64) % end - 1)
        while len(beyond := np.flatnonzero(out > last)):
            out[beyond] = self.bits(len(beyond))
        return (out % np.uint64(end)).astype(np.int64)

    def exp(self, count: int, once: Callable[[int, Integers], Truths]) -> Truths:
        """Return what succeeds by a probability of e to the power of -x, for x of 0 to 1 each (algorithm 1).

        `once`: tells with probability x / k whether it happens, at some of the places.
        """
        odd, going, k = np.ones(count, np.bool_), np.arange(count), 1
        while len(going := going[once(k, going)]):
            k += 1
            odd[going] = k % 2 == 1
        return odd

    def powers(self, times: Integers, once: Callable[[int, Integers], Truths]) -> Truths:
        """Return what succeeds that many times, as of `exp`."""
        good, done = np.ones(len(times), np.bool_), 0
        while len(going := np.flatnonzero(good & (times > done))):
            good[going] = self.exp(len(going), lambda k, at: once(k, going[at]))
            done += 1
        return good

    def magnitudes(self, scale: int, count: int) -> Integers:
        """Return some whole numbers y from 0, with probabilities proportional to exp(-y / scale) (algorithm 2)."""
        rest = self.below(scale, count)
        rest = rest[self.exp(count, lambda k, at: self.below(k * scale, len(at)) < rest[at])]
        whole, going = np.zeros(len(rest), np.int64), np.arange(len(rest))
        while len(going := going[self.exp(len(going), lambda k, at: self.below(k, len(at)) == 0)]):
            whole[going] += 1
        return rest + scale * whole

    def gaussian(self, scale: int, count: int) -> Integers:
        """Return the numbers that are taken of some (algorithm 3): with exp(-(|y| - scale)^2 / (2 scale^2)).

        |y| - scale is m scales and r, and the probability exp(-m^2 / 2) exp(-m r / scale) exp(-r^2 / (2 scale^2)).
        """
        y = self.magnitudes(scale, count)
        minus = self.below(2, len(y)) == 1
        y, minus = y[~minus | (y > 0)], minus[~minus | (y > 0)]  # else 0 would come twice as often
        m, r = np.divmod(np.abs(y - scale), scale)
        good = self.powers(m * m, lambda k, at: self.below(2 * k, len(at)) == 0)
        good &= self.powers(m * good, lambda k, at: self.below(k * scale, len(at)) < r[at])
        good &= self.powers(
            good.astype(np.int64),
            lambda k, at: (self.below(scale, len(at)) < r[at]) & (self.below(2 * k * scale, len(at)) < r[at]),
        )
        out: Integers = np.where(minus, -y, y)[good]
        return out
