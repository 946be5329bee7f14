"""Messages between ranks over MPI, by mpi4py."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
from collections import Counter
from typing import Any

from fedloom.core.errors import RankError
from fedloom.ranks.communication import PATIENCE, ThreadedManager

PAUSES = (0.0001, 0.002)  # seconds between two checks for messages: the first, the longest


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
