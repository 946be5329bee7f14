"""Stop conditions: a target, patience, and rounds from which nothing is learnt."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from fedloom.coordinator.history import Record
from fedloom.coordinator.part import Part, Running
from fedloom.core.errors import SettingError, SettingWarning, warn
from fedloom.engines.norms import LEAST
from fedloom.evaluate.measure import Measure, monitored

if TYPE_CHECKING:
    from fedloom.coordinator.job import Plan


class NobodyAccepted(Part):
    """The end of a run whose last answers were all refused, as those to come would be."""

    @classmethod
    def of(cls, job: Plan) -> NobodyAccepted:
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

    def __init__(self, watched: Measure) -> None:
        self.watched = watched

    @classmethod
    def of(cls, job: Plan) -> StopConditions | None:
        watched = monitored(job.settings.monitor, job.measures)  # refused, too, where nothing watches it
        return None if job.settings.target is job.settings.patience is None else cls(watched)

    def check(self, job: Plan) -> None:
        job.settings.check_target(self.watched)
        part = self.watched.tunable
        if getattr(job.federation, part) is None:
            raise SettingError(
                f"monitor = {self.watched.name!r} is measured on {part}, which this federation lacks: "
                "hold examples out (val_fraction, test_fraction, test), or monitor something else"
            )

    def stop(self, run: Running, record: Record | None) -> str | None:
        name = self.watched.name
        if record is not None and record.get(name) is None:
            return None
        records = [*run.history.metrics, *([] if record is None else [record])]
        values = [m[name] for m in records if m.get(name) is not None and m["round"]]
        return run.job.settings.reason_to_stop(values, self.watched)

    def begin(self, run: Running) -> None:
        """Warn where a number is watched that no round will have."""
        settings = run.job.settings
        if not run.done and self.watched.tunable == "test" and not run.evaluation.global_models(run.server):
            asked = [
                f"{name} = {value:g}"
                for name in ("target", "patience")
                if (value := getattr(settings, name)) is not None
            ]
            main = run.history.headline.name
            warn(
                f"{' and '.join(asked)} can end no run of {type(run.algorithm).__name__}, which has no global model "
                f"here to measure {self.watched.name} on: set monitor to personal_{main} or val_{main} (--monitor), or "
                "let it go to its last round",
                SettingWarning,
            )
