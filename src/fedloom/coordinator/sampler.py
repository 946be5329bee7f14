"""Samplers: the clients of each round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from fedloom.core.choices import check, check_choices
from fedloom.core.errors import SettingError
from fedloom.core.random import derive, fold_in, generator

IntArray = npt.NDArray[np.int64]


class DeviceSampler(Protocol):
    """A frozen object that names the clients of a round.

    It is a function of its fields and its arguments alone, so that a resumed run samples the same.
    """

    def __call__(self, round: int, sizes: IntArray, cohort_size: int) -> list[int]:
        """Return distinct clients of 0..N - 1, `cohort_size` of them unless the sampler says otherwise.

        `round`: from 0. `sizes`: training examples of each client, [N]; read-only, and N may be a million. Where there
        are L new clients that have not joined, it is asked for L more too: those of them that it names are left out,
        and the first of the others are asked.
        """
        ...


@dataclass(frozen=True)
class Uniform:
    """`cohort_size` clients, uniformly without replacement."""

    seed: int = 0

    def __post_init__(self) -> None:
        check_choices(self)

    def __call__(self, round: int, sizes: IntArray, cohort_size: int) -> list[int]:
        rng = generator(self.seed, "cohort", round)
        return [int(k) for k in rng.choice(len(sizes), cohort_size, replace=False)]


@dataclass(frozen=True)
class SeededByRound:
    """NumPy's legacy generator seeded with the round, the same for every seed, as the FedNTD and FedProx authors do.

    It permutes all clients in every round, which takes tens of milliseconds for a million.
    """

    def __call__(self, round: int, sizes: IntArray, cohort_size: int) -> list[int]:
        rng = np.random.RandomState(round)
        return [int(k) for k in rng.choice(len(sizes), cohort_size, replace=False)]


@dataclass(frozen=True)
class BySize:
    """Clients one after the other, each with probability proportional to its examples among those not yet drawn.

    A mean of their models weighted by examples counts size twice: choose `aggregation = "uniform"` where there is one.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        check_choices(self)

    def __call__(self, round: int, sizes: IntArray, cohort_size: int) -> list[int]:
        rng = generator(self.seed, "cohort", round)
        weights, clients = sizes, list[int]()
        while len(clients) < cohort_size:
            ends = np.cumsum(weights)
            if not ends[-1]:
                break
            # The owners of random examples; a client drawn again is passed over, which is the same as taking it out.
            owners = np.searchsorted(ends, rng.integers(ends[-1], size=2 * cohort_size), side="right")
            new = list(dict.fromkeys(owners.tolist()))[: cohort_size - len(clients)]
            clients += new
            if len(clients) < cohort_size:
                weights = weights.copy()
                weights[new] = 0
        return clients


SYMMETRIC = (Uniform, SeededByRound, BySize)  # to them clients differ in size alone, so numbers mean nothing


@dataclass(frozen=True)
class FixedList:
    """Clients `rounds[t]` in round t, whatever the cohort size; a list may be empty, and each round needs one."""

    rounds: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for clients in self.rounds:
            check(clients, tuple[int, ...], "the clients of a round")
        for t, clients in enumerate(self.rounds):
            if len(set(clients)) < len(clients) or min(clients, default=0) < 0:
                raise SettingError(
                    f"a list of clients holds distinct numbers from 0, got {list(clients)} for round {t + 1}"
                )

    def __call__(self, round: int, sizes: IntArray, cohort_size: int) -> list[int]:
        if round >= len(self.rounds):
            raise SettingError(
                f"a list of clients needs an entry for every round, got {len(self.rounds)} for round {round + 1}: "
                f"add entries, or run {len(self.rounds)} rounds"
            )
        clients = list(self.rounds[round])
        if max(clients, default=0) >= len(sizes):
            raise SettingError(
                f"a list of clients names clients that exist, 0..{len(sizes) - 1} in round {round + 1}, got {clients}: "
                "correct it"
            )
        return clients


@dataclass(frozen=True)
class Available:
    """Uniformly among the available clients: each is available for `share` of a cycle of `period` rounds.

    `share`: in (0, 1]. A client is up in share * period rounds, rounded up or down by its phase. Where fewer than the
    cohort are up, all of them are asked.
    """

    share: float
    period: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_choices(self)
        if not 0 < self.share <= 1:
            raise SettingError(f"the share of rounds that a client is up must be in (0, 1], got {self.share}: try 0.3")
        if self.period < 1:
            raise SettingError(f"the period of availability must be >= 1 round, got {self.period}: try 24")

    def __call__(self, round: int, sizes: IntArray, cohort_size: int) -> list[int]:
        rng = generator(self.seed, "cohort", round)
        n, tries = len(sizes), 16 + int(4 * cohort_size / self.share)
        if tries < n:  # so many random clients hold a cohort almost surely, and a million need not be looked at
            candidates = rng.integers(n, size=tries)
            found = list(dict.fromkeys(candidates[self.up(candidates, round)].tolist()))
            if len(found) >= cohort_size:
                return found[:cohort_size]
        everyone = np.arange(n)
        up = everyone[self.up(everyone, round)]
        return [int(k) for k in rng.choice(up, min(cohort_size, len(up)), replace=False)]

    def up(self, clients: IntArray, round: int) -> npt.NDArray[np.bool_]:
        """Return which of the clients [K] can be reached in a round, [K]."""
        key = torch.tensor(derive(self.seed, "phase"))
        phase = (fold_in(key, torch.tensor(clients)).numpy() & 0x3FFFFFFF) / 2**30
        up: npt.NDArray[np.bool_] = (round % self.period / self.period + phase) % 1.0 < self.share
        return up


@dataclass(frozen=True)
class Arriving:
    """Clients join late: `sampler` chooses among clients 0..first + per_round * round - 1, with rounds from 0.

    Where these are fewer than the cohort, `sampler` is asked for as many as there are.
    """

    sampler: DeviceSampler
    first: int
    per_round: int

    def __post_init__(self) -> None:
        check_choices(self)
        if self.first < 1 or self.per_round < 0:
            raise SettingError(
                "arriving clients need first >= 1, who are there in round 0, and per_round >= 0, who join in each "
                f"round; got first = {self.first}, per_round = {self.per_round}"
            )

    def __call__(self, round: int, sizes: IntArray, cohort_size: int) -> list[int]:
        there = sizes[: self.first + self.per_round * round]
        return self.sampler(round, there, min(cohort_size, len(there)))
