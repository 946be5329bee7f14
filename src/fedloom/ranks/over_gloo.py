"""Messages between ranks over Gloo, which comes with PyTorch: each rank and rank 0 are a process group of two."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import queue
import threading
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed

from fedloom.core.errors import EngineWarning, RankError, warn
from fedloom.ranks.communication import LOOK, PATIENCE, ThreadedManager, check_port

dist: Any = torch.distributed  # its stubs lack much of what it exports
FOREVER = timedelta(days=365)  # Gloo's own timeout would close the wires between all ranks
MEETING = timedelta(seconds=60)  # for two ranks to connect once both are announced
PIECE = 16 << 20  # bytes received at a time: a false length costs no more memory


class GlooManager(ThreadedManager):
    """Manager over Gloo, which connects each rank with rank 0 alone.

    Each pair is a process group of two, so a rank may connect at any time, and again after it was gone. The n-th rank
    that connects has number n at rank 0. Ranks find each other in a `store`.

    For each rank at the other end one thread sends and another receives, since both block.
    """

    def __init__(self, rank: int, size: int, store: Any) -> None:
        super().__init__(rank, size)
        self.store = dist.PrefixStore("fedloom", store)
        self._pairs: dict[int, Any] = {}
        self._out: dict[int, queue.SimpleQueue[bytes | None]] = {}
        self._due: dict[int, threading.Semaphore] = {}  # messages to receive; others wait in Gloo
        self._threads: list[threading.Thread] = []
        self._posts: list[threading.Thread] = []  # of these, those that send
        self._connecting: list[threading.Thread] = []  # and those that connect
        self._ending = threading.Event()
        if rank:
            number = self.store.add("arrivals", 1)
            self.store.set(f"rank of {number}", str(rank))
            self._connect(0, number)
            self._due[0].release()  # the next message comes while this one is answered
        else:
            self._start(self._receive_ranks)
        atexit.register(self.end)

    def _start(self, work: Callable[..., None], *args: int) -> threading.Thread:
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()
        return self._threads[-1]

    def _receive_ranks(self) -> None:
        """Check for new ranks; runs in a thread of rank 0."""
        connected = 0
        with contextlib.suppress(RuntimeError):  # the store is gone: no rank can connect any more
            while not self._ending.wait(LOOK):
                arrived = self.store.add("arrivals", 0)
                self._connecting = [thread for thread in self._connecting if thread.is_alive()]
                self._connecting += [
                    self._start(self._try_to_connect, number) for number in range(connected + 1, arrived + 1)
                ]
                connected = arrived

    def _try_to_connect(self, number: int) -> None:
        """Connect a new rank; runs in a thread, because the rank may hang or have died."""
        try:
            self._connect(number, number)
        except RankError as error:
            if not self._ending.is_set():
                warn(f"a new rank did not connect: {error}", EngineWarning)

    def _connect(self, rank: int, number: int) -> None:
        """Connect with a rank; `number` is that of the rank, or of this process where `rank` is 0."""
        try:
            place = dist.PrefixStore(f"pair {number}", self.store)
            self._pairs[rank] = dist.ProcessGroupGloo(place, min(self.rank, 1), 2, MEETING)
        except RuntimeError as error:
            raise RankError(_UNCONNECTED.format(str(error).strip()[:300])) from None
        self._out[rank], self._due[rank] = queue.SimpleQueue(), threading.Semaphore(0)
        self._posts.append(self._start(self._send_all, rank))  # before `arrivals` names it: `end` waits for posts
        self._add_rank(rank)
        self._start(self._receive_all, rank)

    def launched_as(self, rank: int) -> str:
        with contextlib.suppress(RuntimeError):  # the store is gone
            return str(self.store.get(f"rank of {rank}"), "utf-8")
        return super().launched_as(rank)

    @property
    def arriving(self) -> bool:
        return any(thread.is_alive() for thread in self._connecting)

    def post(self, rank: int, message: bytes) -> None:
        self._send_later(rank, message)
        self._due[rank].release()

    def receive(self) -> memoryview:
        message = super().receive()
        self._due[0].release()
        return message

    def _send_later(self, rank: int, message: bytes) -> None:
        self._out[rank].put(message)

    def _send_all(self, rank: int) -> None:
        """Send to a rank; runs in a thread."""
        with contextlib.suppress(EOFError):
            while (message := self._out[rank].get()) is not None:
                self._send(rank, message)
            return
        self._mark_gone(rank)

    def _receive_all(self, rank: int) -> None:
        """Receive from a rank; runs in a thread."""
        with contextlib.suppress(EOFError):
            while not self._ending.is_set():
                self._deliver(rank, self._receive(rank))
        self._mark_gone(rank)

    def end(self) -> None:
        """Send all posted messages, then end all connections."""
        self._ending.set()
        for messages in self._out.values():
            messages.put(None)
        _join(self._posts)
        for rank, due in self._due.items():
            self._disconnect(rank)
            due.release()
        if _join(self._threads):  # a connecting thread wakes when the store goes, so keep it for the process's life
            for handle in (self.store, *self._pairs.values()):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
        atexit.unregister(self.end)

    def _disconnect(self, rank: int) -> None:
        """End a connection, which wakes the threads that wait in Gloo.

        Otherwise they would wake when there is no interpreter any more, and abort the process. A timeout ends the
        connection, and nothing else that PyTorch has does.
        """
        with contextlib.suppress(RuntimeError):
            self._pairs[rank].recv([torch.zeros(1)], 1 - min(self.rank, 1), 1).wait(timedelta(milliseconds=1))

    def _send(self, rank: int, message: bytes) -> None:
        self._transfer(rank, "send", torch.tensor([len(message)]))
        for start in range(0, len(message), PIECE):
            piece = bytearray(memoryview(message)[start : start + PIECE])
            self._transfer(rank, "send", torch.frombuffer(piece, dtype=torch.uint8))

    def _receive(self, rank: int) -> bytearray:
        size, data = torch.zeros(1, dtype=torch.int64), bytearray()
        self._transfer(rank, "recv", size)  # even if nothing is due: a rank that is gone is noticed at once
        self._due[rank].acquire()
        remaining = self._allowed(rank, int(size))
        while remaining:
            piece = bytearray(min(remaining, PIECE))
            self._transfer(rank, "recv", torch.frombuffer(piece, dtype=torch.uint8))
            remaining -= len(piece)
            if data:
                data += piece
            else:
                data = piece  # most messages are one
        return data

    def _transfer(self, rank: int, direction: Literal["send", "recv"], tensor: torch.Tensor) -> None:
        """Send or receive a tensor; raise `EOFError` if the rank is gone."""
        try:
            getattr(self._pairs[rank], direction)([tensor], 1 - min(self.rank, 1), 0).wait(FOREVER)
        except RuntimeError as error:
            raise EOFError(str(error)) from error


def _join(threads: Collection[threading.Thread]) -> bool:
    """Wait some seconds for threads that are about to end, and return whether some have not."""
    until = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return any(thread.is_alive() for thread in threads)


_UNCONNECTED = (
    "the ranks could not be connected ({}): set MASTER_ADDR to a host that all ranks reach, and "
    "GLOO_SOCKET_IFNAME=eth0 to the network interface by which each is reached"
)


def over_gloo() -> GlooManager:
    """Make a manager from what torchrun's environment describes, or in the store of an existing process group.

    Raises:
        SettingError: rank 0 cannot listen at MASTER_PORT.
        RankError: the store cannot be made or reached.
    """
    if dist.is_initialized():
        return GlooManager(dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store())
    rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun's own store outlives restarts
    if not (rank or agents):
        check_port("", port, "MASTER_PORT")
    try:
        # Without a number of workers: the store would wait for all of them.
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"], port, None, not (rank or agents), FOREVER, wait_for_workers=False
        )
        if agents:
            store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        return GlooManager(rank, size, store)
    except RuntimeError as error:
        raise RankError(_UNCONNECTED.format(str(error).strip()[:300])) from None
