"""Rounds of devices that do not wait: who comes is read of what really arrives, and written down before it counts.

Answers are computed from the version of the model that a device was sent, and are a function of it: so a server that
was killed asks again those that were under way, from the same version, and a simulation computes them again.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from fedloom.coordinator.part import Running
from fedloom.core.errors import RankError, SettingError, SettingWarning, warn
from fedloom.core.fold.execution import Execution, executing
from fedloom.core.network_makers import own_defaults
from fedloom.engines.cohort import AskedCohort
from fedloom.engines.engine import Engine
from fedloom.engines.links import Ask, Asked, Question
from fedloom.storage.codec import digest
from fedloom.virtual_time.arrivals_log import NAME, ArrivalsLog, Moment
from fedloom.virtual_time.staleness import Weight
from fedloom.virtual_time.unwaited_versions import Course, Ends, UnderWay, Unwaited, Version
from fedloom.virtual_time.uploads_under_way import ROWS, UploadsUnderWay, kept

LOOK = 0.05  # seconds between two looks for devices that have come
PAUSE = 1.0  # seconds until a device is asked again that has not answered
RETURN = 60.0  # seconds that a device has to come back to a server that goes on


class UnwaitedDevices(Unwaited):
    """Rounds of devices that do not wait for their cohort; each makes a version of the model.

    Args:
        ends: when the model moves, in real seconds.
    """

    def __init__(self, ends: Ends) -> None:
        super().__init__(ends)
        self.link: UploadsOfDevices | None = None

    def course(self, run: Running, places: int) -> Course:
        assert self.link is not None
        self.link.blank = run.engine.init()
        self.link.arrivals = RealArrivals(run, self.ends, places)
        return self.link.arrivals

    def step(self, engine: Engine, server: dict[str, Any], clients: Sequence[int], round: int) -> dict[str, Any]:
        after = super().step(engine, server, clients, round)
        assert self.at is not None
        for one in self.at.left.values():  # what a device that is asked again was sent
            if one.version == round:
                engine.states[engine.keys.row(ROWS, one.place)] = server
        return after


class UploadsOfDevices(UploadsUnderWay):
    """Answers of devices that have come, late ones on the newest model. Its rows are the server's states under way."""

    schedule: UnwaitedDevices

    def __init__(self, schedule: UnwaitedDevices, weight: Weight, *, mixes: bool = False, share: float = 1.0) -> None:
        super().__init__(schedule, weight, mixes=mixes, share=share)
        self.arrivals: RealArrivals | None = None
        schedule.link = self

    def ask(self, question: Question, ask: Ask, clients: Sequence[int]) -> Iterator[Asked]:
        assert self.arrivals is not None
        if self.arrivals.looking:
            raise _Looked(question)
        return self._given(question, self.arrivals, clients)

    def _given(self, question: Question, course: RealArrivals, clients: Sequence[int]) -> Iterator[Asked]:
        at, engine = self._at, question.engine
        for k in at.started:
            engine.traffic.count("down", [k], question.bill.of_request(question.call.sent, (), 1))
        self._note_lost(engine)
        self.schedule.computed = True
        for k in clients:
            asked, since = course.answers.pop(k), at.arrivals[k].version
            if since != at.number:
                asked = self._come(question, k, kept(course.questions[since], asked, mixes=self.mixes))
            request, states, answer = asked
            yield request, states, replace(answer, down=[Counter()])

    def end(self) -> None:
        """Write down where the run has come to."""
        assert self.arrivals is not None
        self.arrivals.end()


class _Looked(Exception):  # noqa: N818  # no error
    """Question that a method asks from a server state."""

    def __init__(self, question: Question) -> None:
        self.question = question


class RealArrivals:
    """Devices that come and go as they do.

    Args:
        run: of which they are the clients.
        ends: when the model moves.
        places: the most clients that are under way.

    Attributes:
        answers: of those who come in the version at hand.
        questions: what clients were asked from each version that one of them is under way from.
        looking: whether it is found out what a method asks.
        pause: seconds until a device is asked again that has not answered.
    """

    pause = PAUSE

    def __init__(self, run: Running, ends: Ends, places: int) -> None:
        self.run, self.ends, self.places = run, ends, places
        self.answers, self.questions, self.looking = dict[int, Asked](), dict[int, Question](), False
        self._asked: dict[int, int] = {}  # versions from which clients were asked in this process, and are under way
        self._early = deque[tuple[int, Any]]()  # what has come, and is of a later version than was gone through again
        self._log: ArrivalsLog | None = None

    @property
    def log(self) -> ArrivalsLog:
        if self._log is None:
            files = self.run.files
            self._log = ArrivalsLog(None if files is None else files.path / NAME)
        return self._log

    @property
    def _requests(self) -> Any:
        return cast(Any, self.run.engine).start_requests()

    def version(self, number: int, under_way: Mapping[int, UnderWay], now: float, order: Iterator[int]) -> Version:
        engine, model = self.run.engine, digest(self.run.server)
        for one in under_way.values():
            if one.version not in self.questions:
                server = engine.states[engine.keys.row(ROWS, one.place)]
                self.questions[one.version] = self._question(server, one.version)
        needed = {number, *(one.version for one in under_way.values())}
        self.questions = {version: asked for version, asked in self.questions.items() if version in needed}
        self.questions[number] = self._question(self.run.server, number)
        since, moment = {k: one.version for k, one in under_way.items()}, self.log.moments.get(number)
        if moment is None or not self._follow(moment, model, dict(since)):
            moment = self._live(number, model, since, order)
            self.log.write(moment)
        return moment.after(under_way, self.places)

    def _question(self, server: Mapping[str, Any], version: int) -> Question:
        """Return what clients are asked from a version of the model."""
        ((_, state),) = server.items()
        (group,) = AskedCohort(self.run.engine, (0,), version).groups
        self.looking = True
        try:
            with own_defaults(), executing(Execution()):
                self.run.engine.algorithm.round(state, group)
        except _Looked as found:
            return found.question
        finally:
            self.looking = False
        raise SettingError(
            f"a method that does not wait asks clients in each round, and {type(self.run.algorithm).__name__} asks "
            f"nobody in round {version + 1}: leave asynchrony out"
        )

    def _start(self, client: int, since: int) -> None:
        engine: Any = self.run.engine
        self._asked[client] = since
        self._requests.start(engine.request(self.questions[since].call, [client], lambda ids: ()))

    def _next(self, seconds: float) -> tuple[int, Any] | None:
        if self._early:
            return self._early.popleft()
        found: tuple[int, Any] | None = self._requests.next(seconds)
        if found is not None and isinstance(found[1], str):
            self._asked.pop(found[0])
        return found

    def _follow(self, moment: Moment, model: str, there: dict[int, int]) -> bool:
        """Have the answers that a version was made of computed again; return whether they are there.

        Those who were lost in it are not asked, and others who were under way are, so that they work meanwhile.
        """
        if moment.model != model:
            warn(
                f"version {moment.version} of the model has other bits than before the server was killed, so its "
                "answers are asked for anew: was something else installed, or are there other threads?",
                SettingWarning,
            )
            return False
        there |= dict.fromkeys(moment.started, moment.version)
        there = {k: since for k, since in there.items() if (k, since) not in moment.lost}
        end, held = time.monotonic() + self._return, dict[int, Asked]()
        again = dict[int, float]()
        while missing := moment.arrivals.keys() - held.keys():
            free = self._requests.free()
            for k in there.keys() - self._asked.keys():
                if k in free and time.monotonic() >= again.get(k, 0.0):
                    self._start(k, there[k])
            if (found := self._next(LOOK)) is not None:
                k, answer = found
                if isinstance(answer, str):
                    again[k] = time.monotonic() + self.pause
                else:
                    held[k] = answer
            elif time.monotonic() > end:
                warn(
                    f"who came in round {moment.version + 1} before the server was killed does not come back "
                    f"({len(missing)} of {len(moment.arrivals)}), so the round is begun anew",
                    SettingWarning,
                )
                break
        taken = moment.arrivals if not missing else ()
        self.answers = {k: held[k] for k in taken}
        for k in taken:
            del self._asked[k]
        self._early.extend((k, answer) for k, answer in held.items() if k not in taken)
        return not missing

    @property
    def _return(self) -> float:
        limit = self.run.engine.options.deadline
        return RETURN if limit is None else limit

    def _live(self, number: int, model: str, there: dict[int, int], order: Iterator[int]) -> Moment:
        """Return what happens until the next version.

        At a moment answers come first, then the model moves if enough of them are there, then clients start in the free
        places. Who has answered, or started from this version, is passed over; so is who was asked and has declined,
        unless nobody else is there.
        """
        begun = {k: since for k, since in self._asked.items() if since == number}  # as a version is begun anew
        there = {**there, **begun}
        started, arrivals, lost = dict.fromkeys(begun), dict[int, int](), dict[tuple[int, int], str]()
        passed, named = {*started}, list[int]()
        size, since_when = self.ends.size, time.monotonic()
        latest = math.inf if self.ends.seconds is None else since_when + self.ends.seconds
        idle, first = math.inf, True  # since when nobody is there, but for those who do not answer
        while True:
            free, now = self._requests.free(), time.monotonic()
            for k in [k for k in there if k not in self._asked]:
                if k in free:
                    self._start(k, there[k])
                elif now > since_when + self._return:
                    lost[k, there.pop(k)] = "lost: it has not come back"
            if first or size is not None or not (there or arrivals):
                for k in self._others(named, order):
                    if len(there) >= self.places:
                        break
                    if k in free and k not in there and k not in arrivals and k not in passed:
                        self._start(k, number)
                        there[k], started[k] = number, None
                        passed.add(k)
                        lost.pop((k, number), None)
            first, now = False, time.monotonic()
            if arrivals and (not there or now >= latest):
                break
            if not there:
                idle = min(idle, now)
                self._wait(idle)
                passed.clear()
                continue
            if (found := self._next(LOOK if now >= latest else min(LOOK, latest - now))) is None:
                continue
            k, answer = found
            since = there.pop(k)
            if isinstance(answer, str):
                lost[k, since] = answer
                continue
            arrivals[k], self.answers[k] = since, answer
            del self._asked[k]
            if len(arrivals) == size:
                break
        return Moment(number, model, tuple(started), arrivals, lost)

    def _others(self, named: list[int], order: Iterator[int]) -> Iterator[int]:
        yield from tuple(named)
        for k in order:
            named.append(k)
            yield k

    def _wait(self, idle: float) -> None:
        """Wait until a device may have come, or can be asked again.

        Raises:
            RankError: none has answered for as long as the server waits.
        """
        if (limit := self._requests.wait) is not None and time.monotonic() >= idle + limit:
            raise RankError(
                f"no device has answered within {limit:g} s: continue with --resume, and start the devices again; the "
                "audit log has the reasons why they left, declined or were refused"
            )
        time.sleep(self.pause)

    def end(self) -> None:
        """Write down where the run has come to."""
        self.log.end(self.run.done, digest(self.run.server))
