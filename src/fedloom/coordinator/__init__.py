"""The run, from the first cohort to the last record."""

from fedloom.coordinator.history import History
from fedloom.coordinator.job import Job, Restored, run
from fedloom.coordinator.newcomers import NewClients
from fedloom.coordinator.part import Part, Running, Wants
from fedloom.coordinator.replay import Replay, RoundReplay
from fedloom.coordinator.run_folders import check_free, runs_below
from fedloom.coordinator.sampler import (
    Arriving,
    Available,
    BySize,
    DeviceSampler,
    FixedList,
    SeededByRound,
    Uniform,
)
from fedloom.coordinator.schedule import Schedule
from fedloom.coordinator.settings import RunSettings
from fedloom.coordinator.verification import Verdict, verify

__all__ = [
    "Arriving",
    "Available",
    "BySize",
    "DeviceSampler",
    "FixedList",
    "History",
    "Job",
    "NewClients",
    "Part",
    "Replay",
    "Restored",
    "RoundReplay",
    "RunSettings",
    "Running",
    "Schedule",
    "SeededByRound",
    "Uniform",
    "Verdict",
    "Wants",
    "check_free",
    "run",
    "runs_below",
    "verify",
]
