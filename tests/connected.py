"""Devices that answer with their names, over any transport whose connections are at hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.fleet import NoResponse, RankFleet
from fedloom.ranks.communication import Connections


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.002)


def greeted(connections: Connections, count: int) -> RankFleet:
    """A fleet whose devices answer the first message with their names."""
    fleet = RankFleet(connections, Audit())
    answers = fleet.handshake(b"hello", 20, lambda got: len(got) >= count)
    fleet.ranks = {data.decode(): rank for rank, data in answers.items()}
    fleet.names = tuple(sorted(fleet.ranks))
    return fleet


def named(name: str) -> Callable[[bytes], bytes]:
    return lambda data: name.encode() if data == b"hello" else name.encode() + b" " + data


def asked(fleet: RankFleet, *names: str, deadline: float | None = 20) -> dict[str, Any]:
    answers = fleet.ask(((name, b"request") for name in names), deadline)
    return {name: each if isinstance(each, NoResponse) else bytes(each) for name, each in answers}
