"""Devices that can be asked, wherever they are."""

from __future__ import annotations

import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedloom.core.errors import RankError, RefusedError
from fedloom.engines.faults import NOT_WITHIN
from fedloom.wire.communication import LOOK, PATIENCE, CommunicationManager
from fedloom.wire.start import Handover, Start
from fedloom.wire.transport import pack

TRUSTED = "for trusted networks only: nothing is encrypted here, and whoever reaches the server's port may join"
_STALE = 8  # answers of one device that are dropped before a request
_LONGEST = 300  # characters of what a device says, in the audit log


class Audit:
    """Log of what devices did, as lines of a file: joined, answered, declined, was refused or lost, and why.

    Never read by a run: times are in it, and words of devices.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path

    def __call__(self, event: str, device: str, why: str | None = None, **beside: object) -> None:
        """Write a line."""
        if self.path is None:
            return
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, "device": device[:80]}
        line |= {"why": why[:_LONGEST]} if why is not None else {}
        with self.path.open("a", encoding="ascii") as file:
            file.write(json.dumps({**line, **beside}) + "\n")


@dataclass(frozen=True)
class NoResponse:
    """In the place of an answer: why there is none."""

    why: str


class Fleet(ABC):
    """Minimum that a transport of devices has to do. Messages are opaque to it.

    `names`: the registered devices, in the order of their client numbers. `tokens`: by which each of them knows the
    server, and the server it. A device answers one request after the other.
    """

    names: tuple[str, ...]
    tokens: Mapping[str, str]
    audit: Audit

    @abstractmethod
    def there(self) -> Collection[str]:
        """Return the devices that can be asked now."""

    def gather(self) -> None:  # noqa: B027  # others have them all from the first to the last
        """Let in devices that have come since, and wait for one where none is left.

        Raises:
            RankError: none comes.
        """

    @abstractmethod
    def expect(self, size: int) -> None:
        """Take answers of up to `size` bytes from now on, if not of more: late ones are of earlier requests."""

    @abstractmethod
    def ask(
        self, requests: Mapping[str, bytes], deadline: float | None
    ) -> Iterator[tuple[str, memoryview | NoResponse]]:
        """Send each device its request, and yield the answers as they come, one for each device.

        An answer that comes after `deadline` seconds is dropped, now or at a later call.
        """


class RankFleet(Fleet):
    """Devices that are ranks, each with data and a state of its own; rank 0 is the server.

    `hello`: what a rank hears first that comes; `admit`: what is done with its answer, once the run has begun.
    `public`: what each device is told then. `start`: what networks start from, which a device must have before it can
    be asked. `wait`: seconds to wait for a device where none is left; None: as long as it takes.
    """

    hello = b""
    public: bytes | None = None
    start: Start | None = None
    admit: Callable[[int, bytes], None] | None = None
    wait: float | None = None

    def __init__(self, manager: CommunicationManager, audit: Audit) -> None:
        self.manager, self.audit = manager, audit
        self.names, self.tokens = (), {}
        self.ranks: dict[str, int] = {}  # of the devices that are there
        self._met: set[int] = set()  # ranks that have come
        self._silent: set[int] = set()  # of these, who has not registered yet
        self._late: dict[int, str] = {}  # ranks whose answer nobody waits for any more
        self._handovers: dict[int, Handover] = {}  # to ranks that do not have the whole start yet
        self._owed = Counter[int]()  # answers to what ranks were told that have not come: they come before all others
        manager.at_work = True

    def introduce(self, hello: bytes, seconds: float | None = None) -> dict[int, bytes]:
        """Return the answers of ranks to the first message.

        These are the answers of all ranks that there are, or of those that answer within `seconds` seconds.
        """
        self.hello, found = hello, dict[int, bytes]()
        end = None if seconds is None else time.monotonic() + seconds
        while len(found) < self.manager.size - 1 and (end is None or time.monotonic() < end):
            found.update(self._registrations(LOOK))
            for rank in self.manager.wait(found, 0.0):  # it was not asked for more, so it is gone, and may come again
                del found[rank]
        return found

    def _registrations(self, seconds: float) -> dict[int, bytes]:
        """Return the answers to the first message of ranks that have come and are still there."""
        for rank in self.manager.came():
            if rank not in self._met:
                self._met.add(rank)
                self._silent.add(rank)
                self.manager.post(rank, self.hello)
        found: dict[int, bytes] = {}
        if not self._silent:
            time.sleep(seconds)
        for rank in self.manager.wait(self._silent, seconds) if self._silent else ():
            self._silent.discard(rank)
            with contextlib.suppress(EOFError):
                found[rank] = bytes(self.manager.take(rank))
        return found

    def gather(self) -> None:
        self._drop_stale()
        end = None if self.wait is None else time.monotonic() + self.wait
        self._let_in(0.0)
        self._hand_on(0.0)
        while all(rank in self._handovers for rank in self.ranks.values()):
            if end is not None and time.monotonic() >= end:
                raise RankError(
                    f"no device is there any more, and none came back within {self.wait:g} s: go on with --resume, and "
                    "start the devices again; the audit log says why they left"
                )
            self._let_in(0.0 if self._handovers else LOOK)
            self._hand_on(LOOK)

    def _let_in(self, seconds: float) -> None:
        """Go on also with the ranks that have come since."""
        if self.admit is not None:
            for rank, data in self._registrations(seconds).items():
                self.admit(rank, data)

    def tell(self, rank: int, message: bytes) -> None:
        """Answer what a rank has said; it will say when it has heard."""
        self.manager.post(rank, message)
        self._owed[rank] += 1

    def settle(self) -> None:
        """Wait until the ranks that were told something have heard it; slow ones may say so later."""
        end = time.monotonic() + PATIENCE
        while (owing := list(+self._owed)) and (left := end - time.monotonic()) > 0:
            ready = self.manager.wait(owing, left)
            for rank in ready:
                self._heard(rank)
            if not ready:
                break

    def hand_over(self, start: Start, seconds: float | None) -> None:
        """Send the devices that are there what their networks start from, as far as they lack it, and those that come.

        Return when they have it, or after `seconds` seconds: who has it later can be asked then.
        """
        self.start, end = start, None if seconds is None else time.monotonic() + seconds
        for rank in self.ranks.values():
            self.offer(rank)
        while self._handovers and (end is None or time.monotonic() < end):
            self._hand_on(LOOK)

    def offer(self, rank: int) -> None:
        """Tell a device what its network starts from."""
        assert self.start is not None
        self._handovers[rank] = Handover(self.start)
        self.tell(rank, self.start.offer())

    def _hand_on(self, seconds: float) -> None:
        """Go on with all transfers, once."""
        for rank in self.manager.wait(list(self._handovers), seconds) if self._handovers else ():
            self._heard(rank)

    def _go_on(self, rank: int, said: memoryview) -> None:
        """Go on with the transfer to a rank, which has said how much it has."""
        handover = self._handovers.pop(rank)
        name = next(name for name, its in self.ranks.items() if its == rank)
        try:
            message = handover.next(said)
        except RefusedError as error:
            del self.ranks[name]
            self.audit("refused", name, str(error))
            self.tell(rank, pack({"refused": str(error)}, {}))
            return
        if message is None:
            self.audit("started", name, bytes=handover.sent)
        else:
            self._handovers[rank] = handover
            self.tell(rank, message)

    def expect(self, size: int) -> None:
        self.manager.limit = max(self.manager.limit, size)

    def there(self) -> Collection[str]:
        return [name for name, rank in self.ranks.items() if not {rank} & (self._late.keys() | self._handovers.keys())]

    def ask(
        self, requests: Mapping[str, bytes], deadline: float | None
    ) -> Iterator[tuple[str, memoryview | NoResponse]]:
        end = None if deadline is None else time.monotonic() + deadline
        self._drop_stale()
        waited: dict[int, str] = {}
        for name, message in requests.items():
            rank = self.ranks.get(name)
            if rank is None:
                yield name, NoResponse("it is not there")
            elif rank in self._late:
                yield name, NoResponse("it is still busy with an earlier request")
            elif rank in self._handovers:
                yield name, NoResponse("it does not have the whole start yet")
            else:
                self.manager.post(rank, message)
                waited[rank] = name
        while waited:
            left = None if end is None else max(0.0, end - time.monotonic())
            ready = self.manager.wait([*waited, *self._handovers], left)
            answers = [rank for rank in ready if rank in waited]
            for rank in ready:
                if self._heard(rank):
                    continue
                name, answer = waited.pop(rank), self._take(rank)
                yield name, NoResponse("its connection ended, or it sent too much") if answer is None else answer
            if not ready or (left == 0.0 and not answers):  # at the deadline a transfer may go on for long
                break
        for rank, name in waited.items():
            self._late[rank] = name
            yield name, NoResponse(f"{NOT_WITHIN} {deadline:g} s")

    def close(self) -> None:
        """Tell the ranks that are there, and those that come just now, that it is over."""
        self._drop_stale()
        end = time.monotonic() + PATIENCE
        while self.manager.arriving and time.monotonic() < end:
            time.sleep(LOOK)
        new = self._silent.union(self.manager.came()) - (self._met - self._silent)
        for rank in self.manager.dismiss([*self.ranks.values(), *new], {*self._late, *self._handovers, *new}):
            self._left(rank)
        self.ranks.clear()

    def _drop_stale(self) -> None:
        """Drop what has come before a request is sent, since it is no answer to it.

        Some is left of a device that never stops.
        """
        for _ in range(_STALE):
            for rank in self.manager.wait(list(self.ranks.values()), 0.0):
                if self._heard(rank):
                    continue
                name = next(name for name, its in self.ranks.items() if its == rank)
                why = "came after the deadline" if self._late.pop(rank, None) else "came twice, or unasked"
                if self._take(rank) is not None:
                    self.audit("late", name, f"its answer {why}, and was dropped")

    def _heard(self, rank: int) -> bool:
        """Return whether what has come says that a rank has heard what it was told, and is no answer to a request."""
        told = self._owed[rank] > 0
        if told:
            self._owed[rank] -= 1
            said = self._take(rank)
            if said is not None and rank in self._handovers and not self._owed[rank]:
                self._go_on(rank, said)
        return told

    def _take(self, rank: int) -> memoryview | None:
        try:
            return self.manager.take(rank)
        except EOFError:
            self._left(rank)
            return None

    def _left(self, rank: int) -> None:
        self._late.pop(rank, None)
        self._owed.pop(rank, None)
        self._handovers.pop(rank, None)
        for name in [name for name, its in self.ranks.items() if its == rank]:
            del self.ranks[name]
            self.audit("left", name, "its connection ended, or it sent too much")
