"""Answers that are lost, late, repeated, damaged or absurd, in engines whose clients other processes compute."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest
import torch

from fedloom.algorithms import PFedSD
from fedloom.core.errors import EngineWarning
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.processes import Processes
from fedloom.engines.service import Service
from fedloom.engines.stacked import Stacked
from fedloom.engines.wires import Wires
from fedloom.engines.workers import Workers
from fedloom.testing.compare import same
from fedloom.testing.in_process import InProcess
from tampering import HARMLESS, HARMS, tampering_engine
from tiny import LOCAL, mlp, population

BOUND = "refuse:sent:100"
ASKED_AGAIN = r"client (1|4) is asked again: the message was damaged on its way \(a network that does so often cannot"


class Here(Processes):
    """Three processes that are not: their ends of the wires are in this one."""

    name = "here"
    ranks = (1, 2, 3)

    @cached_property
    def wires(self) -> Wires:
        return InProcess([Service(self.runtime, trusted=True) for _ in self.ranks])

    def idle_processes(self, count: int) -> list[int]:
        return [rank for rank in self.ranks if rank not in self._sent][:count]

    def replace_process(self, process: int) -> tuple[str, list[int]]:
        raise AssertionError("none dies")

    def abandon(self, process: int) -> bool:
        return True


def compared(engine: Processes) -> dict[tuple[int, int], str]:
    """Run three rounds: the bits of the loop that loses whom the engine has lost, who are returned."""
    server, lost, rounds = engine.init(), dict[tuple[int, int], str](), []
    for t in range(3):
        server = engine.round(server, range(6), t)
        lost.update({(t, f.client): f.reason for f in engine.traffic.failed})
        rounds.append(server)
    loop = Loop(engine.population, engine.algorithm, Options(faults=lambda t, e, k: lost.get((t, k))))
    want = loop.init()
    for t in range(3):
        want = loop.round(want, range(6), t)
        same(want, rounds[t], f"round {t}")
    same(dict(sorted(loop.states.items())), dict(sorted(engine.states.items())), "the states of clients")
    engine.close()
    return lost


@pytest.mark.some(1)
@pytest.mark.parametrize("harm", [harm for harm in HARMS if harm != "forged"])  # no token, so nobody lacks it
def test_what_does_not_count_changes_nothing(harm: str) -> None:
    plan = lambda t, e, k: harm if t == 1 and k in (1, 4) else None  # noqa: E731
    settings: Any = {"deadline": 0.3, "bound": BOUND, "on_nonfinite": "refuse"}
    engine = tampering_engine(Here, plan)(population(mlp), PFedSD(local=LOCAL), Options(**settings))
    if harm == "corrupted":  # each time that it is asked
        with pytest.warns(EngineWarning, match=ASKED_AGAIN), pytest.raises(Exception, match="asked 3 times in vain"):
            compared(engine)
        return
    lost = compared(engine)
    gone = {k: why for (t, k), why in lost.items() if t == 1}
    assert {t for t, _ in lost} <= {1}
    if harm in HARMLESS:
        assert not gone
    elif harm in ("lost", "slow", "replayed", "swapped"):
        assert {1, 4} <= gone.keys()  # and whoever was not begun in time
        assert set(gone.values()) == {"no answer within 0.3 s"}
    else:
        assert gone.keys() == {1, 4}
        assert all("the upload is not finite" in why or "the upload has a norm of" in why for why in gone.values())


def once(harms: dict[tuple[int, int], str]) -> Callable[[int, int, int], str | None]:
    """A harm for the first answer of a client in a round."""
    remaining = dict(harms)
    return lambda t, e, k: remaining.pop((t, k), None)


@pytest.mark.slow
def test_a_damaged_answer_is_asked_for_again() -> None:
    engine = tampering_engine(Here, once({(1, 1): "corrupted", (1, 4): "corrupted"}))(
        population(mlp), PFedSD(local=LOCAL)
    )
    with pytest.warns(EngineWarning, match=ASKED_AGAIN):
        assert compared(engine) == {}


@pytest.mark.slow
def test_a_damaged_answer_of_a_stack_is_asked_for_again() -> None:
    engine = tampering_engine(Here, once({(1, 2): "corrupted"}))(population(mlp), PFedSD(local=LOCAL))
    engine.clients_per_request, engine.runtime.stacked = lambda architecture: 2, True
    stack = Stacked(engine.population, engine.algorithm, Options(chunk=2))
    first = engine.round(engine.init(), (0, 3, 4), 0)  # so that some have a state and some have none
    same(stack.round(stack.init(), (0, 3, 4), 0), first, "the bits of a stack")
    with pytest.warns(EngineWarning, match="clients 2, 3 are asked again: the message was damaged"):
        second = engine.round(first, range(6), 1)
    same(stack.round(first, range(6), 1), second, "and again")
    same(dict(sorted(stack.states.items())), dict(sorted(engine.states.items())), "the states of clients")


def test_a_stack_that_is_late_is_lost_whole() -> None:
    plan = lambda t, e, k: "lost" if k == 2 else None  # noqa: E731
    engine = tampering_engine(Here, plan)(population(mlp), PFedSD(local=LOCAL), Options(deadline=0.2))
    engine.clients_per_request, engine.runtime.stacked = lambda architecture: 2, True
    engine.round(engine.init(), range(6), 0)
    assert {2, 3} <= {f.client for f in engine.traffic.failed}
    assert len(engine.traffic.failed) % 2 == 0


@pytest.mark.slow
class Alone(Here):
    """One such process, so that nobody else has what it lacks."""

    ranks = (1,)


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", [Here, Alone])
def test_a_request_that_could_not_be_read_is_sent_again(kind: type[Here]) -> None:
    engine = kind(population(mlp), PFedSD(local=LOCAL))
    sound, spoilt = engine.wires.post, [True]

    def post(rank: int, message: bytes) -> None:
        sound(rank, message[:-1] + bytes([message[-1] ^ spoilt.pop()]) if spoilt else message)

    engine.wires.post = post  # type: ignore[method-assign]
    with pytest.warns(EngineWarning, match="client . is asked again: a request could not be read"):
        assert compared(engine) == {}


@pytest.mark.slow
def test_workers_are_tampered_with_alike() -> None:
    """Each harm in turn, in processes that are some."""
    harms = {(1, 0): "duplicated", (1, 3): "reordered", (1, 5): "corrupted", (2, 1): "malicious", (2, 3): "absurd"}
    kind = tampering_engine(Workers, once(harms))
    people = population(mlp)
    engine = kind(people, PFedSD(local=LOCAL), Options(workers=2, bound=BOUND, on_nonfinite="refuse"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lost = compared(engine)
    torch.set_num_threads(threads)
    assert [str(w.message)[:23] for w in caught] == ["client 5 is asked again"]
    assert lost.keys() == {(2, 1), (2, 3)}
