"""The schedule of a run: who is asked when, and from which version of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedloom.coordinator.history import Record
from fedloom.coordinator.part import Running
from fedloom.coordinator.round_record import REASONS
from fedloom.coordinator.sampler import SYMMETRIC, DeviceSampler
from fedloom.core.task_measures import TaskMeasure
from fedloom.engines.engine import Engine
from fedloom.evaluate.measure import Column, Entry


class Schedule:
    """Rounds that wait for their cohort: all of it is asked at once, from the newest server state.

    Another one derives from this class, and is given to the run: `fl.run(..., schedule=Mine())`. A round of it may ask
    whom it wants, from any server state that it has kept, as often as it wants (`Engine.round`, which `joins`), and
    returns the next server state. What it keeps between rounds is its `state`.
    """

    state: Any = ()
    """State of the schedule between rounds: a pytree of tensors, of the same shapes at every moment."""

    @staticmethod
    def columns_for(main: TaskMeasure, others: Sequence[TaskMeasure]) -> tuple[Column, ...]:
        """Return what `asked` says of others."""
        return (Entry("declined", REASONS),)

    def begin(self, run: Running) -> None:
        """Make the `state` of before the first round: the run is assembled, and nothing is computed yet."""

    def asked(self, run: Running, round: int) -> tuple[list[int], Record]:
        """Return the clients of a round, from 0, and columns of its record: who declined, where there are spares."""
        drawn = self.drawn(run, round)
        if not run.job.settings.spares:
            return drawn, {}
        declined = run.engine.decliners(round, drawn)
        chosen = [k for k in drawn if k not in declined]
        return chosen[: run.job.trainees.cohort_size], {"declined": {str(k): declined[k] for k in sorted(declined)}}

    def step(self, engine: Engine, server: dict[str, Any], clients: Sequence[int], round: int) -> dict[str, Any]:
        """Compute a round with these clients, and return the server states after it."""
        return engine.round(server, clients, round)

    def taken(self, client: int, round: int) -> int:
        """Return the version of the model from which a client of the round asked for last has trained, from 0."""
        return round

    def drawn(self, run: Running, round: int) -> list[int]:
        """Return who is asked in a round; with spares, who may be asked, in the order in which places are given."""
        people, who = run.engine.population, run.job.trainees
        n, sampler, sizes = people.num_clients, run.sampler or who.sampler, people.at(round).partition.sizes
        late = {*run.engine.removed(), *run.engine.absent(round)}
        if run.algorithm.requires.everyone:
            return [k for k in range(n) if k not in late]
        count = min(who.cohort_size + run.job.settings.spares, n - len(late))
        if late and type(sampler) in SYMMETRIC:  # of the others alone it draws as many at once
            others = np.setdiff1d(np.arange(n), sorted(late))
            return [int(others[k]) for k in sampler(round, sizes[others], count)]
        clients = _numbers(sampler, round, sizes, count)
        most = max(count, len(clients))  # a sampler may name more
        if late and len(clients) == count:  # those who have not joined need others in their places
            clients = _numbers(sampler, round, sizes, count + len(late))
        if len(set(clients)) < len(clients) or not all(0 <= k < n for k in clients):
            raise ValueError(f"a sampler must name distinct clients of 0..{n - 1}, got {clients} in round {round + 1}")
        return [k for k in clients if k not in late][:most]


def _numbers(sampler: DeviceSampler, round: int, sizes: Any, count: int) -> list[int]:
    return [int(k) for k in sampler(round, sizes, count)]
