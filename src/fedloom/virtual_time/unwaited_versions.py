"""Events of a run that does not wait: who is under way from which version of the model, who comes, and who starts.

At a moment answers come first, then the model moves if enough of them are there, then clients start in the free places.
So where all are equally fast and the model moves when all have answered, its versions are rounds that wait.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from fedloom.coordinator.history import Record
from fedloom.coordinator.part import Running
from fedloom.coordinator.schedule import Schedule
from fedloom.core.errors import SettingError
from fedloom.engines.engine import Engine


class Times(Protocol):
    """Clock by which clients come."""

    def back(self, client: int, at: float) -> float:
        """Return the moment from which an absent client is there again; `at` itself if it is there."""


Seconds = Callable[[int, int], float]  # of a client and the version that it starts from: of its training


@dataclass(frozen=True)
class UnderWay:
    """A client under way: the version that it started from, the moment at which its answer comes, and its place."""

    version: int
    due: float
    place: int = -1  # where its answer is kept; none before the version is over


@dataclass(frozen=True)
class Version:
    """Events between a version of the model and the next one.

    Attributes:
        number: of the version, from 0.
        arrivals: clients whose answers make the next one, as they were under way.
        started: clients that start from this version, in their order.
        left: who is under way when the next one is there.
        now: the moment of that, in virtual seconds from the start of the run.
        lost: why devices have lost their places without an answer, by client and version from which they started.
    """

    number: int
    arrivals: Mapping[int, UnderWay]
    started: tuple[int, ...]
    left: Mapping[int, UnderWay]
    now: float
    lost: Mapping[tuple[int, int], str] = field(default_factory=dict)

    @property
    def ages(self) -> list[int]:
        """The ages of the answers, in versions."""
        return [self.number - one.version for one in self.arrivals.values()]


@dataclass(frozen=True)
class Ends:
    """Moment at which the model moves: after `size` answers, or after `seconds`."""

    size: int | None = None
    seconds: float | None = None


class Course(Protocol):
    """Source of the events of a run: who comes and who starts."""

    places: int

    def version(self, number: int, under_way: Mapping[int, UnderWay], now: float, order: Iterator[int]) -> Version:
        """Return what happens until the next version, as of `Events`."""


class Events:
    """Clients that come and go by a clock.

    Args:
        ends: when the model moves.
        places: the most clients that are under way.
        clock: of their absence.
        seconds: of their trainings.
    """

    def __init__(self, ends: Ends, places: int, clock: Times, seconds: Seconds) -> None:
        self.ends, self.places, self.clock, self.seconds = ends, places, clock, seconds

    def version(self, number: int, under_way: Mapping[int, UnderWay], now: float, order: Iterator[int]) -> Version:
        """Return what happens until the next version.

        Args:
            number: of this version.
            under_way: when it came about.
            now: the moment of that.
            order: the clients that may start, in the order in which they get places.
        """
        there, arrivals, started, named = dict(under_way), dict[int, UnderWay](), list[int](), list[int]()
        began, size = now, self.ends.size
        latest = math.inf if self.ends.seconds is None else began + self.ends.seconds

        def others() -> Iterator[int]:
            yield from (k for k in tuple(named) if k not in there and k not in arrivals)
            for k in order:
                named.append(k)
                if k not in there and k not in arrivals:
                    yield k

        def start() -> None:
            if len(there) == self.places:
                return
            for k in others():
                if self.clock.back(k, now) <= now:
                    there[k] = UnderWay(number, self.clock.back(k, now + self.seconds(k, number)))
                    started.append(k)
                    if len(there) == self.places:
                        return

        start()
        while size is None or len(arrivals) < size:
            if not there:
                back = min((self.clock.back(k, now) for k in others()), default=math.inf)
                if back == math.inf or (arrivals and size is None):
                    break  # nobody else comes before the next version
                now = back
                start()
                continue
            first = min(one.due for one in there.values())
            if arrivals and first > latest:
                break
            now = max(now, first)
            coming = sorted((one.due, k) for k, one in there.items() if one.due <= now)
            for _, k in coming if size is None else coming[: size - len(arrivals)]:
                arrivals[k] = there.pop(k)
            if size is not None and len(arrivals) < size:
                start()
        if there and latest < math.inf:
            now = max(now, latest)
        held = {one.place for one in there.values()}
        free = (place for place in range(self.places) if place not in held)
        left = {k: one if one.place >= 0 else replace(one, place=next(free)) for k, one in there.items()}
        return Version(number, dict(sorted(arrivals.items())), tuple(started), left, now)


class Unwaited(Schedule, ABC):
    """Rounds that do not wait for their cohort; each makes a version of the model (abstract).

    Args:
        ends: when the model moves.
    """

    def __init__(self, ends: Ends) -> None:
        self.ends = ends
        self.at: Version | None = None  # that was asked for last
        self.computed = False  # whether those who start from it were asked
        self._events: Course | None = None

    def begin(self, run: Running) -> None:
        places = run.job.trainees.cohort_size
        self._events = self.course(run, places)
        self.state = _saved({}, 0.0, places)

    @abstractmethod
    def course(self, run: Running, places: int) -> Course:
        """Return what says who comes and who starts in a run."""

    def asked(self, run: Running, round: int) -> tuple[list[int], Record]:
        assert self._events is not None
        under_way, now = _read(self.state)
        self.computed = False
        self.at = self._events.version(round, under_way, now, self._order(run, round))
        if not self.at.arrivals:
            raise SettingError(
                f"nobody can come in round {round + 1}, at {self.at.now:g} virtual seconds: all clients are absent for "
                "good, or have not joined; let more of them be there (clock)"
            )
        return list(self.at.arrivals), {}

    def taken(self, client: int, round: int) -> int:
        assert self.at is not None
        return self.at.arrivals[client].version

    def step(self, engine: Engine, server: dict[str, Any], clients: Sequence[int], round: int) -> dict[str, Any]:
        assert self._events is not None
        assert self.at is not None
        after = engine.round(server, clients, round)
        if not self.computed:
            raise SettingError(
                f"a method that does not wait asks clients in each round, and {type(engine.algorithm).__name__} asks "
                f"nobody in round {round + 1}: leave asynchrony out"
            )
        self.state = _saved(self.at.left, self.at.now, self._events.places)
        return after

    def _order(self, run: Running, round: int) -> Iterator[int]:
        """Yield the clients that may start from a version.

        The sampler is asked for a cohort first, as for a round that waits; where it is used up, for twice as many,
        until it has named all.
        """
        people, who = run.engine.population, run.job.trainees
        sampler, sizes = run.sampler or who.sampler, people.at(round).partition.sizes
        late, named, count = {*run.engine.absent(round)}, dict[int, None](), min(who.cohort_size, people.num_clients)
        while True:
            for k in map(int, sampler(round, sizes, count)):
                if k not in named:
                    named[k] = None
                    if k not in late:
                        yield k
            if count == people.num_clients:
                return
            count = min(2 * count, people.num_clients)


class UnwaitedByClock(Unwaited):
    """Rounds that do not wait, of clients that come and go by a clock.

    Args:
        ends: when the model moves.
        clock: of clients.
        seconds: makes of a run what says how long its clients train.
    """

    def __init__(self, ends: Ends, clock: Times, seconds: Callable[[Running], Seconds]) -> None:
        super().__init__(ends)
        self.clock, self._seconds = clock, seconds

    def course(self, run: Running, places: int) -> Course:
        return Events(self.ends, places, self.clock, self._seconds(run))


def _saved(under_way: Mapping[int, UnderWay], now: float, places: int) -> dict[str, torch.Tensor]:
    """Return as tensors who is under way, by place; at one that is free the client is -1."""
    each = dict.fromkeys(range(places), (-1, UnderWay(-1, math.inf)))
    each |= {one.place: (k, one) for k, one in under_way.items()}
    return {
        "clients": torch.tensor([k for k, _ in each.values()]),
        "since": torch.tensor([one.version for _, one in each.values()]),
        "due": torch.tensor([one.due for _, one in each.values()], dtype=torch.float64),
        "now": torch.tensor(now, dtype=torch.float64),
    }


def _read(saved: Mapping[str, torch.Tensor]) -> tuple[dict[int, UnderWay], float]:
    """Return who is under way, and the moment."""
    rows = zip(*(saved[name].tolist() for name in ("clients", "since", "due")), strict=True)
    found = {k: UnderWay(since, due, place) for place, (k, since, due) in enumerate(rows) if k >= 0}
    return found, float(saved["now"])
