"""The setting `clock`: synchronous rounds on a virtual clock, which take as long as the slowest client waited for."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedloom.coordinator.history import Record
from fedloom.coordinator.part import Brief, Part, Running
from fedloom.coordinator.schedule import Schedule
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.engines.links import Asked, Link, Question
from fedloom.evaluate.measure import Measure
from fedloom.virtual_time.clock import Clock
from fedloom.virtual_time.training_costs import Cost, Work, architecture_of, bytes_of, costs_of

_SOON = 1e-6  # seconds
VIRTUAL_SECONDS = Measure(
    "virtual_seconds", "Virtual time", "virtual time",
    "Virtual seconds since the start of the run, by its clock: what clients would take to receive, compute and send.",
    unit="s", better=None, range=(0.0, None),
)  # fmt: skip


class OnTime(Link):
    """Clients that are late or go away are left out, and the seconds of each exchange are added up.

    The server waits for the slowest of those that it asks, but not beyond the deadline; for one that goes away until it
    has gone. An exchange begins when the one before it has ended, and a round likewise, once somebody is there. What is
    known of an exchange before it is computed (`costs`) says whom to ask; seconds are of the bytes that were counted.

    Clients that take 3, 7 and 90 seconds with a deadline of 60: the third is late, and the exchange takes 60.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock, self.costs = clock, dict[str, Cost]()
        self.state = torch.tensor([-1.0, 0.0, 0.0], dtype=torch.float64)  # last round, its start and its end
        self._waits: dict[int, dict[int, float]] = {}  # seconds by exchange and client, of the round at hand
        self._engine: Any = None  # of the round at hand
        self._round, self._start = -1, 0.0
        self._work: tuple[Any, Work] | None = None  # of an engine

    @property
    def now(self) -> float:
        """The virtual seconds at the end of the last round."""
        return float(self.state[2])

    def begins(self, round: int) -> float:
        """Return when a round begins: at the end of the one before, or when the first client is there again.

        A round that is computed again begins when it did.
        """
        last, start, end = self.state.tolist()
        at: float = start if round == last else end
        if (there := self.present(at)).any():
            return at
        return min(self.clock.back(k, at + _SOON) for k in range(len(there)))

    def present(self, at: float) -> npt.NDArray[np.bool_]:
        """Return who is there at a moment and does not leave at once, [N]: rounds end when a client leaves, rounded."""
        there: npt.NDArray[np.bool_] = self.clock.there(at) & self.clock.there(at + _SOON)
        return there

    def comes(self, engine: Any, client: int, round: int) -> float:
        """Return after how many seconds of a round a client would answer for the first time; infinite if it does not.

        Args:
            engine: of the run.
            client: its number.
            round: from 0.
        """
        faults, name = engine.options.faults, engine.population.assignment[client]
        first = next((kind for kind in self.costs if kind.split(" ", 1)[1] == f"0 {name}"), f" 0 {name}")
        seconds = self._seconds(engine, client, round, self._cost_of(first))
        why, _ = self.outcome(client, self.begins(round), seconds)
        fails = faults is not None and faults(round, 0, client) is not None
        return math.inf if why or fails else seconds

    def lost(self, question: Question) -> dict[int, str]:
        engine, round, number = question.engine, question.call.round, int(question.call.exchange)
        if self._engine is None:
            self._engine, self._round, self._start = engine, round, self.begins(round)
        cost, faults, out = self._cost_of(question.kind), engine.options.faults, dict[int, str]()
        if cost.steady:
            there = (k for k in question.clients if faults is None or faults(round, number, k) is None)
            out = self._judged(number, {k: self._seconds(engine, k, round, cost) for k in there})
        return out

    def answers(self, question: Question, answers: Iterator[Asked]) -> Iterator[Asked]:
        engine, counted, known = question.engine, question.engine.traffic, self._cost_of(question.kind)
        before = {k: (counted.down[k], counted.up[k]) for k in question.clients}  # what comes on top are states
        for asked in answers:
            request = asked[0]
            ids, round, took = request.clients, request.call.round, dict[int, float]()
            for k, (down, up) in zip(ids, bytes_of(question, request, asked[2]), strict=True):
                down, up = down + counted.down[k] - before[k][0], up + counted.up[k] - before[k][1]
                took[k] = self._seconds(engine, k, round, replace(known, down=down, up=up))
            late = self._judged(int(request.call.exchange), took)
            engine.lost.update(late)
            if not late:
                yield asked
            elif there := [i for i, k in enumerate(ids) if k not in late]:
                yield _some(asked, there, engine.population.device)

    def end_round(self, clients: Collection[int]) -> None:
        if self._engine is None:
            return  # nobody was asked
        limit = self.clock.deadline
        for failed in self._engine.traffic.failed:
            if limit is not None and failed.reason != "declined":  # who is lost is waited for to the end
                self._waits.setdefault(failed.exchange, {}).setdefault(failed.client, limit)
        end = self._start + math.fsum(max(of.values(), default=0.0) for of in self._waits.values())
        self.state = torch.tensor([float(self._round), self._start, end], dtype=torch.float64)
        self._waits, self._engine = {}, None

    def outcome(self, client: int, at: float, seconds: float) -> tuple[str, float]:
        """Return why a client is not waited for to its end, "" if it is, and how long it is waited for.

        Args:
            client: its number.
            at: when it is asked.
            seconds: that it would take.
        """
        limit = math.inf if self.clock.deadline is None else self.clock.deadline
        stays = self.clock.leaves(client, at) - at
        if stays < min(seconds, limit):
            return f"went away after {stays:.6g} virtual seconds", stays
        if seconds > limit:
            return f"late: {seconds:.6g} virtual seconds, of {limit:g}", limit
        return "", seconds

    def _judged(self, number: int, took: Mapping[int, float]) -> dict[int, str]:
        """Write down how long clients of an exchange are waited for; return those not to their end, and why."""
        at = self._start + sum(max(of.values(), default=0.0) for n, of in sorted(self._waits.items()) if n < number)
        waits, out = self._waits.setdefault(number, {}), dict[int, str]()
        for k, seconds in took.items():
            why, waits[k] = self.outcome(k, at, seconds)
            if why:
                out[k] = why
        return out

    def _cost_of(self, kind: str) -> Cost:
        """Return what an exchange costs; of one that the trial has not seen, a plain training of its architecture."""
        if kind in self.costs:
            return self.costs[kind]
        alike = (cost for other, cost in self.costs.items() if architecture_of(other) == architecture_of(kind))
        return replace(next(alike, Cost(0, 0)), trainings=1.0, beside=0.0, steady=False)

    def _seconds(self, engine: Any, client: int, round: int, cost: Cost) -> float:
        examples, steps, flops = self._work_of(engine).of(client, round, cost)
        return self.clock.seconds(client, round, examples, steps, flops, cost.down, cost.up)

    def _work_of(self, engine: Any) -> Work:
        if self._work is None or self._work[0] is not engine:
            self._work = engine, Work(engine, self.clock.by_flops)
        return self._work[1]


def _some(asked: Asked, places: Sequence[int], device: torch.device) -> Asked:
    """Return what some clients of a stack were asked and have answered."""
    request, states, answer = asked
    index = torch.tensor(places, device=device)
    lead, trained = answer.trained or (0, ())
    return (
        replace(
            request, clients=tuple(request.clients[i] for i in places), keys=tuple(request.keys[i] for i in places),
            accepted=tuple(request.accepted[i] for i in places), scatter=tree.take(request.scatter, index),
        ),
        tree.take(states, index),
        replace(
            answer, upload=tree.take(answer.upload, index), losses=tuple(values[index] for values in answer.losses),
            steps=tuple(tuple(took[i] for i in places) for took in answer.steps),
            after={name: tree.take(found, index) for name, found in answer.after.items()},
            trained=answer.trained and (lead, tree.take(trained, index) if lead else trained),
            up=None if answer.up is None else [answer.up[i] for i in places],
        ),
    )  # fmt: skip


class FirstComers(Schedule):
    """Rounds that ask spares too, and are over when as many clients have answered as the cohort has.

    Bonawitz et al., "Towards Federated Learning at Scale: System Design", MLSys 2019. Who would come later is not
    computed: nothing of it would count.
    """

    def __init__(self, link: OnTime) -> None:
        self.link = link

    def asked(self, run: Running, round: int) -> tuple[list[int], Record]:
        drawn, size = self.drawn(run, round), run.job.trainees.cohort_size
        declined = run.engine.decliners(round, drawn)
        comes = {k: self.link.comes(run.engine, k, round) for k in drawn if k not in declined}
        first = sorted(comes, key=lambda k: (comes[k], k))[:size]
        declined |= {k: f"not among the first {size}" for k in comes if k not in first}
        return [k for k in drawn if k in first], {"declined": {str(k): declined[k] for k in sorted(declined)}}


class VirtualTime(Part):
    """Virtual clock of a run: who is there, who is late, and the virtual seconds so far."""

    columns = (VIRTUAL_SECONDS,)

    def __init__(self, job: Brief) -> None:
        settings = job.settings
        self.clock = Clock.of(settings.clock, settings.seed, job.federation.num_clients)
        self.on_time = OnTime(self.clock)
        self.links = (self.on_time,)
        self.schedule = FirstComers(self.on_time) if settings.spares else None

    @classmethod
    def of(cls, job: Brief) -> VirtualTime | None:
        """Return the part of a run; None where rounds do not wait, which tell of their moments themselves.

        Raises:
            SettingError: the setting names no clock, or is written otherwise.
        """
        return cls(job) if job.settings.asynchrony == "none" else None

    @property
    def state(self) -> Any:
        return {"moments": self.on_time.state, "files": torch.tensor(self.clock.files)}

    @state.setter
    def state(self, kept: Any) -> None:
        self.clock.check_files(int(kept["files"]))
        self.on_time.state = kept["moments"]

    def check(self, job: Any) -> None:
        name, settings = type(job.algorithm).__name__, job.settings
        for forbidden, what, why in (
            (job.federation.train.remote is not None, "devices",
             "simulates what devices take, and these take real time"),
            (job.algorithm.requires.one_place, name, "is of what travels, and all examples are in one place"),
            (job.schedule is not None, f"schedule = {type(job.schedule).__name__}", "counts rounds that it waits for"),
            (settings.partial_sums is not None, f"partial_sums = {settings.partial_sums}", "looks at each answer"),
        ):  # fmt: skip
            if forbidden:
                raise SettingError(f"clock = {settings.clock!r} {why}, got {what}: leave one of them out")
        self.on_time.costs = costs_of(job)
        if self.clock.by_flops and not all(cost.gradient for cost in self.on_time.costs.values()):
            raise SettingError(
                f"clock = {settings.clock!r} counts FLOPs of matrix products and convolutions, and the network has "
                "none: write example= (seconds of an example) in the place of flops="
            )
        self._check_deadline(job)

    def _check_deadline(self, job: Any) -> None:
        """Raise SettingError where nobody could answer in time."""
        limit, work = self.clock.deadline, Work(job, self.clock.by_flops)
        if limit is None or self.clock.jitter:
            return
        for kind, cost in self.on_time.costs.items():
            fastest, name = math.inf, architecture_of(kind)
            for k in (k for k, of in enumerate(job.population.assignment) if of == name):
                fastest = min(fastest, self.clock.seconds(k, 0, *work.of(k, 0, cost), cost.down, cost.up))
                if fastest <= limit:
                    break
            else:
                raise SettingError(
                    f"a clock's deadline leaves somebody the time to answer, got deadline = {limit:g}, and the fastest "
                    f"client needs {fastest:.3g} virtual seconds for {kind.split()[0]}: raise it"
                )

    def absent(self, round: int) -> Collection[int]:
        if not self.clock.comes_and_goes:
            return ()
        absent: list[int] = np.flatnonzero(~self.on_time.present(self.on_time.begins(round))).tolist()
        return absent

    def after(self, run: Running) -> Record:
        return {"virtual_seconds": self.on_time.now}
