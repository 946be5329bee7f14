"""Differential privacy of clients without a server that is trusted: they add the noise themselves, before they mask.

The server learns the noisy sum alone (`noisy_sums`). The noise is sized for the fewest clients that a round may have;
each round counts with the noise of those that are in its sum.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedloom.coordinator.history import Record
from fedloom.coordinator.part import Brief, Running
from fedloom.coordinator.settings import RunSettings
from fedloom.core.errors import SettingError
from fedloom.engines.links import Encoder
from fedloom.evaluate.measure import Measure
from fedloom.privacy import concentrated
from fedloom.privacy.begun_rounds import write_down, written
from fedloom.privacy.clipped_sums import values_of
from fedloom.privacy.masked_terms import LEAST
from fedloom.privacy.method_trial import shapes_of
from fedloom.privacy.noisy_sums import InNoisyFixedPoint, NoisyAggregation, NoisyMean
from fedloom.privacy.privacy_kinds import NOT_NEGATIVE, POSITIVE, SHARE, check_delta, wanted
from fedloom.privacy.secure_sums import SecureAggregation, SecureSums
from fedloom.privacy.told_beside import told_beside

_KEYS = {"epsilon": float, "noise": float, "delta": float, "clip": float, "lost": int}
_BEGUN = "clients_asked.txt"  # of a run with devices, beside its records


@dataclass(frozen=True)
class Asked:
    """Privacy as it was asked for: one of `epsilon` and `noise`. `lost`: clients of a cohort that may be lost."""

    delta: float
    epsilon: float | None
    noise: float | None
    clip: float
    lost: int

    @classmethod
    def read(cls, text: str) -> Asked:
        """Return what a text asks for.

        Raises:
            SettingError: something is missing, said twice or out of range.
        """
        rules = {"epsilon": POSITIVE, "noise": POSITIVE, "delta": SHARE, "clip": POSITIVE, "lost": NOT_NEGATIVE}
        found = wanted(text, _KEYS, "distributed:epsilon=4,delta=1e-5,clip=0.5", rules)
        return cls(found["delta"], found.get("epsilon"), found.get("noise"), found["clip"], found.get("lost", 0))


def aggregation(settings: RunSettings, seed: int | None = None) -> NoisyAggregation:
    """Return how uploads are added up by a run's settings; `seed`: of the noise; None: each client's system.

    Raises:
        SettingError: they ask for something that is none.
    """
    asked, text = Asked.read(settings.privacy), settings.secure_aggregation
    if text == "none":
        raise SettingError(
            f"privacy = {settings.privacy!r} is of sums that nobody sees into, got secure_aggregation = 'none': add "
            "secure_aggregation (--secure-aggregation range=8), or write central:... for noise of the server"
        )
    base = SecureAggregation.read(text)
    return NoisyAggregation(
        **{field.name: getattr(base, field.name) for field in fields(base)},
        clip=asked.clip, noise=math.nan if asked.noise is None else asked.noise,
        least=settings.cohort_size - asked.lost, seed=seed,
    )  # fmt: skip


class Distributed(SecureSums):
    """Private means of what clients upload, with their own noise, and the largest epsilon of them so far."""

    asked: NoisyAggregation

    def __init__(self, job: Brief) -> None:
        settings, self.simulated = job.settings, job.federation.train.remote is None
        self.wanted = Asked.read(settings.privacy)
        self.asked = aggregation(settings, settings.seed if self.simulated else None)
        self.sizes: list[int] = []  # numbers in uploads
        self.links = (InNoisyFixedPoint(self.aggregation, self.released),)
        self.state = {"noise": _numbers(self.asked.noise), "spent": _numbers(np.zeros(job.federation.num_clients))}
        self.lost: npt.NDArray[np.float64] = np.zeros(job.federation.num_clients)  # spent in rounds that were lost
        self.newest: float | None = None  # noise of the round's sum, in clip norms
        of, source = (" of a simulation", "the run's seed") if self.simulated else ("", "each device's entropy")
        self.columns = (
            Measure(
                "epsilon", f"Epsilon{of}", f"epsilon{of}",
                f"(epsilon, {self.wanted.delta:g})-differential privacy so far of what a client has, whose upload is "
                f"there or zeros, against who sees the sums of uploads, the server too: the largest of all clients, "
                f"with noise of their own by {source}; {told_beside(job, losses=True)}.",
                unit="", better="low", range=(0.0, None),
            ),
            Measure(
                "sum_noise", "Noise of the sum", "noise",
                "Standard deviation of the noise in the round's sum, in clip norms: that of the clients in it.",
                unit="", better=None, range=(0.0, None),
            ),
        )  # fmt: skip

    @classmethod
    def of(cls, job: Brief) -> Distributed:
        return cls(job)

    @classmethod
    def encoders(cls, settings: RunSettings) -> tuple[Encoder, ...]:
        if Asked.read(settings.privacy).noise is None:
            raise SettingError(
                f"devices know the noise by the settings of their run, got {settings.privacy!r}: write noise=..., as a "
                "simulation with as many clients and rounds has it (sum_noise, with nobody lost and lost=0)"
            )
        return ()

    def aggregation(self) -> NoisyAggregation:
        """Return how uploads are added up, with the noise that was found."""
        return replace(self.asked, noise=float(self.state["noise"]))

    def check(self, job: Any) -> None:
        settings, there, size = job.settings, job.federation.num_clients, job.settings.cohort_size
        self.check_settings(job)
        check_delta(self.wanted.delta, there)
        for forbidden, what, why in (
            (job.schedule is not None, f"schedule = {type(job.schedule).__name__}", "asks whole cohorts"),
            (settings.spares, f"spares = {settings.spares}", "asks whole cohorts"),
            (len(job.population.models) > 1, f"{len(job.population.models)} architectures", "is of one network"),
        ):  # fmt: skip
            if forbidden:
                raise SettingError(f"privacy = {settings.privacy!r} {why}, got {what}: leave one of them out")
        if (least := max(LEAST, (size - 1) // 2 + 2)) > self.asked.least:
            raise SettingError(
                f"of a cohort of {size} there is no sum under masks without {least} clients, got lost = "
                f"{self.wanted.lost}: lower lost to {size - least} or less"
            )
        if not self.simulated:
            self.encoders(settings)  # which refuses what devices cannot know
        shapes = shapes_of(job).values()
        self.sizes = [sum(leaf.numel() for leaf in values_of(like)) for like in shapes]
        times = self._times(job)

        def epsilon_of(noise: float) -> float:
            return concentrated.epsilon(times * self._worst(noise), self.wanted.delta)

        if (most := self.wanted.epsilon) is not None:
            if (noise := concentrated.noise_for(most, epsilon_of)) is None:
                raise SettingError(
                    f"no noise gives epsilon = {most:g} to a client that is asked in {times} rounds at delta = "
                    f"{self.wanted.delta:g}: raise epsilon, run fewer rounds, or lower the range"
                )
            self.state = {**self.state, "noise": _numbers(noise)}
        if self.sizes:
            self._uploads().check(max(self.sizes))
        self.try_link(job, InNoisyFixedPoint(self.aggregation, lambda total, clients: None))

    def _uploads(self, noise: float | None = None) -> Any:
        asked, size = self.aggregation(), float(self.asked.least + self.wanted.lost)
        return (asked if noise is None else replace(asked, noise=noise)).fixed(size, int(size))

    def _worst(self, noise: float | None = None) -> float:
        """Return the loss of a round in which as many are lost as may be."""
        uploads = self._uploads(noise)
        return max((uploads.loss(size, self.asked.least) for size in self.sizes), default=0.0)

    def _times(self, job: Any) -> int:
        """Return how many rounds ask a client at most."""
        settings, sizes = job.settings, job.federation.partition.sizes
        if job.new is not None:
            return int(settings.rounds)
        times = np.zeros(len(sizes), np.int64)
        for round in range(settings.rounds):
            times[[*job.trainees.sampler(round, sizes, settings.cohort_size)]] += 1
        return int(times.max())

    def released(self, total: NoisyMean, clients: Collection[int]) -> None:
        """Count a sum: its loss is that of each client that was asked."""
        fixed, size = total.fixed, total.dimension
        spent = self.state["spent"].clone()
        spent[[*clients]] += fixed.loss(size, total.count)
        self.state = {**self.state, "spent": spent}
        self.newest = fixed.scale(size) * math.sqrt(total.count) / (fixed.point.scale * self.asked.clip)

    def begin(self, run: Running) -> None:
        """Count rounds of devices that were lost, whose sums the server may have seen, as those of the fewest."""
        self.lost[:] = 0
        kept = dict[int, list[int]]()
        for round, *clients in self._begun(run):
            if round in kept:
                self.lost[kept[round]] += self._worst()
            kept[round] = clients
        for round, clients in kept.items():
            if round > run.done:
                self.lost[clients] += self._worst()

    def before(self, run: Running) -> None:
        if self._passes(run.clients):
            raise SettingError(
                f"round {run.done + 1} would pass the epsilon of {self.wanted.epsilon:g} that was asked for, since "
                f"rounds that were lost count too, or more than planned: the run ends with round {run.done}"
            )
        if not self.simulated:
            write_down(run, _BEGUN, run.done + 1, *run.clients)

    def after(self, run: Running) -> Record:
        spent = self.state["spent"].numpy() + self.lost
        noise, self.newest = self.newest, None
        return {"epsilon": concentrated.epsilon(float(spent.max()), self.wanted.delta), "sum_noise": noise}

    def stop(self, run: Running, record: Record | None) -> str | None:
        job: Any = run.job
        if self.wanted.epsilon is None or run.done >= job.settings.rounds:
            return None
        sizes = job.federation.partition.sizes
        if job.new is not None or not self._passes(job.trainees.sampler(run.done, sizes, job.settings.cohort_size)):
            return None
        return (
            f"one round more than {run.done} would pass the epsilon of {self.wanted.epsilon:g} that was asked for, for "
            "a client that is asked in it"
        )

    def _passes(self, clients: Collection[int]) -> bool:
        """Return whether a round that asks these clients may pass the epsilon that was asked for."""
        if self.wanted.epsilon is None or not clients:
            return False
        spent = (self.state["spent"].numpy() + self.lost)[[*clients]].max() + self._worst()
        return concentrated.epsilon(float(spent) / (1 + 1e-9), self.wanted.delta) > self.wanted.epsilon

    def _begun(self, run: Running) -> list[list[int]]:
        """Return of each round that has begun, in whichever process, its number and whom it asked."""
        return [] if self.simulated else written(run, _BEGUN)


def _numbers(values: Any) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float64)
