"""Draws of a private run: by a key in simulations, from the system's entropy where they must be secret."""

from __future__ import annotations

import math
import os
import zlib
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch


def entropy(secret: bool) -> str:
    """Return of which entropy draws are, as manifests say it."""
    return "of the system" if secret else "of the run's seed"


class Draws(Protocol):
    """Source of random numbers."""

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """Return numbers in [0, 1)."""

    def normal(self, shape: tuple[int, ...], dtype: torch.dtype) -> npt.NDArray[Any]:
        """Return standard normal numbers of a type."""


def source(secret: bool, key: int, purpose: int | str) -> Draws:
    """Return where draws come from: the system, or a key and what it is used for."""
    if secret:
        return _Secret()
    word = purpose if isinstance(purpose, int) else zlib.crc32(purpose.encode())
    return _Seeded(np.random.Generator(np.random.PCG64([key & (1 << 64) - 1, word])))


class _Seeded:
    def __init__(self, draw: np.random.Generator) -> None:
        self.draw = draw

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        return self.draw.random(count)

    def normal(self, shape: tuple[int, ...], dtype: torch.dtype) -> npt.NDArray[Any]:
        kind = np.float32 if dtype == torch.float32 else np.float64
        return np.asarray(self.draw.standard_normal(shape, kind))


class _Secret:
    """Numbers of the system's entropy.

    A normal one is half the sum of four, so that nothing of it is left in the last bits of floats (Holohan and Braghin
    2021, https://arxiv.org/abs/2107.10138, sec. 4).
    """

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        return uniforms(os.urandom(8 * count))

    def normal(self, shape: tuple[int, ...], dtype: torch.dtype) -> npt.NDArray[Any]:
        count = math.prod(shape)
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform(2 * count)))
        angle = 2.0 * math.pi * self.uniform(2 * count)
        four = radius * np.cos(angle) + radius * np.sin(angle)  # two independent ones of each pair
        return np.asarray(four.reshape(2, *shape).sum(0) / 2, np.float32 if dtype == torch.float32 else np.float64)


def uniforms(data: bytes) -> npt.NDArray[np.float64]:
    """Return numbers in [0, 1) of 53 bits, of 8 bytes each."""
    return (np.frombuffer(data, np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53
