"""Clients side by side on the cores of one machine, one thread each: for convolutions on a CPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

from fedloom.engines.child import Child
from fedloom.engines.processes import Processes
from fedloom.engines.service import Service


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers(Processes[Child]):
    """Processes that are forked at the first exchange, with all data in memory that is shared until somebody writes.

    One that dies is replaced.
    """

    name = "workers"

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.children: list[Child] = []

    def idle(self, count: int) -> list[Child] | None:
        count = min(self.workers or cores(), count)
        if count == 1:
            return None
        while len(self.children) < count:
            self.children.append(self._fork())
        return self.children[:count]

    def ready(self, peers: Sequence[Child], timeout: float | None) -> Sequence[Child]:
        there = wait([child.pipe for child in peers], timeout)
        return [child for child in peers if child.pipe in there]

    def replaced(self, peer: Child) -> Child:
        self._forget(peer)
        self.children.append(self._fork())
        return self.children[-1]

    def left(self, peer: Child) -> bool:
        peer.process.kill()  # in the middle of its work
        self._forget(peer)
        return False

    def _fork(self) -> Child:
        _ = self.population.prepared  # made once, before there are several processes
        return Child(Service(self.runtime, trusted=True))

    def _forget(self, child: Child) -> None:
        self.children.remove(child)
        self._holds.pop(child, None)
        child.close()

    def close(self) -> None:
        while self.children:
            self._forget(self.children[-1])
