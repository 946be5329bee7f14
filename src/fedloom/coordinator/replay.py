"""Past rounds of a run, computed again: several of them, and what happened within a client's local training."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.history import History, Record
from fedloom.coordinator.plan import Plan
from fedloom.coordinator.rounds import Coordinator
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.core.task import ScheduledLoss
from fedloom.core.types import Weights
from fedloom.engines.faults import lost_again
from fedloom.engines.population import Population
from fedloom.engines.round_traffic import Exchange
from fedloom.storage.store import ClientStore


@dataclass(frozen=True)
class Replay:
    """A past round, computed again.

    `taken`: the version of the model that each client has trained from, from 0; `models`: the server states of these,
    by version. A round that waits has one, `before`. Of answers that came late, exchanges have the mean losses alone.
    """

    round: int
    clients: list[int]
    before: dict[str, Any]  # server states by architecture
    after: dict[str, Any]
    exchanges: list[Exchange]
    population: Population
    taken: Mapping[int, int]
    models: Mapping[int, dict[str, Any]]

    def trained(self) -> dict[int, Weights]:
        """Return each client's model at the end of its local training: after its last `minimise` over its own examples.

        What clients learn from public examples is not local training.

        Raises:
            SettingError: what clients trained does not show which of it is their model.
        """
        return trained(self.exchanges)


def trained(exchanges: Sequence[Exchange]) -> dict[int, Weights]:
    """Return each client's model at the end of its local training in these exchanges, as `Replay.trained` does."""
    models = {e.client: e.trained for e in exchanges if e.trained is not None}
    for e in exchanges:
        if not models or (e.unclear and e.client not in models):
            raise SettingError(
                f"{e.name} leaves no model of a client's local training to look at: let it end in a minimise over "
                "client.train, whose carry has the weights of the client's whole network exactly once"
            )
    return models


class RoundReplay:
    """Past rounds of the run in a directory, computed again; asked for in rising order, each is computed once.

    Raises:
        SettingError: the run in `directory` is another one.
    """

    def __init__(self, job: Plan, directory: str | os.PathLike[str]) -> None:
        # all states in memory: nothing that is computed here may reach the run's files
        self.job = replace(job, settings=replace(job.settings, state_memory_mib=None))
        self.files = RunDirectory(directory)
        self.coordinator = Coordinator(self.job, self.files)
        self.files.compare(self.coordinator.facts())
        self.records = History.read(self.files.path).metrics
        self.files.warn_unless_whole()
        # whom the run did not wait for is lost again, and everybody else is waited for
        engine = self.coordinator.engine
        o = engine.options
        engine.options = replace(o, deadline=None, faults=lost_again(self.records, o.faults))

    def replay(self, round: int) -> Replay:
        """Compute a past round again, as `Job.replay` does."""
        if not 1 <= round < len(self.records):
            raise SettingError(
                f"the run in {self.files.path} has the rounds 1 to {len(self.records) - 1} to replay, got {round}"
            )
        coordinator, checkpoints, oldest, since = self.coordinator, self.files.checkpoints.rounds(), round - 1, round
        while oldest < since:  # once more where the clients of the round started from versions before it
            since, models = oldest, dict[int, dict[str, Any]]()
            at, server = coordinator.state
            nearest = max((t for t in checkpoints if t <= since), default=-1)
            with coordinator.threads():
                if not server or not nearest <= at <= since:  # else it stands nearer already
                    coordinator.load(self.files, since)
                for done in range(coordinator.state[0] + 1, round + 1):
                    exchanges, coordinator.engine.watch = list[Exchange](), None
                    if done > since:
                        coordinator.engine.watch, models[done - 1] = exchanges.append, coordinator.state[1]
                    clients, record = coordinator.run_round()
                    if done in checkpoints:
                        self._check_checkpoint(clients)
                self._check_record(record)
            taken = {k: coordinator.assembly.schedule.taken(k, round - 1) for k in clients}
            oldest = min([round - 1, *taken.values()])
        before, models = models[round - 1], {t: models[t] for t in {round - 1, *taken.values()}}
        after, people = coordinator.state[1], self.job.population
        return Replay(round, clients, before, after, exchanges, people, taken, models)

    def check_waits(self) -> None:
        """Raise SettingError where the clients of a round may have been sent several models."""
        if (asynchrony := self.job.settings.asynchrony) != "none":
            raise SettingError(
                "a round is analysed by the one model that its clients were sent, and with asynchrony = "
                f"{asynchrony!r} they were sent several: analyse a run that waits, or look at one round by fedloom "
                "replay"
            )

    def by_epoch(self, round: int) -> list[dict[int, Weights]]:
        """Return each client's model after 1, 2, ... E local epochs of a past round; the last are those of `replay`.

        The round is computed E times, with one epoch more each time: batches, augmentation and dropout of an epoch
        depend on nothing that comes after it, so the first epochs are the same bits.

        Raises:
            SettingError: the algorithm trains for a number of steps or several times a round: it has no such epochs.
                Or clients know how long a round is (`ScheduledLoss`): fewer epochs are not the first of them.
        """
        local = self.job.trainees.algorithm.local
        if local.steps is not None:
            raise SettingError(
                f"accuracy by local epoch needs clients that train in epochs, got local.steps = {local.steps}; "
                "use a run with local.epochs"
            )
        return self._again(round, [{"local": replace(local, epochs=e)} for e in range(1, local.epochs + 1)])

    def by_step(self, round: int, steps: Sequence[int], **settings: Any) -> list[dict[int, Weights]]:
        """Return each client's model after each number in `steps` of local batches of a past round, in that order.

        As `by_epoch`, at the cost of all `steps` together. `settings`: of the algorithm in this round, other than those
        of the run: `lam=0` leaves pFedSD's term out.

        Raises:
            SettingError: clients train on the data of others, or several times a round, or know how long it is.
        """
        local = self.job.algorithm.local
        if self.job.trainees.in_one_place:
            raise SettingError(f"{type(self.job.algorithm).__name__} has no clients that train on their own")
        return self._again(round, [{**settings, "local": replace(local, steps=s)} for s in steps])

    def accuracies(self, round: int) -> dict[int, float]:
        """Return the accuracy of personal models after a past round on their clients' held-out examples.

        It is that of all clients that took part.
        """
        engine = self.coordinator.engine
        with self.coordinator.threads():
            self._stand_after(round)
            found = engine.evaluate_counts(self.coordinator.state[1], sorted(engine.clients), round)
        return {k: right / total for k, (right, total) in found.items() if total}

    def _again(self, round: int, changes: Sequence[Mapping[str, Any]]) -> list[dict[int, Weights]]:
        """Return what clients trained in a past round, with each of some changes to the algorithm's settings."""
        self.check_waits()
        engine = self.coordinator.engine
        for known in (engine.algorithm, engine.population.task):
            if isinstance(known, ScheduledLoss) and (name := known.paced_by) is not None:
                raise SettingError(
                    "fewer epochs or steps are the first of a round where clients do not know how long it is, got "
                    f"{type(known).__name__} with {name} = {getattr(known, name)}: analyse a run without {name}"
                )
        with self.coordinator.threads():
            self._stand_after(round - 1)
            (clients, _), server = self.coordinator.asked(round - 1), self.coordinator.state[1]
            # beside the clients' states what the server keeps: what it sends may be made of rows of any client
            num_clients = engine.population.num_clients
            states = {k: engine.states[k] for k in engine.states if k >= num_clients or k in clients}
            out = list[dict[int, Weights]]()
            for changed in changes:
                exchanges: list[Exchange] = []
                other = engine.variant(_with(engine.algorithm, changed))
                other.watch = exchanges.append
                other.states.update(states)
                other.round(server, clients, round - 1)
                whose = [e.client for e in exchanges if e.trained is not None]
                if len(set(whose)) < len(whose):
                    name = type(engine.algorithm).__name__
                    raise SettingError(
                        f"{name} trains its clients more than once a round: it has no epochs or steps to count"
                    )
                out.append(trained(exchanges))
        return out

    def _stand_after(self, round: int) -> None:
        if self.coordinator.state[1] and self.coordinator.state[0] == round:
            return
        if round in self.files.checkpoints.rounds():
            self.coordinator.load(self.files, round)
        else:
            self.replay(round)

    def _check_checkpoint(self, clients: Sequence[int]) -> None:
        """Raise SettingError unless server and clients of a round computed again are what the run had, bit for bit."""
        (round, server), now = self.coordinator.state, self.coordinator.engine.states
        checkpoint = self.files.checkpoints.read(round)
        saved = ClientStore(folder=self.files.checkpoints.clients)
        saved.restore(checkpoint.clients, self.coordinator.engine.fresh)
        pairs: list[tuple[Any, Any]] = [(self.coordinator.read(self.files, checkpoint)[0], server)]
        pairs += [(saved.get(k), now.get(k)) for k in clients]
        if not all(_equal(before, again) for before, again in pairs):
            raise _otherwise(round)

    def _check_record(self, now: Record) -> None:
        """Raise SettingError unless a round has the record that the run wrote: most rounds have no checkpoint."""
        round, _ = self.coordinator.state
        changed = [name for name, value in now.items() if self.records[round].get(name) != value]
        if changed:
            raise _otherwise(round, f" ({', '.join(changed)})")


def _equal(before: Any, again: Any) -> bool:
    pairs = [tree.leaves(state) if state is not None else [] for state in (before, again)]
    return len(pairs[0]) == len(pairs[1]) and all(map(torch.equal, *pairs))


def _otherwise(round: int, what: str = "") -> SettingError:
    return SettingError(
        f"round {round} came out otherwise than in the run{what}: the code of the algorithm or the model has changed, "
        "or this machine computes otherwise"
    )


def _with(algorithm: Algorithm[Any, Any], changed: Mapping[str, Any]) -> Algorithm[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingWarning)  # said when the run was started
        return replace(algorithm, **changed)
