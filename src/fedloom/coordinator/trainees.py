"""Tell who trains in a run: its clients, or one that holds the examples of all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedloom.coordinator.newcomers import NewClients
from fedloom.coordinator.sampler import DeviceSampler, Uniform
from fedloom.coordinator.settings import RunSettings
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import SettingError
from fedloom.data import Federation
from fedloom.engines.attacks import Attack
from fedloom.engines.faults import Faults
from fedloom.engines.population import Pooled, Population


@dataclass(frozen=True, kw_only=True)
class Trainees:
    """Clients that train in a run, and what may happen to what they send.

    Attributes:
        algorithm: as the engine runs it.
        sampler: of the clients of each round.
        cohort_size: clients of a round.
        aggregator: by which uploads become a mean.
        faults: simulated loss of clients.
        attack: simulated clients that lie.
        per_client: whether each client is measured by itself.
        in_one_place: whether one client holds the examples of all.
    """

    algorithm: Algorithm[Any, Any]
    sampler: DeviceSampler
    cohort_size: int
    aggregator: str
    faults: Faults | None
    attack: Attack | None
    per_client: bool
    in_one_place: bool = False

    def population(self, clients: Population) -> Population:
        """Return who trains, from the population of the federation's clients: the same, or one in their place."""
        return Pooled.of(clients) if self.in_one_place else clients


def trainees(
    algorithm: Algorithm[Any, Any],
    federation: Federation,
    settings: RunSettings,
    *,
    sampler: DeviceSampler | None = None,
    faults: Faults | None = None,
    attack: Attack | None = None,
    new: NewClients | None = None,
) -> Trainees:
    """Return who trains in a run that was asked for by these arguments of a plan.

    An algorithm that needs all examples in one place has another population: one client, which is always there, sends
    nothing, and takes as many steps in a round as a cohort would.

    Raises:
        SettingError: the examples of all clients cannot be in one place.
    """
    size = federation.num_clients if algorithm.requires.everyone else settings.cohort_size
    who = Trainees(
        algorithm=algorithm, sampler=sampler or Uniform(settings.seed), cohort_size=size,
        aggregator=settings.aggregator, faults=faults, attack=attack, per_client=settings.per_client,
    )  # fmt: skip
    if not algorithm.requires.one_place:
        return who
    _check_one_place(algorithm, federation, new)
    local, share = algorithm.local, settings.cohort_size / federation.num_clients
    by_epochs = round(local.epochs * share * float((-(-federation.partition.sizes // local.batch_size)).sum()))
    steps = local.steps * settings.cohort_size if local.steps else by_epochs
    return replace(
        who,
        algorithm=replace(algorithm, local=replace(local, steps=max(1, steps))),
        sampler=Uniform(settings.seed),
        cohort_size=1,
        aggregator="mean",
        faults=None,  # what is in one place is not lost on the way
        attack=None,  # and as it was collected
        per_client=False,
        in_one_place=True,
    )


def _check_one_place(algorithm: Algorithm[Any, Any], federation: Federation, new: NewClients | None) -> None:
    name = type(algorithm).__name__
    if new is not None:
        raise SettingError(
            f"{name} trains on the examples of all clients, so none can be held out: leave new clients out, got "
            f"{new.clients}"
        )
    if federation.changes:
        raise SettingError(
            f"{name} trains on the examples of all clients as one, and by data.arrives and data.drift each client has "
            "its own in a round: leave both out, or take another algorithm"
        )
    if algorithm.personalises:
        raise SettingError(
            f"{name} trains one model for all, which no client can have parts of: use shared = '*' and buffers = "
            "'average'"
        )
