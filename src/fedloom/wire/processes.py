"""Clients that other processes of this program compute, each by whoever is free: what workers and ranks share."""

from __future__ import annotations

import contextlib
import itertools
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fedloom.core.errors import ClientError, CodecError, EngineWarning, warn
from fedloom.engines.engine import Engine, Send
from fedloom.engines.faults import NOT_WITHIN
from fedloom.engines.message import JUDGING, Answer, Call, Request
from fedloom.wire.communication import Wires
from fedloom.wire.service import answer_of, request_bytes
from fedloom.wire.transport import Message, Part, part, unpack

TRIES = 3  # how often a client is asked whose process died, or whose answer was damaged

Share = tuple[int, ...]  # clients that are asked at once
Found = tuple[Request, Any, Answer]


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch compute on `count` threads while this is open."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Processes(Engine):
    """`loop` on one thread, in several processes; the same bits whatever their number.

    Each is sent a client's state with the request and sends it back: any client can go to any of them. The largest go
    first, each to whoever is free. Or `together` clients of one architecture go at once, as a stack. Where a process
    dies, or an answer is damaged, the clients are asked again. Answers bear the numbers of their requests, so one that
    comes late, or twice, is dropped.
    """

    together = 1
    ahead = 0  # requests that a process is sent beside the one that it works on

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._calls, self._numbers = itertools.count(), itertools.count()
        self._holds: dict[int, int] = {}  # the number of the newest broadcast that a process has
        # What processes have not answered, by its number, the oldest first; None: nobody waits for it any more.
        self._asked: dict[int, dict[int, Request | None]] = {}

    @property
    @abstractmethod
    def wires(self) -> Wires:
        """Wires to the processes, by their numbers."""

    @abstractmethod
    def idle(self, count: int) -> list[int] | None:
        """Return up to `count` processes without work, started where they are not there.

        None: clients are computed here.
        """

    @abstractmethod
    def replaced(self, process: int) -> tuple[str, list[int]]:
        """Return what a process that is gone died of, and the one that takes its place, if there is one."""

    @abstractmethod
    def left(self, process: int) -> bool:
        """Give up the answer of a process, and return whether it will come all the same and must be dropped."""

    def answers(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[Found]:
        here = [tuple(clients[i : i + self.together]) for i in range(0, len(clients), self.together)]
        shares = call.sums or here
        processes = None if self.watch is not None else self.idle(len(shares))  # what is replayed does not travel
        if processes is None:
            for share in here:
                with threads(1):
                    found = self.ask(call, share, send)
                yield found
            return
        with threads(1):  # also for what the caller does with an answer: threads that are done spin, on cores in use
            yield from in_order([share[0] for share in shares], self._there(call, shares, send, processes))

    def _there(self, call: Call, shares: Sequence[Share], send: Send, free: list[int]) -> Iterator[Found]:
        """Yield answers as they come. `free`: processes without work."""
        sizes, broadcast = self.population.sizes, (next(self._calls), part(call.broadcast))
        left = sorted(shares, key=lambda share: (sizes[list(share)].sum(), -share[0]))
        tries = dict.fromkeys(shares, 0)
        found: list[Found] = []
        deadline = self.options.deadline
        end = None if call.exchange == JUDGING or deadline is None else time.monotonic() + deadline
        try:
            while left or found or self._at_work:
                while left and (process := self._next(free, len(left))) is not None:
                    self._ask(process, self.request(call, left.pop(), send), broadcast)
                yield from found  # once the others have work again
                found = []
                if left and not self._at_work:  # whoever had work is gone
                    free = self.idle(len(left)) or []
                    if free:
                        continue
                    if not self._asked:
                        raise self._forsaken(left[-1][0], call)
                timeout = None if end is None else max(0.0, end - time.monotonic())
                ready = self.wires.wait([*self._asked], timeout) if left or self._at_work else ()
                for process in ready:
                    asked, answer, why = self._heard(process, free, left)
                    if asked is not None and answer is not None:
                        found.append((asked, *answer_of(answer, asked)))
                    elif asked is not None:
                        self._again(asked, why, tries)
                        left.append(asked.clients)
                if end is not None and not ready and time.monotonic() >= end:
                    late = [request.clients for each in self._at_work.values() for request in each]
                    reason = f"{NOT_WITHIN} {deadline:g} s"
                    self.lost.update(dict.fromkeys(itertools.chain.from_iterable([*late, *left]), reason))
                    break
        finally:  # what is still computed belongs to nobody
            for process in self._at_work:
                if self.left(process):
                    self._asked[process] = dict.fromkeys(self._asked[process])
                else:
                    del self._asked[process]

    @property
    def _at_work(self) -> dict[int, list[Request]]:
        """Requests that processes have not answered and that somebody waits for, the oldest first."""
        due = {process: [r for r in each.values() if r is not None] for process, each in self._asked.items()}
        return {process: each for process, each in due.items() if each}

    def _next(self, free: list[int], left: int) -> int | None:
        """Return the process that is sent a request next; None where there is none.

        It is a process without work, or one whose next work can be there when it is done. The last requests go to the
        process that is done first.
        """
        if free:
            return free.pop()
        busy = self._at_work
        room = (process for process, each in busy.items() if len(each) <= self.ahead)
        return next(room, None) if left > len(busy) else None

    def _ask(self, process: int, request: Request, broadcast: tuple[int, Part]) -> None:
        """Send a request, and the broadcast where the process does not have it."""
        number, sent = next(self._numbers), broadcast[0]
        news = sent, broadcast[1] if self._holds.get(process) != sent else None
        self._holds[process] = sent
        self._asked.setdefault(process, {})[number] = request
        own, summed = self.stack(request.clients), bool(request.call.sums)
        self.wires.post(process, request_bytes(request, number, news, own, summed=summed))

    def _heard(self, process: int, free: list[int], left: list[Share]) -> tuple[Request | None, Message | None, str]:
        """Return (request that a process has answered, its answer, why there is none), and update `free` and `left`.

        There is no request where nobody waits for the answer: it came late, or twice.
        """
        due, answer, why = self._asked[process], None, ""
        number = next(iter(due))  # the oldest, where the answer cannot say which it is for
        try:
            answer = _opened(self.wires.take(process), self.population.device)
            number = answer.head["number"]
            if number not in due:
                return None, None, ""
        except EOFError:
            died, new = self.replaced(process)
            why = f"its process died ({died}; lower workers if memory is short)"
            asked, *rest = due.values()
            left += [request.clients for request in rest if request is not None]  # not begun: nobody's fault
            free += new
            self._asked.pop(process)
            return asked, None, why
        except CodecError as error:
            why = f"{error} (a network that does so often cannot be used)"
            self._holds.pop(process, None)  # the broadcast may have been damaged
        asked = due.pop(number)
        if not due:
            self._asked.pop(process)
            free.append(process)
        return asked, answer, why

    def _again(self, request: Request, why: str, tries: dict[Share, int]) -> None:
        """Warn that clients have to be asked again; raise `ClientError` if they were asked often enough."""
        share = request.clients
        tries[share] += 1
        if tries[share] >= TRIES:
            raise ClientError(f"asked {TRIES} times in vain: {why}", client=share[0], round=request.call.round + 1)
        who = f"client {share[0]} is" if len(share) == 1 else f"clients {', '.join(map(str, share))} are"
        warn(f"{who} asked again: {why}", EngineWarning)

    def _forsaken(self, client: int, call: Call) -> ClientError:
        what = "no process is left that could compute it: go on with --resume, as many as there are now"
        return ClientError(what, client=client, round=call.round + 1)


def _opened(data: memoryview, device: torch.device) -> Message:
    """Return an answer to some request.

    Raises:
        CodecError: it was damaged on its way, or what it answers was.
    """
    message = unpack(data, device=device)
    said = message.head.get("problem")
    if message.head.get("number") is None or (isinstance(said, dict) and said.get("kind") == "CodecError"):
        raise CodecError("a request could not be read")
    return message


def in_order(clients: Sequence[int], found: Iterator[Found]) -> Iterator[Found]:
    """Yield answers in the order of `clients`, the first of each, as soon as those before are there.

    Clients that are lost are left out.
    """
    there: dict[int, Found] = {}
    for k in clients:
        while k not in there and (answer := next(found, None)) is not None:
            there[answer[0].clients[0]] = answer
        if k in there:
            yield there.pop(k)
