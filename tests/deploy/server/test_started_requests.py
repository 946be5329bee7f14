"""Requests that are sent at once, and whose answers are taken as they come."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import fedloom as fl
from arriving import Arriving
from fedloom.core.errors import SettingError
from fedloom.deploy.server.devices import Devices
from fedloom.deploy.server.fleet import NoResponse
from fedloom.deploy.server.started_requests import StartedRequests
from fedloom.engines.engine_options import Options
from fedloom.engines.message import Call
from tiny import LOCAL


class Asking:
    """The engine of some devices, and what it asks them."""

    def __init__(self, folder: Path, algorithm: Any = None, **more: Any) -> None:
        self.ours = Arriving(folder, algorithm or fl.FedAvg(local=LOCAL), (), **more)
        job = self.ours.job()
        self.engine = Devices(job.population, job.algorithm, Options(deadline=more.get("deadline")))
        self.engine.fleet = self.ours.fleet
        self.requests = self.engine.start_requests()
        ((_, self.state),) = self.engine.init().items()

    def start(self, client: int, version: int = 0) -> None:
        call = Call("local_update", (self.state,), version, 0, 0.1)
        self.requests.start(self.engine.request(call, [client], lambda ids: ()))

    def take(self, seconds: float = 1.0) -> Any:
        return self.requests.next(seconds)


def test_answers_wait_until_they_are_taken(tmp_path: Path) -> None:
    """Neither is one dropped because devices are admitted, nor is its device asked something else meanwhile."""
    asking = Asking(tmp_path)
    asking.start(2)
    asking.start(0)
    fleet, names = asking.ours.fleet, asking.ours.registry.names
    assert asking.requests.free() == {1, 3, 4, 5}
    asking.ours.wires.answers[3].append(asking.ours.wires.held.pop(2))
    fleet.admit_those_there()
    assert [answer for _, answer in fleet.ask({names[2]: b"x"}.items(), 0.0)] == [
        NoResponse("it is still busy with an earlier request")
    ]
    client, (request, _, answer) = asking.take()
    assert (client, request.clients) == (2, (2,))
    assert asking.requests.idle([0, 1, 2]) == [1, 2]
    assert answer.steps
    assert asking.take()[0] == 0
    assert asking.take(0.0) is None


@pytest.mark.slow
def test_a_place_is_given_away_after_the_deadline_and_the_late_answer_dropped(tmp_path: Path) -> None:
    asking = Asking(tmp_path, deadline=0.05)
    asking.ours.wires.silent = {3}
    asking.start(3)
    time.sleep(0.06)
    assert asking.take() == (3, "lost: no answer within 0.05 s")
    assert 3 not in asking.requests.free()
    asking.ours.wires.answers[4].append(asking.ours.wires.withheld.pop(3))
    assert 3 in asking.requests.free()
    log = (tmp_path / "audit.jsonl").read_text()
    assert log.count("its answer came after the deadline, and was dropped") == 1


def test_what_may_not_be_is_refused_and_who_is_gone_can_come_again(tmp_path: Path) -> None:
    asking = Asking(tmp_path)
    asking.ours.wires.gone = {1}
    asking.start(0)
    asking.start(1)
    asking.ours.wires.held[0] = asking.ours.wires.held[0][:-1] + b"x"
    found = dict([asking.take(), asking.take()])
    assert found[0].startswith("refused: ")
    assert found[1] == "lost: its connection ended, or it sent too much"
    assert asking.requests.free() == {0, 2, 3, 4, 5}


@pytest.mark.slow
def test_a_device_keeps_the_state_that_the_newest_checkpoint_names(tmp_path: Path) -> None:
    """A state of version 2 that was accepted in round 6 is in no checkpoint before the one after that."""
    asking = Asking(tmp_path, fl.PFedSD(local=LOCAL))
    engine = asking.engine
    assert asking.requests.durable(None, 0) == 0
    engine.durable = 5
    engine.states.accepted[0] = (6, 0)
    assert asking.requests.durable((2, 0), 0) == 0
    engine.durable = 7
    assert asking.requests.durable((2, 0), 0) == 3
    engine.states.accepted.clear()  # a server that goes on has what a checkpoint names
    assert asking.requests.durable((2, 0), 0) == 3


def test_rounds_that_do_not_wait_need_connections(tmp_path: Path) -> None:
    asking = Asking(tmp_path)
    other: Any = object()
    with pytest.raises(
        SettingError, match="rounds that do not wait need devices with connections, and object has none"
    ):
        StartedRequests(asking.engine, other)
