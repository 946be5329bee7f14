"""Leave to send: large answers come as far as the server has room for them, and the others wait at their devices.

Thousands of devices may be done at the same moment. What nats-server cannot hand over it keeps, and beyond its limit it
cuts the server off, and all that is under way is lost. So a device asks before it sends more than `SMALL` bytes, and is
answered once there is room. Room is free again once the server has taken an answer, once its device is gone, and
`seconds` after a leave that nobody used.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import inf

SMALL = 1 << 16  # bytes of an answer that is sent without asking


class Leaves:
    """Leaves of ranks to send, in the order in which they have asked.

    `most`: bytes that are on their way or wait to be taken; one answer may be larger. `seconds`: for which a leave is
    good that is not used. `clock`: seconds.
    """

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self._seconds, self._clock = most, seconds, clock
        self._held: dict[int, tuple[int, float]] = {}  # bytes and when they are no longer waited for, by rank
        self._waiting = deque[tuple[int, int, Callable[[], object]]]()

    @property
    def held(self) -> int:
        """Bytes for which leave was given and that were not taken yet."""
        return sum(size for size, _ in self._held.values())

    def ask(self, rank: int, size: int, give: Callable[[], object]) -> bool:
        """Call `give` once a rank may send so many bytes; return False, and do not, where it has asked before."""
        if rank in self._held or any(rank == other for other, _, _ in self._waiting):
            return False
        self._waiting.append((rank, size, give))
        self.look()
        return True

    def arrived(self, rank: int) -> None:
        """Take note that the whole answer of a rank has come, and waits to be taken."""
        if rank in self._held:
            self._held[rank] = self._held[rank][0], inf

    def free(self, rank: int) -> None:
        """Take note that the answer of a rank was taken, or that it is gone."""
        if self._held.pop(rank, None) is None:
            self._waiting = deque(each for each in self._waiting if each[0] != rank)
        self.look()

    def look(self) -> None:
        """Give leave to those for whom there is room now."""
        now = self._clock()
        self._held = {rank: its for rank, its in self._held.items() if its[1] > now}
        while self._waiting and (not self._held or self.held + self._waiting[0][1] <= self.most):
            rank, size, give = self._waiting.popleft()
            self._held[rank] = size, now + self._seconds
            give()
