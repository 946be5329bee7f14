"""A job: everything that determines a run, and what can be done with it: run, resume, replay, restore."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.coordinator.directory import RunDirectory, check_free
from fedloom.coordinator.history import History
from fedloom.coordinator.newcomers import NewClients, no_training_rows
from fedloom.coordinator.past import Past, Replay
from fedloom.coordinator.plausible import check_batches_of_one, check_plausible
from fedloom.coordinator.progress import watched
from fedloom.coordinator.rounds import Coordinator, OnHistory
from fedloom.coordinator.sampler import Arriving, DeviceSampler, FixedList
from fedloom.coordinator.settings import RunSettings
from fedloom.core.algorithm import Algorithm
from fedloom.core.batches import Batch
from fedloom.core.errors import SettingError, enough_memory, first_line
from fedloom.core.losses import objective
from fedloom.core.model import Model, NotCopied, own_defaults
from fedloom.core.task import Classification, Hinge, Task, check_padding, check_task, notes_of, right_of
from fedloom.core.types import Params, Weights
from fedloom.data import Federation
from fedloom.engines.engine import Engine
from fedloom.engines.faults import Faults
from fedloom.engines.population import Population
from fedloom.evaluate import classify
from fedloom.wire.communication import only_computes
from fedloom.wire.fleet import Fleet
from fedloom.wire.ranks import Ranks

Models = Model | nn.Module | Callable[[], nn.Module] | Mapping[str, Model | nn.Module | Callable[[], nn.Module]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """Everything that determines a run; the arguments of `run`, which explains them.

    `described`: how the run was asked for, kept as settings.json of its directory. `fleet`: the devices that are its
    clients, whose examples are theirs.
    """

    algorithm: Algorithm[Any, Any]
    federation: Federation
    model: Models
    settings: RunSettings = field(default_factory=RunSettings)
    task: Task = field(default_factory=Classification)
    sampler: DeviceSampler | None = None
    faults: Faults | None = None
    new: NewClients | None = None
    described: Mapping[str, Any] | None = None
    fleet: Fleet | None = None

    def __post_init__(self) -> None:
        federation, settings, algorithm = self.federation, self.settings, self.algorithm
        _check_kinds(self)
        check_task(self.task)
        for name, what in (("sampler", "fedloom.Uniform(seed=0)"), ("faults", "fedloom.Unreliable(lost=0.1)")):
            if (given := getattr(self, name)) is not None and (isinstance(given, type) or not callable(given)):
                raise SettingError(f"{name} must be an object that can be called, such as {what}, got {given!r}")
        if federation.train.y.is_floating_point():
            raise SettingError(
                "labels must be class numbers (integers), got floating-point targets: regression is not supported"
            )
        if settings.cohort_size > (there := federation.num_clients):
            raise SettingError(
                f"cohort_size = {settings.cohort_size} is larger than the federation of {there} clients; "
                f"set cohort_size <= {there} (--cohort {there} asks all of them)"
            )
        if self.new is not None:
            if algorithm.pooled:
                raise SettingError(
                    f"{type(algorithm).__name__} trains on the examples of all clients, so none can be held out: "
                    f"leave new clients out, got {self.new.clients}"
                )
            self.new.check(federation, settings.cohort_size)
        new = [] if self.new is None else self.new.ids(federation.num_clients)
        no_training_rows(federation, new)
        self._check_list(new)
        if algorithm.pooled and algorithm.personalises:
            raise SettingError(
                f"{type(algorithm).__name__} trains one model for all, which no client can have parts of: "
                "use shared = '*' and buffers = 'average'"
            )
        if settings.target is not None or settings.patience is not None:
            needs = {"val_accuracy": "local_val", "personal_accuracy": "local_test", "train_loss": "partition"}
            part = needs.get(settings.monitor, "test")
            if getattr(federation, part) is None:
                raise SettingError(
                    f"monitor = {settings.monitor!r} is measured on {part}, which this federation lacks: "
                    "hold examples out (val_fraction, test_fraction, test), or monitor something else"
                )

    def _check_list(self, new: Sequence[int]) -> None:
        """Raise SettingError where the sampler is a list that does not fit. `new`: clients that are."""
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
    def population(self) -> Population:
        return Population(
            federation=self.federation,
            models=_models(self.model),
            task=self.task,
            seed=self.settings.seed,
            device=torch.device(self.settings.device),
            dtype=getattr(torch, self.settings.dtype),
        )

    def check(self) -> None:
        """Raise SettingError where algorithm, model, task and data do not fit; nothing is trained or written.

        What was found fit is not tried again: a comparison checks all its jobs before it runs the first.
        """
        _ = self._fits  # kept by the property

    @functools.cached_property
    def _fits(self) -> bool:
        only_computes(self.settings.engine)  # or was not launched as it must be
        if self.settings.engine == "devices" and self.fleet is None:
            raise SettingError("engine = 'devices' is for devices that join: fedloom serve --settings FILE")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whoever runs it is warned then
            alone = [name for name, model in self.population.models.items() if not _try(model, self)]
            Coordinator(self).engine.init()
        check_plausible(self.federation, self.population.models.values(), self.task)
        if alone:
            sizes = self.population.sizes[np.isin(self.population.assignment, alone)]
            check_batches_of_one(sizes.sum(keepdims=True) if self.algorithm.pooled else sizes, self.algorithm.local)
        return True

    @enough_memory()
    def run(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        resume: bool = False,
        at: int | None = None,
        on_start: OnHistory | None = None,
        on_round: OnHistory | None = None,
    ) -> History:
        """Start the run, or go on with the one in `directory`; see `run`. `at`: from the checkpoint of this round."""
        _check_watchers(on_start=on_start, on_round=on_round)
        if only_computes(self.settings.engine):
            return self._serve()
        if directory is None:
            if resume:
                raise SettingError("a run can be resumed from its directory only: give directory")
            self.check()
            return Coordinator(self).go(None, on_start, on_round)
        files = RunDirectory(directory, self.settings.keep_every)
        if not (resume and files.begun):
            check_free(directory)
        self.check()
        with files:
            begun = resume and files.begun
            if not begun:
                check_free(directory)  # since the first look, another process may have been here
            coordinator = Coordinator(self, files if begun else None)
            if begun:
                files.compare(coordinator.facts())
            coordinator.states_in(files.checkpoints.clients)
            if begun and (files.checkpoints.rounds() or at is not None):
                coordinator.go_on(files, at)
                files.update(coordinator.documents())
            else:
                files.begin(coordinator.documents())
            return coordinator.go(files, on_start, on_round)

    def _serve(self) -> History:
        """At a rank that computes clients: until the run is over, of which it has no numbers."""
        self.check()
        coordinator = Coordinator(self)
        assert isinstance(coordinator.engine, Ranks)
        coordinator.engine.serve()
        return coordinator.history

    @enough_memory()
    def branch(
        self, source: str | os.PathLike[str], directory: str | os.PathLike[str], *, at: int | None = None
    ) -> int:
        """Make `directory` that of a run which begins as the one in `source`, and go on there with this algorithm.

        Rounds up to the newest checkpoint of `source`, or that of round `at`, are taken over with their states and
        records; `run` with `resume` computes the others. Algorithm and hyper-parameters may be other ones from there
        on, if they keep the same states. Returns how many rounds were taken over.

        Raises:
            SettingError: there is a run in `directory`, or more than the algorithm differs.
            StorageError: a file cannot be written, there is no such checkpoint, it is damaged, or of other states.
        """
        check_free(directory)
        self.check()
        files = RunDirectory(source)
        coordinator = Coordinator(self, files)
        files.compare(coordinator.facts(), branch=True)
        checkpoint = coordinator.restore(files, at, budget=0)  # what does not fit this algorithm shows here
        for client in checkpoint.clients:
            _ = coordinator.engine.states[client]
        files.branch(checkpoint, Path(directory), coordinator.documents())
        return checkpoint.round

    @enough_memory()
    def replay(self, directory: str | os.PathLike[str], round: int) -> Replay:
        """Compute a past round of the run in `directory` again, from the nearest checkpoint before it.

        Raises:
            SettingError: there is no such round, or the run in `directory` is another one.
            StorageError: a file of the run is damaged.
        """
        return Past(self, directory).replay(round)

    @enough_memory()
    def restore(self, directory: str | os.PathLike[str], round: int | None = None) -> Restored:
        """The state of the run in `directory` after a round that has a checkpoint (default: the newest).

        Raises:
            SettingError: the run in `directory` is another one.
            StorageError: there is no such checkpoint, or it is damaged.
        """
        files = RunDirectory(directory)
        coordinator = Coordinator(self, files)
        files.compare(coordinator.facts())
        coordinator.restore(files, round)
        return Restored(*coordinator.state, coordinator.engine)


@dataclass(frozen=True)
class Restored:
    """A run as a checkpoint has it."""

    round: int
    server: dict[str, Any]  # by architecture, "" where the algorithm mixes them
    engine: Engine

    def global_weights(self) -> dict[str, Weights]:
        """The global model of each architecture; empty where the algorithm has none."""
        return self.engine.algorithm.global_models(self.server, self.engine.population.models)

    def personal_weights(self, client: int) -> Weights:
        """The model by which a client is judged.

        Raises:
            SettingError: there is no such client, or the algorithm has no model for it.
        """
        n = self.engine.population.num_clients
        if not 0 <= client < n:
            raise SettingError(f"client must be in 0..{n - 1}, got {client}")
        found = self.engine.personal(self.server, [client], max(0, self.round - 1))
        if client not in found:
            raise SettingError(
                f"{type(self.engine.algorithm).__name__} has no model by which client {client} is judged after round "
                f"{self.round}: take the global one"
            )
        return found[client]


def run(
    algorithm: Algorithm[Any, Any],
    federation: Federation,
    model: Models,
    settings: RunSettings | None = None,
    *,
    task: Task | None = None,
    sampler: DeviceSampler | None = None,
    faults: Faults | None = None,
    new: NewClients | None = None,
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_start: OnHistory | None = None,
    on_round: OnHistory | None = None,
    progress: bool | None = None,
) -> History:
    """Train `model` on `federation` with `algorithm` and return what was measured.

    `model`: a module (its weights are the start), a function that makes one (its weights then follow the seed), or a
    mapping of names to several architectures, given to the clients in turn. `sampler`: who is asked (default: uniform).
    `faults`: who does not answer (default: nobody). `new`: clients that are held out from training, or join late, and
    are judged in the end. `directory`: where settings, logs and checkpoints go; it must not
    hold a run yet, unless `resume`: then the run that it holds goes on from its newest checkpoint, bit for bit.
    `on_start` is called once, when the engine is chosen and nothing is measured yet, `on_round` after every round.
    `progress`: show round, accuracy and time left; None: where a person looks, on a terminal or in a notebook.

    Raises:
        SettingError: settings contradict each other or the federation, `directory` holds a run, or another one.
        StorageError: a file cannot be written, or one of the run is damaged; checkpoints on disk stay as they are.
        ShortageError: there is not enough memory; says what to lower.
        ValueError: `sampler` names a client twice, or one that does not exist.
        ClientError: the code of a client failed; names the client, the round and the batch.
        NonFiniteError: a loss or an upload is not finite (a ClientError), unless `on_nonfinite` is "refuse".
    """
    settings = RunSettings() if settings is None else settings
    job = Job(
        algorithm=algorithm,
        federation=federation,
        model=model,
        settings=settings,
        task=task or Classification(),
        sampler=sampler,
        faults=faults,
        new=new,
    )
    _check_watchers(on_round=on_round)
    with watched(type(algorithm).__name__, settings.rounds, progress) as shown:

        def each(history: History) -> None:
            for watcher in (shown, on_round):
                if watcher is not None:
                    watcher(history)

        return job.run(directory, resume=resume, on_start=on_start, on_round=each)


@own_defaults()
def _try(model: Model, job: Job) -> bool:
    """Raise SettingError unless a model takes one example of each class, and the task its answers; in training too.

    Nor where rows of padding behind these move the task's loss, or where the algorithm compares more logits than these.
    Returns whether BatchNorm's running statistics are measured on one example alone: of one value there is no variance.
    """
    task, train = job.task, job.federation.train
    first = np.unique(train.y.cpu().numpy(), return_index=True)[1]
    chosen, weights, how = train.select(first), model.init(0), ""
    two = train.select(first[[0, -1]])
    try:
        classify(model, weights, task, chosen)
        x, pair = (e.normalise(e.x, torch.float32) for e in (chosen, two))
        model.check_randomness(weights, pair)
        model.check_parameters(weights, x)
        with torch.no_grad():
            logits = model(weights, x)
            check_padding(task, logits, x, chosen.y)
            how, each = "of one example, ", logits.shape[1:]
            right_of(task, _checked(model(weights, pair[:1]), task, 1, each), two.y[:1])
        how = "in training, "
        of_two = _measured(model, weights, task, pair, two.y, each)
        how = "in training, of one example, "
        of_one = _measured(model, weights, task, pair[:1], two.y[:1], each)
    except SettingError:
        raise
    except Exception as error:
        shape = " x ".join(map(str, train.shape))
        if NotCopied.__name__ in str(error):
            raise SettingError(
                f"the forward of a network computes what follows its weights anew, and that of {model.name} reads what "
                f"was computed when it was made, {', '.join(model.computed)} ({first_line(error)}): compute it in "
                "forward, or register as a buffer what must stay"
            ) from error
        raise SettingError(
            f"model {model.name} and task {type(task).__name__} do not take the data, {shape} in {train.num_classes} "
            f"classes: {how}{type(error).__name__}: {error}; a model maps a batch of such examples to logits "
            f"(N, {train.num_classes})"
        ) from error
    count, fewest = logits[0].numel(), job.algorithm.fewest_logits
    if count < fewest:
        raise SettingError(
            f"{type(job.algorithm).__name__} compares what models say of an example in at least {fewest} logits, and "
            f"model {model.name} has {count}: with so few the comparison is the same whatever they say, and "
            "nothing would be learnt by it; take a network with a logit for each of more classes and a task for it, or "
            "an algorithm that compares none, such as FedAvg"
        )
    return of_two <= of_one


def _measured(model: Model, weights: Weights, task: Task, x: Tensor, y: Tensor, each: torch.Size) -> set[str]:
    """Take the gradient of a training step on these examples, and return the counters of BatchNorm that it moves.

    `each`: the shape of an example's logits in evaluation.
    """
    real = torch.ones_like(y, dtype=torch.bool)
    batch = Batch(x=x, y=y, mask=real, key=y[0] * 0, notes=notes_of(task, y, x.dtype), full=True)
    params = Params({n: p.detach().requires_grad_() for n, p in weights.params.items()})
    logits, buffers = model.train(Weights(params, weights.buffers), batch)
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits must be a tensor, not {type(logits).__name__}")
    value = objective(task, logits, batch, params)
    _checked(logits, task, len(x), each)
    torch.autograd.grad(value, list(params.values()), allow_unused=True)
    counters = {n: b for n, b in buffers.items() if n.endswith("num_batches_tracked")}
    return {n for n, b in counters.items() if not torch.equal(b, weights.buffers[n])}


def _checked(logits: Tensor, task: Task, count: int, each: torch.Size) -> Tensor:
    """The same logits, where they have the shape that those of others let expect; other tasks may want another."""
    if isinstance(task, Classification | Hinge) and logits.shape != (count, *each):
        raise TypeError(f"logits must be {[count, *each]} as elsewhere, got {list(logits.shape)}")
    return logits


def _check_kinds(job: Job) -> None:
    """Refuse arguments that are mistaken for others, with the way from what was given to what is meant."""
    wanted: dict[str, tuple[type, str]] = {
        "algorithm": (Algorithm, "an algorithm such as fedloom.FedAvg()"),
        "federation": (Federation, "a federation: fedloom.federate(examples, fedloom.iid(examples.y, 10, seed=0))"),
        "settings": (RunSettings, "fedloom.RunSettings(rounds=30, ...)"),
    }
    for name, (kind, what) in wanted.items():
        if not isinstance(given := getattr(job, name), kind):
            called = isinstance(given, type) and issubclass(given, kind)
            remedy = f"make one, {given.__name__}()" if called else f"pass {what}"
            raise SettingError(f"{name} must be a fedloom.{kind.__name__}, got {_said(given)}: {remedy}")
    if job.new is not None and not isinstance(job.new, NewClients):
        raise SettingError(f"new must be a fedloom.NewClients, got {_said(job.new)}: pass fedloom.NewClients(5)")


def _check_watchers(**watchers: object) -> None:
    """Refuse what cannot be called before a round is computed."""
    for name, given in watchers.items():
        if given is not None and not callable(given):
            raise SettingError(
                f"{name} must be a function of the history, got {_said(given)}: pass one that calls all of them"
            )


def _said(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__} {value!r}"[:80]


def _models(model: Models) -> dict[str, Model]:
    given = model if isinstance(model, Mapping) else {"": model}
    for m in given.values():
        if not isinstance(m, Model) and not callable(m):
            raise SettingError(
                f"model must be a module or a function that makes one, got {_said(m)}: pass lambda: "
                "fedloom.models.build('mlp', examples.shape, examples.num_classes), or a module of your own"
            )
    made = {n: m if isinstance(m, Model) else Model(m, name=n or None) for n, m in given.items()}
    return {n or m.name: m for n, m in made.items()}
