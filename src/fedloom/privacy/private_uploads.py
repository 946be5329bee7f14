"""Local differential privacy: clients clip their uploads and add noise before these travel; each has an epsilon."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedloom.coordinator.history import Record
from fedloom.coordinator.part import Brief, Running
from fedloom.coordinator.settings import RunSettings
from fedloom.core.errors import SettingError
from fedloom.privacy import gaussian_epsilon
from fedloom.privacy.each_client import Asked, EachClient, finite, rounds_of_each
from fedloom.privacy.local_noise import SENSITIVITY, LocalNoise, LossesStay, Releases
from fedloom.privacy.local_trial import uploads_of
from fedloom.privacy.privacy_kinds import check_delta


class Uploads(EachClient):
    """Noise in each upload, and the epsilons of the clients so far."""

    def __init__(self, asked: Asked, job: Brief) -> None:
        super().__init__(asked, job)
        settings, self.sets = job.settings, 0
        if self.simulated:
            self._release = Releases(LocalNoise(clip=asked.clip, noise=asked.noise or 0.0))
        else:
            self._release, self.gradients = Releases(self.encoders(settings)[0]), self.gradients_of(settings)
        self.links = (self._release,)
        self.columns = self.epsilons(
            job,
            f"Local differential privacy of a client so far, (epsilon, {asked.delta:g}), of whatever its examples are, "
            f"with noise of {self.source}",
        )

    @classmethod
    def of(cls, job: Brief) -> Uploads:
        return cls(Asked.read(job.settings.privacy), job)

    @classmethod
    def encoders(cls, settings: RunSettings) -> tuple[LocalNoise, ...]:
        """Return what a device does to its upload, by draws of its own; for epsilon as if each round asked it."""
        asked = Asked.read(settings.privacy)
        noise = asked.noise
        if noise is None:
            noise = gaussian_epsilon.noise_for(asked.epsilon or 0.0, settings.rounds, SENSITIVITY, asked.delta)
        return (LocalNoise(clip=asked.clip, noise=noise, secret=True),)

    @classmethod
    def gradients_of(cls, settings: RunSettings) -> LossesStay:
        return LossesStay()

    def check(self, job: Any) -> None:
        settings = job.settings
        check_delta(self.asked.delta, job.federation.num_clients)
        for forbidden, what, why in (
            (settings.stateless or any(part.wants.states for part in job.parts), "stateless clients",
             "adds noise to uploads, and what a client keeps has none"),
            (job.schedule is not None, f"schedule = {type(job.schedule).__name__}",
             "counts rounds, each of which asks a client once"),
            (settings.partial_sums, f"partial_sums = {settings.partial_sums}", "counts each upload"),
            (settings.secure_aggregation != "none", f"secure_aggregation = {settings.secure_aggregation!r}",
             "is for uploads that are seen one by one, and noise may leave the range of a masked sum"),
        ):  # fmt: skip
            if forbidden:
                raise SettingError(f"privacy = {self.text!r} {why}, got {what}: leave one of them out")
        self.sets, most = uploads_of(job), self.asked.epsilon
        if most is not None and self.simulated:
            releases = int(rounds_of_each(job).max()) * self.sets
            noise = gaussian_epsilon.noise_for(most, releases, SENSITIVITY, self.asked.delta)
            self._release.encoder = LocalNoise(clip=self.asked.clip, noise=noise)
        elif most is not None and self.sets > 1:
            raise SettingError(
                f"devices find the noise of an epsilon for one upload in a round, and {type(job.algorithm).__name__} "
                f"sends {self.sets} sets of named tensors: write noise=... in the place of epsilon={most:g}"
            )
        self._release.counted = self.sets

    def before(self, run: Running) -> None:
        most, spent = self.asked.epsilon, self._epsilon(int(self.times[run.clients].max(initial=0)) + 1)
        if most is not None and spent > most:
            raise SettingError(
                f"rounds that were lost count too, and round {run.done + 1} would ask a client to epsilon = {spent:.4g}"
                f", beyond the {most:g} that were asked for: the run ends with round {run.done}"
            )
        super().before(run)
        self._release.begin(run.clients)

    def after(self, run: Running) -> Record:
        return {"epsilon": finite(self._epsilon(int(self.times.max())))}

    def due(self, run: Running) -> Record:
        times, clients = np.unique(self.times[self.times > 0], return_counts=True)
        spent = sum(n * self._epsilon(int(t)) for t, n in zip(times, clients, strict=True))
        return {"epsilon_mean": finite(float(spent) / max(1, int(clients.sum())))}

    def _epsilon(self, rounds: int) -> float:
        """Return the epsilon of a client that so many rounds have asked."""
        noise, releases = self._release.encoder.noise, rounds * self.sets
        mu = SENSITIVITY * math.sqrt(releases) / noise if noise else math.inf
        return gaussian_epsilon.epsilon(mu, self.asked.delta) if releases else 0.0
