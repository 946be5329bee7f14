"""Subjects of the battery: a tiny federation, records of its runs, and engines that record or disturb a run."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.batches import Batches
from fedloom.core.errors import SettingWarning
from fedloom.core.fold.execution import Compilation
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.task import TargetKind, Task, targets_of
from fedloom.core.types import Weights
from fedloom.data import Arrival, Drift, Examples, Federation, Partition
from fedloom.engines.engine import Engine
from fedloom.engines.engine_options import Options
from fedloom.engines.faults import Faults
from fedloom.engines.loop import Loop
from fedloom.engines.message import Answer, Call, Request, Rows
from fedloom.engines.population import Population
from fedloom.engines.server_side import Send
from fedloom.engines.stacked import Stacked
from fedloom.tasks import Classification
from fedloom.testing.compare import copy_of
from fedloom.testing.in_process import DevicesInProcess
from fedloom.testing.messages import Messages
from fedloom.testing.small_networks import CLASSES, FEATURES, MLP, Normalised

SIZES = (5, 9, 6, 11, 7, 8)  # training examples of each client: ragged, none a multiple of another
COHORTS = ((0, 2, 3, 5), (1, 2, 5), (0, 3, 5))  # of rounds 0, 1, 2; client 4 is never asked


@dataclass(frozen=True)
class Trail:
    """Record of a run; entry 0 of `servers` and `states` is before the first round."""

    servers: list[dict[str, Any]]
    states: list[dict[int, Any]]
    personal: dict[int, Weights]
    engine: Engine
    selected: list[set[int]]  # by round
    last: int  # round

    @functools.cached_property
    def right(self) -> dict[int, tuple[Any, int]]:
        """Return (sum of the headline, examples) of all clients after the last round; computed on demand."""
        return self.engine.evaluate_counts(self.servers[-1], range(self.engine.population.num_clients), self.last)


@dataclass(frozen=True)
class Subject:
    """An algorithm under test. `models`: by name, from [B, 12] to [B, 3]; `local`: its local training in the tests.

    `task`: with 3 classes, 3 numbers or 3 labels of each example. `arrives`, `drift`: rules by which its clients'
    examples change.
    """

    algorithm: Algorithm[Any, Any]
    models: Mapping[str, Model]
    task: Task = dataclasses.field(default_factory=Classification)
    arrives: Arrival | None = None
    drift: Drift | None = None
    _trails: dict[Any, Trail] = dataclasses.field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        algorithm: Algorithm[Any, Any] | Callable[[], Algorithm[Any, Any]],
        models: Mapping[str, Model] | None = None,
        local: Local | None = None,
        task: Task | None = None,
        *,
        arrives: Arrival | None = None,
        drift: Drift | None = None,
    ) -> Subject:
        """Make a subject from an algorithm or a function that makes one."""
        instance = algorithm if isinstance(algorithm, Algorithm) else algorithm()
        tiny = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.05, momentum=0.9, weight_decay=1e-3), decay=0.9)
        networks = models or {"mlp": Model(MLP, name="mlp")}
        return cls(with_settings(instance, local=local or tiny), networks, task or Classification(), arrives, drift)

    @property
    def name(self) -> str:
        return type(self.algorithm).__name__

    @functools.cached_property
    def normalised(self) -> Subject:
        """The algorithm with a model that has BatchNorm and dropout."""
        return dataclasses.replace(self, models={"normalised": Model(Normalised, name="normalised")})

    @property
    def cohorts(self) -> Sequence[Sequence[int]]:
        return ((0,),) * len(COHORTS) if self.algorithm.requires.one_place else COHORTS

    def population(
        self,
        *,
        kind: type[Population] = Population,
        models: Mapping[str, Model] | None = None,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
        **settings: Any,
    ) -> Population:
        """Return the six clients (one, where the algorithm pools them)."""
        whole_federation = federation(targets_of(self.task), self.arrives, self.drift)
        networks = dict(models or self.models)
        if self.algorithm.requires.one_place:
            whole_federation, first = whole_federation.pooled(), next(iter(networks))
            networks = {first: networks[first]}
        settings = {"task": self.task, **settings}
        return kind(federation=whole_federation, models=networks, dtype=dtype, seed=seed, **settings)

    def run(
        self,
        kind: type[Engine] = Loop,
        population: Population | None = None,
        *,
        algorithm: Algorithm[Any, Any] | None = None,
        cohorts: Sequence[Sequence[int]] | None = None,
        compilation: Compilation = "none",
        chunk: int | None = None,
        faults: Faults | None = None,
        refuse: bool = False,
        with_evaluation: bool = False,
    ) -> Trail:
        """Run rounds and record every state; runs with the default arguments are computed once for each engine.

        `with_evaluation`: compute `right` before the engine is closed, as engines with other processes need.
        """
        usual = population is None and algorithm is None and cohorts is None and faults is None
        key = kind, compilation, chunk, refuse
        if usual and key in self._trails:
            return self._trails[key]
        population = population or self.population()
        engine = kind(
            population,
            algorithm or self.algorithm,
            Options(compilation=compilation, chunk=chunk, faults=faults, on_nonfinite="refuse" if refuse else "stop"),
        )
        trail = record_run(engine, engine.init(), self.cohorts if cohorts is None else cohorts)
        if with_evaluation:
            trail.right  # noqa: B018
        engine.close()
        if usual:
            self._trails[key] = trail
        return trail


def record_run(engine: Engine, server: dict[str, Any], cohorts: Sequence[Sequence[int]], start: int = 0) -> Trail:
    """Run rounds start, start + 1, ... on an engine and record every state."""

    def current_states() -> dict[int, Any]:
        states = engine.all_states() if isinstance(engine, DevicesInProcess) else engine.states
        copied: dict[int, Any] = copy_of(dict(sorted(states.items())))
        return copied

    servers, states, selected = [copy_of(server)], [current_states()], list[set[int]]()
    for t, cohort in enumerate(cohorts, start):
        server = engine.round(server, cohort, t)
        servers.append(copy_of(server))
        selected.append(engine.traffic.asked)
        states.append(current_states())
    everyone = range(engine.population.num_clients)
    last = start + len(cohorts) - 1
    return Trail(servers, states, engine.personal(server, everyone, last), engine, selected, last)


def federation(
    targets: TargetKind = "classes", arrives: Arrival | None = None, drift: Drift | None = None
) -> Federation:
    """Six clients with 5 to 11 training examples of 12 features and 3 classes, 3 to test on, 2 or 0 to validate on.

    In the place of the classes, 3 numbers or 3 labels.
    """
    rng = np.random.Generator(np.random.PCG64(0))
    centres = rng.normal(size=(CLASSES, FEATURES))

    def examples(n: int) -> Examples:
        y = rng.integers(CLASSES, size=n)
        x = torch.from_numpy(centres[y] + rng.normal(size=(n, FEATURES)))
        if targets == "classes":
            return Examples(x, torch.from_numpy(y), CLASSES)
        numbers = x[:, :CLASSES] - x[:, CLASSES : 2 * CLASSES]
        return Examples(x, numbers if targets == "numbers" else (numbers > 0).double(), CLASSES)

    lists: dict[str, list[range]] = {"train": [], "test": [], "val": []}
    end = 0
    for k, n in enumerate(SIZES):
        for role, count in (("train", n), ("test", 3), ("val", 2 * (k % 2))):
            lists[role].append(range(end, end + count))
            end += count
    parts = {role: Partition.from_lists(rows, name="tiny") for role, rows in lists.items()}
    return Federation(
        train=examples(end),
        partition=parts["train"],
        local_test=parts["test"],
        local_val=parts["val"],
        public=examples(20),
        public_labels=True,
        arrives=arrives,
        drift=drift,
    )


ENGINES: tuple[type[Engine], ...] = (Loop, Stacked, Messages)


# --- parts of subjects


@dataclass(frozen=True, eq=False)
class Poisoned(Population):
    """Population in which the examples of all clients except `client` are NaN."""

    client: int = 0

    def train_batches(self, request: Request, local: Local) -> Batches:
        batches = super().train_batches(request, local)
        return self._poison(batches)

    def held_out_batches(self, clients: Sequence[int], kind: Rows, round: int) -> Batches:
        return self._poison(super().held_out_batches(clients, kind, round))

    def _poison(self, batches: Batches) -> Batches:
        f = self.federation
        own = [p.rows(self.client) for p in (f.partition, f.local_test, f.local_val) if p is not None]
        x = torch.full_like(batches.x, float("nan"))
        rows = torch.from_numpy(np.concatenate(own))
        return dataclasses.replace(batches, x=x.index_copy(0, rows, batches.x[rows]))


@dataclass(frozen=True, eq=False)
class OtherTestRows(Population):
    """Population whose test rows hold other features and other labels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        f = self.federation
        if f.local_test is not None:
            rows = torch.cat([torch.from_numpy(f.local_test.rows(k)) for k in range(f.num_clients)])
            x, y = f.train.x.clone(), f.train.y.clone()
            x[rows] = 7.0 - 3.0 * x[rows]
            y[rows] = 1 - y[rows] if y.is_floating_point() else (y[rows] + 1) % CLASSES
            train = dataclasses.replace(f.train, x=x, y=y)
            object.__setattr__(self, "federation", dataclasses.replace(f, train=train))


@dataclass(frozen=True, eq=False)
class Padded(Population):
    """Population whose training batches have superfluous padding."""

    steps: int = 0
    rows: int = 0

    def train_batches(self, request: Request, local: Local) -> Batches:
        batches = super().train_batches(request, local)
        order, mask = (F.pad(t, (0, self.rows, 0, self.steps)) for t in (batches.order, batches.mask))
        return dataclasses.replace(batches, order=order, mask=mask)


class Recorder(Engine):
    """Engine that records (exchange, client, state, upload) of every answer."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.log: list[tuple[int | str, int, Any, Any]] = []

    def answers(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[tuple[Request, Any, Answer]]:
        for request, states, answer in super().answers(call, clients, send):  # type: ignore[safe-super]
            for i, k in enumerate(request.clients):
                upload = copy_of(tree.take(answer.upload, i))
                self.log.append((call.exchange, k, copy_of(tree.take(states, i)), upload))
            yield request, states, answer


class RecordingLoop(Recorder, Loop):
    pass


class RecordingStacked(Recorder, Stacked):
    pass


def with_settings(algorithm: Algorithm[Any, Any], **settings: Any) -> Algorithm[Any, Any]:
    """Return the algorithm with some settings replaced, without warnings of neutral ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingWarning)
        return dataclasses.replace(algorithm, **settings)
