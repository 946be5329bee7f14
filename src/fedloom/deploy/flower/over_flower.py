"""Connections between a server and its devices over Flower, whose processes relay the bytes (`flower_relay`)."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from fedloom.deploy.flower.flower_relay import (
    ANSWERED,
    FAILED,
    ID,
    MOST,
    NODES,
    PAUSE,
    UNKNOWN,
    Envelope,
    Reply,
    command,
    nodes_of,
    report_of,
)
from fedloom.ranks.communication import UNLISTED, ServerConnection, ThreadedConnections

AGAIN = (5.0, 60.0)  # seconds until a device that did not answer is greeted again: at first, at most
_BESIDE = 1 << 10  # bytes of an answer beside those of its messages


@dataclass
class _Link:
    """Connection to a device's process. `process`: its number, once it has answered."""

    node: int
    id: bytes = field(default_factory=lambda: secrets.token_bytes(ID))
    process: bytes | None = None
    waiting: deque[bytes] = field(default_factory=deque)  # messages that go once the last ones are answered
    unanswered: int = 0

    @property
    def is_new(self) -> bool:
        """True until the first message was answered."""
        return self.process is None


class FlowerConnections(ThreadedConnections):
    """Server's end: `folder` has the socket to which the ServerApp connects, and which only this user can open.

    A device is a rank once Flower names its node. Its messages go one after the other, since Flower promises no order;
    those that wait go together. If the device or its SuperNode fails, its rank is gone; and as long as Flower names the
    node, it is greeted again, as a new rank.
    """

    expected = None
    patience = 30.0  # a message takes some seconds over Flower

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "server"
        self._listener = Listener(str(self.path), "AF_UNIX")
        self._pump: Connection | None = None
        self._commands: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # for the newest pump; None: it is gone
        self._links: dict[int, _Link] = {}
        self._nodes: dict[int, int] = {}  # the newest rank of each connected node
        self._again: dict[int, tuple[float, float]] = {}  # when a node may be greeted again, and the pause after that
        self._sent: dict[int, int] = {}  # ranks of messages without an answer, by number
        self._numbers = itertools.count()
        self.reasons: dict[int, str] = {}  # of ranks that are gone
        self.registered: Callable[[], Mapping[int, str]] | None = None  # names of nodes by their keys; None: no keys
        self._lock = threading.RLock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def is_carried(self) -> bool:
        """True while a ServerApp is connected."""
        return self._pump is not None

    def arrivals(self) -> list[int]:
        with self._lock:
            for node, rank in self._nodes.items():
                when, pause = self._again.get(node, (0.0, AGAIN[0]))
                if rank in self._gone and time.monotonic() >= when:
                    self._again[node] = time.monotonic() + pause, min(2 * pause, AGAIN[1])
                    self._open(node)
        return super().arrivals()

    def name_of(self, rank: int) -> str | None:
        if self.registered is None:
            return None
        end = time.monotonic() + self.patience
        while (name := self.registered().get(self._links[rank].node)) is None and time.monotonic() < end:
            if rank in self._gone:
                break
            time.sleep(PAUSE)  # Flower lets a key in a moment before it says its number
        return name or ""

    def listed(self) -> Collection[str] | None:
        return None if self.registered is None else self.registered().values()

    def reason(self, rank: int) -> str:
        reason = self.reasons.get(rank, super().reason(rank))
        node = self._links[rank].node
        if self.registered is not None and node not in self.registered():
            return UNLISTED
        return reason

    def post(self, rank: int, message: bytes) -> None:
        with self._lock:
            self._links[rank].waiting.append(message)
            self._send_waiting(rank)

    def close(self) -> None:
        """End the connection to the ServerApp, which ends with it."""
        with self._lock:
            pump, self._pump = self._pump, None
        self._listener.close()
        self._commands.put(None)
        if pump is not None:
            _shut(pump)

    # ---- in the thread that receives

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                pump = self._listener.accept()
                with self._lock:
                    self._pump, self._commands = pump, queue.SimpleQueue()
                    sender = threading.Thread(target=_send_all, args=(pump, self._commands), daemon=True)
                    sender.start()
                with contextlib.suppress(EOFError, OSError, ValueError):  # a pump that reports nonsense ends
                    while True:
                        self._take_report(pump.recv_bytes())
                with self._lock:
                    self._pump = None
                    self._commands.put(None)
                    self._take_nodes([])
                _shut(pump)
                sender.join()
                pump.close()

    def _take_report(self, data: bytes) -> None:
        kind, number, rest = report_of(data)
        with self._lock:
            if kind == NODES:
                self._take_nodes(nodes_of(rest))
                return
            rank = self._sent.pop(number, None)
            if rank is None or rank in self._gone:
                return
            try:
                if kind == FAILED:
                    raise ValueError(bytes(rest).decode(errors="replace"))
                self._take_answers(rank, Reply.read(rest, self._links[rank].unanswered))
            except ValueError as error:
                self._end(rank, str(error))

    def _take_nodes(self, nodes: list[int]) -> None:
        for node in self._nodes.keys() - set(nodes):
            self._end(self._nodes.pop(node), "it is not connected to Flower any more")
        for node in nodes:
            if node not in self._nodes:
                self._open(node)

    def _take_answers(self, rank: int, reply: Reply) -> None:
        link = self._links[rank]
        if reply.link != link.id or reply.status == UNKNOWN:
            raise ValueError("its process was started again")
        if len(reply.answers) != link.unanswered or any(len(each) > self.limit for each in reply.answers):
            raise ValueError("it sent too much, or not an answer for each message")
        if link.process not in (None, reply.process):
            raise ValueError("another process answers for it")
        for other, its in self._links.items():  # over a node that it had before
            if other != rank and its.process == reply.process and other not in self._gone:
                self._end(other, "its process has connected again")
        link.process, link.unanswered = reply.process, 0
        self._again.pop(link.node, None)
        for answer in reply.answers:
            self._deliver(rank, answer)
        self._send_waiting(rank)

    def _open(self, node: int) -> None:
        rank = len(self._links) + 1
        self._links[rank], self._nodes[node] = _Link(node), rank
        self._add_rank(rank)

    def _end(self, rank: int, reason: str) -> None:
        self.reasons[rank] = reason
        self._links[rank].waiting.clear()
        self._mark_gone(rank)

    def _send_waiting(self, rank: int) -> None:
        """Send what waits for a rank, unless it has not answered the last messages."""
        link = self._links[rank]
        if rank in self._gone or link.unanswered or not link.waiting:
            return
        messages = [memoryview(link.waiting.popleft())]
        while link.waiting and not link.is_new and len(messages) < MOST:
            messages.append(memoryview(link.waiting.popleft()))
        link.unanswered, number = len(messages), next(self._numbers)
        self._sent[number] = rank
        most = len(messages) * self.limit + _BESIDE
        self._commands.put(command(number, link.node, most, bytes(Envelope(link.id, link.is_new, messages))))


def _send_all(pump: Connection, commands: queue.SimpleQueue[bytes | None]) -> None:
    """Send to a pump; runs in a thread of its own, since a pump that sends does not receive."""
    with contextlib.suppress(OSError):  # the thread that receives notices
        while (data := commands.get()) is not None:
            pump.send_bytes(data)


def _shut(pipe: Connection) -> None:
    """End a pipe from which another thread reads, which closes it then."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class RelayedServer(ServerConnection):
    """Device's end: `path` is the socket to which relays connect, and which only this user can open.

    A relay brings messages and waits for their answers. When the server begins anew, `receive` raises `EOFError`, and
    `reopen` is True.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = Listener(str(path), "AF_UNIX")
        self._process = secrets.token_bytes(ID)
        self._link: bytes | None = None
        self._relays: queue.SimpleQueue[tuple[Connection, Envelope] | None] = queue.SimpleQueue()
        self._next: tuple[Connection, Envelope] | None = None  # the first of another link
        self._relay: Connection | None = None
        self._messages = deque[memoryview]()
        self._answers = list[memoryview]()
        threading.Thread(target=self._accept, daemon=True).start()

    def receive(self) -> memoryview:
        while not self._messages:
            item = self._next or self._relays.get()
            if item is None:
                self._relays.put(None)
                raise EOFError("no relay can come any more")
            relay, envelope = item
            if envelope.is_first and self._link is not None and envelope.link != self._link:
                self._next = item
                raise EOFError("the server begins anew")
            self._next = None
            if envelope.is_first:
                self._link = envelope.link
            sizes = [len(each) for each in envelope.messages]
            if envelope.link != self._link or not sizes or max(sizes) > self.limit:
                self._send(relay, Reply(UNKNOWN, envelope.link, self._process, []))
                continue
            self._relay, self._answers = relay, []
            self._messages.extend(envelope.messages)
        return self._messages.popleft()

    def answer(self, message: bytes) -> None:
        self._answers.append(memoryview(message))
        if not self._messages and self._relay is not None and self._link is not None:
            self._send(self._relay, Reply(ANSWERED, self._link, self._process, self._answers))
            self._relay = None

    def reopen(self) -> bool:
        """Return whether the server begins anew, whose first message then comes next."""
        self._link, self._relay = None, None
        self._messages.clear()
        return self._next is not None

    def close(self) -> None:
        """End; relays that come later find nobody."""
        self._listener.close()
        self._relays.put(None)

    def _send(self, relay: Connection, reply: Reply) -> None:
        with relay, contextlib.suppress(OSError):  # a relay that died: Flower tells the server
            relay.send_bytes(bytes(reply))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                relay = self._listener.accept()
                try:
                    self._relays.put((relay, Envelope.read(relay.recv_bytes(2 * self.limit + _BESIDE))))
                except (EOFError, OSError, ValueError):
                    relay.close()
