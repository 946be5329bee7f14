"""Clients that other processes of this program compute, each by whoever is free: what workers and ranks share."""

from __future__ import annotations

import contextlib
import itertools
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch

from fedloom.core.errors import ClientError
from fedloom.engines.engine import Engine, Send
from fedloom.engines.message import JUDGING, Answer, Call, Request
from fedloom.engines.service import answer_of, request_bytes
from fedloom.engines.transport import part, unpack

TRIES = 3  # how often a client is asked whose process died


class Peer(Protocol):
    """Another process, at this end of the wire. It answers one message after the other."""

    def send(self, message: bytes) -> None:
        """Ask; `EOFError` if the process is gone."""

    def receive(self) -> memoryview:
        """The answer, which stays until the next request; `EOFError` if the process is gone."""

    @property
    def epitaph(self) -> str:
        """What a process that is gone died of."""


P = TypeVar("P", bound=Peer)
Found = tuple[Request, Any, Answer]


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """While this is open, PyTorch computes on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Processes(Engine, Generic[P]):
    """`loop` on one thread, in several processes; the same bits whatever their number.

    Each is sent a client's state with the request and sends it back: any client can go to any of them. The largest go
    first, each to whoever is free. Where one dies its client is asked again, of another.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._calls = itertools.count()
        self._holds: dict[P, int] = {}  # the number of the newest broadcast that a process has
        self._overdue: set[P] = set()  # whose answer nobody waits for any more

    @abstractmethod
    def idle(self, count: int) -> list[P] | None:
        """Up to `count` processes without work, begun where they are not there; None: clients are computed here."""

    @abstractmethod
    def ready(self, peers: Sequence[P], timeout: float | None) -> Sequence[P]:
        """Those that have answered or are gone; waits for the first of them, but not longer than so many seconds."""

    @abstractmethod
    def replaced(self, peer: P) -> P | None:
        """A process is gone: the one that takes its place, if there is one."""

    @abstractmethod
    def left(self, peer: P) -> bool:
        """Nobody waits for a process's answer any more: whether it will come all the same, and must be dropped."""

    def answers(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[Found]:
        peers = None if self.watch is not None else self.idle(len(clients))  # what a replay looks at does not travel
        if peers is None:
            for k in clients:
                with threads(1):
                    found = self.ask(call, [k], send)
                yield found
            return
        with threads(1):  # also for what the caller does with an answer: threads that are done spin, on cores in use
            yield from in_order(clients, self._there(call, clients, send, peers))

    def _there(self, call: Call, clients: Sequence[int], send: Send, free: list[P]) -> Iterator[Found]:
        """Answers as they come."""
        sizes, number, broadcast = self.population.sizes, next(self._calls), part(call.broadcast)
        left, tries = sorted(clients, key=lambda k: (sizes[k], -k)), dict.fromkeys(clients, 0)
        busy: dict[P, Request] = {}
        found: list[Found] = []
        end = None if call.exchange == JUDGING or self.deadline is None else time.monotonic() + self.deadline
        try:
            while left or busy or found:
                while left and free:
                    peer, request = free.pop(), self.request(call, [left.pop()], send)
                    news = broadcast if self._holds.get(peer) != number else None
                    self._holds[peer], busy[peer] = number, request
                    with contextlib.suppress(EOFError):  # seen below, where its wire ends
                        peer.send(request_bytes(request, number, news, self.stack(request.clients)))
                yield from found  # once the others have work again
                found = []
                if left and not busy:  # whoever had work is gone
                    free = self.idle(len(left)) or []
                    if free:
                        continue
                waited_for = [*busy, *self._overdue]
                if left and not waited_for:
                    raise self._forsaken(left[-1], call)
                timeout = None if end is None else max(0.0, end - time.monotonic())
                ready = self.ready(waited_for, timeout) if busy or left else ()
                for peer in ready:
                    request_of = busy.pop(peer, None)
                    self._overdue.discard(peer)
                    try:
                        data = peer.receive()
                    except EOFError:
                        free += [] if (new := self._succeeded(peer, request_of, tries)) is None else [new]
                        left += [] if request_of is None else request_of.clients
                        continue
                    free.append(peer)
                    if request_of is not None:  # else it is late, and of no use
                        found.append((request_of, *answer_of(unpack(data), request_of)))
                if end is not None and not ready and time.monotonic() >= end:
                    late = [*(request.clients[0] for request in busy.values()), *left]
                    self.lost.update(dict.fromkeys(late, f"no answer within {self.deadline:g} s"))
                    break
        finally:  # what is still computed belongs to nobody
            self._overdue.update(peer for peer in busy if self.left(peer))

    def _succeeded(self, peer: P, request: Request | None, tries: dict[int, int]) -> P | None:
        """Who takes the place of a process that is gone."""
        epitaph = peer.epitaph
        new = self.replaced(peer)
        self._holds.pop(peer, None)
        if request is not None:
            (k,) = request.clients
            tries[k] += 1
            if tries[k] >= TRIES:
                raise ClientError(
                    f"the process that computed it died {TRIES} times ({epitaph}): lower workers if memory is short",
                    client=k,
                    round=request.call.round + 1,
                )
        return new

    def _forsaken(self, client: int, call: Call) -> ClientError:
        what = "no process is left that could compute it: go on with --resume, as many as there are now"
        return ClientError(what, client=client, round=call.round + 1)


def in_order(clients: Sequence[int], found: Iterator[Found]) -> Iterator[Found]:
    """Answers in the order of `clients`, each as soon as those before it are there; without those that are lost."""
    there: dict[int, Found] = {}
    for k in clients:
        while k not in there and (answer := next(found, None)) is not None:
            there[answer[0].clients[0]] = answer
        if k in there:
            yield there.pop(k)
