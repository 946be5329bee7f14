"""The checkpoint of the best round so far, kept beside others."""

from __future__ import annotations

from fedloom.coordinator.part import Brief, Part, Running
from fedloom.core.errors import SettingError, SettingWarning, warn


class BestRound(Part):
    """The round with the best headline on validation examples. The records alone decide it."""

    @classmethod
    def of(cls, job: Brief) -> BestRound | None:
        return cls() if job.settings.keep_best else None

    def check(self, job: Brief) -> None:
        if job.federation.local_val is None:
            raise SettingError(
                f"keep_best chooses a round by {next(iter(job.measures))}, on validation examples, which this "
                "federation lacks, and test examples choose no round: hold validation examples out (val_fraction, "
                "--val-fraction 0.1), or leave keep_best out"
            )

    def keep(self, run: Running) -> int | None:
        return run.history.validated_round

    def begin(self, run: Running) -> None:
        """Warn where the best round has no checkpoint: it was deleted for a later one, or before it counted."""
        best = run.history.validated_round
        if run.files is not None and best is not None and best not in run.files.checkpoints.rounds():
            warn(
                f"round {best} is the best on validation data so far, and {run.files.path} has no checkpoint of it, "
                "since the run went back, is a branch, or did not keep the best before: the next round that is kept as "
                "the best is one that is better",
                SettingWarning,
            )
