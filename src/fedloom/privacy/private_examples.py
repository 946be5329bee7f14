"""Differential privacy of examples: clients train by clipped gradients with noise (DP-SGD), and each has an epsilon."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.coordinator.history import Record
from fedloom.coordinator.part import Brief, Running
from fedloom.coordinator.settings import RunSettings
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.task import NeedsLabelStatistics, Objective
from fedloom.privacy import accountant
from fedloom.privacy.by_example import ExampleGradients
from fedloom.privacy.each_client import Asked, EachClient, finite, rounds_of_each
from fedloom.privacy.example_trial import check_network, trainings

_GROUPS = 8  # of clients, for the mean of their epsilons


class Examples(EachClient):
    """Private gradients of clients' examples, and the epsilons of the clients so far."""

    def __init__(self, asked: Asked, job: Brief) -> None:
        super().__init__(asked, job)
        self.each: npt.NDArray[np.int64] = np.zeros(0, np.int64)  # steps of a round
        self.rate: npt.NDArray[np.float64] = np.zeros(0)  # at which each draws its examples
        noise = math.nan if asked.noise is None else asked.noise
        self.gradients = ExampleGradients(clip=asked.clip, noise=noise, secret=not self.simulated)
        self.columns = self.epsilons(
            job,
            f"Differential privacy of the examples of a client so far, (epsilon, {asked.delta:g}), of one that is "
            f"there or not, with draws and noise of {self.source}",
            ", each counted as the largest in its eighth of them",
        )

    @classmethod
    def of(cls, job: Brief) -> Examples:
        return cls(Asked.read(job.settings.privacy), job)

    @classmethod
    def gradients_of(cls, settings: RunSettings) -> ExampleGradients:
        """Return how a device makes gradients: by draws of its own."""
        asked = Asked.read(settings.privacy)
        if asked.noise is None:
            raise SettingError(
                f"devices know the noise by the settings of their run, got {settings.privacy!r}: write noise=..., as "
                "the manifest of a simulation with as many clients and rounds has it (fixed, gradients)"
            )
        return ExampleGradients(clip=asked.clip, noise=asked.noise, secret=True)

    def check(self, job: Any) -> None:
        settings, task = job.settings, job.task
        if self.asked.delta >= 1 / (most := int(job.federation.partition.sizes.max())):
            raise SettingError(
                f"delta is below one over the largest number of examples of a client, 1 / {most}, or one of them could "
                f"be published whole, got {self.asked.delta:g}: lower delta"
            )
        if isinstance(task, NeedsLabelStatistics | Objective):
            what = "label counts of a client" if isinstance(task, NeedsLabelStatistics) else "more than a mean loss"
            raise SettingError(
                f"privacy = {self.text!r} clips what each example says of the model, and the task "
                f"{type(task).__name__} trains by {what}: take another task"
            )
        if job.federation.changes:
            raise SettingError(
                f"privacy = {self.text!r} counts how often the same examples are drawn, and data.arrives and "
                "data.drift make others of them: leave one of both out"
            )
        accountant.check_installed()
        for model in job.population.models.values():
            check_network(model)
        plan = job.algorithm.training
        sizes = job.federation.partition.sizes.astype(np.int64)
        self.each = planned(sizes, plan) * trainings(job, self.gradients)
        self.rate = np.minimum(1.0, plan.batch_size / np.maximum(sizes, 1))
        if self.asked.epsilon is not None:
            if not self.simulated:
                self.gradients_of(settings)  # which refuses it
            self.gradients = ExampleGradients(clip=self.asked.clip, noise=self._found(job, self.asked.epsilon))

    def _found(self, job: Any, most: float) -> float:
        """Return the noise with which no client passes an epsilon, as often as the run's rounds ask it."""
        asked = rounds_of_each(job)
        return max(
            accountant.noise_for(most, t, q, self.asked.delta) for t, q in _largest(asked * self.each, self.rate)
        )

    def after(self, run: Running) -> Record:
        return {"epsilon": finite(self._epsilon(self.times))}

    def due(self, run: Running) -> Record:
        there = np.flatnonzero(self.times)
        there = there[np.argsort((self.rate**2 * self.each * self.times)[there], kind="stable")]
        groups = [g for g in np.array_split(there, _GROUPS) if len(g)]
        spent = sum(len(g) * self._epsilon(self.times[g[-1:]], g[-1:]) for g in groups) / max(1, len(there))
        return {"epsilon_mean": finite(spent)}

    def _epsilon(self, times: npt.NDArray[np.int64], clients: Any = slice(None)) -> float:
        """Return the largest epsilon of clients that were asked so often."""
        pairs = _largest(times * self.each[clients], self.rate[clients])
        noise, delta = self.gradients.noise, self.asked.delta
        return max((accountant.epsilon(steps, rate, noise, delta) for steps, rate in pairs), default=0.0)


def planned(sizes: npt.NDArray[np.int64], plan: Local) -> npt.NDArray[np.int64]:
    """Return the steps of a round, [N], of clients with these numbers of examples."""
    batches = -(-sizes // np.minimum(plan.batch_size, np.maximum(sizes, 1)))
    return np.full_like(sizes, plan.steps) if plan.steps else batches * plan.epochs


def _largest(steps: npt.NDArray[np.int64], rates: npt.NDArray[np.float64]) -> list[tuple[int, float]]:
    """Return the pairs of steps and rate to which no other has as much of both, without those of no step."""
    found: list[tuple[int, float]] = []
    for t, q in sorted({*zip(steps.tolist(), rates.tolist(), strict=True)}, reverse=True):
        if t and (not found or q > found[-1][1]):
            found.append((t, q))
    return found
