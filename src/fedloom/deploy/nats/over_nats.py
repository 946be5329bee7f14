"""Messages between server and devices over NATS, whose server carries them: TLS, a key and subjects for each device.

A device may publish to `fedloom.up.NAME` and listen to `fedloom.down.NAME.SESSION` alone, so nats-server proves who
sent a message, and nobody reads another's. Both ends connect out to nats-server. A message travels as requests of NATS,
one for each piece, which the other end acknowledges: whatever is lost on the way is noticed.

A `session` is a device's time at the server, from its greeting to the first loss; it is a rank of the server. A device
that returns has a new one, and registers anew, as ranks over Gloo do.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import math
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from fedloom.core.errors import RankError, SettingError
from fedloom.deploy.device_names import SERVER
from fedloom.deploy.nats.door import OTHER_NAME, TROUBLED, Door, words
from fedloom.deploy.nats.leaves import SMALL, Leaves
from fedloom.ranks.communication import PATIENCE, UNLISTED, ThreadedManager

PIECE = 4 << 20  # bytes of a request; `max_payload` of nats-server has to be above it
PENDING = 64 * PIECE  # bytes that wait at either end: a device that floods is shut out before they are reached
ROOM = 16 * PIECE  # bytes of requests that wait to be sent, and of answers that come or wait to be taken
BEAT = 2.0  # seconds without a word, after which an end looks whether the other one is there
LOOKS = 100  # of a server in a second, at most: with more than 200 devices it looks at each less often
KEPT = 2  # sessions of a key that are over and still known, as whoever counts on them may not have noticed yet
_LEAVE = 86_400.0  # seconds that a device waits for leave to send; meanwhile it looks whether the server is there
SILENCE = 30.0  # seconds without an acknowledgement, after which the other end is gone
UP, DOWN = "fedloom.up", "fedloom.down"
UNASKED, UNASKED_RATE = 100.0, 10.0  # messages that nobody asked for: so many at once, and so many a second after that
FULL = 25.0  # of these, for which one of `PIECE` bytes counts


@dataclass
class _Session:
    """A device's time at the server.

    `data`: the pieces of a message that have come so far, of `size` bytes. `unsent`: bytes that wait to be sent.
    `heard`: when the other end was heard last. `every`: seconds after that in which it is looked for.
    """

    subject: str
    id: str
    data: bytearray = field(default_factory=bytearray)
    size: int = -1
    unsent: int = 0
    heard: float = field(default_factory=time.monotonic)
    every: float = field(default_factory=lambda: BEAT)


class NatsManager(ThreadedManager):
    """Manager over NATS, whose connection one thread serves. The server's is that of the name `SERVER`."""

    def __init__(self, door: Door) -> None:
        super().__init__(int(door.name != SERVER), 0)
        self.door = door
        self._sessions: dict[int, _Session] = {}
        self._count = 0  # of sessions so far
        self._ranks: dict[str, list[int]] = {}  # of each device's last sessions, the newest last, by its name
        self._names: dict[int, str] = {}  # of the keys of ranks
        self.registered: Callable[[], Collection[str]] | None = None  # names of the keys that may connect
        self.flooded: Callable[[str], object] = lambda name: None  # called with a device that sends too much unasked
        self._unasked: dict[str, tuple[float, float]] = {}  # how much more of that is taken, by name, and when it was
        self._denied = asyncio.Event()  # set once nats-server has said that a subject is another device's
        self._due = Counter[int]()  # answers that a rank owes: more than these are not taken
        self._queues: dict[int, asyncio.Queue[bytes | None]] = {}
        self._tasks: set[Future[None]] = set()
        self._unsent = 0  # bytes of all sessions
        self.leaves = Leaves(ROOM, SILENCE)
        self.told: Callable[[str], object] = lambda text: None  # called with what the connection has lost
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        atexit.register(self.end)
        try:
            self._run(self._open()).result(4 * PATIENCE)
        except SettingError:
            self.end()
            raise
        except Exception as error:  # what nats-py raises has no common class
            self.end()
            raise RankError(door.why_shut(error)) from None

    def _run(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # ---- what CommunicationManager asks for

    @property
    def expected(self) -> None:  # type: ignore[override]
        """None: devices come when they like."""

    def name_of(self, rank: int) -> str | None:
        return self._names.get(rank)

    def listed(self) -> Collection[str] | None:
        return None if self.registered is None else self.registered()

    def reason(self, rank: int) -> str:
        name = self._names.get(rank)
        if name is not None and (listed := self.listed()) is not None and name not in listed:
            return UNLISTED
        return super().reason(rank)

    def post(self, rank: int, message: bytes) -> None:
        """Send a message later; wait first while more than `ROOM` bytes wait for that."""
        with self._news:
            self._news.wait_for(lambda: self._unsent <= ROOM or rank not in self._queues)
        if rank in self._queues:
            self._due[rank] += 1
            self._send_later(rank, message)

    def _send_later(self, rank: int, message: bytes) -> None:
        with self._news:
            if (queue := self._queues.get(rank)) is None:  # its session is over
                return
            self._count_unsent(self._sessions[rank], len(message))
        self._loop.call_soon_threadsafe(queue.put_nowait, bytes(message))

    def _count_unsent(self, session: _Session, more: int) -> None:
        with self._news:
            session.unsent, self._unsent = session.unsent + more, self._unsent + more
            self._news.notify_all()

    def take(self, rank: int) -> memoryview:
        message = super().take(rank)
        if len(message) > SMALL:
            self._loop.call_soon_threadsafe(self.leaves.free, rank)
        return message

    def end(self) -> None:
        """Send all posted messages, then leave."""
        atexit.unregister(self.end)
        if self._loop.is_closed():
            return
        for queue in list(self._queues.values()):
            self._loop.call_soon_threadsafe(queue.put_nowait, None)
        for task in [*self._tasks]:
            with contextlib.suppress(Exception):
                task.result(PATIENCE)
        with contextlib.suppress(Exception):
            self._run(self._close()).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        if not self._thread.is_alive():
            self._loop.close()

    # ---- in the thread

    def _mark_gone(self, rank: int) -> None:
        if rank not in self._inbox:  # forgotten
            return
        super()._mark_gone(rank)
        self.leaves.free(rank)
        if (session := self._sessions.get(rank)) is not None:
            session.data = bytearray()  # of a message that will not be whole
            self._count_unsent(session, -session.unsent)
        if (queue := self._queues.pop(rank, None)) is not None:
            self._loop.call_soon_threadsafe(queue.put_nowait, None)

    async def _note(self, error: Exception) -> None:
        """Keep in mind that a subject is another device's; whatever else is lost later ends its session."""
        if not hasattr(self, "_nats"):  # else the server would try to connect for ever
            raise error
        if _DENIED in str(error).lower():
            self._denied.set()
        else:
            self.told(TROUBLED.format(why=words(error)))

    async def _open(self) -> None:
        self._nats = await self.door.connect(self._note)
        if self.rank == 0:
            await self._nats.subscribe(f"{UP}.*", cb=self._take_piece, pending_bytes_limit=PENDING)
        else:
            session = _Session(f"{UP}.{self.door.name}", secrets.token_hex(16))
            await self._nats.subscribe(f"{DOWN}.{self.door.name}.{session.id}", cb=self._take_piece)
            greeting, denied = (asyncio.ensure_future(each) for each in (self._greet(session), self._denied.wait()))
            await asyncio.wait((greeting, denied), return_when=asyncio.FIRST_COMPLETED)
            if self._denied.is_set():
                greeting.cancel()
                raise SettingError(OTHER_NAME.format(name=self.door.name))
            denied.cancel()
            await greeting
            self._begin(0, session)

    async def _greet(self, session: _Session) -> None:
        """Begin a session, as soon as there is a server."""
        while True:
            try:
                return await self._ask(session, {"greeting": "1"})
            except EOFError as error:
                if str(error) != _NOBODY:
                    raise
            await asyncio.sleep(BEAT / 4)

    def _begin(self, rank: int, session: _Session) -> None:
        self._sessions[rank], self._queues[rank] = session, asyncio.Queue()
        self._add_rank(rank)
        task = asyncio.run_coroutine_threadsafe(self._send_all(rank, session), self._loop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        asyncio.run_coroutine_threadsafe(self._watch(rank, session), self._loop)

    async def _close(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        if hasattr(self, "_nats"):
            await self._nats.close()

    async def _send_all(self, rank: int, session: _Session) -> None:
        """Send what is posted to a rank, piece by piece."""
        queue = self._queues[rank]
        try:
            while not self._is_over(rank) and (message := await queue.get()) is not None:
                if self.rank and len(message) > SMALL:
                    await self._ask(session, {"leave": str(len(message))}, within=_LEAVE)
                for start in range(0, max(1, len(message)), PIECE):
                    head = {"size": str(len(message)), "start": str(start)}
                    await self._ask(session, head, message[start : start + PIECE])
                self._count_unsent(session, -min(len(message), session.unsent))
        except EOFError:
            self._mark_gone(rank)

    async def _watch(self, rank: int, session: _Session) -> None:
        """Look whether the other end still has the session, where nothing was heard of it for a while."""
        with contextlib.suppress(EOFError):
            while not self._is_over(rank):
                if self.rank == 0:
                    session.every = self._pause
                    self.leaves.look()
                if (silent := time.monotonic() - session.heard) < session.every:
                    await asyncio.sleep(session.every - silent)
                else:
                    await self._ask(session, {})
        self._mark_gone(rank)

    @property
    def _pause(self) -> float:
        """Seconds without a word of a device, after which a server looks for it."""
        return min(SILENCE, max(BEAT, len(self._queues) / LOOKS))

    async def _ask(
        self, session: _Session, head: dict[str, str], piece: bytes = b"", within: float | None = None
    ) -> None:
        """Send a request, and wait for its acknowledgement, `within` so many seconds (None: `SILENCE`).

        Raises:
            EOFError: the other end is gone, or the session is over there.
        """
        from nats.errors import Error, NoRespondersError

        head = {"session": session.id, **head}
        try:
            reply = await self._nats.request(session.subject, piece, timeout=within or SILENCE, headers=head)
        except NoRespondersError:
            raise EOFError(_NOBODY) from None
        except (Error, OSError) as error:
            raise EOFError(words(error)) from error
        if reply.data:
            raise EOFError(bytes(reply.data[:200]).decode(errors="replace"))
        session.heard = time.monotonic()
        if self.rank and "every" in (its := reply.headers or {}):
            session.every = min(SILENCE, max(BEAT, _number(its["every"])))

    async def _take_piece(self, message: Any) -> None:
        """Take a request of the other end, and acknowledge it, by the reason where its session is over.

        A server says to a device that looks for it how often it looks itself, which is often enough for both.
        """
        name, head, why = message.subject.split(".")[2], message.headers or {}, b""
        try:
            if "leave" in head and self._waits(name, head, message):
                return
            was_asked = self._accept(name, head, message.data)
        except EOFError as error:
            was_asked, why = False, str(error).encode()
        if self.rank == 0 and not was_asked:
            self._count_unasked(name, len(message.data))
        looks = self.rank == 0 and "size" not in head
        await self._acknowledge(message, why, {"every": f"{math.ceil(self._pause)}"} if looks else None)

    async def _acknowledge(self, message: Any, why: bytes = b"", head: dict[str, str] | None = None) -> None:
        with contextlib.suppress(Exception):  # whoever asked need not be there any more
            await self._nats.publish(message.reply, why, headers=head)

    def _count_unasked(self, name: str, size: int) -> None:
        """Call `flooded` with a device once it has sent more than honest ones do, which look and greet now and then."""
        now = time.monotonic()
        left, before = self._unasked.get(name, (UNASKED, now))
        left = min(UNASKED, left + UNASKED_RATE * (now - before)) - 1.0 - FULL * size / PIECE
        if left < 0:
            if ranks := self._ranks.get(name):
                self._mark_gone(ranks[-1])
            self.flooded(name)
        self._unasked[name] = max(0.0, left), now

    def _accept(self, name: str, head: dict[str, str], piece: bytes) -> bool:
        """Take what a request brings; return whether it was asked for.

        Raises:
            EOFError: it belongs to no session.
        """
        id = head.get("session", "")
        if self.rank == 0 and "greeting" in head:
            self._welcome(name, id)
            return False
        rank, session = self._session_of(name, id)
        session.heard = time.monotonic()
        if "size" not in head:
            return False
        try:
            self._join(rank, session, _number(head["size"]), _number(head.get("start", "")), piece)
        except EOFError:
            self._mark_gone(rank)
            raise
        return len(piece) == PIECE or not session.data  # else it sends a message in crumbs

    def _session_of(self, name: str, id: str) -> tuple[int, _Session]:
        """Return the rank and the session to which a request belongs.

        Raises:
            EOFError: it is over.
        """
        rank = self._ranks.get(name, [-1])[-1] if self.rank == 0 else 0
        session = self._sessions.get(rank)
        if session is None or self._is_over(rank) or not secrets.compare_digest(session.id.encode(), id.encode()):
            raise EOFError("the session is over")
        return rank, session

    def _waits(self, name: str, head: dict[str, str], message: Any) -> bool:
        """Acknowledge a device's question once it may send so much; return False if it owes nothing or has asked.

        Raises:
            EOFError: it belongs to no session, or would send too much.
        """
        rank, session = self._session_of(name, head.get("session", ""))
        if not self._due[rank]:
            return False
        size, session.heard = self._allowed(rank, _number(head["leave"])), time.monotonic()
        return self.leaves.ask(rank, size, lambda: asyncio.ensure_future(self._acknowledge(message)))

    def _welcome(self, name: str, id: str) -> None:
        """Begin a session of a device; its earlier one is over, and the oldest is forgotten."""
        if not re.fullmatch(r"[0-9a-f]{32}", id):
            raise EOFError("no session is named")
        ranks = self._ranks.setdefault(name, [])
        if ranks:
            self._mark_gone(ranks[-1])
        while len(ranks) > KEPT:
            self._forget(ranks.pop(0))
        self._count = rank = self._count + 1
        ranks.append(rank)
        self._names[rank] = name
        self._begin(rank, _Session(f"{DOWN}.{name}.{id}", id))

    def _forget(self, rank: int) -> None:
        """Keep nothing of a session that is over: who greets again and again costs no memory."""
        self._forget_rank(rank)
        for kept in (self._sessions, self._names, self._due):
            kept.pop(rank, None)

    def _join(self, rank: int, session: _Session, size: int, start: int, piece: bytes) -> None:
        """Add a piece to a message, which is delivered once it is whole."""
        if start == 0 and not session.data:
            if self.rank == 0 and not self._due[rank]:
                raise EOFError("nothing was asked")
            session.data, session.size = bytearray(), self._allowed(rank, size)
        is_next = (size, start) == (session.size, len(session.data)) and bool(piece) == bool(size)
        if not is_next or start + len(piece) > size:
            raise EOFError("a piece is missing")
        session.data += piece
        if len(session.data) == size:
            whole, session.data, session.size = session.data, bytearray(), -1
            self._due[rank] -= self.rank == 0
            self.leaves.arrived(rank)
            self._deliver(rank, whole)


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise EOFError("no number")
    return int(text)


_NOBODY = "nobody listens"
_DENIED = "permissions violation"  # as nats-server says it, in small letters
