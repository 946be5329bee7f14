"""Clients that are held out from training or join late, and how good a model is for them in the end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from fedloom.coordinator.evaluation import finite
from fedloom.coordinator.history import Record
from fedloom.coordinator.part import Brief, Part, Running
from fedloom.coordinator.round_record import REASONS
from fedloom.core.averaging import Averaging
from fedloom.core.choices import check, check_choices
from fedloom.core.client import Client
from fedloom.core.cohort import Cohort
from fedloom.core.errors import SettingError
from fedloom.core.json_types import COUNT, JsonType, in_words, mapped, within
from fedloom.core.local_training import Local
from fedloom.core.task_measures import TaskMeasure
from fedloom.core.types import Weights
from fedloom.data import Federation
from fedloom.engines.engine import Engine
from fedloom.engines.message import EvaluationResult
from fedloom.evaluate.measure import Column, Entry, Measure, range_of, title_of
from fedloom.storage.store import TrialStore

Way = Literal["global", "fine_tuned", "personalised"]
WAYS: tuple[Way, ...] = get_args(Way)
_MODELS: tuple[tuple[Way, str, str], ...] = (
    ("global", "global model", "the global model"),
    ("fine_tuned", "fine-tuned", "the global model after fine-tuning"),
    ("personalised", "personalised", "its personal model"),
)


@dataclass(frozen=True)
class NewClients:
    """Clients that training does not ask, or not from the start; evaluated after the last round.

    `clients`: how many, the last of the federation; or which. `joins`: the round, from 1, from which on they may be
    asked; None: never. `judged_by`: the newest `global` model; that model `fine_tuned` on a client's training examples
    as in a round of local training; what the method makes of it (`personalised`): one participation, which nobody else
    learns of, then `Algorithm.personal`. Clients that have joined are personalised already, as all others are.
    """

    clients: int | tuple[int, ...]
    joins: int | None = None
    judged_by: tuple[Way, ...] = WAYS

    def __post_init__(self) -> None:
        check_choices(self)
        if isinstance(self.clients, tuple):
            check(self.clients, tuple[int, ...], "the list of new clients")
            ok = len(set(self.clients)) == len(self.clients) > 0 and min(self.clients) >= 0
        else:
            check(self.clients, int, "the number of new clients")
            ok = self.clients >= 1
        if not ok:
            raise SettingError(
                f"new clients are at least one, or a list of distinct numbers from 0, got {self.clients}"
            )
        if self.joins is not None and self.joins < 1:
            raise SettingError(f"new clients join in a round from 1 on, got {self.joins}: use None for never")
        if not self.judged_by or len(set(self.judged_by)) < len(self.judged_by):
            raise SettingError(f"judged_by names some of {', '.join(WAYS)}, each once, got {self.judged_by}")

    def ids(self, num_clients: int) -> list[int]:
        """Return their numbers, in order."""
        if isinstance(self.clients, tuple):
            return sorted(self.clients)
        return list(range(max(0, num_clients - self.clients), num_clients))

    def joined(self, round: int) -> bool:
        """Return whether they may be asked in a round, from 0."""
        return self.joins is not None and round + 1 >= self.joins

    def absent(self, num_clients: int, round: int) -> set[int]:
        """Return who may not be asked in a round, from 0."""
        return set() if self.joined(round) else {*self.ids(num_clients)}

    def check(self, federation: Federation, cohort_size: int) -> None:
        """Raise SettingError unless this federation has such clients, others to train with, and rows to evaluate on."""
        n, new = federation.num_clients, self.ids(federation.num_clients)
        if len(new) >= n or max(new) >= n:
            raise SettingError(
                f"new clients are some of the federation's 0..{n - 1} and leave others to train, got {self.clients}: "
                "name fewer, or clients that exist"
            )
        if cohort_size > n - len(new) and not self.joined(0):
            raise SettingError(
                f"cohort_size = {cohort_size} is larger than the {n - len(new)} clients that are not new; "
                f"set cohort_size <= {n - len(new)}"
            )
        test = federation.local_test
        without = [k for k in new if test is None or not test.sizes[k]]
        if without:
            raise SettingError(
                f"a new client is evaluated on examples that it holds out, and client {without[0]} holds none: set "
                "test_fraction > 0, or leave it out of the new clients"
            )
        learning = [way for way in self.judged_by if way != "global"]
        bare = [k for k in new if not federation.partition.sizes[k]]
        if bare and (learning or self.joins is not None):
            done = [*learning, *["asked to train once it has joined"] * (self.joins is not None)]
            raise SettingError(
                f"a new client is {' and '.join(done).replace('_', '-')} on training examples, and client "
                f"{bare[0]} has none: give it some, or evaluate new clients by 'global' alone (judged_by)"
                f"{', who never join (joins)' if self.joins is not None else ''}"
            )


def no_training_rows(federation: Federation, new: Sequence[int]) -> None:
    """Raise SettingError if a client that is not new has nothing to train on."""
    bare = np.setdiff1d(np.flatnonzero(federation.partition.sizes == 0), new)
    if len(bare):
        raise SettingError(
            f"a client that is asked needs a training example, got none for client {bare[0]}: leave it out, or "
            "make it a new client that is evaluated by 'global' alone"
        )


class Newcomers(Part):
    """Evaluation of each new client after the last round, in every way that is asked for and that the algorithm has."""

    def __init__(self, new: NewClients, num_clients: int) -> None:
        self.new, self.num_clients = new, num_clients
        self.held_out = new.ids(num_clients)

    @classmethod
    def of(cls, job: Brief) -> Newcomers | None:
        return None if job.new is None else cls(job.new, job.federation.num_clients)

    @staticmethod
    def columns_for(main: TaskMeasure, others: Sequence[TaskMeasure]) -> tuple[Column, ...]:
        value, numbers = within(*range_of(main)) | None, f"numbers{in_words(*range_of(main))} or null"
        others_by_client = dict[str, dict[str, dict[str, float | None]]]
        pooled = "All right answers over all held-out" if main.name == "accuracy" else f"{title_of(main)} over all"
        return (
            *(
                Measure(
                    f"new_{way}_{main.name}{'_by_samples' * weighted}",
                    f"New clients, {whose}{', by samples' * weighted}",
                    f"{label}{', by samples' * weighted}",
                    f"{f'{pooled} examples' if weighted else f'Mean {main.title}'} of new clients, each evaluated by "
                    f"{whose}.",
                    main.unit, main.better,
                )
                for way, label, whose in _MODELS
                for weighted in (False, True)
            ),
            *(
                Measure(
                    f"new_{way}_{of.name}", f"New clients, {whose}: {of.title}", f"{label}, {of.title}",
                    f"Mean over new clients, each evaluated by {whose}. {of.meaning}",
                    of.unit, of.better, what=of.title,
                )
                for of in others
                for way, label, whose in _MODELS
            ),
            Entry("new_failed", REASONS),
            Entry("new_by_client", JsonType(mapped(mapped(value)), f"a mapping of ways to clients to {numbers}")),
            Entry(
                "new_others_by_client",
                JsonType(others_by_client, "a mapping of ways to measures to clients to numbers or null"),
            ),
            Entry("new_*_undefined", COUNT),
        )  # fmt: skip

    def check(self, job: Brief) -> None:
        self.new.check(job.federation, job.settings.cohort_size)

    def absent(self, round: int) -> set[int]:
        return self.new.absent(self.num_clients, round)

    def end(self, run: Running) -> Record:
        of = run.evaluation
        by_way, refused = evaluate_new(run.engine, run.server, self.new, run.round)
        out: Record = {"new_by_client": {}, **({"new_failed": refused} if refused else {})}
        for way, results in by_way.items():
            found = {k: of.measured_of(result) for k, result in sorted(results.items())}
            main = of.main.name
            rate = {str(k): finite(one.values[main]) for k, one in found.items()}
            out[f"new_{way}_{main}"] = of.mean_over(main, found.values())
            out[f"new_{way}_{main}_by_samples"] = of.by_samples(main, found.values())
            out["new_by_client"][way] = rate
            out |= of.others(f"new_{way}", found)
            if others := of.names[1:]:
                each = {n: {str(k): finite(one.values[n]) for k, one in found.items()} for n in others}
                out.setdefault("new_others_by_client", {})[way] = each
        return out

    def lacks(self, records: Sequence[Record]) -> bool:
        return "new_by_client" not in records[-1]


@dataclass(frozen=True, kw_only=True)
class _FineTuned(Averaging[Any]):
    """Evaluate a client by the global model after the training of one round on its own examples, used once."""

    @property
    def evaluation_training(self) -> Local:
        return self.local

    def round(self, server: Weights, cohort: Cohort) -> Weights:
        return server

    def personal(self, client: Client[Any], sent: Weights) -> Weights:
        return self.train(client, sent)


def evaluate_new(
    engine: Engine, server: dict[str, Any], new: NewClients, round: int
) -> tuple[dict[str, dict[int, EvaluationResult]], dict[int, str]]:
    """Evaluate each new client after `round` by each way's model, where the algorithm has such models.

    Return also whose participation was refused, and why. These clients are evaluated without it, so that every way is
    of all clients.

    No state moves and no byte counts.
    """
    algorithm, ids = engine.algorithm, new.ids(engine.population.num_clients)
    weights = algorithm.global_models(server, engine.population.models)
    everywhere = {engine.population.assignment[k] for k in ids} <= set(weights)
    out, refused = dict[str, dict[int, EvaluationResult]](), dict[int, str]()
    if "global" in new.judged_by and everywhere:
        out["global"] = engine.evaluate_models(weights, ids, round)
    if "fine_tuned" in new.judged_by and everywhere:
        plain = replace(engine.options, encoders=())
        with closing(engine.variant(_FineTuned(local=algorithm.local), plain)) as tuned:
            out["fine_tuned"] = tuned.evaluate(weights, ids, round)
    if "personalised" in new.judged_by and algorithm.personalises:
        if new.joined(round):
            out["personalised"] = engine.evaluate(server, ids, round)
        else:
            out["personalised"], refused = _after_one(engine, server, ids, round)
    return out, refused


def _after_one(
    engine: Engine, server: dict[str, Any], ids: list[int], round: int
) -> tuple[dict[int, EvaluationResult], dict[int, str]]:
    """Evaluate personal models after one participation in `round`, which leaves no trace; return whom it refused."""
    options = replace(
        engine.options, absent=None, faults=None, attack=None, on_nonfinite="refuse", works=(),
        links=(), aggregator="mean",  # of a few clients, and the new server state is thrown away
    )  # fmt: skip
    with closing(engine.variant(engine.algorithm, options)) as shadow:
        shadow.states, shadow.norms = TrialStore(engine.states), engine.norms.copied()
        shadow.round(server, ids, round)
        ended, assignment = shadow.traffic.unanswered, engine.population.assignment
        refused = {k: why for k in ids for name, why in ended.items() if name in ("", assignment[k])}
        refused |= {failed.client: failed.reason for failed in shadow.traffic.failed if failed.client in ids}
        return shadow.evaluate(server, ids, round), refused
