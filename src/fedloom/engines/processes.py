"""Engine whose clients are computed by other processes of this program; workers and ranks derive from it."""

from __future__ import annotations

import itertools
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fedloom.core.errors import ClientError, CodecError, EngineWarning, SettingError, warn
from fedloom.core.fold.execution import threads
from fedloom.engines.engine import Engine
from fedloom.engines.faults import NOT_WITHIN
from fedloom.engines.message import EVALUATING, Answer, Call, Request
from fedloom.engines.message_bytes import Message, Part, part, unpack
from fedloom.engines.server_side import Send
from fedloom.engines.service import answer_of, request_bytes
from fedloom.engines.wires import Wires

TRIES = 3  # requests to a client, if its process died or its answer was damaged

Share = tuple[int, ...]  # clients of one request
Response = tuple[Request, Any, Answer]


class Processes(Engine):
    """`loop` on one thread, in several processes; their number does not change a bit.

    A client's state travels with its request and its answer, so any process can compute any client. The largest clients
    go first, each to a free process. Where these are stacked, `clients_per_request` of one architecture go as a stack.
    If a process dies or an answer is damaged, its clients are requested again. Answers bear the numbers of their
    requests: one that comes late or twice is dropped.
    """

    uses = frozenset({"deadline"})
    on_one_thread = True
    requests_ahead = 0  # requests that wait at a process while it works on another

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        if self.stacked and self.options.partial_sums is not None:
            raise SettingError(
                "partial_sums needs clients that are computed one by one: leave out partial_sums, and chunk or the "
                "engine stacks"
            )
        self._calls, self._numbers = itertools.count(), itertools.count()
        self._newest_broadcast: dict[int, int] = {}  # the number of the newest broadcast that a process has
        # Unanswered requests of each process by number, the oldest first; None: the answer will be dropped.
        self._sent: dict[int, dict[int, Request | None]] = {}

    @property
    @abstractmethod
    def wires(self) -> Wires:
        """Wires to the processes, by their numbers."""

    @abstractmethod
    def idle_processes(self, count: int) -> list[int] | None:
        """Return up to `count` processes without work, starting missing ones; None: compute clients here."""

    @abstractmethod
    def replace_process(self, process: int) -> tuple[str, list[int]]:
        """Return the cause of death of a process, and its replacement, if there is one."""

    @abstractmethod
    def abandon(self, process: int) -> bool:
        """Give up the answer of a process; return whether it will still come and must be dropped."""

    def clients_per_request(self, architecture: str) -> int:
        """Return how many clients of an architecture are asked by one request."""
        return 1

    def answers(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[Response]:
        size = self.clients_per_request(self.population.assignment[clients[0]])
        local_shares = [tuple(clients[i : i + size]) for i in range(0, len(clients), size)]
        shares = call.sums or local_shares
        processes = None if self.watch is not None else self.idle_processes(len(shares))  # replays stay here
        if processes is None:
            for share in local_shares:
                with threads(1):
                    response = self.ask(call, share, send)
                yield response
            return
        with threads(1):  # also while the caller uses an answer: idle threads of PyTorch spin on cores in use
            yield from in_order([share[0] for share in shares], self._ask_processes(call, shares, send, processes))

    def _ask_processes(self, call: Call, shares: Sequence[Share], send: Send, free: list[int]) -> Iterator[Response]:
        """Yield answers as they come. `free`: processes without work."""
        sizes, broadcast = self.population.sizes, (next(self._calls), part(call.sent))
        remaining = sorted(shares, key=lambda share: (sizes[list(share)].sum(), -share[0]))
        tries = dict.fromkeys(shares, 0)
        responses: list[Response] = []
        deadline = self.options.deadline
        end = None if call.exchange == EVALUATING or deadline is None else time.monotonic() + deadline
        try:
            while remaining or responses or self._pending:
                while remaining and (process := self._next_process(free, len(remaining))) is not None:
                    self._send_request(process, self.request(call, remaining.pop(), send), broadcast)
                yield from responses  # once the others have work again
                responses = []
                if remaining and not self._pending:  # the processes that had work are gone
                    free = self.idle_processes(len(remaining)) or []
                    if free:
                        continue
                    if not self._sent:
                        raise self._no_process_left(remaining[-1][0], call)
                timeout = None if end is None else max(0.0, end - time.monotonic())
                ready = self.wires.wait([*self._sent], timeout) if remaining or self._pending else ()
                for process in ready:
                    request, answer, reason_to_retry = self._take_answer(process, free, remaining)
                    if request is not None and answer is not None:
                        responses.append((request, *answer_of(answer, request)))
                    elif request is not None:
                        self._retry(request, reason_to_retry, tries)
                        remaining.append(request.clients)
                if end is not None and not ready and time.monotonic() >= end:
                    late = [request.clients for each in self._pending.values() for request in each]
                    reason = f"{NOT_WITHIN} {deadline:g} s"
                    self.lost.update(dict.fromkeys(itertools.chain.from_iterable([*late, *remaining]), reason))
                    break
        finally:  # no caller waits for pending requests any more
            for process in self._pending:
                if self.abandon(process):
                    self._sent[process] = dict.fromkeys(self._sent[process])
                else:
                    del self._sent[process]

    @property
    def _pending(self) -> dict[int, list[Request]]:
        """Unanswered requests whose answers are awaited, by process, the oldest first."""
        due = {process: [r for r in each.values() if r is not None] for process, each in self._sent.items()}
        return {process: each for process, each in due.items() if each}

    def _next_process(self, free: list[int], remaining: int) -> int | None:
        """Return the process for the next request; None where all have enough.

        It is a process without work, or one with room for a request ahead. The last requests wait for the process that
        finishes first.
        """
        if free:
            return free.pop()
        busy = self._pending
        room = (process for process, each in busy.items() if len(each) <= self.requests_ahead)
        return next(room, None) if remaining > len(busy) else None

    def _send_request(self, process: int, request: Request, broadcast: tuple[int, Part]) -> None:
        """Send a request, and the broadcast where the process does not have it."""
        number, sent = next(self._numbers), broadcast[0]
        broadcast_part = sent, broadcast[1] if self._newest_broadcast.get(process) != sent else None
        self._newest_broadcast[process] = sent
        self._sent.setdefault(process, {})[number] = request
        states, summed = self.stack(request.clients), bool(request.call.sums)
        self.wires.post(process, request_bytes(request, number, broadcast_part, states, summed=summed))

    def _take_answer(
        self, process: int, free: list[int], remaining: list[Share]
    ) -> tuple[Request | None, Message | None, str]:
        """Return (request, answer, reason why there is no answer) of a process, and update `free` and `remaining`.

        The request is None where the answer is to be dropped: it came late, or twice.
        """
        requests, answer, reason = self._sent[process], None, ""
        number = next(iter(requests))  # the oldest, unless the answer has a number
        try:
            answer = _read_answer(self.wires.take(process), self.population.device)
            number = answer.head["number"]
            if number not in requests:
                return None, None, ""
        except EOFError:
            cause, replacements = self.replace_process(process)
            reason = f"its process died ({cause})"
            request, *rest = requests.values()
            remaining += [request.clients for request in rest if request is not None]  # not begun, so no try is counted
            free += replacements
            self._sent.pop(process)
            return request, None, reason
        except CodecError as error:
            reason = f"{error} (a network that does so often cannot be used)"
            self._newest_broadcast.pop(process, None)  # the broadcast may have been damaged
        request = requests.pop(number)
        if not requests:
            self._sent.pop(process)
            free.append(process)
        return request, answer, reason

    def _retry(self, request: Request, reason: str, tries: dict[Share, int]) -> None:
        """Warn that clients are requested again; raise `ClientError` after `TRIES` requests."""
        share = request.clients
        tries[share] += 1
        if tries[share] >= TRIES:
            raise ClientError(f"asked {TRIES} times in vain: {reason}", client=share[0], round=request.call.round + 1)
        who = f"client {share[0]} is" if len(share) == 1 else f"clients {', '.join(map(str, share))} are"
        warn(f"{who} asked again: {reason}", EngineWarning)

    def _no_process_left(self, client: int, call: Call) -> ClientError:
        what = "no process is left to compute it: continue with --resume, with any number of processes"
        return ClientError(what, client=client, round=call.round + 1)


def _read_answer(data: memoryview, device: torch.device) -> Message:
    """Return an answer.

    Raises:
        CodecError: the answer or its request was damaged on its way.
    """
    message = unpack(data, device=device)
    problem = message.head.get("problem")
    if message.head.get("number") is None or (isinstance(problem, dict) and problem.get("kind") == "CodecError"):
        raise CodecError("a request could not be read")
    return message


def in_order(clients: Sequence[int], responses: Iterator[Response]) -> Iterator[Response]:
    """Yield answers in the order of `clients`, each as soon as all before it have come; lost clients are left out.

    A second answer of a client is dropped.
    """
    arrived: dict[int, Response] = {}
    for k in clients:
        while k not in arrived and (answer := next(responses, None)) is not None:
            arrived[answer[0].clients[0]] = answer
        if k in arrived:
            yield arrived.pop(k)
