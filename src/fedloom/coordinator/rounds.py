"""The run itself: ask a cohort, do the round, ask the parts of the run, log, save; until the last round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

from fedloom.coordinator import descriptions as facts
from fedloom.coordinator.assembly import assemble
from fedloom.coordinator.chance_level import warn_of_ending
from fedloom.coordinator.checkpoint import LOGS, PER_CLIENT, Checkpoint
from fedloom.coordinator.descriptions import plain
from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.history import EVALUATION, History, Record
from fedloom.coordinator.manifest import Manifest
from fedloom.coordinator.part import Running
from fedloom.coordinator.plan import Plan
from fedloom.coordinator.round_record import Clock, of_traffic, peak_rss_mib
from fedloom.coordinator.trained_networks import TrainedNetworks
from fedloom.core import tree
from fedloom.core.errors import SettingError, SettingWarning, StorageError, warn
from fedloom.core.fold.execution import threads
from fedloom.engines.upload_bounds import Norms

SCHEDULE = "schedule"  # its name among what a checkpoint keeps beside the server states
OnHistory = Callable[[History], None]


class Coordinator:
    """Loop over rounds: asks who is in one, has the engine compute it, asks the parts of the run, and writes.

    `files`: of a run that was started before, whose fixed choices are used again. `trains`: whether rounds are computed
    with it, so that it pays to compute frozen fronts first.
    """

    def __init__(self, job: Plan, files: RunDirectory | None = None, *, trains: bool = True) -> None:
        self.job, self.population, self.settings = job, job.population, job.settings
        stored: Mapping[str, Any] = {} if files is None else files.manifest()
        self.assembly = assemble(job, stored, trains=trains)
        self.algorithm, self.engine, self.parts = self.assembly.algorithm, self.assembly.engine, self.assembly.parts
        self.history = History(
            algorithm=type(self.algorithm).__name__, engine=self.engine.name, engine_reason=self.assembly.reason,
            networks=TrainedNetworks(self.algorithm, self.population.models),
        )  # fmt: skip
        self.running = Running(
            job, self.algorithm, self.engine, self.assembly.evaluation, self.history, self.parts.sampler
        )
        self.assembly.schedule.begin(self.running)
        self.described = Manifest(self.assembly, stored.get("start", {}))

    @property
    def state(self) -> tuple[int, dict[str, Any]]:
        """Number of rounds that are done, and the server state after them."""
        return self.running.done, self.running.server

    def threads(self) -> AbstractContextManager[None]:
        """Return a context in which PyTorch has the threads of this run."""
        return threads(self.assembly.num_threads)

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
        checkpoint, run = files.checkpoint(round), self.running
        run.server, beside = self.read(files, checkpoint)
        run.done, run.round = checkpoint.round, max(0, checkpoint.round - 1)
        self.engine.restore(files.checkpoints.clients, checkpoint.clients, budget)
        self.engine.norms = Norms(checkpoint.norms)
        self.engine.durable = checkpoint.round
        self.parts.restore(beside)
        if SCHEDULE in beside:
            self.assembly.schedule.state = beside[SCHEDULE]
        return checkpoint

    def read(self, files: RunDirectory, checkpoint: Checkpoint) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the server states of a checkpoint, and what parts and schedule kept."""
        beside, server = self._beside, self.engine.init()
        saved = files.checkpoints.server(checkpoint, (server, beside) if beside else server)
        return saved if beside else (saved, {})

    @property
    def _beside(self) -> dict[str, Any]:
        """States beside the server's: of parts and the schedule that keep something, by name."""
        kept = self.assembly.schedule.state
        return self.parts.state | ({SCHEDULE: kept} if tree.leaves(kept) else {})

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
        if checkpoint.round == self.settings.rounds and self.parts.lack(files.log(LOGS[0], checkpoint)[0]):
            checkpoint = self._before(checkpoint, files)
        files.resume_from(checkpoint, self.history, self.engine)
        self.history.server, self.history.clients = self.running.server, self.engine.clients

    def _before(self, checkpoint: Checkpoint, files: RunDirectory) -> Checkpoint:
        """Load the checkpoint before one whose round lacks the last evaluation, and return it; that one if none is."""
        earlier = max((t for t in files.checkpoints.rounds() if t < checkpoint.round), default=None)
        remedy = f"it is computed again, from the checkpoint of round {earlier}"
        if earlier is None:
            remedy = "its record goes without, since there is no checkpoint before it to compute it again from"
        warn(
            f"round {checkpoint.round} of the run in {files.path} was not the last when it was done, and the "
            f"global, personal or new clients' models were not evaluated after it: {remedy}",
            SettingWarning,
        )
        return checkpoint if earlier is None else self.restore(files, earlier, self._state_budget)

    def check_rounds(self, done: int, files: RunDirectory) -> None:
        """Raise SettingError if more rounds of the run in `files` are done than are asked for."""
        if done > self.settings.rounds:
            raise SettingError(
                f"round {done} of the run in {files.path} is done, so rounds (--rounds) must be at least {done}, got "
                f"{self.settings.rounds}: set more, or go back to a checkpoint (fedloom resume --at ROUND)"
            )

    # ---- rounds

    def run_round(self) -> tuple[list[int], Record]:
        """Run the next round without asking the parts or writing it; return its clients and its record."""
        clients, _ = self.asked(self.running.done)
        self._compute(clients)
        return clients, plain(of_traffic(self.engine.traffic, clients))

    def asked(self, round: int) -> tuple[list[int], Record]:
        """Return who is asked in a round, from 0, and what its record says of others."""
        return self.assembly.schedule.asked(self.running, round)

    def run(self, files: RunDirectory | None, on_start: OnHistory | None, on_round: OnHistory | None) -> History:
        """Run all rounds that remain, and return what was measured. `files`: where it is written; None: nowhere."""
        run, self.running.files = self.running, files
        if files is None:
            self._write_documents()
            self.states_in(None)
        if on_start is not None:
            on_start(self.history)
        with self.threads(), closing(self.engine):
            self.engine.open()
            begun = bool(run.server)
            run.server = run.server or self.engine.init()
            self.parts.begin(run)
            if not begun:
                self._start()
            elif run.done < self.settings.rounds and not self.parts.lack(self.history.metrics):
                self.history.stopped = self.parts.stop(run)  # else after a round more, which is measured as the last
            while run.done < self.settings.rounds and self.history.stopped is None:
                self._next()
                if on_round is not None:
                    on_round(self.history)
        warn_of_ending(self.history, self.algorithm.local)
        return self.history

    def _start(self) -> None:
        run, clock, record = self.running, Clock(), {"round": 0}
        self.parts.add("after", run, record)
        self.parts.add("due", run, record)
        clock.lap(EVALUATION)
        self._record(record, clock)
        self._save(record)

    def _next(self) -> None:
        run, settings, clock = self.running, self.settings, Clock()
        run.clients, others = self.asked(run.done)
        clock.lap("sample")
        if self.parts.before(run):
            clock.lap("look")
        self._compute(run.clients)
        clock.lap("train")
        record = {"round": run.done, **of_traffic(self.engine.traffic, run.clients), **others}
        self.parts.add("after", run, record)
        last = run.done == settings.rounds
        if run.done % settings.eval_every == 0 or last or self.parts.stop(run, record) is not None:
            self.parts.add("due", run, record)
        clock.lap(EVALUATION)
        self.history.server, self.history.clients = run.server, self.engine.clients
        self.history.stopped = None if last else self.parts.stop(run, record)
        last = last or self.history.stopped is not None
        if last:
            self.parts.add("end", run, record)
            clock.lap("new")
        self._record(record, clock)
        self._save(record, last=last)

    def _compute(self, clients: list[int]) -> None:
        run = self.running
        run.server = self.assembly.schedule.step(self.engine, run.server, clients, run.done)
        run.round, run.done = run.done, run.done + 1

    def _save(self, record: Record, *, last: bool = False) -> None:
        """Write a checkpoint where one is due."""
        run = self.running
        if run.files is None:
            return
        kept = self.parts.keep(run)
        if self.engine.clients_change() or last or run.done % self.settings.checkpoint_every == 0 or run.done == kept:
            beside = self._beside
            run.files.save(run.done, (run.server, beside) if beside else run.server, self.engine, kept)
            for part in self.parts.all:
                part.saved(run)

    def _record(self, metrics: Record, clock: Clock) -> None:
        """Log a round."""
        files, metrics = self.running.files, plain(metrics)  # what is in the file is what is in memory
        timing = {"round": metrics["round"], "seconds": clock.laps, "peak_rss_mib": peak_rss_mib()}
        self.history.metrics.append(metrics)
        self.history.timing.append(timing)
        lines = {"metrics.jsonl": metrics, "timing.jsonl": timing}
        each, self.running.by_client = self.running.by_client, {}
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
        self.history.manifest = {**plain(self.facts()), **self.described.beside()}
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
