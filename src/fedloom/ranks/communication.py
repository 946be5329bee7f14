"""CommunicationManager: messages between rank 0, which runs the rounds, and ranks that compute clients.

All ranks are launched alike, by torchrun, mpirun or Slurm, and run the same program. Rank 0 posts a message to a rank
and gets one answer back. Other ranks receive and answer. Messages are bytes here; `service` gives them their meaning.
They travel over Gloo, which comes with PyTorch, or over MPI, by mpi4py, without encryption or authentication: every
machine of the network must be trusted.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection
from typing import Literal

from fedloom.core.errors import SettingError
from fedloom.engines.wires import Wires

Transport = Literal["gloo", "mpi"]
CLOSED = b""  # the last message, and its answer
LARGEST = 16 << 30  # bytes of a message, by default
PATIENCE = 5.0  # seconds that an end waits for a rank
UNLISTED = "its key is not registered any more"  # why a rank is gone
LOOK = 0.05  # seconds between two checks for new ranks
_LEAVES_WITHIN = 2.0  # seconds that a server which was killed just now has to leave its port


def check_port(host: str, port: int, option: str) -> None:
    """Raise SettingError if a server could not listen at a port. `host`: "" for all addresses; `option`: names it."""
    end, where = time.monotonic() + _LEAVES_WITHIN, f"port {port}" + f" of {host}" * bool(host)
    while True:
        try:
            return _try_to_listen(host, port)
        except OSError as error:
            if error.errno == errno.EACCES:  # another program may be allowed to
                return None
            if error.errno != errno.EADDRINUSE:
                raise SettingError(
                    f"a server listens at an address of its own host, got {host}:{port} ({error.strerror or error}): "
                    f"choose another ({option})"
                ) from None
            if time.monotonic() > end:
                raise SettingError(
                    f"{where} is taken (address already in use), perhaps by another fedloom serve: end that program, "
                    f"or choose another port ({option})"
                ) from None
        time.sleep(LOOK)


def _try_to_listen(host: str, port: int) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, family=0 if host else socket.AF_INET, flags=socket.AI_PASSIVE
    )[0]
    with contextlib.closing(socket.socket(family, kind, protocol)) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended do not count
        trial.bind(address)
        trial.listen()


class Connections(Wires):
    """Server's end of a transport: all that a `Fleet` asks of Gloo, MPI, Flower or a process of its own.

    A rank is the number of a connection here. A device that connects again has a new one, and what was sent over the
    old one is lost. `at_work`: True while others would wait in vain if this process ended. `limit`: bytes of a message.
    A rank that sends more counts as gone, and no memory is allocated for its message. `patience`: seconds that an end
    waits for a receipt.
    """

    at_work = False
    limit = LARGEST
    patience = PATIENCE

    @property
    @abstractmethod
    def expected(self) -> int | None:
        """Number of devices that were started with the server; None if each comes when it likes."""

    @abstractmethod
    def arrivals(self) -> list[int]:
        """Return all ranks that have ever connected, in order, but for those that are gone and forgotten."""

    def name_of(self, rank: int) -> str | None:
        """Return the name with which a rank's key is registered; None where the transport knows no keys."""
        return None

    def launched_as(self, rank: int) -> str:
        """Return the number with which a rank was launched: another one where those that connect are counted."""
        return str(rank)

    def listed(self) -> Collection[str] | None:
        """Return the names of the keys that are registered now; None where the transport knows no keys."""
        return None

    def reason(self, rank: int) -> str:
        """Return why a rank is gone."""
        return "its connection ended, or it sent too much"

    @property
    def arriving(self) -> bool:
        """True while a rank is connecting that `arrivals` will name."""
        return False

    def dismiss(self, ranks: Collection[int], late: Collection[int]) -> list[int]:
        """Send ranks the last message, wait for the receipts of those not in `late`, and return those that are gone.

        If this process ended earlier, they would end in the middle of their work.
        """
        for rank in ranks:
            self.post(rank, CLOSED)
        self.at_work = False
        gone, waiting = list[int](), [rank for rank in ranks if rank not in late]
        while waiting and (ready := self.wait(waiting, self.patience)):
            for rank in ready:
                try:
                    self.take(rank)
                except EOFError:
                    gone.append(rank)
            waiting = [rank for rank in waiting if rank not in ready]
        return gone


class ServerConnection(ABC):
    """Device's end of a transport. `limit`: bytes of a message of the server."""

    limit = LARGEST

    @abstractmethod
    def receive(self) -> memoryview:
        """Return the next message of the server; raise `EOFError` if that is gone."""

    @abstractmethod
    def answer(self, message: bytes) -> None:
        """Answer the message; raise `EOFError` if the server is gone."""


class CommunicationManager(Connections, ServerConnection):
    """Messages between ranks that were launched together, as bytes: both ends in one, since all ranks are alike.

    `rank`: of this process, from 0. `size`: the number of ranks.
    """

    rank: int
    size: int

    @property
    def expected(self) -> int:
        return self.size - 1


class ThreadedConnections(Connections):
    """Connections whose messages arrive in threads, so that a rank that hangs does not delay the messages of others."""

    def __init__(self) -> None:
        self._inbox: dict[int, deque[memoryview]] = {}  # messages that have arrived, by rank
        self._full: set[int] = set()  # ranks with such messages
        self._gone: set[int] = set()
        self._news = threading.Condition()

    def arrivals(self) -> list[int]:
        with self._news:
            return [*self._inbox]

    def _add_rank(self, rank: int) -> None:
        with self._news:
            self._inbox[rank] = deque()

    def wait(self, ranks: Collection[int], timeout: float | None) -> list[int]:
        with self._news:
            waited = set(ranks)  # set operations: a server that waits for thousands is woken by each of their answers
            self._news.wait_for(lambda: self._ready(waited), timeout)
            return sorted(self._ready(waited))

    def take(self, rank: int) -> memoryview:
        with self._news:
            if not self._inbox.get(rank):
                raise EOFError
            message = self._inbox[rank].popleft()
            if not self._inbox[rank]:
                self._full.discard(rank)
            return message

    def _ready(self, ranks: set[int]) -> set[int]:
        """Return those of some ranks from which a message has come, or none will come any more."""
        return (ranks & self._full) | (ranks & self._gone) | (ranks - self._inbox.keys())

    def _is_over(self, rank: int) -> bool:
        return rank in self._gone or rank not in self._inbox

    # ---- in the threads

    def _deliver(self, rank: int, message: bytearray | memoryview) -> None:
        with self._news:
            self._inbox[rank].append(memoryview(message))
            self._full.add(rank)
            self._news.notify_all()

    def _mark_gone(self, rank: int) -> None:
        with self._news:
            self._gone.add(rank)
            self._news.notify_all()

    def _forget_rank(self, rank: int) -> None:
        """Keep nothing of a rank that is gone: from now on it is one that was never there."""
        with self._news:
            self._inbox.pop(rank, None)
            self._gone.discard(rank)
            self._full.discard(rank)
            self._news.notify_all()

    def _allowed(self, rank: int, size: int) -> int:
        """Return the size of a message before memory is allocated; raise `EOFError` if it is beyond the limit."""
        if not 0 <= size <= self.limit:
            raise EOFError(f"rank {rank} sends {size} bytes, and at most {self.limit} are taken")
        return size


class ThreadedManager(ThreadedConnections, CommunicationManager):
    """Manager whose threads send and receive: computing waits neither for the next message nor for the last answer."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size

    def receive(self) -> memoryview:
        self.wait([0], None)
        return self.take(0)

    def answer(self, message: bytes) -> None:
        if 0 in self._gone and not self._inbox[0]:  # else its last messages come first
            raise EOFError("rank 0 is gone")
        self._send_later(0, message)

    @abstractmethod
    def _send_later(self, rank: int, message: bytes) -> None:
        """Give a message to the thread that sends."""
