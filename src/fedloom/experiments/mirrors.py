"""Mirrors of several runs: each has a folder below the address that all were given."""

from __future__ import annotations

from fedloom.experiments.experiment import Experiment
from fedloom.mirror.object_store import below


def mirrored_below(experiment: Experiment, place: str) -> Experiment:
    """Return an experiment with its mirror, where it has one, in a folder below; `.`: where it is."""
    address = experiment.run.mirror
    return experiment if address is None else experiment.changed("run.mirror", below(address, place))
