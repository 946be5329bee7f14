"""Plan of a run: all that determines it, checked as far as it can be without a network being computed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import torch
from torch import nn

from fedloom.coordinator.newcomers import NewClients, no_training_rows
from fedloom.coordinator.part import Part, Parts
from fedloom.coordinator.record_entries import chosen, measures_for
from fedloom.coordinator.sampler import Arriving, DeviceSampler, FixedList
from fedloom.coordinator.schedule import Schedule
from fedloom.coordinator.settings import RunSettings
from fedloom.coordinator.task_targets import check_targets, check_validation, target_moments
from fedloom.coordinator.trainees import Trainees, trainees
from fedloom.core.algorithm import Algorithm
from fedloom.core.choices import check_choices
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.task import FitsTargets, Task, needs_moments, require_task
from fedloom.data import Federation
from fedloom.engines.attacks import Attack
from fedloom.engines.faults import Faults
from fedloom.engines.population import Population
from fedloom.evaluate.measure import Measure
from fedloom.tasks import Classification

Models = Model | nn.Module | Callable[[], nn.Module] | Mapping[str, Model | nn.Module | Callable[[], nn.Module]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """All that determines a run; the arguments of `run`, which explains them.

    `assignment`: the name of each client's architecture; empty: those of `model` in turn. `described`: how the run was
    asked for, kept as settings.json of its directory. `code`: the digests of the files of code that it names, by path.
    `fleet`: the devices that are its clients, whose examples are theirs; of what kind, the engine knows.
    """

    algorithm: Algorithm[Any, Any]
    federation: Federation
    model: Models
    settings: RunSettings = field(default_factory=RunSettings)
    task: Task = field(default_factory=Classification)
    sampler: DeviceSampler | None = None
    faults: Faults | None = None
    attack: Attack | None = None
    new: NewClients | None = None
    parts: Sequence[Part] = ()
    schedule: Schedule | None = None
    assignment: Sequence[str] = ()
    described: Mapping[str, Any] | None = None
    code: Mapping[str, str] = field(default_factory=dict)
    fleet: Any = None

    def __post_init__(self) -> None:
        federation, settings, algorithm = self.federation, self.settings, self.algorithm
        _check_kinds(self)
        require_task(self.task)
        for name, what in (("sampler", "fedloom.Uniform(seed=0)"), ("faults", "fedloom.Unreliable(lost=0.1)")):
            if (given := getattr(self, name)) is not None and (isinstance(given, type) or not callable(given)):
                raise SettingError(f"{name} must be an object that can be called, such as {what}, got {given!r}")
        for own in filter(is_dataclass, (self.task, self.sampler, self.faults, *self.parts)):
            check_choices(own)
        check_targets(federation, self.task)
        check_validation(federation, self.task)
        algorithm.requires.check(type(algorithm).__name__, federation, self.task)
        elsewhere = federation.train.remote is not None
        if isinstance(self.task, FitsTargets) and (not elsewhere or needs_moments(self.task)):
            object.__setattr__(self, "task", self.task.fit(target_moments(federation)))
        if settings.cohort_size > (there := federation.num_clients):
            raise SettingError(
                f"cohort_size = {settings.cohort_size} is larger than the federation of {there} clients; "
                f"set cohort_size <= {there} (--cohort {there} asks all of them) [FL-RUN-002]"
            )
        if self.attack is not None:
            self.attack.check(federation)
        new = [] if self.new is None else self.new.ids(federation.num_clients)
        no_training_rows(federation, new)
        self._check_list(new)
        if federation.changes:
            self._check_changes()
        _ = self.trainees  # who may not be in one place
        self.begun_parts.check(self)

    @functools.cached_property
    def begun_parts(self) -> Parts:
        """The parts of the run, as each is before the first round."""
        return Parts(self)

    @functools.cached_property
    def measures(self) -> dict[str, Measure]:
        """Descriptions of the numbers that the records of this run have one of a round, by name."""
        main, *others = chosen(self.task, self.settings.measures, self.settings.headline)
        return measures_for(main, others) | self.begun_parts.columns

    def _check_changes(self) -> None:
        """Raise SettingError where data change, and the run has something that needs the same data in every round."""
        federation = self.federation
        if self.settings.per_client and federation.drift is not None:
            raise SettingError(
                "per_client compares a client's models of several rounds on the same examples, and data.drift makes "
                "others of them: leave one of both out"
            )
        try:
            federation.check_changes(self.settings.rounds)
        except ValueError as error:
            raise SettingError(str(error)) from None

    def _check_list(self, new: Sequence[int]) -> None:
        """Raise SettingError where the sampler is a list that does not fit. `new`: the new clients."""
        arriving = self.sampler if isinstance(self.sampler, Arriving) else None
        listed = self.sampler if arriving is None else arriving.sampler
        if not isinstance(listed, FixedList):
            return
        if len(listed.rounds) < self.settings.rounds:
            raise SettingError(
                f"the sampler lists the clients of {len(listed.rounds)} rounds, the run has {self.settings.rounds}: "
                "list them for every round, or set rounds"
            )
        if self.settings.spares:
            raise SettingError(
                f"spares = {self.settings.spares} are drawn beyond the cohort, and a list names who is asked: list "
                "more clients, or leave spares out"
            )
        for t, clients in enumerate(listed.rounds[: self.settings.rounds]):
            if self.new is not None and not self.new.joined(t) and (early := set(clients) & set(new)):
                raise SettingError(
                    f"the sampler lists client {min(early)} for round {t + 1}, which is new and has not joined by "
                    "then: list others, or let it join earlier (joins)"
                )
            there = self.federation.num_clients
            if arriving is not None:
                there = min(there, arriving.first + arriving.per_round * t)
            if (last := max(clients, default=0)) >= there:
                raise SettingError(
                    f"the sampler lists client {last} for round {t + 1}, and there are the clients 0..{there - 1} by "
                    "then: list others"
                )

    @functools.cached_property
    def trainees(self) -> Trainees:
        """Trainees: the clients, or one in their place."""
        return trainees(
            self.algorithm, self.federation, self.settings, sampler=self.sampler, faults=self.faults,
            attack=self.attack, new=self.new,
        )  # fmt: skip

    @functools.cached_property
    def population(self) -> Population:
        return Population(
            federation=self.federation,
            models=_models(self.model),
            assignment=self.assignment,
            task=self.task,
            seed=self.settings.seed,
            device=torch.device(self.settings.device),
            dtype=getattr(torch, self.settings.dtype),
            measures=self.settings.measures,
            headline=self.settings.headline,
        )


def _check_kinds(job: Plan) -> None:
    """Refuse arguments that are mistaken for others, with the way from what was given to what is meant."""
    wanted: dict[str, tuple[type, str]] = {
        "algorithm": (Algorithm, "an algorithm such as fedloom.FedAvg()"),
        "federation": (Federation, "a federation: fedloom.federate(examples, fedloom.iid(examples.y, 10, seed=0))"),
        "settings": (RunSettings, "fedloom.RunSettings(rounds=30, ...)"),
        "attack": (Attack, "fedloom.Scale(-1, share=0.2)"),
        "new": (NewClients, "fedloom.NewClients(5)"),
    }
    for name, (kind, what) in wanted.items():
        if not isinstance(given := getattr(job, name), kind) and (given is not None or name not in ("attack", "new")):
            called = isinstance(given, type) and issubclass(given, kind)
            remedy = f"make one, {given.__name__}()" if called else f"pass {what}"
            raise SettingError(
                f"{name} must be a fedloom.{kind.__name__}, got {describe(given)}: {remedy} [FL-RUN-001]"
            )


def describe(value: object) -> str:
    """Describe what was given in the place of something else, for a message."""
    return f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__} {value!r}"[:80]


def _models(model: Models) -> dict[str, Model]:
    given = model if isinstance(model, Mapping) else {"": model}
    made = {n: model_of(m, n or None) for n, m in given.items()}
    return {n or m.name: m for n, m in made.items()}


def model_of(given: Model | nn.Module | Callable[[], nn.Module], name: str | None = None) -> Model:
    """Return the model of a module, or of a function that makes one.

    Args:
        given: a model stays what it is.
        name: of the architecture; without it, by what is given.

    Raises:
        SettingError: it is none of these.
    """
    if isinstance(given, Model):
        return given
    if not callable(given):
        raise SettingError(
            f"model must be a module or a function that makes one, got {describe(given)}: pass lambda: "
            "fedloom.models.build('mlp', examples.shape, examples.num_classes), or a module of your own [FL-MODEL-002]"
        )
    return Model(given, name=name)
