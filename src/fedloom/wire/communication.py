"""CommunicationManager: messages between rank 0, which runs the rounds, and ranks that compute clients.

All ranks are launched alike, by torchrun, mpirun or Slurm, and run the same program. Rank 0 posts a message to a rank
and gets one answer back. Other ranks receive and answer. Messages are bytes here; `service` gives them their meaning.
They travel over Gloo, which comes with PyTorch, or over MPI, by mpi4py, without encryption or authentication: every
machine of the network must be trusted.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import queue
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.distributed

from fedloom.core.errors import EngineWarning, RankError, SettingError, warn

dist: Any = torch.distributed  # its stubs lack much of what it exports
Transport = Literal["gloo", "mpi"]
FOREVER = timedelta(days=365)  # Gloo's own timeout would close the wires between all ranks
CLOSED = b""  # the last message, and its answer
LARGEST = 16 << 30  # bytes of a message, by default
PATIENCE = 5.0  # seconds that an end waits for a rank
MEETING = timedelta(seconds=60)  # for two ranks to connect once both are announced
LOOK = 0.05  # seconds between two checks for new ranks
_PLACE = "RANK (0 of the server, then 1, 2, ...), WORLD_SIZE (how many), MASTER_ADDR and MASTER_PORT (of the server)"
PIECE = 16 << 20  # bytes received at a time: a false length costs no more memory
PAUSES = (0.0001, 0.002)  # seconds between two checks for messages over MPI: the first, the longest


class Wires(ABC):
    """Wires to processes, by their numbers, that answer each message with one message."""

    @abstractmethod
    def post(self, rank: int, message: bytes) -> None:
        """Send a message to a rank, and return without waiting for the answer."""

    @abstractmethod
    def wait(self, ranks: Collection[int], timeout: float | None) -> list[int]:
        """Return the ranks that have answered or are gone.

        It waits for the first of them, but not longer than `timeout` seconds.
        """

    @abstractmethod
    def take(self, rank: int) -> memoryview:
        """Return the oldest answer of a rank that was not taken yet; it is valid until the next `post`.

        Raises:
            EOFError: the rank is gone.
        """


class CommunicationManager(Wires):
    """Messages between ranks, as bytes; the wires are those of rank 0.

    `rank`: of this process, from 0. `size`: the number of ranks. `at_work`: True while an engine works here, so that
    other ranks would wait in vain if this process ended. `limit`: bytes of a message. A rank that sends more counts as
    gone, and no memory is allocated for its message.
    """

    rank: int
    size: int
    at_work = False
    limit = LARGEST

    @abstractmethod
    def arrivals(self) -> list[int]:
        """Return, at rank 0, all ranks that have ever connected, in order; a rank that returns has a new number."""

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
        while waiting and (ready := self.wait(waiting, PATIENCE)):
            for rank in ready:
                try:
                    self.take(rank)
                except EOFError:
                    gone.append(rank)
            waiting = [rank for rank in waiting if rank not in ready]
        return gone

    # ---- at the others

    @abstractmethod
    def receive(self) -> memoryview:
        """Return the next message of rank 0; raise `EOFError` if that is gone."""

    @abstractmethod
    def answer(self, message: bytes) -> None:
        """Answer the message; raise `EOFError` if rank 0 is gone."""


class ThreadedManager(CommunicationManager):
    """Manager whose threads send and receive.

    A rank that hangs or dies does not delay the messages of others. Computation waits neither for the next message nor
    for the last answer.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._inbox: dict[int, deque[memoryview]] = {}  # messages that have arrived, by rank
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
            self._news.wait_for(lambda: any(map(self._is_ready, ranks)), timeout)
            return [rank for rank in ranks if self._is_ready(rank)]

    def take(self, rank: int) -> memoryview:
        with self._news:
            if not self._inbox[rank]:
                raise EOFError
            return self._inbox[rank].popleft()

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

    def _is_ready(self, rank: int) -> bool:
        return bool(self._inbox[rank]) or rank in self._gone

    # ---- in the threads

    def _deliver(self, rank: int, message: bytearray) -> None:
        with self._news:
            self._inbox[rank].append(memoryview(message))
            self._news.notify_all()

    def _mark_gone(self, rank: int) -> None:
        with self._news:
            self._gone.add(rank)
            self._news.notify_all()

    def _allowed(self, rank: int, size: int) -> int:
        """Return the size of a message before memory is allocated; raise `EOFError` if it is beyond the limit."""
        if not 0 <= size <= self.limit:
            raise EOFError(f"rank {rank} sends {size} bytes, and at most {self.limit} are taken")
        return size


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
            self._connect(0, self.store.add("arrivals", 1))
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


def _over_gloo() -> GlooManager:
    """Make a manager from what torchrun's environment describes, or in the store of an existing process group."""
    if dist.is_initialized():
        return GlooManager(dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store())
    rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun's own store outlives restarts
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


class MPIManager(ThreadedManager):
    """Manager over MPI, which one thread calls.

    No call blocks, since a blocking receive of MPI takes a whole core. The thread checks for messages after growing
    pauses.

    `mpirun` ends the job when a rank dies, and --resume continues the run. A rank that ends while it works, or while an
    answer is missing, aborts the others. Otherwise it would wait for them at its end.
    """

    def __init__(self) -> None:
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise RankError(
                "engine = 'mpi' needs MPI_THREAD_SERIALIZED, got an MPI that was initialised without threads"
            )
        self.comm: Any = MPI.COMM_WORLD
        super().__init__(self.comm.Get_rank(), self.comm.Get_size())
        self.peers = range(1, self.size) if self.rank == 0 else range(1)
        for rank in self.peers:
            self._add_rank(rank)
        self._bytes, self._status, self._failure = MPI.BYTE, MPI.Status, MPI.Exception
        # Not a SimpleQueue: its `get` may wait without end if a short timeout is over when it finds nothing.
        self._out: queue.Queue[tuple[int, bytes] | None] = queue.Queue()
        self._pending = Counter[int]()  # answers not taken yet, by rank; above 0 at rank 0 alone
        self._carrier = threading.Thread(target=self._carry, daemon=True)
        self._carrier.start()
        atexit.register(self._end)

    def post(self, rank: int, message: bytes) -> None:
        self._pending[rank] += 1
        self._send_later(rank, message)

    def take(self, rank: int) -> memoryview:
        self._pending[rank] -= 1
        return super().take(rank)

    def _send_later(self, rank: int, message: bytes) -> None:
        self._out.put((rank, message))

    def _carry(self) -> None:
        """Send posted messages and receive others, until `None` is posted; runs in a thread."""
        sending, receiving, (pause, longest), end = list[Any](), dict[int, Any](), PAUSES, None
        try:
            while end is None or (sending and time.monotonic() < end):
                before = len(sending), len(receiving)
                with contextlib.suppress(queue.Empty):
                    if (item := self._out.get(timeout=pause)) is None:
                        end = time.monotonic() + PATIENCE
                    else:
                        rank, message = item
                        sending.append((self.comm.Isend([message, self._bytes], rank), message))
                sending = [(request, message) for request, message in sending if not request.Test()]
                for rank in self.peers:
                    if rank not in receiving and rank not in self._gone and self._wants(rank):
                        self._start(rank, receiving)
                    if rank in receiving and receiving[rank][0].Test():
                        self._deliver(rank, receiving.pop(rank)[1])
                pause = PAUSES[0] if before != (len(sending), len(receiving)) else min(2 * pause, longest)
        except self._failure:
            for rank in self.peers:
                self._mark_gone(rank)

    def _wants(self, rank: int) -> bool:
        """Return whether a message may be received: at rank 0 a pending answer, elsewhere one request in advance."""
        waiting = len(self._inbox[rank])
        return waiting < self._pending[rank] if self.rank == 0 else not waiting

    def _start(self, rank: int, coming: dict[int, Any]) -> None:
        """Begin to receive a message of a rank, if there is one."""
        status = self._status()
        if self.comm.Iprobe(rank, status=status):
            try:
                data = bytearray(self._allowed(rank, status.Get_count(self._bytes)))
            except EOFError:
                self._mark_gone(rank)
            else:
                coming[rank] = self.comm.Irecv([data, self._bytes], rank), data

    def _end(self) -> None:
        if self.at_work or +self._pending:
            self.comm.Abort(int(self.at_work))
        self._out.put(None)
        self._carrier.join(2 * PATIENCE)


_managers: dict[str, CommunicationManager] = {}  # of this process


def communication(transport: Transport) -> CommunicationManager:
    """Return the CommunicationManager of this process; over Gloo other ranks wait here for rank 0."""
    if transport not in _managers:
        if transport == "gloo" and "TORCHELASTIC_RUN_ID" in os.environ and takes_c10d(_launched_by()):
            warn(
                "torchrun must connect ranks by its static rendezvous, got c10d: anyone who can reach its port can run "
                "code here; give --master-port=29500, on several hosts with --node-rank and --master-addr, and neither "
                "--rdzv-backend nor --standalone",
                EngineWarning,
            )
        _managers[transport] = _over_gloo() if transport == "gloo" else MPIManager()
    return _managers[transport]


def takes_c10d(words: Sequence[str]) -> bool:
    """Return whether torchrun with this command line connects its ranks by c10d.

    The state of c10d is a pickle that anyone may write. torchrun chooses it on request, and on one host if no port is
    named.
    """
    line = " ".join(words).replace("_", "-")

    def option_value(option: str) -> str | None:
        found = re.search(rf"--{option}[= ](\S+)", line)
        return found and found[1]

    backend = option_value("rdzv-backend") or os.environ.get("PET_RDZV_BACKEND", "static")
    on_one_host = option_value("nnodes") in (None, "1", "1:1") and not (
        option_value("master-port") or option_value("rdzv-endpoint")
    )
    return "--standalone" in words or backend == "c10d" or (backend == "static" and on_one_host)


def _launched_by() -> list[str]:
    """Return the parent's command line; where the system does not show it, one that names a port."""
    try:
        return Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ["--master-port", "?"]


def rank_here(transport: Transport) -> int:
    """Return the rank of this process, before there is a connection.

    Raises:
        SettingError: it was not launched with others, or a requirement of the transport is missing.
    """
    if transport == "mpi":
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise SettingError(f"engine = 'mpi' needs mpi4py ({error}): pip install fedloom[mpi]") from None
        rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
        launch = "mpirun -np 3 fedloom run ..."
    else:
        rank, size = (_number(name) for name in ("RANK", "WORLD_SIZE"))
        launch = (
            "torchrun --master-port=29500 --nproc-per-node=3 -m fedloom run ..., or set RANK, WORLD_SIZE, MASTER_ADDR "
            "and MASTER_PORT for each, as it does"
        )
        missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if size > 1 and missing:
            raise SettingError(f"ranks over Gloo need {_PLACE}, and {missing[0]} is not set: set all four")
    if size < 2:
        raise SettingError(
            f"engine = {transport!r} needs at least 2 ranks (rank 0 is the server), got {size}: launch them by {launch}"
        )
    return rank


def meeting_point(transport: Transport) -> str:
    """Return where ranks find each other."""
    return "MPI" if transport == "mpi" else f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def _number(name: str) -> int:
    text = os.environ.get(name, "0")
    if not text.isdecimal():
        raise SettingError(f"{name} is a whole number that is at least 0, got {text!r}: set {_PLACE}")
    return int(text)


# Variables with the number of ranks, of torchrun, Open MPI, MPICH and srun. `SLURM_NTASKS` is set in batch scripts too.
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def check_alone(engine: str) -> None:
    """Raise SettingError if engine is "auto" and several ranks would each compute the whole run."""
    if engine != "auto":
        return
    for name in _SIZES:
        if (text := os.environ.get(name, "")).isdecimal() and int(text) > 1:
            which = "mpi" if name in _SIZES[1:3] else "gloo"
            raise SettingError(
                f"with {name} = {text} each of {text} ranks would compute the whole run: distribute it with "
                f"--engine {which} (docs/ranks.md), or give --engine loop for independent runs"
            )


def only_computes(engine: str) -> bool:
    """Return whether this process is a rank that computes clients.

    If it is, rank 0 has the numbers and the files of the run.

    Raises:
        SettingError: the engine is "auto", and there are several ranks.
    """
    check_alone(engine)
    return engine in ("gloo", "mpi") and rank_here(cast("Transport", engine)) > 0
