"""A transport from outside: pipes on one host. What a new one has to bring, and nothing of fedloom that knows it.

python -m piped serve --transport pipes ...    as fedloom, with this transport
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection, Listener

from fedloom.cli.main import main
from fedloom.deploy.participation import take_part
from fedloom.deploy.reachable import address_of
from fedloom.deploy.transport import TRANSPORTS, DevicePlace, Member, ServerPlace, Transport
from fedloom.ranks.communication import ServerConnection, ThreadedConnections


class Pipes(ThreadedConnections):
    """Server's end: a thread takes what each device sends."""

    expected = None

    def __init__(self, port: int) -> None:
        super().__init__()
        self.listener, self.pipes = Listener(("127.0.0.1", port)), dict[int, Connection]()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                rank, pipe = len(self.pipes) + 1, self.listener.accept()
                self.pipes[rank] = pipe
                self._add_rank(rank)
                threading.Thread(target=self.take_all, args=(rank,), daemon=True).start()

    def take_all(self, rank: int) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._deliver(rank, memoryview(self.pipes[rank].recv_bytes(self.limit)))
        self._mark_gone(rank)

    def post(self, rank: int, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone, which its thread says
            self.pipes[rank].send_bytes(message)


class Pipe(ServerConnection):
    """Device's end."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.pipe = Client(address)

    def receive(self) -> memoryview:
        return memoryview(self.pipe.recv_bytes())

    def answer(self, message: bytes) -> None:
        self.pipe.send_bytes(message)


class OverPipes(Transport):
    name, label = "pipes", "pipes"
    flags = frozenset({"server", "port"})

    @contextlib.contextmanager
    def serve(self, place: ServerPlace) -> Iterator[Pipes]:
        pipes = Pipes(place.port)
        place.say("waiting at a pipe")
        with contextlib.closing(pipes.listener):
            yield pipes

    def join(self, place: DevicePlace, member: Callable[[], Member]) -> bool:
        own = member()
        return take_part(Pipe(address_of(place.server, self.label)), own)


if __name__ == "__main__":
    TRANSPORTS["pipes"] = "piped:OverPipes"  # the line
    sys.exit(main(sys.argv[1:]))
