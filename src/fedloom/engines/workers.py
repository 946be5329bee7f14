"""Engine with a process on each core of one machine, one thread each: for convolutions on a CPU."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection
from multiprocessing.connection import wait
from typing import Any

from fedloom.engines.child import Child
from fedloom.engines.processes import Processes
from fedloom.engines.service import Service
from fedloom.engines.wires import Wires


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Children(dict[int, Child], Wires):
    """Forked processes by number, and the wires to them."""

    def post(self, rank: int, message: bytes) -> None:
        with contextlib.suppress(EOFError):  # `take` raises it
            self[rank].send(message)

    def wait(self, ranks: Collection[int], timeout: float | None) -> list[int]:
        ready = wait([self[rank].pipe for rank in ranks], timeout)
        return [rank for rank in ranks if self[rank].pipe in ready]

    def take(self, rank: int) -> memoryview:
        return self[rank].receive()


class Workers(Processes):
    """Processes that are forked at the first exchange. Data are shared, copied on write. One that dies is replaced."""

    name = "workers"
    uses = Processes.uses | {"workers"}

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.children, self._numbers_made = Children(), itertools.count()

    @property
    def wires(self) -> Wires:
        return self.children

    def idle_processes(self, count: int) -> list[int] | None:
        count = min(self.options.workers or cores(), count)
        if count == 1:
            return None
        while len(self.children) < count:
            self._fork()
        return list(self.children)[:count]

    def replace_process(self, process: int) -> tuple[str, list[int]]:
        why = f"{self.children[process].exit_reason}; lower workers if memory is short"
        self._remove(process)
        return why, [self._fork()]

    def abandon(self, process: int) -> bool:
        self.children[process].process.kill()  # in the middle of its work
        self._remove(process)
        return False

    def _fork(self) -> int:
        self.population.prepare()  # made once, before there are several processes
        number = next(self._numbers_made)
        self.children[number] = Child(Service(self.runtime, trusted=True, bound=self.bound))
        return number

    def _remove(self, process: int) -> None:
        self._newest_broadcast.pop(process, None)
        self.children.pop(process).close()

    def close(self) -> None:
        while self.children:
            self._remove(next(reversed(self.children)))
