"""Who is asked in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedloom.core.random import generator


class DeviceSampler(Protocol):
    """A frozen object that names the clients of a round: distinct, of 0..num_clients - 1."""

    def __call__(self, round: int, num_clients: int, cohort_size: int) -> list[int]: ...


@dataclass(frozen=True)
class Uniform:
    """Uniformly, without replacement; a function of seed and round."""

    seed: int = 0

    def __call__(self, round: int, num_clients: int, cohort_size: int) -> list[int]:
        rng = generator(self.seed, "cohort", round)
        return [int(k) for k in rng.choice(num_clients, cohort_size, replace=False)]


@dataclass(frozen=True)
class SeededByRound:
    """As the FedNTD and FedProx authors: the legacy NumPy generator seeded with the round, the same for every run."""

    def __call__(self, round: int, num_clients: int, cohort_size: int) -> list[int]:
        rng = np.random.RandomState(round)
        return [int(k) for k in rng.choice(num_clients, cohort_size, replace=False)]
