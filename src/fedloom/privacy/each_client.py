"""Parts of privacy that count each client by itself: how they are written, and how often it was asked.

With devices a round that is lost, and computed anew, counts twice: a file beside the records has all that have begun.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.coordinator.part import Brief, Part, Running
from fedloom.coordinator.sampler import Uniform
from fedloom.evaluate.measure import Measure
from fedloom.privacy.begun_rounds import write_down, written
from fedloom.privacy.privacy_kinds import NOT_NEGATIVE, POSITIVE, SHARE, wanted
from fedloom.privacy.told_beside import told_beside

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
        rules = {"epsilon": POSITIVE, "noise": NOT_NEGATIVE, "delta": SHARE, "clip": POSITIVE}
        found = wanted(text, _KEYS, f"{text.partition(':')[0]}:noise=1,clip=1,delta=1e-5", rules)
        return cls(found["delta"], found.get("epsilon"), found.get("noise"), found["clip"])


class EachClient(Part):
    """Part that counts the rounds in which each client was asked."""

    def __init__(self, asked: Asked, job: Brief) -> None:
        self.asked, self.text = asked, job.settings.privacy
        self.simulated = job.federation.train.remote is None
        self.source = "the run's seed" if self.simulated else "each device's entropy"
        self.times: npt.NDArray[np.int64] = np.zeros(job.federation.num_clients, np.int64)  # each was asked, in rounds

    def epsilons(self, job: Brief, what: str, mean: str = "") -> tuple[Measure, Measure]:
        """Return the columns of the largest epsilon and of their mean.

        Args:
            job: of the run.
            what: they are.
            mean: how that is counted.
        """
        of = " of a simulation" if self.simulated else ""
        shared: Mapping[str, Any] = {"unit": "", "better": "low", "range": (0.0, None)}
        largest = f"{what}: the largest of all, of uploads; {told_beside(job, losses=self.simulated)}."
        return (
            Measure("epsilon", f"Epsilon{of}", f"epsilon{of}", largest, **shared),
            Measure(
                "epsilon_mean", f"Mean epsilon{of}", f"mean epsilon{of}",
                f"{what}: the mean over clients that took part{mean}.", **shared,
            ),
        )  # fmt: skip

    def begin(self, run: Running) -> None:
        self.times[:] = 0
        for clients in self._asked_before(run):
            self.times[clients] += 1

    def _asked_before(self, run: Running) -> list[list[int]]:
        """Return who was asked in each round before, in those of devices that were lost too."""
        if self.simulated or run.files is None:
            return [record["clients"] for record in run.history.metrics if record.get("clients")]
        return written(run, _BEGUN)

    def before(self, run: Running) -> None:
        """Count a round that begins: devices that compute it anew do so with other draws."""
        self.times[run.clients] += 1
        if not self.simulated:
            write_down(run, _BEGUN, *run.clients)


def rounds_of_each(job: Any) -> npt.NDArray[np.int64]:
    """Return in how many rounds of a run each client is asked, at most."""
    settings, there = job.settings, job.federation.num_clients
    asked = np.zeros(there, np.int64)
    sampler, size = job.sampler or Uniform(settings.seed), job.trainees.cohort_size
    for round in range(settings.rounds):
        asked[[*sampler(round, job.federation.partition.sizes, size)]] += 1
    draws = job.schedule is None and job.new is None and not (settings.spares or job.algorithm.requires.everyone)
    return asked if draws else asked * 0 + settings.rounds


def finite(value: float) -> float | None:
    """Return an epsilon as records have it: None where nothing is promised."""
    return value if math.isfinite(value) else None
