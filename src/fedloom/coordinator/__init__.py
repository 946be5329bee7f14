"""The run, from the first cohort to the last record."""

from fedloom.coordinator.directory import check_free
from fedloom.coordinator.history import History, runs_below
from fedloom.coordinator.newcomers import NewClients
from fedloom.coordinator.past import Past, Replay
from fedloom.coordinator.run import Job, Restored, run
from fedloom.coordinator.sampler import (
    Arriving,
    Available,
    BySize,
    DeviceSampler,
    FixedList,
    SeededByRound,
    Uniform,
)
from fedloom.coordinator.settings import RunSettings
from fedloom.coordinator.verdict import Verdict, verify

__all__ = [
    "Arriving",
    "Available",
    "BySize",
    "DeviceSampler",
    "FixedList",
    "History",
    "Job",
    "NewClients",
    "Past",
    "Replay",
    "Restored",
    "RunSettings",
    "SeededByRound",
    "Uniform",
    "Verdict",
    "check_free",
    "run",
    "runs_below",
    "verify",
]
