"""Federations that several experiments share."""

from __future__ import annotations

import dataclasses

from fedloom.coordinator.job import Job
from fedloom.data import Dataset, Examples, Federation
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.remote_source import is_remote
from fedloom.experiments.settings_sections import DataSettings

_WHO_HOLDS = {
    "partition", "clients", "partition_seed", "test_fraction", "val_fraction", "public_labels", "arrives", "drift",
}  # fmt: skip


def _arrays(d: DataSettings, seed: int) -> tuple[object, ...]:
    """Return the settings from which `Experiment.dataset` makes its arrays.

    They are all except those that say who holds which of the rows. Forgetting to leave one out costs the time to make
    the same arrays twice; it never gives the arrays of other settings.
    """
    drawn = seed if d.public or d.examples else None
    return (*(getattr(d, f.name) for f in dataclasses.fields(d) if f.name not in _WHO_HOLDS), drawn)


class Federations:
    """Experiments that say the same of the data share one federation, those with the same source its arrays."""

    def __init__(self) -> None:
        self._data: dict[tuple[object, ...], tuple[Dataset, Examples | None]] = {}
        self._made: dict[tuple[object, ...], Federation] = {}

    def of(self, experiment: Experiment) -> Federation:
        """Return what `experiment.federation()` gives, shared between experiments with the same data."""
        d, seed = experiment.data, experiment.partition_seed
        if is_remote(d.source):  # no examples to share
            return experiment.federation()
        if (d, seed) not in self._made:
            arrays = _arrays(d, seed)
            if arrays not in self._data:
                self._data[arrays] = experiment.dataset()
            self._made[d, seed] = experiment.federation(self._data[arrays])
        return self._made[d, seed]

    def job(self, experiment: Experiment) -> Job:
        """Return what `experiment.job()` gives, on a federation that is shared."""
        return experiment.job(self.of(experiment))
