"""Parts of privacy that count each client by itself: how they are written, and how often it was asked.

With devices a round that is lost, and computed anew, counts twice: a file beside the records has all that have begun.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.coordinator.part import Brief, Part, Running
from fedloom.coordinator.sampler import Uniform
from fedloom.core.errors import SettingError
from fedloom.privacy.privacy_kinds import said

_KEYS = {"epsilon": float, "noise": float, "delta": float, "clip": float}
_BEGUN = "clients_asked.txt"  # of a run with devices, beside its records


@dataclass(frozen=True)
class Asked:
    """Privacy as it was asked for: one of `epsilon` and `noise`."""

    delta: float
    epsilon: float | None
    noise: float | None
    clip: float

    @classmethod
    def read(cls, text: str) -> Asked:
        """Return what a text asks for.

        Raises:
            SettingError: something is missing, said twice or out of range.
        """
        found = said(text, _KEYS)
        epsilon, noise, delta, clip = (found.get(name) for name in ("epsilon", "noise", "delta", "clip"))
        if (epsilon is None) == (noise is None) or delta is None or clip is None:
            raise SettingError(
                f"privacy is epsilon or noise, and delta and clip, got {text!r}: write {text.partition(':')[0]}:noise=1"
                ",clip=1,delta=1e-5"
            )
        for name, value, fits, rule in (
            ("epsilon", epsilon, epsilon is None or epsilon > 0, "above 0"),
            ("noise", noise, noise is None or noise >= 0, "0 or more"),
            ("delta", delta, 0 < delta < 1, "above 0 and below 1"),
            ("clip", clip, clip > 0, "above 0"),
        ):
            if not fits:
                raise SettingError(f"{name} of privacy is {rule}, got {value:g} in {text!r}: correct it")
        return cls(delta, epsilon, noise, clip)


class EachClient(Part):
    """Part that counts the rounds in which each client was asked."""

    def __init__(self, asked: Asked, job: Brief) -> None:
        self.asked, self.text = asked, job.settings.privacy
        self.simulated = job.federation.train.remote is None
        self.times: npt.NDArray[np.int64] = np.zeros(job.federation.num_clients, np.int64)  # each was asked, in rounds

    def begin(self, run: Running) -> None:
        self.times[:] = 0
        for clients in self._asked_before(run):
            self.times[clients] += 1

    def _asked_before(self, run: Running) -> list[list[int]]:
        """Return who was asked in each round before, in those of devices that were lost too."""
        if self.simulated or run.files is None:
            return [record["clients"] for record in run.history.metrics if record.get("clients")]
        log = run.files.path / _BEGUN
        return [[*map(int, line.split())] for line in log.read_text().splitlines()] if log.exists() else []

    def before(self, run: Running) -> None:
        """Count a round that begins: devices that compute it anew do so with other draws."""
        self.times[run.clients] += 1
        if not self.simulated and run.files is not None:
            with (run.files.path / _BEGUN).open("a") as log:
                log.write(f"{' '.join(map(str, run.clients))}\n")
                log.flush()
                os.fsync(log.fileno())


def rounds_of_each(job: Any) -> npt.NDArray[np.int64]:
    """Return in how many rounds of a run each client is asked, at most."""
    settings, there = job.settings, job.federation.num_clients
    asked = np.zeros(there, np.int64)
    sampler, size = job.sampler or Uniform(settings.seed), job.trainees.cohort_size
    for round in range(settings.rounds):
        asked[[*sampler(round, job.federation.partition.sizes, size)]] += 1
    draws = job.schedule is None and job.new is None and not (settings.spares or job.algorithm.requires.everyone)
    return asked if draws else asked * 0 + settings.rounds
