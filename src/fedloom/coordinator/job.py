"""A job: everything that determines a run, and what can be done with it: run, resume, replay, restore."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedloom.coordinator.data_advice import check_batches_of_one, check_plausible
from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.engine_choice import warn_of_slow_bf16
from fedloom.coordinator.history import History
from fedloom.coordinator.newcomers import NewClients
from fedloom.coordinator.part import Part
from fedloom.coordinator.plan import Models, Plan, describe
from fedloom.coordinator.replay import Replay, RoundReplay
from fedloom.coordinator.rounds import Coordinator, OnHistory
from fedloom.coordinator.run_folders import check_free
from fedloom.coordinator.sampler import DeviceSampler
from fedloom.coordinator.schedule import Schedule
from fedloom.coordinator.settings import RunSettings
from fedloom.coordinator.trial_pass import try_model
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import SettingError, SettingWarning, enough_memory, warn
from fedloom.core.task import Task
from fedloom.core.types import Weights
from fedloom.data import Federation
from fedloom.engines.attacks import Attack
from fedloom.engines.by_name import engine_named, only_computes
from fedloom.engines.engine import Engine
from fedloom.engines.faults import Faults
from fedloom.storage.files import path_of
from fedloom.tasks import Classification
from fedloom.wording import some_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Job(Plan):
    """A plan, and what can be done with it: check, run, resume, branch, replay, restore."""

    def check(self) -> None:
        """Raise SettingError where algorithm, model, task and data do not fit; nothing is trained or written.

        What was found fit is not tried again: a comparison checks all its jobs before it runs the first.
        """
        _ = self._fits  # kept by the property

    @functools.cached_property
    def _fits(self) -> bool:
        only_computes(engine := self.settings.engine)  # or was not launched as it must be
        if engine != "auto" and engine_named(engine).elsewhere and self.fleet is None:
            raise SettingError(f"engine = {engine!r} is for devices that join: fedloom serve --settings FILE")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whoever runs it is warned then
            tried = {name: try_model(model, self) for name, model in self.population.models.items()}
            trained = (coordinator := Coordinator(self, trains=False)).assembly.trained
            coordinator.engine.init()
        people = self.population
        warn_of_slow_bf16(self.settings.bf16, people.device)
        check_plausible(self.federation, people.models.values(), people.task, people.measures[0], people.dtype)
        for name, found in tried.items():
            _warn_of_attributes(self.population.models[name].name, found.adding_up)
        if alone := [name for name, found in tried.items() if not found.alone]:
            check_batches_of_one(trained.sizes[np.isin(trained.assignment, alone)], self.algorithm.local)
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
        """Start the run, or continue the one in `directory`; see `run`.

        Args:
            directory: where settings, logs and checkpoints go; None: nothing is written.
            resume: continue the run in `directory`.
            at: with `resume`, from the checkpoint of this round; None: from the newest.
            on_start: called once, before anything is measured.
            on_round: called after every round.

        Returns:
            What was measured.

        Raises:
            SettingError: as of `run`, or `at` is given without a run to resume.
            StorageError: as of `run`, or there is no such checkpoint.
        """
        _check_watchers(on_start=on_start, on_round=on_round)
        if only_computes(self.settings.engine):
            return self._serve()
        if directory is None:
            if resume:
                raise SettingError("a run can be resumed from its directory only: give directory")
            if self.settings.keep_best:
                raise SettingError(
                    "keep_best keeps a checkpoint, and a run without a directory has none: give directory (--out DIR), "
                    "or leave keep_best out"
                )
            self.check()
            return Coordinator(self).run(None, on_start, on_round)
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
                _warn_of_kept(files, self.settings.keep_every, at)
                coordinator.resume_from(files, at)
                files.update(coordinator.documents())
                files.warn_unless_whole()
            else:
                files.begin(coordinator.documents())
            return coordinator.run(files, on_start, on_round)

    def check_resume(self, directory: str | os.PathLike[str]) -> None:
        """Check that a run in a directory, if there is one, can be continued by this job; nothing is computed.

        Args:
            directory: of a run.

        Raises:
            SettingError: it has other settings or data, or more rounds.
            StorageError: it is of another format, or damaged.
        """
        files = RunDirectory(directory, self.settings.keep_every)
        if files.begun:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they are said when it is continued
                coordinator = Coordinator(self, files)
                files.compare(coordinator.facts())
            coordinator.check_rounds(max(files.checkpoints.rounds(), default=0), files)

    def _serve(self) -> History:
        """Compute clients at a rank until the run is over; return a history without numbers of it."""
        self.check()
        coordinator = Coordinator(self)
        coordinator.engine.serve()
        return coordinator.history

    @enough_memory()
    def branch(
        self, source: str | os.PathLike[str], directory: str | os.PathLike[str], *, at: int | None = None
    ) -> int:
        """Make `directory` that of a run which begins as the one in `source`, and continues with this algorithm.

        Rounds up to a checkpoint of `source` are taken over with their states and records; `run` with `resume` computes
        the others. Algorithm and hyper-parameters may be other ones from there on, if they keep the same states.

        Args:
            source: directory of the run to begin with.
            directory: directory of the new run.
            at: round of the checkpoint; None: the newest.

        Returns:
            How many rounds were taken over.

        Raises:
            SettingError: there is a run in `directory`, or more than the algorithm differs.
            StorageError: a file cannot be written, there is no such checkpoint, it is damaged, or of other states.
        """
        check_free(directory)
        self.check()
        files = RunDirectory(source)
        coordinator = Coordinator(self, files, trains=False)
        files.compare(coordinator.facts(), branch=True)
        checkpoint = coordinator.restore(files, at, budget=0)  # what does not fit this algorithm shows here
        for client in checkpoint.clients:
            _ = coordinator.engine.states[client]
        files.branch(checkpoint, path_of(directory), coordinator.documents())
        files.warn_unless_whole()
        return checkpoint.round

    @enough_memory()
    def replay(self, directory: str | os.PathLike[str], round: int) -> Replay:
        """Compute a past round of the run in `directory` again, from the nearest checkpoint before it.

        Args:
            directory: directory of the run, which this job must have made.
            round: from 1.

        Returns:
            The round with the states before and after it, and what each client trained.

        Raises:
            SettingError: there is no such round, or the run in `directory` is another one.
            StorageError: a file of the run is damaged.
        """
        return RoundReplay(self, directory).replay(round)

    @enough_memory()
    def restore(self, directory: str | os.PathLike[str], round: int | None = None) -> Restored:
        """Return the state of the run in `directory` after a round that has a checkpoint.

        Args:
            directory: directory of the run, which this job must have made.
            round: of the checkpoint; None: the newest.

        Returns:
            Server and clients as they were, and the models that follow from them.

        Raises:
            SettingError: the run in `directory` is another one.
            StorageError: there is no such checkpoint, or it is damaged.
        """
        files = RunDirectory(directory)
        coordinator = Coordinator(self, files, trains=False)
        files.compare(coordinator.facts())
        coordinator.restore(files, round)
        files.warn_unless_whole()
        return Restored(*coordinator.state, coordinator.engine)


@dataclass(frozen=True)
class Restored:
    """A run as a checkpoint has it."""

    round: int
    server: dict[str, Any]  # by architecture, "" where the algorithm mixes them
    engine: Engine

    def global_weights(self) -> dict[str, Weights]:
        """Return the global model of each architecture; empty where the algorithm has none."""
        return self.engine.algorithm.global_models(self.server, self.engine.population.models)

    def personal_weights(self, client: int) -> Weights:
        """Return the model by which a client is evaluated.

        Raises:
            SettingError: there is no such client, or the algorithm has no model for it.
        """
        n = self.engine.population.num_clients
        if not 0 <= client < n:
            raise SettingError(f"client must be in 0..{n - 1}, got {client}")
        found = self.engine.personal(self.server, [client], max(0, self.round - 1))
        if client not in found:
            raise SettingError(
                f"{type(self.engine.algorithm).__name__} has no model to evaluate client {client} by after round "
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
    attack: Attack | None = None,
    new: NewClients | None = None,
    parts: Sequence[Part] = (),
    schedule: Schedule | None = None,
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_start: OnHistory | None = None,
    on_round: OnHistory | None = None,
    debug: bool = False,
    progress: bool | None = None,
) -> History:
    """Train `model` on `federation` with `algorithm` and return what was measured.

    Args:
        algorithm: the method with its settings.
        federation: examples, partition, and what is held out.
        model: a module (its weights are the start), a function that makes one (its weights then follow the seed), or a
            mapping of names to several architectures, given to the clients in turn.
        settings: rounds, cohort size, seed, engine, ...; None: the defaults.
        task: loss and measures; None: classification.
        sampler: selects the cohorts; None: uniformly at random.
        faults: says which clients do not answer; None: all answer.
        attack: says which clients lie, and how; None: nobody.
        new: clients that are held out from training, or join late, and are evaluated at the end.
        parts: what the run has beside its algorithm: measurements, stops, advice of your own (`Part`).
        schedule: says who is asked when, and from which version of the model; None: rounds that wait for their cohort.
        directory: where settings, logs and checkpoints go. It must not hold a run yet, unless `resume`.
        resume: continue the run in `directory` from its newest checkpoint, bit for bit.
        on_start: called once, when the engine is chosen and nothing is measured yet.
        on_round: called after every round.
        debug: compute the clients one by one in this process, where `breakpoint()` stops: the engine loop, without
            graphs, and without a bar unless `progress` asks for one.
        progress: show round, accuracy and time left; None: on a terminal and in a notebook.

    Returns:
        The records of all rounds, the final states, and how the run was computed.

    Raises:
        SettingError: settings contradict each other or the federation, `directory` holds a run, or another one.
        StorageError: a file cannot be written, or one of the run is damaged; checkpoints on disk stay as they are.
        ShortageError: there is not enough memory; says what to lower.
        ValueError: `sampler` names a client twice, or one that does not exist.
        ClientError: the code of a client failed; names the client, the round and the batch.
        NonFiniteError: a loss or an upload is not finite (a ClientError), unless `on_nonfinite` is "refuse".
    """
    from fedloom.display.progress import optional_progress  # which a job that is run by itself does without

    settings = RunSettings() if settings is None else settings
    if debug:
        settings, progress = settings.for_debugging(), bool(progress)
    job = Job(
        algorithm=algorithm, federation=federation, model=model, settings=settings, task=task or Classification(),
        sampler=sampler, faults=faults, attack=attack, new=new, parts=parts, schedule=schedule,
    )  # fmt: skip
    _check_watchers(on_round=on_round)
    with optional_progress(type(algorithm).__name__, settings.rounds, progress) as shown:

        def each(history: History) -> None:
            for watcher in (None if shown is None else showing(shown), on_round):
                if watcher is not None:
                    watcher(history)

        return job.run(directory, resume=resume, on_start=on_start, on_round=each)


def _check_watchers(**watchers: object) -> None:
    """Raise SettingError for a watcher that cannot be called, before a round is computed."""
    for name, given in watchers.items():
        if given is not None and not callable(given):
            raise SettingError(
                f"{name} must be a function of the history, got {describe(given)}: pass one that calls all [FL-RUN-004]"
            )


def _warn_of_attributes(model: str, names: list[str]) -> None:
    """Warn of attributes that change with each batch: they are put back, so what a later batch would do never comes."""
    if names:
        warn(
            f"what a forward keeps in attributes is put back after each pass, and {model} changes "
            f"{some_of(names, 4, say=repr)} with each batch: register as a buffer what is to go on from batch to batch",
            SettingWarning,
        )


def _warn_of_kept(files: RunDirectory, now: int, at: int | None) -> None:
    """Warn where checkpoints were to stay for good, by `keep_every` before, and this resume will delete them."""
    before, rounds = files.manifest()["run"]["keep_every"], files.checkpoints.rounds()
    older = [t for t in rounds if at is None or t <= at][1:-1]  # the first and the newest stay for now
    if dropped := [t for t in older if t % before == 0 and t % now]:
        warn(
            f"checkpoints of round {some_of(map(str, dropped), 5)} were to be kept for good, by keep_every = {before}, "
            f"and keep_every = {now} deletes them: resume with keep_every = {before} to keep them",
            SettingWarning,
        )


def showing(show: Callable[[int, str], None]) -> Callable[[History], None]:
    """Make an `on_round` of what shows a number of rounds and the newest number in words."""
    return lambda history: show(len(history.metrics) - 1, history.newest_accuracy())
