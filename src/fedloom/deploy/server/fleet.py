"""Fleet: the connected devices, behind any transport."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from fedloom.core.errors import RankError, RefusedError, SettingError
from fedloom.deploy.device_names import INVITED
from fedloom.deploy.initial_weights import Start, Transfer
from fedloom.deploy.registration import Registration
from fedloom.deploy.server.audit_log import NAMELESS, Audit
from fedloom.engines.faults import NOT_WITHIN
from fedloom.engines.message_bytes import pack
from fedloom.ranks.communication import LOOK, UNLISTED, Connections
from fedloom.storage.strict_json import parse

_STALE = 8  # answers of one device that are dropped before a request
_CLAIM, _LONGEST_CLAIM = 1 << 21, 40  # bytes of a registration, characters of a name or an id in it


@dataclass(frozen=True)
class NoResponse:
    """Placeholder for a missing answer, with its reason."""

    reason: str


class Fleet(ABC):
    """Interface of a transport of devices. Messages are opaque to it.

    `names`: the registered devices, in the order of their client numbers. `tokens`: secrets by which each device and
    the server authenticate to each other. A device answers one request after the other. `least`: the fewest devices
    that must answer what is asked once in a run. `numbers`: of requests, which rise as long as devices are connected.
    """

    numbers: Iterator[int]
    names: tuple[str, ...]
    tokens: Mapping[str, str]
    audit: Audit
    least: int = 0

    def changes(self) -> bool:
        """Return whether devices come, leave for good or bring other examples after the round that is done."""
        return False

    @abstractmethod
    def connected(self) -> Collection[str]:
        """Return the devices that can take a request now."""

    def removed(self) -> Collection[str]:
        """Return the devices whose keys were registered when the run began and are not any more."""
        return ()

    def admit_arrivals(self) -> None:  # noqa: B027  # a no-op for a fleet that never changes
        """Admit devices that have connected since the last call, and wait for one if none is left.

        Raises:
            RankError: none connects.
        """

    @abstractmethod
    def expect(self, size: int) -> None:
        """Accept answers of at least `size` bytes from now on; a larger limit stays, for late answers."""

    @abstractmethod
    def ask(
        self, requests: Iterable[tuple[str, bytes]], deadline: float | None
    ) -> Iterator[tuple[str, memoryview | NoResponse]]:
        """Send each device its request, and yield the answers as they come, one for each device.

        Requests are read as they are sent, so that they need not be in memory together. An answer that comes after
        `deadline` seconds is dropped, now or at a later call.
        """


def _claimed(said: bytes) -> str:
    """Return the id and the name that a device claims to have, as far as it says any; "" for none."""
    try:
        message = parse(said, _CLAIM)
        id, name = (message.get(entry) for entry in ("id", "name"))
    except ValueError:
        return ""
    words = [each[:_LONGEST_CLAIM] for each in (name, id) if isinstance(each, str) and each.isprintable() and each]
    return " ".join(words)


class RankFleet(Fleet):
    """Devices over the connections of a transport, each with its own data and state.

    `hello`: the first message to a new rank. `admit`: called with the answer, once the run has begun. `public`: the
    message with public examples for admitted devices. `start`: the initial tensors of networks; a device takes requests
    once it has them. `wait`: seconds to wait for a device if none is left; None: no limit. `enrol`: called with the
    name of an invitation's key and what its holder answers; it returns the fingerprint of the key that is registered.
    `waiting`: registrations of ranks that take part once the run goes on with them.
    """

    hello = b""
    public: bytes | None = None
    start: Start | None = None
    admit: Callable[[int, bytes], None] | None = None
    wait: float | None = None
    enrol: Callable[[str, bytes], str] | None = None

    def __init__(self, manager: Connections, audit: Audit) -> None:
        self.numbers = itertools.count(1)
        self.waiting: dict[int, Registration] = {}
        self.versions: dict[str, str] = {}  # of fedloom, by id of a device
        self.manager, self.audit = manager, audit
        self.names, self.tokens = (), {}
        self.ranks: dict[str, int] = {}  # of connected devices
        self._greeted: set[int] = set()  # ranks that were sent `hello`
        self._unregistered: set[int] = set()  # of these, the ranks that have not registered yet
        self._late: dict[int, str] = {}  # ranks with an abandoned request, whose answer will be dropped
        self.started: dict[int, str] = {}  # ranks with a request whose answer `StartedRequests` takes
        self._transfers: dict[int, Transfer] = {}  # to ranks without the whole start
        self._pending_receipts = Counter[int]()  # receipts of notices by rank; they come before other answers
        manager.at_work = True

    def handshake(
        self, hello: bytes, seconds: float | None, enough: Callable[[dict[int, bytes]], bool]
    ) -> dict[int, bytes]:
        """Return the answers of ranks to the first message, once they are `enough` or after `seconds` seconds.

        `enough` may take answers out.
        """
        self.hello, answers = hello, dict[int, bytes]()
        end = None if seconds is None else time.monotonic() + seconds
        is_complete = enough(answers)
        while not is_complete and (end is None or time.monotonic() < end):
            before = set(answers)
            answers.update(self._registrations(LOOK))
            for rank in self.manager.wait(answers, 0.0):  # no answer is due, so it is gone and may return
                del answers[rank]
            is_complete = set(answers) != before and enough(answers)
        return answers

    def converse(self, messages: Mapping[int, bytes], seconds: float | None) -> dict[int, bytes]:
        """Send each rank a message, and return the answers of those that give one within `seconds` seconds."""
        end, answers = None if seconds is None else time.monotonic() + seconds, dict[int, bytes]()
        for rank, message in messages.items():
            self.manager.post(rank, message)
        waited = set(messages)
        while waited:
            ready = self.manager.wait(waited, None if end is None else max(0.0, end - time.monotonic()))
            for rank in ready:
                waited.discard(rank)
                with contextlib.suppress(EOFError):
                    answers[rank] = bytes(self.manager.take(rank))
            if not ready:
                break
        return answers

    def _registrations(self, seconds: float) -> dict[int, bytes]:
        """Return the answers to the first message of new ranks that are still connected."""
        arrivals = self.manager.arrivals()
        self._greeted.intersection_update(arrivals)
        for rank in self._pending_receipts.keys() - {*arrivals, *self.ranks.values()}:
            del self._pending_receipts[rank]
        for rank in arrivals:
            if rank not in self._greeted:
                self._greeted.add(rank)
                self._unregistered.add(rank)
                self.manager.post(rank, self.hello)
        answers: dict[int, bytes] = {}
        if not self._unregistered:
            time.sleep(seconds)
        for rank in self.manager.wait(self._unregistered, seconds) if self._unregistered else ():
            self._unregistered.discard(rank)
            with contextlib.suppress(EOFError):
                data, name = bytes(self.manager.take(rank)), self.manager.name_of(rank)
                if name is not None and name.startswith(INVITED):
                    self._take_enrolment(rank, name, data)
                else:
                    answers[rank] = data
        return answers

    def _take_enrolment(self, rank: int, name: str, data: bytes) -> None:
        """Register the key of a device that was invited, which then comes again by that key."""
        try:
            if self.enrol is None:
                raise RefusedError("this server takes no invitations")
            self.audit("enrolled", name, key=self.enrol(name, data))
            reply: dict[str, object] = {"enrolled": True}
        except RefusedError as error:
            self.audit("refused", name, str(error))
            reply = {"refused": str(error)}
        except (SettingError, OSError) as error:  # with paths of the server
            self.audit("refused", name, str(error))
            reply = {"refused": "the server cannot read or write its list of devices: tell its owner, and come again"}
        self.send_notice(rank, json.dumps(reply).encode())

    def refuse(self, rank: int, why: str, said: bytes) -> None:
        """Write into the audit log that a rank is refused, and send it the reason. `said`: what it registered."""
        self.note_refusal(rank, why, said)
        self.send_notice(rank, json.dumps({"refused": why}).encode())

    def note_refusal(self, rank: int, why: str, said: bytes = b"") -> None:
        """Write into the audit log that a rank is refused: by the name of its key, or as it calls itself in `said`."""
        name = self.manager.name_of(rank)
        known = {"key": name} if name else {}
        self.audit("refused", name or _claimed(said) or NAMELESS, why, connection=rank, **known)

    def admit_those_there(self) -> None:
        """Admit devices that have connected since the last call, and wait for none."""
        self._drop_stale()
        self._admit_registered(0.0)
        self._advance_transfers(0.0)

    def admit_arrivals(self) -> None:
        end = None if self.wait is None else time.monotonic() + self.wait
        self.admit_those_there()
        while all(rank in self._transfers for rank in self.ranks.values()):
            if end is not None and time.monotonic() >= end:
                raise RankError(
                    f"no device is connected, and none returned within {self.wait:g} s: continue with --resume, and "
                    "start the devices again; the audit log has the reasons why they left"
                )
            self._admit_registered(0.0 if self._transfers else LOOK)
            self._advance_transfers(LOOK)

    def _admit_registered(self, seconds: float) -> None:
        """Admit the ranks that have registered since the last call."""
        if self.admit is not None:
            for rank, data in self._registrations(seconds).items():
                self.admit(rank, data)

    def send_notice(self, rank: int, message: bytes) -> None:
        """Send a message to a rank, which will answer it with a receipt."""
        self.manager.post(rank, message)
        self._pending_receipts[rank] += 1

    def settle(self) -> None:
        """Wait some seconds for the receipts of all notices; slow ranks may send theirs later."""
        end = time.monotonic() + self.manager.patience
        while (ranks := list(+self._pending_receipts)) and (remaining := end - time.monotonic()) > 0:
            ready = self.manager.wait(ranks, remaining)
            for rank in ready:
                self.take_receipt(rank)
            if not ready:
                break

    def send_start(self, start: Start, seconds: float | None) -> None:
        """Send connected devices the initial tensors of their networks, as far as they lack them; also later ones.

        Return when all have them, or after `seconds` seconds; slower devices can take requests once they have them.
        """
        self.start, end = start, None if seconds is None else time.monotonic() + seconds
        for rank in self.ranks.values():
            self.offer(rank)
        while self._transfers and (end is None or time.monotonic() < end):
            self._advance_transfers(LOOK)

    def offer(self, rank: int) -> None:
        """Offer a device the initial tensors of its network."""
        assert self.start is not None
        self._transfers[rank] = Transfer(self.start)
        self.send_notice(rank, self.start.offer())

    def _advance_transfers(self, seconds: float) -> None:
        """Send the next part to each rank that is ready for it."""
        for rank in self.manager.wait(list(self._transfers), seconds) if self._transfers else ():
            self.take_receipt(rank)

    def _advance_transfer(self, rank: int, receipt: memoryview) -> None:
        """Send a rank the next part by its receipt, which has the number of bytes it has."""
        transfer = self._transfers.pop(rank)
        name = next(name for name, its in self.ranks.items() if its == rank)
        try:
            message = transfer.next(receipt)
        except RefusedError as error:
            del self.ranks[name]
            self.audit("refused", name, str(error))
            self.send_notice(rank, pack({"refused": str(error)}, {}))
            return
        if message is None:
            self.audit("started", name, bytes=transfer.sent)
        else:
            self._transfers[rank] = transfer
            self.send_notice(rank, message)

    def expect(self, size: int) -> None:
        self.manager.limit = max(self.manager.limit, size)

    def removed(self) -> Collection[str]:
        if (listed := self.manager.listed()) is None:
            return ()
        return {id for id in self.names if self.audit.names.get(id) not in listed}

    def connected(self) -> Collection[str]:
        busy = self._late.keys() | self._transfers.keys() | self.started.keys()
        return [name for name, rank in self.ranks.items() if rank not in busy]

    def give_away(self, rank: int) -> None:
        """Wait no longer for the answer to a request that was started: it will be dropped."""
        self._late[rank] = self.started.pop(rank)

    def ask(
        self, requests: Iterable[tuple[str, bytes]], deadline: float | None
    ) -> Iterator[tuple[str, memoryview | NoResponse]]:
        end = None if deadline is None else time.monotonic() + deadline
        self._drop_stale()
        waited: dict[int, str] = {}
        removed = self.removed()
        for name, message in requests:
            rank = self.ranks.get(name)
            if rank is None:
                yield name, NoResponse(UNLISTED if name in removed else "it is not there")
            elif rank in self._late or rank in self.started:
                yield name, NoResponse("it is still busy with an earlier request")
            elif rank in self._transfers:
                yield name, NoResponse("it does not have the whole start yet")
            else:
                self.manager.post(rank, message)
                self.audit.tell("asked", name, bytes=len(message))
                waited[rank] = name
        while waited:
            remaining = None if end is None else max(0.0, end - time.monotonic())
            ready = self.manager.wait([*waited, *self._transfers], remaining)
            answered = [rank for rank in ready if rank in waited]
            for rank in ready:
                if self.take_receipt(rank):
                    continue
                name, answer = waited.pop(rank), self.take(rank)
                if answer is not None:
                    self.audit.tell("heard", name, bytes=len(answer))
                yield name, NoResponse("its connection ended, or it sent too much") if answer is None else answer
            if not ready or (remaining == 0.0 and not answered):  # at the deadline a transfer may go on for long
                break
        for rank, name in waited.items():
            self._late[rank] = name
            yield name, NoResponse(f"{NOT_WITHIN} {deadline:g} s")

    def close(self) -> None:
        """Send the last message to connected ranks and to those that connect just now."""
        self._drop_stale()
        end = time.monotonic() + self.manager.patience
        while self.manager.arriving and time.monotonic() < end:
            time.sleep(LOOK)
        arrivals = self._unregistered.union(self.manager.arrivals()) - (self._greeted - self._unregistered)
        busy = {*self._late, *self.started, *self._transfers, *arrivals}
        for rank in self.manager.dismiss([*self.ranks.values(), *arrivals], busy):
            self._remove_rank(rank)
        self.ranks.clear()

    def _drop_stale(self) -> None:
        """Drop messages that came before a request is sent, since they cannot answer it; a few for each device."""
        for _ in range(_STALE):
            waiting = self.manager.wait([rank for rank in self.ranks.values() if rank not in self.started], 0.0)
            if not waiting:
                return
            for rank in waiting:
                if self.take_receipt(rank):
                    continue
                name = next(name for name, its in self.ranks.items() if its == rank)
                reason = "came after the deadline" if self._late.pop(rank, None) else "came twice, or unasked"
                if self.take(rank) is not None:
                    self.audit("late", name, f"its answer {reason}, and was dropped")

    def take_receipt(self, rank: int) -> bool:
        """Take a message of a rank if it is the receipt of a notice; return whether it was."""
        is_receipt = self._pending_receipts[rank] > 0
        if is_receipt:
            self._pending_receipts[rank] -= 1
            data = self.take(rank)
            if data is not None and rank in self._transfers and not self._pending_receipts[rank]:
                self._advance_transfer(rank, data)
        return is_receipt

    def take(self, rank: int) -> memoryview | None:
        """Return the oldest answer of a rank that was not taken yet; None: it is gone."""
        try:
            return self.manager.take(rank)
        except EOFError:
            self._remove_rank(rank)
            return None

    def _remove_rank(self, rank: int) -> None:
        self._late.pop(rank, None)
        self.started.pop(rank, None)
        self._pending_receipts.pop(rank, None)
        self._transfers.pop(rank, None)
        for name in [name for name, its in self.ranks.items() if its == rank]:
            del self.ranks[name]
            self.audit("left", name, self.manager.reason(rank))
