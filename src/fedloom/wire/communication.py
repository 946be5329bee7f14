"""The CommunicationManager: messages between rank 0, which runs the rounds, and ranks that compute clients.

All ranks are launched alike, by torchrun, mpirun or Slurm, and run the same program. Rank 0 posts a message to a rank
and gets one answer back; other ranks receive and answer. What a message says is the affair of `service`; here bytes are
carried, over Gloo, which comes with PyTorch, or over MPI, by mpi4py. There is neither encryption nor authentication:
for networks whose every machine is trusted.
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
FOREVER = timedelta(days=365)  # a timeout of Gloo's own would close the wires between all ranks
CLOSED = b""  # a message and its answer: nothing more is asked
LARGEST = 16 << 30  # bytes of a message, unless said otherwise
PATIENCE = 5.0  # seconds that an end waits for a rank
MEETING = timedelta(seconds=60)  # that two ranks have to connect once both have said that they are there
LOOK = 0.05  # seconds between two looks for ranks that have come
_PLACE = "RANK (0 of the server, then 1, 2, ...), WORLD_SIZE (how many), MASTER_ADDR and MASTER_PORT (of the server)"
PIECE = 16 << 20  # bytes that are received at a time, so that a length that is only claimed costs no more
PAUSES = (0.0001, 0.002)  # seconds between two looks for messages over MPI: the first, the longest


class Wires(ABC):
    """This end of wires to processes that answer each message by one of theirs; processes have numbers."""

    @abstractmethod
    def post(self, rank: int, message: bytes) -> None:
        """Send a message to a rank, which will answer it, and return at once."""

    @abstractmethod
    def wait(self, ranks: Collection[int], timeout: float | None) -> list[int]:
        """Return the ranks that have answered or are gone.

        It waits for the first of them, but not longer than `timeout` seconds.
        """

    @abstractmethod
    def take(self, rank: int) -> memoryview:
        """Return the oldest answer of a rank that was not taken, valid until the next `post`.

        Raises:
            EOFError: the rank is gone.
        """


class CommunicationManager(Wires):
    """Messages between ranks, as bytes; the wires are those of rank 0.

    `rank`: of this process, from 0. `size`: how many ranks there are. `at_work`: whether an engine is in the middle of
    its work here, so that others wait in vain for a process that ends now. `limit`: bytes of a message; a rank that
    sends more is gone, and nothing is allocated for what it sends.
    """

    rank: int
    size: int
    at_work = False
    limit = LARGEST

    @abstractmethod
    def came(self) -> list[int]:
        """Return, at rank 0, all ranks that have come, gone or not, in order; one that comes again has a new number."""

    @property
    def arriving(self) -> bool:
        """True while a rank is being connected that `came` will name."""
        return False

    def dismiss(self, ranks: Collection[int], late: Collection[int]) -> list[int]:
        """Tell ranks that it is over, wait until those that are not `late` have heard, and return those that are gone.

        A process that ended earlier would end them in the middle of their work.
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


class Carried(CommunicationManager):
    """Manager whose messages are carried by threads.

    Neither a rank that hangs nor one that dies keeps the others from being heard. What is computed waits neither for
    the next message nor for the last answer.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._found: dict[int, deque[memoryview]] = {}  # what has come, by rank
        self._gone: set[int] = set()
        self._news = threading.Condition()

    def came(self) -> list[int]:
        with self._news:
            return [*self._found]

    def _comes(self, rank: int) -> None:
        with self._news:
            self._found[rank] = deque()

    def wait(self, ranks: Collection[int], timeout: float | None) -> list[int]:
        with self._news:
            self._news.wait_for(lambda: any(map(self._is_ready, ranks)), timeout)
            return [rank for rank in ranks if self._is_ready(rank)]

    def take(self, rank: int) -> memoryview:
        with self._news:
            if not self._found[rank]:
                raise EOFError
            return self._found[rank].popleft()

    def receive(self) -> memoryview:
        self.wait([0], None)
        return self.take(0)

    def answer(self, message: bytes) -> None:
        if 0 in self._gone and not self._found[0]:  # else it has said something before it went
            raise EOFError("rank 0 is gone")
        self._send_later(0, message)

    @abstractmethod
    def _send_later(self, rank: int, message: bytes) -> None:
        """Give a message to the thread that sends."""

    def _is_ready(self, rank: int) -> bool:
        return bool(self._found[rank]) or rank in self._gone

    # ---- in the threads

    def _came(self, rank: int, message: bytearray) -> None:
        with self._news:
            self._found[rank].append(memoryview(message))
            self._news.notify_all()

    def _lost(self, rank: int) -> None:
        with self._news:
            self._gone.add(rank)
            self._news.notify_all()

    def _allowed(self, rank: int, size: int) -> int:
        """Return the bytes of a message, before anything is made for it; raise `EOFError` where they are too many."""
        if not 0 <= size <= self.limit:
            raise EOFError(f"rank {rank} sends {size} bytes, and at most {self.limit} are taken")
        return size


class GlooManager(Carried):
    """Manager over Gloo, which connects each rank with rank 0 alone.

    They are a process group of two, so a rank may come at any time, and come again when it was gone. The n-th rank that
    comes is number n to rank 0. They find each other in a `store`.

    For each rank at the other end a thread sends and another receives, since both block.
    """

    def __init__(self, rank: int, size: int, store: Any) -> None:
        super().__init__(rank, size)
        self.store = dist.PrefixStore("fedloom", store)
        self._pairs: dict[int, Any] = {}
        self._out: dict[int, queue.SimpleQueue[bytes | None]] = {}
        self._due: dict[int, threading.Semaphore] = {}  # messages that are wanted; what else is sent waits in Gloo
        self._threads: list[threading.Thread] = []
        self._posts: list[threading.Thread] = []  # of these, those that send
        self._meeting: list[threading.Thread] = []  # and those that connect
        self._ending = threading.Event()
        if rank:
            self._meet(0, self.store.add("arrivals", 1))
            self._due[0].release()  # the next message comes while this one is answered
        else:
            self._begin(self._receive_ranks)
        atexit.register(self.end)

    def _begin(self, work: Callable[..., None], *args: int) -> threading.Thread:
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()
        return self._threads[-1]

    def _receive_ranks(self) -> None:
        """Look for ranks that have come; runs in a thread of rank 0."""
        met = 0
        with contextlib.suppress(RuntimeError):  # the store is gone, and nobody can come any more
            while not self._ending.wait(LOOK):
                there = self.store.add("arrivals", 0)
                self._meeting = [thread for thread in self._meeting if thread.is_alive()]
                self._meeting += [self._begin(self._try_to_meet, number) for number in range(met + 1, there + 1)]
                met = there

    def _try_to_meet(self, number: int) -> None:
        """Connect a rank that has come; runs in a thread, because the rank may hang or have died."""
        try:
            self._meet(number, number)
        except RankError as error:
            if not self._ending.is_set():
                warn(f"of the ranks that have come one is not there: {error}", EngineWarning)

    def _meet(self, rank: int, number: int) -> None:
        """Connect with a rank: it is the one that came as number `number` to rank 0, or this process is."""
        try:
            place = dist.PrefixStore(f"pair {number}", self.store)
            self._pairs[rank] = dist.ProcessGroupGloo(place, min(self.rank, 1), 2, MEETING)
        except RuntimeError as error:
            raise RankError(_UNCONNECTED.format(str(error).strip()[:300])) from None
        self._out[rank], self._due[rank] = queue.SimpleQueue(), threading.Semaphore(0)
        self._posts.append(self._begin(self._send_all, rank))  # before anybody knows: an end waits for what is posted
        self._comes(rank)
        self._begin(self._hear, rank)

    @property
    def arriving(self) -> bool:
        return any(thread.is_alive() for thread in self._meeting)

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
        self._lost(rank)

    def _hear(self, rank: int) -> None:
        """Receive from a rank; runs in a thread."""
        with contextlib.suppress(EOFError):
            while not self._ending.is_set():
                self._came(rank, self._receive(rank))
        self._lost(rank)

    def end(self) -> None:
        """Send what is to be sent, then end all connections."""
        self._ending.set()
        for messages in self._out.values():
            messages.put(None)
        _join(self._posts)
        for rank, due in self._due.items():
            self._part(rank)
            due.release()
        if _join(self._threads):  # one that connects wakes when the store goes: this stays for as long as the process
            for kept in (self.store, *self._pairs.values()):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        atexit.unregister(self.end)

    def _part(self, rank: int) -> None:
        """End a connection, which wakes the threads that wait in Gloo.

        Otherwise they would wake when there is no interpreter any more, and abort the process. A timeout ends the
        connection, and nothing else that PyTorch has does.
        """
        with contextlib.suppress(RuntimeError):
            self._pairs[rank].recv([torch.zeros(1)], 1 - min(self.rank, 1), 1).wait(timedelta(milliseconds=1))

    def _send(self, rank: int, message: bytes) -> None:
        self._through(rank, "send", torch.tensor([len(message)]))
        for start in range(0, len(message), PIECE):
            piece = bytearray(memoryview(message)[start : start + PIECE])
            self._through(rank, "send", torch.frombuffer(piece, dtype=torch.uint8))

    def _receive(self, rank: int) -> bytearray:
        size, data = torch.zeros(1, dtype=torch.int64), bytearray()
        self._through(rank, "recv", size)  # also where nothing is due: so who is gone is missed at once
        self._due[rank].acquire()
        left = self._allowed(rank, int(size))
        while left:
            piece = bytearray(min(left, PIECE))
            self._through(rank, "recv", torch.frombuffer(piece, dtype=torch.uint8))
            left -= len(piece)
            if data:
                data += piece
            else:
                data = piece  # most messages are one
        return data

    def _through(self, rank: int, way: Literal["send", "recv"], tensor: torch.Tensor) -> None:
        """Send or receive a tensor; raise `EOFError` if the rank is gone."""
        try:
            getattr(self._pairs[rank], way)([tensor], 1 - min(self.rank, 1), 0).wait(FOREVER)
        except RuntimeError as error:
            raise EOFError(str(error)) from error


def _join(threads: Collection[threading.Thread]) -> bool:
    """Wait for threads that are about to end, but not for long, and return whether some are left."""
    until = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return any(thread.is_alive() for thread in threads)


_UNCONNECTED = (
    "the ranks could not be connected ({}): MASTER_ADDR names a host that all of them reach, and "
    "GLOO_SOCKET_IFNAME=eth0 the network interface of each by which it is reached"
)


def _over_gloo() -> GlooManager:
    """Make a manager from what torchrun's environment describes, or in the store of an existing process group."""
    if dist.is_initialized():
        return GlooManager(dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store())
    rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun has made one, which outlives restarts
    try:
        # Without a number of workers, for all of whom it would wait.
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"], port, None, not (rank or agents), FOREVER, wait_for_workers=False
        )
        if agents:
            store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        return GlooManager(rank, size, store)
    except RuntimeError as error:
        raise RankError(_UNCONNECTED.format(str(error).strip()[:300])) from None


class MPIManager(Carried):
    """Manager over MPI, with which one thread speaks.

    Nothing blocks, since a blocking receive of MPI takes a whole core: messages are looked for in growing pauses.

    A rank that dies ends the job: `mpirun` sees to that, and the run goes on with --resume. A rank that ends in the
    middle of its work, or whose peers never answered, has to abort the others, or it would wait for them at its end.
    """

    def __init__(self) -> None:
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise RankError("this MPI was begun without threads (MPI_THREAD_SERIALIZED), which engine = 'mpi' needs")
        self.comm: Any = MPI.COMM_WORLD
        super().__init__(self.comm.Get_rank(), self.comm.Get_size())
        self.others = range(1, self.size) if self.rank == 0 else range(1)
        for rank in self.others:
            self._comes(rank)
        self._bytes, self._status, self._failure = MPI.BYTE, MPI.Status, MPI.Exception
        # Not a SimpleQueue, whose `get` may wait without end where a short timeout is over when it finds nothing.
        self._out: queue.Queue[tuple[int, bytes] | None] = queue.Queue()
        self._owed = Counter[int]()  # answers that have not been taken, by rank; above 0 at rank 0 alone
        self._carrier = threading.Thread(target=self._carry, daemon=True)
        self._carrier.start()
        atexit.register(self._end)

    def post(self, rank: int, message: bytes) -> None:
        self._owed[rank] += 1
        self._send_later(rank, message)

    def take(self, rank: int) -> memoryview:
        self._owed[rank] -= 1
        return super().take(rank)

    def _send_later(self, rank: int, message: bytes) -> None:
        self._out.put((rank, message))

    def _carry(self) -> None:
        """Send what is given and receive what has come, until told to end; runs in a thread."""
        sent, coming, (pause, longest), end = list[Any](), dict[int, Any](), PAUSES, None
        try:
            while end is None or (sent and time.monotonic() < end):
                before = len(sent), len(coming)
                with contextlib.suppress(queue.Empty):
                    if (given := self._out.get(timeout=pause)) is None:
                        end = time.monotonic() + PATIENCE
                    else:
                        rank, message = given
                        sent.append((self.comm.Isend([message, self._bytes], rank), message))
                sent = [(request, kept) for request, kept in sent if not request.Test()]
                for rank in self.others:
                    if rank not in coming and rank not in self._gone and self._wants(rank):
                        self._begin(rank, coming)
                    if rank in coming and coming[rank][0].Test():
                        self._came(rank, coming.pop(rank)[1])
                pause = PAUSES[0] if before != (len(sent), len(coming)) else min(2 * pause, longest)
        except self._failure:
            for rank in self.others:
                self._lost(rank)

    def _wants(self, rank: int) -> bool:
        """Return whether there is room for a message: at rank 0 for owed answers, elsewhere for one in advance."""
        waiting = len(self._found[rank])
        return waiting < self._owed[rank] if self.rank == 0 else not waiting

    def _begin(self, rank: int, coming: dict[int, Any]) -> None:
        """Begin to receive what a rank sends, if it does."""
        status = self._status()
        if self.comm.Iprobe(rank, status=status):
            try:
                data = bytearray(self._allowed(rank, status.Get_count(self._bytes)))
            except EOFError:
                self._lost(rank)
            else:
                coming[rank] = self.comm.Irecv([data, self._bytes], rank), data

    def _end(self) -> None:
        if self.at_work or +self._owed:
            self.comm.Abort(int(self.at_work))
        self._out.put(None)
        self._carrier.join(2 * PATIENCE)


_managers: dict[str, CommunicationManager] = {}  # of this process


def communication(transport: Transport) -> CommunicationManager:
    """Return the CommunicationManager of this process; over Gloo others wait here until rank 0 has come."""
    if transport not in _managers:
        if transport == "gloo" and "TORCHELASTIC_RUN_ID" in os.environ and takes_c10d(_launched_by()):
            warn(
                "torchrun is to bring ranks together by its static rendezvous, got c10d, under which whoever reaches "
                "its port can run code here: give --master-port=29500, on several hosts with --node-rank and "
                "--master-addr, and neither --rdzv-backend nor --standalone",
                EngineWarning,
            )
        _managers[transport] = _over_gloo() if transport == "gloo" else MPIManager()
    return _managers[transport]


def takes_c10d(words: Sequence[str]) -> bool:
    """Return whether torchrun with this command line keeps its ranks together by c10d.

    The state of c10d is a pickle that anybody may write. It is taken where it is asked for, and on one host where no
    port is named.
    """
    line = " ".join(words).replace("_", "-")

    def said(option: str) -> str | None:
        found = re.search(rf"--{option}[= ](\S+)", line)
        return found and found[1]

    backend = said("rdzv-backend") or os.environ.get("PET_RDZV_BACKEND", "static")
    alone = said("nnodes") in (None, "1", "1:1") and not (said("master-port") or said("rdzv-endpoint"))
    return "--standalone" in words or backend == "c10d" or (backend == "static" and alone)


def _launched_by() -> list[str]:
    """Return the command line of the process above; one that names a port where the system does not tell."""
    try:
        return Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ["--master-port", "?"]


def rank_here(transport: Transport) -> int:
    """Return the rank of this process, before there is a connection.

    Raises:
        SettingError: it was not launched with others, or lacks what the transport needs.
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
            raise SettingError(
                f"ranks over Gloo find each other by {_PLACE}, and {missing[0]} is not set: set all four"
            )
    if size < 2:
        raise SettingError(
            f"engine = {transport!r} needs at least 2 ranks, of which rank 0 is the server, and there "
            f"{'is one' if size else 'are none'}: launch them by {launch}"
        )
    return rank


def meeting_point(transport: Transport) -> str:
    """Say where ranks find each other."""
    return "MPI" if transport == "mpi" else f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def _number(name: str) -> int:
    text = os.environ.get(name, "0")
    if not text.isdecimal():
        raise SettingError(f"{name} is a whole number that is at least 0, got {text!r}: set {_PLACE}")
    return int(text)


# How many ranks there are, as torchrun, Open MPI, MPICH and srun say it. `SLURM_NTASKS` stands in batch scripts too.
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def check_alone(engine: str) -> None:
    """Raise SettingError if an engine is to be chosen where several ranks would each compute the whole run."""
    if engine != "auto":
        return
    for name in _SIZES:
        if (text := os.environ.get(name, "")).isdecimal() and int(text) > 1:
            which = "mpi" if name in _SIZES[1:3] else "gloo"
            raise SettingError(
                f"with {name} = {text} each of {text} ranks would compute the whole run: share it out with "
                f"--engine {which} (docs/ranks.md), or say --engine loop for runs that have nothing to do with each "
                "other"
            )


def only_computes(engine: str) -> bool:
    """Return whether this process is a rank that computes clients.

    If it is, rank 0 has the numbers and the files of the run.

    Raises:
        SettingError: the engine is to be chosen, and there are several ranks.
    """
    check_alone(engine)
    return engine in ("gloo", "mpi") and rank_here(cast("Transport", engine)) > 0
