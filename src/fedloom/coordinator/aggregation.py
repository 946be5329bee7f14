"""The run's rule by which uploads become a mean: whether it fits, and whether it is ever used."""

from __future__ import annotations

from fedloom.coordinator.history import Record
from fedloom.coordinator.part import Brief, Part, Running
from fedloom.core.errors import SettingError, SettingWarning, warn
from fedloom.engines.aggregators import aggregator


class AggregatorUsed(Part):
    """Warning that an aggregator is set, and the first round that asks clients takes no mean of what they upload."""

    def __init__(self) -> None:
        self.asked = False  # whether a round here has asked clients

    @classmethod
    def of(cls, job: Brief) -> AggregatorUsed | None:
        return None if job.settings.aggregator == "mean" else cls()

    def check(self, job: Brief) -> None:
        settings = job.settings
        aggregator(job.trainees.aggregator).check(job.trainees.cohort_size)
        if job.algorithm.requires.sums:
            raise SettingError(
                f"{type(job.algorithm).__name__} adds up what clients report, and aggregator = {settings.aggregator!r} "
                "gives no sum: use aggregator = 'mean' (--aggregator mean), or an algorithm that takes means alone"
            )

    def after(self, run: Running) -> Record:
        asked, self.asked = self.asked, self.asked or bool(run.clients)
        if run.clients and not asked and not run.engine.took_mean and run.engine.options.aggregator != "mean":
            warn(
                f"{type(run.algorithm).__name__} took no mean of uploads in its first round, so aggregator = "
                f"{run.engine.options.aggregator!r} changes nothing: leave it out, or take an algorithm that averages",
                SettingWarning,
            )
        return {}
