"""The run itself: sample a cohort, do the round, evaluate, log, save; until the last round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.coordinator import facts
from fedloom.coordinator.chance import warn_of_ending
from fedloom.coordinator.checkpoint import LOGS, PER_CLIENT, Checkpoint
from fedloom.coordinator.choose import check_used, choose, choose_compilation
from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.evaluation import Evaluation
from fedloom.coordinator.facts import plain
from fedloom.coordinator.front import settled
from fedloom.coordinator.history import EVALUATION, History, Record
from fedloom.coordinator.job import Plan
from fedloom.coordinator.per_client import PerClient
from fedloom.coordinator.round_record import Clock, evaluated_as_last, nobody_accepted, of_traffic, peak_rss_mib
from fedloom.coordinator.run_facts import RunFacts
from fedloom.coordinator.sampler import SYMMETRIC, Uniform
from fedloom.coordinator.thread_count import choose_threads
from fedloom.core.errors import SettingError, SettingWarning, StorageError, warn
from fedloom.core.fold.execution import threads
from fedloom.engines.attacks import poisoned
from fedloom.engines.engine import Engine
from fedloom.engines.engine_options import Options
from fedloom.engines.faults import FaultsInWords
from fedloom.engines.norms import Norms
from fedloom.evaluate.measure import Measure, monitored

OnHistory = Callable[[History], None]


class Coordinator:
    """Runs a job with an engine, round by round, and directs all that takes part: sampler, engine, evaluation, files.

    `files`: of a run that was started before, whose fixed choices are used again. `trains`: whether rounds are computed
    with it, so that it pays to compute frozen fronts first.
    """

    def __init__(self, job: Plan, files: RunDirectory | None = None, *, trains: bool = True) -> None:
        self.job, self.population, self.settings = job, job.population, job.settings
        self.sampler = job.sampler or Uniform(job.settings.seed)
        population, settings = job.population, job.settings
        who = self.trainees = job.trainees
        self.algorithm, self.cohort_size = who.algorithm, who.cohort_size
        algorithm, trained = who.algorithm, who.population(population)
        self.trained = trained
        stored: Mapping[str, Any] = {} if files is None else files.manifest()
        fixed = stored.get("fixed", {})
        kind, reason = choose(stored.get("engine", settings.engine), trained, algorithm.training, self.cohort_size)
        count = fixed.get("threads", settings.threads)
        self.num_threads = choose_threads(kind, algorithm, trained, self.cohort_size) if count is None else count
        check_used(settings.engine, kind, settings.chunk, settings.workers, settings.deadline)
        form = settings.compilation
        if form == "auto":
            form = fixed.get("compilation") or choose_compilation(
                kind, trained, algorithm.training, self.cohort_size, settings.rounds
            )
        named = {f.name for f in fields(Options)} & {f.name for f in fields(settings)}
        options = Options(
            **{name: getattr(settings, name) for name in named - {"compilation", "aggregator"}},
            compilation=form,
            chunks=fixed.get("chunks"),
            absent=None if job.new is None else partial(job.new.absent, population.num_clients),
            faults=None if who.faults is None else FaultsInWords(who.faults),
            attack=who.attack,
            aggregator=who.aggregator,
            counts_states=settings.stateless,
            evaluates_trained=who.per_client,
        )
        self.engine: Engine = kind(trained, algorithm, options)
        examples, self.fronts = population, dict[str, str]()
        if trains:
            examples, self.fronts = settled(job, self.engine, self.cohort_size, self.num_threads)
        if examples is not population:
            self.trained = who.population(examples)
            chunks = self.engine.fixed().get("chunks")  # of a GPU's free memory, which the outputs now share
            self.engine = kind(self.trained, algorithm, replace(options, chunks=chunks))
        if options.attack is not None and (others := poisoned(self.trained, options.attack)) is not self.trained:
            self.trained, chunks = others, self.engine.fixed().get("chunks")
            self.engine = kind(others, algorithm, replace(options, chunks=chunks))
        self.engine.fleet = job.fleet
        reason = stored.get("engine_reason", reason)
        self.history = History(algorithm=type(algorithm).__name__, engine=kind.name, engine_reason=reason)
        self.evaluation = Evaluation(algorithm, examples, self.engine, settings.panel, job.new)
        self.per_client = PerClient(self.evaluation)
        self.described = RunFacts(
            job, self.sampler, algorithm, self.engine, reason, self.trained, self.fronts, self.num_threads,
            stored.get("start", {}),
        )  # fmt: skip
        self._round, self._asked = 0, False  # rounds that are done; whether one here has asked clients
        self._server: dict[str, Any] = {}  # by architecture; empty before the start

    @property
    def state(self) -> tuple[int, dict[str, Any]]:
        """Number of rounds that are done, and the server state after them."""
        return self._round, self._server

    def threads(self) -> AbstractContextManager[None]:
        """Return a context in which PyTorch has the threads of this run."""
        return threads(self.num_threads)

    def states_in(self, folder: Path | None) -> None:
        """Set the folder to which clients' states beyond the memory budget go."""
        self.engine.keep_states(self._state_budget, folder)

    @property
    def _state_budget(self) -> int | None:
        mib = self.settings.state_memory_mib
        return None if mib is None else int(mib * (1 << 20))

    # ---- resuming

    def load(self, files: RunDirectory, round: int | None, budget: int | None = None) -> Checkpoint:
        """Load the newest checkpoint that is not after a round; nothing on disk changes."""
        checkpoint, like = files.checkpoint(round), self.engine.init()
        self._server, self._round = files.checkpoints.server(checkpoint, like), checkpoint.round
        self.engine.restore(files.checkpoints.clients, checkpoint.clients, budget)
        self.engine.norms = Norms(checkpoint.norms)
        self.engine.durable = checkpoint.round
        return checkpoint

    def restore(self, files: RunDirectory, round: int | None, budget: int | None = None) -> Checkpoint:
        """Load the checkpoint of this round and no other, as `load` does; None: the newest."""
        checkpoint = self.load(files, round, budget)
        if round not in (None, checkpoint.round):
            raise StorageError(
                f"{files.path} has no checkpoint of round {round}, only of "
                f"{', '.join(map(str, files.checkpoints.rounds()))}; others can be replayed"
            )
        return checkpoint

    def resume_from(self, files: RunDirectory, at: int | None) -> None:
        """Resume from the checkpoint of a round, None: from the newest; what was written after it is dropped.

        A round that is the last one now, and was not when it was done, is computed again and evaluated as one.
        """
        checkpoint = self.restore(files, at, self._state_budget)
        self.check_rounds(checkpoint.round, files)
        if checkpoint.round == self.settings.rounds and not self._evaluated(files.log(LOGS[0], checkpoint)[0]):
            checkpoint = self._before(checkpoint, files)
        files.resume_from(checkpoint, self.history, self.engine)
        self._warn_if_best_is_lost(files)
        self.per_client.remember(self.history.per_client)
        self.history.server, self.history.clients = self._server, self.engine.clients

    def _before(self, checkpoint: Checkpoint, files: RunDirectory) -> Checkpoint:
        """Load the checkpoint before one whose round lacks the last evaluation, and return it; that one if none is."""
        earlier = max((t for t in files.checkpoints.rounds() if t < checkpoint.round), default=None)
        remedy = f"it is computed again, from the checkpoint of round {earlier}"
        if earlier is None:
            remedy = "its record goes without, since there is no checkpoint before it to compute it again from"
        warn(
            f"round {checkpoint.round} of the run in {files.path} was not the last when it was done, and personal "
            f"models or new clients were not evaluated after it: {remedy}",
            SettingWarning,
        )
        return checkpoint if earlier is None else self.restore(files, earlier, self._state_budget)

    def _evaluated(self, records: Sequence[Record]) -> bool:
        return evaluated_as_last(records, new=self.job.new is not None)

    def check_rounds(self, done: int, files: RunDirectory) -> None:
        """Raise SettingError if more rounds of the run in `files` are done than are asked for."""
        if done > self.settings.rounds:
            raise SettingError(
                f"round {done} of the run in {files.path} is done, so rounds (--rounds) must be at least {done}, got "
                f"{self.settings.rounds}: set more, or go back to a checkpoint (fedloom resume --at ROUND)"
            )

    # ---- rounds

    def run_round(self) -> tuple[list[int], Record]:
        """Run the next round without evaluating or writing it; return its clients and its record."""
        clients, _ = self.accepting(self._round)
        self._server = self.engine.round(self._server, clients, self._round)
        self._round += 1
        return clients, plain(of_traffic(self.engine.traffic, clients))

    def run(self, files: RunDirectory | None, on_start: OnHistory | None, on_round: OnHistory | None) -> History:
        """Run all rounds that remain, and return what was measured. `files`: where it is written; None: nowhere."""
        if files is None:
            self._write_documents()
            self.states_in(None)
        if on_start is not None:
            on_start(self.history)
        with self.threads(), closing(self.engine):
            self.engine.open()
            if not self._server:
                self._start(files)
            if self._round < self.settings.rounds and self._evaluated(self.history.metrics):
                self.history.stopped = self._reason_to_stop()  # else after a round more, which is evaluated as the last
            while self._round < self.settings.rounds and self.history.stopped is None:
                self._next(files)
                if on_round is not None:
                    on_round(self.history)
        warn_of_ending(self.history, self.algorithm.local)
        return self.history

    def _start(self, files: RunDirectory | None) -> None:
        self._server, clock = self.engine.init(), Clock()
        record: Record = {"round": 0, **self.evaluation.of_threshold(self._server, 0)}
        record.update(self.evaluation.of_global(self._server, [], self.history, 0))
        record.update(self._personal(self._server, 0))
        each = self._each(record, self._server, 0)
        clock.lap(EVALUATION)
        self._record(record, clock, files, each)
        if files is not None:
            files.save(0, self._server, self.engine, self._best)
        self._warn_if_nothing_ends_it(record)

    def _warn_if_nothing_ends_it(self, before: Record) -> None:
        """Say where `target` or `patience` watch a number that no round will have. `before`: the record of round 0."""
        settings, monitor = self.settings, self._watched.name
        asked = [
            f"{name} = {value:g}" for name in ("target", "patience") if (value := getattr(settings, name)) is not None
        ]
        of_global = self._watched.tunable == "test"
        main = self.history.headline.name
        if asked and of_global and "global_loss" not in before:
            warn(
                f"{' and '.join(asked)} can end no run of {type(self.algorithm).__name__}, which has no global model "
                f"here to measure {monitor} on: set monitor to personal_{main} or val_{main} (--monitor), or let it go "
                "to its last round",
                SettingWarning,
            )

    def _next(self, files: RunDirectory | None) -> None:
        settings, clock, t = self.settings, Clock(), self._round
        clients, declined = self.accepting(t)
        clock.lap("sample")
        received = {}
        if self.engine.options.evaluates_trained:
            received = self.per_client.received(self._server, clients, max(0, t - 1))
            clock.lap("look")
        server = self.engine.round(self._server, clients, t)
        clock.lap("train")
        self._warn_if_nothing_is_aggregated(clients)
        done = t + 1
        record: Record = {"round": done, **of_traffic(self.engine.traffic, clients)}
        record |= {"declined": declined} if settings.spares else {}
        record.update(self.evaluation.of_threshold(server, t))
        record.update(self.evaluation.of_global(server, clients, self.history, t))
        record.update(self.evaluation.of_predictions(self.engine.traffic.to_judge, t))
        self._server, self._round = server, done
        each: Record = {}
        if self.engine.options.evaluates_trained:
            each["trained"], means = self.per_client.of_trained(received, self.engine.traffic.after)
            record.update(means)
        if done % settings.eval_every == 0 or done == settings.rounds or self._reason_to_stop(record) is not None:
            record.update(self._personal(server, t))
            each |= self._each(record, server, t)
        clock.lap(EVALUATION)
        self.history.server, self.history.clients = server, self.engine.clients
        self.history.stopped = self._reason_to_stop(record) if done < settings.rounds else None
        last = done == settings.rounds or self.history.stopped is not None
        if last:
            record.update(self.evaluation.of_new(server, t))
            clock.lap("new")
        self._record(record, clock, files, each)
        if files is not None and (last or done % settings.checkpoint_every == 0 or done == self._best):
            files.save(done, server, self.engine, self._best)

    def _warn_if_nothing_is_aggregated(self, clients: list[int]) -> None:
        """Say where an aggregator is set, and the first round that asks clients takes no mean of what they upload."""
        engine, warned = self.engine, self._asked
        self._asked = self._asked or bool(clients)
        if clients and not warned and not engine.took_mean and engine.options.aggregator != "mean":
            warn(
                f"{type(self.algorithm).__name__} took no mean of uploads in its first round, so aggregator = "
                f"{engine.options.aggregator!r} changes nothing: leave it out, or take an algorithm that averages",
                SettingWarning,
            )

    @property
    def _best(self) -> int | None:
        """The round whose checkpoint is kept as the best so far; None where none is. The records alone decide it."""
        return self.history.validated_round if self.settings.keep_best else None

    def _warn_if_best_is_lost(self, files: RunDirectory) -> None:
        """Warn where the best round so far has no checkpoint: it was deleted for a later one, or before it counted."""
        if self._best is not None and self._best not in files.checkpoints.rounds():
            warn(
                f"round {self._best} is the best on validation data so far, and {files.path} has no checkpoint of it, "
                "since the run went back, is a branch, or did not keep the best before: the next round that is kept as "
                "the best is one that is better",
                SettingWarning,
            )

    def _personal(self, server: dict[str, Any], round: int) -> Record:
        """Return what is measured of the personal models after `round`."""
        training = self.evaluation.of_training(server, round) if self.settings.evaluate_training else {}
        return self.evaluation.of_personal(server, round) | training

    def _each(self, record: Record, server: dict[str, Any], round: int) -> Record:
        """Return what is measured of each client after `round`, if that is asked for; add its means to `record`."""
        if not self.trainees.per_client:
            return {}
        each, means = self.per_client.each(server, round)
        record.update(means)
        return {"judged": each}

    def accepting(self, round: int) -> tuple[list[int], Record]:
        """Return who is asked in a round, and who declined. Spares, where there are any, take the places of these."""
        drawn = self.cohort(round)
        if not self.settings.spares:
            return drawn, {}
        declined = self.engine.decliners(round, drawn)
        chosen = [k for k in drawn if k not in declined]
        return chosen[: self.cohort_size], {str(k): declined[k] for k in sorted(declined)}

    def cohort(self, round: int) -> list[int]:
        """Return who is asked in a round; with spares, who may be asked, in the order in which places are given."""
        n = self.trained.num_clients
        sizes, new = self.trained.at(round).partition.sizes, self.job.new
        late = {*self.engine.removed(), *(() if new is None else new.absent(n, round))}
        count = min(self.cohort_size + self.settings.spares, n - len(late))
        if self.algorithm.full_participation:
            return [k for k in range(n) if k not in late]
        sampler = self.trainees.sampler
        if late and type(sampler) in SYMMETRIC:  # of the others alone it draws as many at once
            others = np.setdiff1d(np.arange(n), sorted(late))
            return [int(others[k]) for k in sampler(round, sizes[others], count)]
        clients = [int(k) for k in sampler(round, sizes, count)]
        most = max(count, len(clients))  # a sampler may name more
        if late and len(clients) == count:  # those who have not joined need others in their places
            clients = [int(k) for k in sampler(round, sizes, count + len(late))]
        if len(set(clients)) < len(clients) or not all(0 <= k < n for k in clients):
            raise ValueError(f"a sampler must name distinct clients of 0..{n - 1}, got {clients} in round {round + 1}")
        return [k for k in clients if k not in late][:most]

    def _reason_to_stop(self, new: Record | None = None) -> str | None:
        records = [*self.history.metrics, *([new] if new is not None else [])]
        name = self._watched.name
        values = [m[name] for m in records if m.get(name) is not None and m["round"]]
        if (why := nobody_accepted(records)) is not None:
            return why
        if new is not None and new.get(name) is None:
            return None
        return self.settings.reason_to_stop(values, self._watched)

    @property
    def _watched(self) -> Measure:
        """Measure that `target` and `patience` watch."""
        return monitored(self.settings.monitor, self.job.measures)

    def _record(self, metrics: Record, clock: Clock, files: RunDirectory | None, each: Record) -> None:
        """Log a round. `each`: what was measured of each client."""
        metrics = plain(metrics)  # what is in the file is what is in memory
        timing = {"round": metrics["round"], "seconds": clock.laps, "peak_rss_mib": peak_rss_mib()}
        self.history.metrics.append(metrics)
        self.history.timing.append(timing)
        lines = {"metrics.jsonl": metrics, "timing.jsonl": timing}
        if self.settings.per_client:
            lines[PER_CLIENT] = plain({"round": metrics["round"], **each})
            self.history.per_client.append(lines[PER_CLIENT])
        if files is not None:
            files.record(lines)

    # ---- what is written once

    def documents(self) -> dict[str, Any]:
        """Return what settings.json, federation.json and manifest.json hold, and the files of initial tensors.

        Where there are devices, what devices.json holds too.
        """
        self._write_documents()
        self.history.manifest = {**plain(self.facts()), **self.described.start(), **self.described.chance()}
        registry = self.population.federation.train.remote
        of_devices = {} if registry is None else {"devices": registry}
        told = {name: getattr(self.history, name) for name in ("settings", "federation", "manifest")}
        return told | of_devices | self.described.initial_files()

    def _write_documents(self) -> None:
        """Write into the history what it has without a directory too: the settings, the facts, who holds what."""
        self.history.settings = plain(self.described.settings())
        self.history.federation = facts.who_holds_what(self.population.federation)
        self.history.manifest = plain(self.described.known())

    def facts(self) -> dict[str, Any]:
        """Return what must be the same for a run to go on."""
        return self.described.facts()
