"""Stop conditions: a target, patience, and rounds from which nothing is learnt."""

from __future__ import annotations

import itertools

from fedloom.coordinator.history import Record
from fedloom.coordinator.part import Brief, Part, Running
from fedloom.coordinator.settings import RunSettings
from fedloom.core.errors import SettingError, SettingWarning, warn
from fedloom.engines.upload_bounds import LEAST
from fedloom.evaluate.measure import monitored


class NobodyAccepted(Part):
    """The end of a run whose last answers were all refused, as those to come would be."""

    @classmethod
    def of(cls, job: Brief) -> NobodyAccepted:
        return cls()

    def stop(self, run: Running, record: Record | None) -> str | None:
        newest = [*([] if record is None else [record]), *reversed(run.history.metrics)]
        alone = list(itertools.takewhile(lambda one: "all_refused" in one, newest))
        count = sum(one["all_refused"] for one in alone)
        if count < LEAST:  # of one or two it may be the client that lies
            return None
        why = next(iter(alone[0]["failed"].values()), "")
        return (
            f"all {count} answers of the last {len(alone)} round{'s' * (len(alone) > 1)} were refused, and a run that "
            f"continues trains nothing ({why[:200]})"
        )


class StopConditions(Part):
    """`target` and `patience`, by the measure that `monitor` names."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.asked = settings.target is not None or settings.patience is not None

    @classmethod
    def of(cls, job: Brief) -> StopConditions:
        return cls(job.settings)

    def check(self, job: Brief) -> None:
        watched = monitored(self.settings.monitor, job.measures)  # refused, too, where nothing watches it
        self.settings.check_target(watched)
        if self.asked and getattr(job.federation, watched.tunable) is None:
            raise SettingError(
                f"monitor = {watched.name!r} is measured on {watched.tunable}, which this federation lacks: "
                "hold examples out (val_fraction, test_fraction, test), or monitor something else"
            )
        every, rounds = self.settings.global_every, self.settings.rounds
        if self.asked and watched.tunable == "test" and 1 < every >= rounds:
            raise SettingError(
                f"a run stops early by a number that is measured before its last round, got global_every = {every} of "
                f"{rounds} rounds, and {watched.name} is of the global model: set a smaller global_every, or leave "
                "target and patience out"
            )

    def stop(self, run: Running, record: Record | None) -> str | None:
        if not self.asked:
            return None
        watched = monitored(self.settings.monitor, run.job.measures)
        name = watched.name
        if record is not None and record.get(name) is None:
            return None
        records = [*run.history.metrics, *([] if record is None else [record])]
        values = [m[name] for m in records if m.get(name) is not None and m["round"]]
        return self.settings.reason_to_stop(values, watched)

    def begin(self, run: Running) -> None:
        """Warn where a number is watched that no round will have."""
        if not self.asked:
            return
        watched = monitored(self.settings.monitor, run.job.measures)
        if not run.done and watched.tunable == "test" and not run.evaluation.global_models(run.server):
            asked = [
                f"{name} = {value:g}"
                for name in ("target", "patience")
                if (value := getattr(self.settings, name)) is not None
            ]
            main = run.history.headline.name
            warn(
                f"{' and '.join(asked)} can end no run of {type(run.algorithm).__name__}, which has no global model "
                f"here to measure {watched.name} on: set monitor to personal_{main} or val_{main} (--monitor), or "
                "let it go to its last round",
                SettingWarning,
            )
