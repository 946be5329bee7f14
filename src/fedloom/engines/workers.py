"""Clients side by side on the cores of one machine, one thread each: for convolutions on a CPU."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any

import torch

from fedloom.core.errors import ClientError
from fedloom.engines.child import Child
from fedloom.engines.engine import Engine, Send
from fedloom.engines.message import Answer, Call, Request
from fedloom.engines.service import Service, answer_of, request_bytes
from fedloom.engines.transport import part, unpack

TRIES = 3  # how often a client is asked whose worker died


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """While this is open, PyTorch computes on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Workers(Engine):
    """`loop` on one thread, in several processes; the same bits whatever their number.

    The processes are forked at the first exchange, with all data in memory that is shared until somebody writes. Each
    is sent a client's state with the request and sends it back: any client can go to any of them. The largest go first,
    each to whoever is free. One that dies is replaced, and its client is asked again.
    """

    name = "workers"

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.children: list[Child] = []
        self._calls = itertools.count()
        self._holds: dict[Child, int] = {}  # the number of the newest broadcast that a process has

    def answers(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[tuple[Request, Any, Answer]]:
        count = min(self.workers or cores(), len(clients))
        if count == 1 or self.watch is not None:  # what a replay looks at does not travel
            yield from self._here(call, clients, send)
            return
        while len(self.children) < count:
            self.children.append(self._fork())
        with threads(1):  # also for what the caller does with an answer: threads that are done spin, on cores in use
            yield from _in_order(clients, self._there(call, clients, send, self.children[:count]))

    def _here(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[tuple[Request, Any, Answer]]:
        for k in clients:
            with threads(1):
                found = self.ask(call, [k], send)
            yield found

    def _there(
        self, call: Call, clients: Sequence[int], send: Send, idle: Sequence[Child]
    ) -> Iterator[tuple[Request, Any, Answer]]:
        """Answers as they come."""
        sizes, number, broadcast = self.population.sizes, next(self._calls), part(call.broadcast)
        left, free, tries = sorted(clients, key=lambda k: (sizes[k], -k)), list(idle), dict.fromkeys(clients, 0)
        busy: dict[Child, Request] = {}
        found: list[tuple[Request, Any, Answer]] = []
        try:
            while left or busy or found:
                while left and free:
                    child, request = free.pop(), self.request(call, [left.pop()], send)
                    news = broadcast if self._holds.get(child) != number else None
                    self._holds[child], busy[child] = number, request
                    with contextlib.suppress(EOFError):  # seen below, where its pipe ends
                        child.send(request_bytes(request, number, news, self.stack(request.clients)))
                yield from found  # once the others have work again
                found, ready = [], wait([child.pipe for child in busy]) if busy else []
                for child in [c for c in busy if c.pipe in ready]:
                    request = busy.pop(child)
                    try:
                        message = unpack(child.receive())
                    except EOFError:
                        tries[request.clients[0]] += 1
                        free.append(self._replace(child, request, tries[request.clients[0]]))
                        left.append(request.clients[0])
                        continue
                    free.append(child)
                    found.append((request, *answer_of(message, request)))
        finally:
            for child in busy:  # the exchange ended early: what they still compute belongs to nobody
                self._forget(child)

    def _fork(self) -> Child:
        _ = self.population.prepared  # made once, before there are several processes
        return Child(Service(self.runtime, trusted=True))

    def _replace(self, child: Child, request: Request, tries: int) -> Child:
        epitaph = child.epitaph
        self._forget(child)
        if tries >= TRIES:
            raise ClientError(
                f"the process that computed it died {tries} times ({epitaph}): lower workers if memory is short",
                client=request.clients[0],
                round=request.call.round + 1,
            )
        self.children.append(self._fork())
        return self.children[-1]

    def _forget(self, child: Child) -> None:
        self.children.remove(child)
        self._holds.pop(child, None)
        child.close()

    def close(self) -> None:
        while self.children:
            self._forget(self.children[-1])


def _in_order(
    clients: Sequence[int], found: Iterator[tuple[Request, Any, Answer]]
) -> Iterator[tuple[Request, Any, Answer]]:
    """Answers in the order of `clients`, each as soon as those before it are there."""
    there: dict[int, tuple[Request, Any, Answer]] = {}
    for k in clients:
        while k not in there:
            answer = next(found)
            there[answer[0].clients[0]] = answer
        yield there.pop(k)
