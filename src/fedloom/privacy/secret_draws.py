"""Random numbers that privacy rests on: of the run's seed in a simulation, of the system's entropy with devices."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from fedloom.coordinator.sampler import IntArray
from fedloom.core.random import generator
from fedloom.privacy.draws import entropy, source, uniforms

Floats = npt.NDArray[np.float64]
_KEY = os.urandom(32)  # of this process alone


def normals(seed: int | None, *words: int | str) -> Callable[[int], Floats]:
    """Return a function that draws that many standard normal numbers.

    Args:
        seed: of the run; None: the system's entropy, in which words play no part.
        *words: what they are for, such as the round.
    """
    if seed is None:
        system = source(True, 0, 0)
        return lambda count: system.normal((count,), torch.float64)
    draw = generator(seed, "privacy", *words)
    return lambda count: draw.normal(size=count)


@dataclass(frozen=True)
class Poisson:
    """Each client by itself with probability `rate`; as many clients as it happens.

    `seed`: None: by the system's entropy, another one in each process.
    """

    rate: float
    seed: int | None = None
    entropy: str = field(init=False)  # for the manifest, of the noise too

    def __post_init__(self) -> None:
        object.__setattr__(self, "entropy", entropy(self.seed is None))

    def __call__(self, round: int, sizes: IntArray, cohort_size: int) -> list[int]:
        if self.seed is None:
            drawn = uniforms(hashlib.shake_256(_KEY + round.to_bytes(8, "big")).digest(8 * len(sizes)))
        else:
            drawn = generator(self.seed, "poisson", round).random(len(sizes))
        return np.flatnonzero(drawn < self.rate).tolist()
