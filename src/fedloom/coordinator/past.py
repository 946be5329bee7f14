"""Past rounds of a run for analyses: several of them, and what happened within a client's local training."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.rounds import Rounds
from fedloom.coordinator.run import Replay, trained
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.core.types import Weights
from fedloom.engines.cohort import Exchange

if TYPE_CHECKING:
    from fedloom.coordinator.run import Job


class Past:
    """Past rounds of the run in a directory, computed again; asked for in rising order, each is computed once.

    Raises:
        SettingError: the run in `directory` is another one.
    """

    def __init__(self, job: Job, directory: str | os.PathLike[str]) -> None:
        # all states in memory: nothing that is computed here may reach the run's files
        self.job = replace(job, settings=replace(job.settings, state_memory_mib=None))
        self.files = RunDirectory(directory)
        self.rounds = Rounds(self.job, self.files)
        self.files.compare(self.rounds.facts())

    def replay(self, round: int) -> Replay:
        """As `Job.replay`."""
        if round < 1:
            raise SettingError(f"rounds to replay count from 1, got {round}")
        with self.rounds.threads():
            return Replay(round, *self.rounds.replay(self.files, round), self.job.population)

    def by_epoch(self, round: int) -> list[dict[int, Weights]]:
        """Each client's model after 1, 2, ... E local epochs of a past round; the last are those of `replay`.

        The round is computed E times, with one epoch more each time: batches, augmentation and dropout of an epoch
        depend on nothing that comes after it, so the first epochs are the same bits.

        Raises:
            SettingError: the algorithm trains for a number of steps or several times a round: it has no such epochs.
        """
        local, engine = self.job.algorithm.local, self.rounds.engine
        if local.steps is not None or self.job.algorithm.pooled:
            raise SettingError(
                f"accuracy by local epoch needs clients that train in epochs, got local.steps = {local.steps}; "
                "use a run with local.epochs"
            )
        with self.rounds.threads():
            self._stand_after(round - 1)
            clients, server = self.rounds.cohort(round - 1), self.rounds.state[1]
            kept = {k: engine.states[k] for k in clients if k in engine.states}
            out = list[dict[int, Weights]]()
            for epochs in range(1, local.epochs + 1):
                seen: list[Exchange] = []
                shorter = engine.variant(_with_epochs(engine.algorithm, epochs))
                shorter.watch = seen.append
                shorter.states.update(kept)
                shorter.round(server, clients, round - 1)
                whose = [e.client for e in seen if e.trained is not None]
                if len(set(whose)) < len(whose):
                    name = type(engine.algorithm).__name__
                    raise SettingError(f"{name} trains its clients more than once a round: it has no epochs to count")
                out.append(trained(seen))
        return out

    def _stand_after(self, round: int) -> None:
        if self.rounds.state[1] and self.rounds.state[0] == round:
            return
        if round in self.files.checkpoints.rounds():
            self.rounds.load(self.files, round)
        else:
            self.rounds.replay(self.files, round)


def _with_epochs(algorithm: Algorithm[Any, Any], epochs: int) -> Algorithm[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingWarning)  # said when the run was started
        return replace(algorithm, local=replace(algorithm.local, epochs=epochs))
