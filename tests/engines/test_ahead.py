"""Processes that are sent a request before they are done with the one before: what is lost, late or damaged then."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Collection
from typing import Any

import pytest

from fedloom.algorithms import PFedSD
from fedloom.core.errors import EngineWarning
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.processes import Processes
from fedloom.engines.runtime import Runtime
from fedloom.engines.service import Service
from fedloom.engines.wires import Wires
from fedloom.testing.compare import same
from tiny import federation, mlp

LOCAL = Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.1))
EVERYBODY = range(10)


class Slots(Wires):
    """Two processes that answer in turn, each its oldest message; `dies` and `hangs` with so many messages left."""

    def __init__(self, service: Any) -> None:
        self.services = {process: service() for process in (1, 2)}
        self.waiting: dict[int, deque[bytes]] = {1: deque(), 2: deque()}
        self.most, self.dead, self.hanging = [0, 0], set[int](), set[int]()
        self.kill: int | None = None
        self.harm: int | None = None

    def post(self, rank: int, message: bytes) -> None:
        if self.harm == rank:
            message, self.harm = message[:-1] + bytes([message[-1] ^ 1]), None
        self.waiting[rank].append(message)
        self.most[rank - 1] = max(self.most[rank - 1], len(self.waiting[rank]))

    def wait(self, ranks: Collection[int], timeout: float | None) -> list[int]:
        return [r for r in ranks if r not in self.hanging and (self.waiting[r] or r in self.dead)]

    def take(self, rank: int) -> memoryview:
        if self.kill == rank and len(self.waiting[rank]) == 2:
            self.dead.add(rank)
        if rank in self.dead:
            raise EOFError
        return memoryview(self.services[rank](self.waiting[rank].popleft()))


class Ahead(Processes):
    name = "ahead"
    requests_ahead = 1

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        make = lambda: Service(Runtime(self.population, self.algorithm), trusted=True)  # noqa: E731
        self.slots, self.there = Slots(make), [1, 2]

    @property
    def wires(self) -> Wires:
        return self.slots

    def idle_processes(self, count: int) -> list[int] | None:
        return [process for process in self.there if process not in self._sent][:count]

    def replace_process(self, process: int) -> tuple[str, list[int]]:
        self.there.remove(process)
        return "it was killed", []

    def abandon(self, process: int) -> bool:
        return True


def engines(**settings: Any) -> tuple[Ahead, Loop]:
    people = Population(federation(10), {"net": Model(mlp, name="net")})
    return Ahead(people, PFedSD(local=LOCAL), Options(**settings)), Loop(people, PFedSD(local=LOCAL))


@pytest.mark.slow
def test_one_request_waits_at_each_process() -> None:
    engine, loop = engines()
    same(loop.round(loop.init(), EVERYBODY, 0), engine.round(engine.init(), EVERYBODY, 0), "the bits of the loop")
    assert engine.slots.most == [2, 2]


def test_the_last_go_to_whoever_is_done_first() -> None:
    engine, _ = engines()
    engine.round(engine.init(), range(4), 0)
    assert engine.slots.most == [1, 1]


@pytest.mark.slow
def test_what_a_process_had_not_begun_is_not_blamed() -> None:
    engine, loop = engines()
    engine.slots.kill = 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = engine.round(engine.init(), EVERYBODY, 0)
    assert [w.category for w in caught] == [EngineWarning]
    assert "is asked again: its process died (it was killed" in str(caught[0].message)
    same(loop.round(loop.init(), EVERYBODY, 0), got, "both were asked again, of the other")
    same(dict(loop.states), dict(engine.states), "and nothing is counted twice")


@pytest.mark.slow
def test_all_that_waits_at_a_late_process_is_lost() -> None:
    engine, loop = engines(deadline=0.5)
    engine.slots.hanging.add(2)
    server = engine.round(engine.init(), EVERYBODY, 0)
    lost = {f.client: f.reason for f in engine.traffic.failed}
    assert len(lost) == 2
    assert set(lost.values()) == {"no answer within 0.5 s"}
    loop.options = Options(faults=lambda t, e, k: lost.get(k) if t == 0 else None)
    want = loop.round(loop.init(), EVERYBODY, 0)
    same(want, server, "the loop that loses both")
    engine.slots.hanging.clear()
    engine.options = Options()
    same(loop.round(want, EVERYBODY, 1), engine.round(server, EVERYBODY, 1), "two late answers were dropped")
    assert not engine._sent
    assert engine.slots.most == [2, 2]  # nothing new before both were done


@pytest.mark.slow
@pytest.mark.parametrize("process", [1, 2])
def test_a_request_whose_broadcast_was_lost_with_another_is_sent_again(process: int) -> None:
    engine, loop = engines()
    engine.slots.harm = process
    with pytest.warns(EngineWarning, match="is asked again: a request could not be read"):
        got = engine.round(engine.init(), EVERYBODY, 0)
    same(loop.round(loop.init(), EVERYBODY, 0), got, "the bits of the loop")
