"""The parts of a run: what it has beside the algorithm, each in one place, and the moments at which they act."""

from __future__ import annotations

import copy
import functools
import itertools
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Protocol

from fedloom.coordinator.descriptions import plain
from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.evaluation import Evaluation
from fedloom.coordinator.history import SUMS, History, Record
from fedloom.coordinator.record_entries import Entries, chosen, columns_for, known, named
from fedloom.coordinator.sampler import DeviceSampler
from fedloom.coordinator.settings import RunSettings
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import SettingError
from fedloom.core.task import Task
from fedloom.core.task_measures import TaskMeasure
from fedloom.data import Federation
from fedloom.engines.engine import Engine
from fedloom.engines.links import Encoder, Link
from fedloom.engines.message import EVALUATION
from fedloom.engines.population import Population
from fedloom.evaluate.measure import METRICS, Column, Measure


class Brief(Protocol):
    """A run as it was asked for, for its parts: a `Plan`, which imports parts."""

    @property
    def algorithm(self) -> Algorithm[Any, Any]: ...
    @property
    def federation(self) -> Federation: ...
    @property
    def settings(self) -> RunSettings: ...
    @property
    def task(self) -> Task: ...
    @property
    def new(self) -> Any: ...
    @property
    def parts(self) -> Sequence[Part]: ...
    @property
    def trainees(self) -> Any: ...
    @property
    def measures(self) -> dict[str, Measure]: ...


@dataclass(frozen=True)
class Wants:
    """Requests of a part to the engine, before there is one.

    `trained`: works that are done on what each client has trained, where it was trained (`Running.trained`):
    `"evaluation"`, or a function by `module:function`, which is called as `function(client, weights, held_out, train)`
    and returns numbers by name, a dict of tensors. `states`: clients' states travel with the messages, and their bytes
    are counted.
    """

    trained: tuple[str, ...] = ()
    states: bool = False

    def __or__(self, other: Wants) -> Wants:
        return Wants(tuple(dict.fromkeys((*self.trained, *other.trained))), self.states or other.states)


@dataclass
class Running:
    """A run as its parts see it at a moment.

    `server`: the newest server states, by architecture ("" where the algorithm mixes them). `round`: from 0, the last
    that was computed; 0 before the first, too, when `done` is 0. `clients`: who was asked in it. `by_client`: columns
    of `clients.jsonl`, to which parts add where `RunSettings.per_client` asks for that file.
    """

    job: Brief
    algorithm: Algorithm[Any, Any]  # as the engine runs it
    engine: Engine
    evaluation: Evaluation
    history: History
    sampler: DeviceSampler | None = None  # of a part, in the place of the job's
    files: RunDirectory | None = None
    server: dict[str, Any] = field(default_factory=dict)
    round: int = 0
    done: int = 0  # rounds
    clients: list[int] = field(default_factory=list)
    by_client: Record = field(default_factory=dict)

    @property
    def population(self) -> Population:
        return self.evaluation.population

    def trained(self, work: str = EVALUATION) -> Mapping[int, Any]:
        """Return what a work of `Wants.trained` has found of each client of the round, by client.

        Args:
            work: its name; of the evaluation each client has an `EvaluationResult`.
        """
        return self.engine.traffic.after.get(work, {})


class Part:
    """Part that a run has beside its algorithm: a measurement, a stop, an advice. Every method may be left out.

        class Spread(fl.Part):
            columns = (fl.Measure("loss_spread", "Spread of losses", "spread", "Standard deviation over clients."),)

            def after(self, run):
                losses = list(run.engine.traffic.losses.values())
                return {"loss_spread": float(np.std(losses)) if losses else None}

        fl.run(algorithm, federation, model, parts=[Spread()])

    A run asks its parts in their order: `before` and `after` each round, `due` when personal models are evaluated
    (`eval_every`) and in the last round, `end` after the last; before the first round `after` and `due` are asked of
    the start. What they return joins the round's record. After `after`, and again after `due`, each is asked whether to
    `stop`. `state` is saved with every checkpoint, and is put back when the run goes on.
    """

    wants: ClassVar[Wants] = Wants()
    columns: tuple[Measure, ...] = ()
    """Numbers of a record that are one a round, and what they mean: for pages, tables, trackers and `monitor`. Each is
    checked by its range when it is recorded, and when the record is read."""
    held_out: Collection[int] = ()
    """Clients that are judged apart: no panel has them."""
    links: Sequence[Link] = ()
    """Links of the part on the way of uploads to their mean, after fedloom's own."""
    sampler: DeviceSampler | None = None
    """Sampler of the clients of each round, in the place of the run's."""
    schedule: Any = None
    """Schedule of the run (`fedloom.Schedule`), where the part says who is asked when."""
    gradients: Any = None
    """Rule by which clients make gradients of their training examples."""
    state: Any = ()
    """State of the part between rounds: a pytree of tensors, of the same shapes at every moment."""

    @classmethod
    def encoders(cls, settings: RunSettings) -> tuple[Encoder, ...]:
        """Return the encoders of the part's links, where a setting asks for the part: a device knows settings alone."""
        return ()

    @classmethod
    def gradients_of(cls, settings: RunSettings) -> Any:
        """Return `gradients`, where a setting asks for the part: a device knows settings alone."""
        return None

    def columns_for(self, main: TaskMeasure, others: Sequence[TaskMeasure]) -> Sequence[Column]:
        """Return `columns`, or those for a task with this headline measure, and others that are computed too."""
        return self.columns

    def check(self, job: Brief) -> None:
        """Raise SettingError where the part does not fit the run; nothing is computed yet."""

    def absent(self, round: int) -> Collection[int]:
        """Return clients that may not be asked in a round, from 0."""
        return ()

    def begin(self, run: Running) -> None:
        """Look at a run that is about to start, or to go on: `run.history` has its records so far."""

    def before(self, run: Running) -> None:
        """Look at the run before a round, whose clients are known."""

    def after(self, run: Running) -> Record:
        """Return columns of a round that was just computed."""
        return {}

    def due(self, run: Running) -> Record:
        """Return columns that are too dear for every round."""
        return {}

    def end(self, run: Running) -> Record:
        """Return columns of the last round."""
        return {}

    def stop(self, run: Running, record: Record | None) -> str | None:
        """Return why the run should end, or nothing.

        Args:
            run: at this moment.
            record: of the round so far, which `run.history` has not yet; None before a run goes on.
        """
        return None

    def saved(self, run: Running) -> None:
        """Look at the run once its folder has a new checkpoint, before the next round."""

    def keep(self, run: Running) -> int | None:
        """Return the round whose checkpoint is to be kept beside those of `keep_every`, if there is one."""
        return None

    def lacks(self, records: Sequence[Record]) -> bool:
        """Return whether the newest of these records has not what the part gives the last round."""
        return False


ALWAYS = (
    "fedloom.coordinator.personal_models:Threshold",
    "fedloom.coordinator.global_model:GlobalModel",
    "fedloom.coordinator.global_model:Predictions",
    "fedloom.coordinator.personal_models:PersonalModels",
    "fedloom.coordinator.stopping:NobodyAccepted",
    "fedloom.coordinator.newcomers:Newcomers",
)
"""Parts of every run that has what they are about; those that settings ask for (`setting(part=...)`) follow."""


class Parts:
    """The parts of a run in their order, the user's own last; each as it is before the first round."""

    def __init__(self, job: Brief) -> None:
        main, *others = chosen(job.task, job.settings.measures, job.settings.headline)
        gathered = {column.name for column in columns_for(main, others)}
        _check_own(job.parts, {*gathered, *known(), *SUMS})
        found = (named(where).of(job) for where in dict.fromkeys([*ALWAYS, *_asked(job.settings)]))
        self.own: tuple[Part, ...] = copy.deepcopy(tuple(job.parts))
        self.all: list[Part] = [*(part for part in found if part is not None), *self.own]
        declared = [part.columns_for(main, others) for part in self.all]
        beside = (c for c in itertools.chain(*declared) if isinstance(c, Measure) and c.name not in gathered)
        self.columns = {column.name: column for column in beside}
        """The columns that a manifest names, because `columns_for` gathers them from no part of fedloom."""
        self._entries = [Entries(columns) for columns in declared]

    def copied(self) -> Parts:
        """Return the same for a run, with what its parts keep."""
        out = copy.copy(self)
        out.all = copy.deepcopy(self.all)
        out.own = tuple(out.all[len(out.all) - len(self.own) :])
        return out

    def check(self, job: Brief) -> None:
        """Raise SettingError where a part does not fit the run."""
        for part in self.all:
            part.check(job)

    @property
    def wants(self) -> Wants:
        return functools.reduce(operator.or_, (part.wants for part in self.all), Wants())

    @property
    def links(self) -> tuple[Link, ...]:
        """The links of the parts, in their order."""
        return tuple(link for part in self.all for link in part.links)

    @property
    def encoders(self) -> tuple[Encoder, ...]:
        """The encoders of these links."""
        return tuple(link.encoder for link in self.links if link.encoder is not None)

    @property
    def sampler(self) -> DeviceSampler | None:
        """The sampler of the first part that has one."""
        return next((part.sampler for part in self.all if part.sampler is not None), None)

    @property
    def schedule(self) -> Any:
        """The schedule of the first part that has one."""
        return next((part.schedule for part in self.all if part.schedule is not None), None)

    @property
    def held_out(self) -> set[int]:
        """Clients that are judged apart."""
        return {k for part in self.all for k in part.held_out}

    def absent(self, round: int) -> set[int]:
        """Return clients that may not be asked in a round, from 0."""
        return {k for part in self.all for k in part.absent(round)}

    def begin(self, run: Running) -> None:
        for part in self.all:
            part.begin(run)

    def before(self, run: Running) -> bool:
        """Let the parts look at the run before a round; return whether any does."""
        looking = [part for part in self.all if type(part).before is not Part.before]
        for part in looking:
            part.before(run)
        return bool(looking)

    def add(self, stage: Literal["after", "due", "end"], run: Running, record: Record) -> None:
        """Add to a record what the parts return of a moment.

        Raises:
            SettingError: a part returns what is none of its columns, or what these cannot be.
        """
        for part, entries in zip(self.all, self._entries, strict=True):
            found = getattr(part, stage)(run)
            for name, value in plain(found).items():
                kind, what = entries.kind(METRICS, name), f"{type(part).__name__}.{stage} returned {name}"
                if kind is None:
                    known = ", ".join(entries.names(METRICS))
                    raise SettingError(
                        f"{what}, and its columns are {known or 'none'}: declare it as a fedloom.Measure in columns"
                    )
                if not kind.fits(value):
                    raise SettingError(
                        f"{what} = {found[name]!r:.80}, and it is {kind.words} by its unit and range: return such a "
                        "value, or declare another unit or range (fedloom.Measure(range=))"
                    )
            record.update(found)

    def stop(self, run: Running, record: Record | None = None) -> str | None:
        """Return why the run should end, by the first part that says so."""
        reasons = (part.stop(run, record) for part in self.all)
        return next((why for why in reasons if why is not None), None)

    def keep(self, run: Running) -> int | None:
        """Return the round whose checkpoint is to be kept beside others, by the first part that names one."""
        return next((found for part in self.all if (found := part.keep(run)) is not None), None)

    def lack(self, records: Sequence[Record]) -> bool:
        """Return whether the newest of some records lacks what a last round is measured by."""
        return any(part.lacks(records) for part in self.all)

    @property
    def _keeping(self) -> dict[str, Part | Link]:
        """The parts and the links of users' ones, by the names under which checkpoints have their states.

        fedloom's own go by their classes, users' by numbers too.
        """
        named: dict[str, Part | Link] = {type(part).__name__: part for part in self.all if part not in self.own}
        named |= {f"{i}_{type(part).__name__}": part for i, part in enumerate(self.own)}
        links = [(f"{i}_link_{j}", link) for i, part in enumerate(self.own) for j, link in enumerate(part.links)]
        return named | dict(links)

    @property
    def state(self) -> dict[str, Any]:
        """The states of parts and links, of those that keep something."""
        return {name: one.state for name, one in self._keeping.items() if tree.leaves(one.state)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Put back what `state` was when a checkpoint was written."""
        for name, one in self._keeping.items():
            if name in saved:
                one.state = saved[name]


def encoders_of(settings: RunSettings) -> tuple[Encoder, ...]:
    """Return what clients do to their uploads by a run's settings, as a device does it."""
    return tuple(encoder for where in _asked(settings) for encoder in named(where).encoders(settings))


def gradients_of(settings: RunSettings) -> Any:
    """Return the rule by which clients make gradients of their examples, by a run's settings."""
    return next(filter(None, (named(where).gradients_of(settings) for where in _asked(settings))), None)


def _asked(settings: RunSettings) -> list[str]:
    """Return the parts that settings ask for, by `module:Class`; what has its default asks for none."""
    said = (f for f in fields(settings) if f.metadata.get("part") and getattr(settings, f.name) != f.default)
    return [f.metadata["part"] for f in said]


def _check_own(parts: Sequence[Part], known: Collection[str]) -> None:
    """Raise SettingError for a user's part that is none, or whose columns have a name of another, such as `known`."""
    taken = {*known}
    for part in parts:
        if not isinstance(part, Part):
            remedy = f"make one, {part.__name__}()" if isinstance(part, type) else "derive its class from fedloom.Part"
            raise SettingError(f"parts are objects of classes derived from fedloom.Part, got {part!r}: {remedy}")
        for column in part.columns:
            if not isinstance(column, Measure):
                raise SettingError(
                    f"columns of {type(part).__name__} are fedloom.Measure objects, got {column!r}: write "
                    "fedloom.Measure(name, title, label, meaning)"
                )
            if column.name in taken or not column.name.isidentifier():
                why = "a record has already" if column.name in taken else "is no word"
                raise SettingError(
                    f"{type(part).__name__} has a column {column.name!r}, which {why}: name it otherwise"
                )
            taken.add(column.name)
