"""The run, from the first cohort to the last record."""

from fedloom.coordinator.history import History
from fedloom.coordinator.run import RunSettings, check_free, run
from fedloom.coordinator.sampler import DeviceSampler, SeededByRound, Uniform

__all__ = ["DeviceSampler", "History", "RunSettings", "SeededByRound", "Uniform", "check_free", "run"]
