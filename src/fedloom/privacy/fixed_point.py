"""Numbers as integers modulo 2^32 or 2^64, whose sums are exact in any order and can be masked."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import SettingError

Words = NDArray[Any]  # [d] of uint32 or uint64
Bits = Literal[32, 64]
_CLOSE = 1e-6  # by how much a mean may err where 32 bits are chosen


class OutOfRange(ValueError):  # noqa: N818  # a refusal in words, not a defect
    """A number is beyond the declared range, or is none."""


@dataclass(frozen=True)
class FixedPoint:
    """Weighted numbers in fixed point.

    Attributes:
        bits: of a word.
        most: the declared range: a number is at most this far from 0.
        weight: the most that the weights of all clients together may be.
        clients: the most clients whose numbers are added up.
    """

    bits: Bits
    most: float
    weight: float
    clients: int

    def __post_init__(self) -> None:
        if not (0 < self.most < math.inf and 0 < self.weight < math.inf):
            raise SettingError(f"range and weights are finite and above 0, got {self.most:g} and {self.weight:g}")
        if self.scale < 2.0**-60:
            raise SettingError(
                f"a sum of weights up to {self.weight:g} of numbers up to {self.most:g} does not fit {self.bits} bits: "
                "declare a smaller range"
            )

    @classmethod
    def chosen(cls, bits: Bits | None, most: float, weight: float, clients: int) -> FixedPoint:
        """Return the fixed point with so many bits; None: 32 where a mean errs by at most 1e-6, else 64."""
        short = cls(32 if bits is None else bits, most, weight, clients)
        return cls(64, most, weight, clients) if bits is None and short.error > _CLOSE else short

    @functools.cached_property
    def scale(self) -> float:
        """Steps in 1: the largest power of two with which no sum wraps, half a step of rounding a client included.

        In float64, in which numbers become words, those of 64 bits have room for its rounding too: 2^63 - 1 is none.
        """
        room = 2.0 ** (self.bits - 1) * (1 - 2.0**-49) - 1 - self.clients / 2
        return math.ldexp(0.5, math.frexp(room / (self.most * self.weight))[1])

    @property
    def error(self) -> float:
        """The most by which the mean of all clients can err."""
        return self.clients / 2 / self.scale / self.weight

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(f"<u{self.bits // 8}")

    def encode(self, numbers: NDArray[Any], weight: float) -> Words:
        """Return weight times numbers as words.

        Args:
            numbers: [d] floating.
            weight: at least 0; who calls sees to it that all of them together are at most `self.weight`.

        Raises:
            OutOfRange: a number is not finite, or beyond the range.
        """
        values = np.asarray(numbers, np.float64)
        largest = float(np.abs(values).max(initial=0.0))
        if not largest <= self.most:  # not finite, too
            raise OutOfRange(
                f"a number of {largest:.4g} is beyond the range of {self.most:g} in which sums are computed: raise the "
                "range if it is sound"
            )
        return np.rint(values * (weight * self.scale)).astype(np.int64).astype(self.dtype)

    def decode(self, total: Words) -> NDArray[np.float64]:
        """Return the sum of the weighted numbers, [d]."""
        return total.view(f"<i{self.bits // 8}").astype(np.float64) / self.scale
