"""Presence of devices at a server: who is connected, what each has answered, and who was lost, and why.

It hears the events of the audit log, and two that the log leaves out, `asked` and `heard`. The status file, the page,
health and metrics read its snapshot; the server's log has a line of each device that is lost, back, removed, late or
refused.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from fedloom.ranks.communication import UNLISTED

if TYPE_CHECKING:  # whoever reads a status needs no PyTorch
    from fedloom.coordinator.history import History
    from fedloom.deploy.registration import Registration

CONNECTED, AWAITED, GONE, REMOVED = "connected", "awaited", "gone", "removed"
LINES, STRANGERS, AGAIN = 10, 100, 600.0  # lines of one device, and of all who are unknown, in so many seconds
MOST = 10_000  # devices that are kept
_SHOWN = 20  # of those who were refused before they were known
_STRANGER = ""


@dataclass
class Seen:
    """One device.

    Attributes:
        id: as in the audit log.
        name: "" where it has none.
        client: its number in the run; None before the run has one for it.
        state: connected, awaited (not there since this server started), gone or removed.
        since: when it connected; None while it is not there. All times are seconds since 1970.
        heard: when its last message came.
        version: of fedloom there.
        examples: training examples that count.
        round: the last round in which it was asked, from 1.
        seconds: from being asked to its answer, over the exchanges of that round.
        sent: bytes of requests to it since this server started, and of what it began with.
        received: bytes of its answers.
        answered: answers that were accepted.
        lost: rounds in which it did not answer in time, or was not there.
        late: answers that came too late and were dropped.
        refused: answers that were refused.
        declined: how often it declined.
        why: the reason of the last of these, and `when` it was.
        personal: the headline measure of its personal model.
    """

    id: str
    name: str = ""
    client: int | None = None
    state: str = AWAITED
    since: float | None = None
    heard: float | None = None
    version: str = ""
    examples: int | None = None
    round: int | None = None
    seconds: float | None = None
    sent: int = 0
    received: int = 0
    answered: int = 0
    lost: int = 0
    late: int = 0
    refused: int = 0
    declined: int = 0
    why: str = ""
    when: float | None = None
    personal: float | None = None

    @property
    def label(self) -> str:
        """Its name, or its id."""
        return self.name or self.id


class EventLines:
    """Lines of a log, one an event, with time and name; of each device a few at a time, however often it comes.

    `say`: prints a line. `clock`: seconds since 1970.
    """

    def __init__(self, say: Callable[[str], object], clock: Callable[[], float] = time.time) -> None:
        self._say, self._clock = say, clock
        self._told: dict[str, tuple[float, int]] = {}  # since when, and how many, by device

    def __call__(self, of: str, text: str) -> None:
        """Print a line. `of`: the device whose lines are counted; "" for all that are not known."""
        now, most = self._clock(), LINES if of else STRANGERS
        began, count = self._told.get(of, (now, 0))
        if now - began >= AGAIN:
            began, count = now, 0
        self._told[of] = began, count + 1
        if count >= most:
            return
        last = f"; what else comes of this kind within {AGAIN / 60:g} minutes is in audit.jsonl alone"
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        self._say(f"{stamp}  {text}{last * (count == most - 1)}")


class Presence:
    """The devices of a server, as its events say it.

    `say`: prints a line of the server's log. `rounds`: of the run. `version`: of fedloom here.
    `clock`: seconds since 1970. `least`: devices with which the run begins.
    """

    least = 1

    def __init__(
        self, say: Callable[[str], object], rounds: int, version: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._version = version
        self._lines, self._clock, self.rounds = EventLines(say, clock), clock, rounds
        self.started, self.round, self.measure, self.has_begun = clock(), 0, "", False
        self._lock = Lock()
        self._devices: dict[str, Seen] = {}
        self._failing: set[str] = set()  # devices of which the log says that they are lost
        self._asked: dict[str, float] = {}
        self._lost_in: dict[str, int | None] = {}  # the last round in which each was lost
        self._strangers: deque[dict[str, Any]] = deque(maxlen=_SHOWN)
        self.turned_away = 0
        self.events = 0
        self.ended: float | None = None
        self.why = ""

    # ---- what happens

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take an event of the audit log, or one that has no line there."""
        with self._lock:
            self.events += 1
            told = self._take(event, self._clock())
        if told is not None:
            self._lines(*told)

    def expect(self, devices: Iterable[Registration]) -> None:
        """Take the devices of the run, in the order of their numbers, those of an earlier server too: it begins.

        Others that had registered were not taken.
        """
        with self._lock:
            before, self._devices = self._devices, {}
            for client, device in enumerate(devices):
                its = self._devices[device.id] = before.get(device.id, Seen(device.id))
                its.client, its.name, its.examples = client, device.name, sum(device.train)
            self.has_begun = True
            self.events += 1

    def see_round(self, history: History) -> None:
        """Take the newest record of the run."""
        record, main = history.metrics[-1], history.headline
        with self._lock:
            self.round, self.measure = record["round"], main.title
            found = record.get("personal_by_client") or {}
            for its in self._devices.values():
                its.personal = found.get(str(its.client), its.personal)
            self.events += 1

    def look(self, removed: Collection[str]) -> None:
        """Take the ids of the devices whose keys are registered no longer, as the list says it now."""
        with self._lock:
            gone = [its for id, its in self._devices.items() if id in removed and its.state != REMOVED]
            for its in gone:
                its.state, its.since, its.why, its.when = REMOVED, None, UNLISTED, self._clock()
                self._failing.add(its.id)
            self.events += len(gone)
        for its in gone:
            self._lines(its.id, f"removed: {its.label}: {UNLISTED}")

    def end(self, why: str = "") -> None:
        """Take the end of the server. `why`: the error that ended it."""
        with self._lock:
            self.ended, self.why = self._clock(), why
            self.events += 1

    # ---- what is known

    def snapshot(self) -> dict[str, Any]:
        """Return what is known as JSON has it: the server, its devices, and who was refused before it was known."""
        with self._lock:
            here = [vars(its).copy() for its in sorted(self._devices.values(), key=_order)]
            return {
                "started": self.started, "ended": self.ended, "why": self.why, "begun": self.has_begun,
                "least": self.least, "round": self.round, "rounds": self.rounds, "measure": self.measure,
                "devices": here, "refused": [*self._strangers], "turned_away": self.turned_away,
            }  # fmt: skip

    # ---- events

    def _take(self, event: Mapping[str, Any], now: float) -> tuple[str, str] | None:
        """Take an event, and return the device and the line of the log that it makes; None if it makes none."""
        kind, id, why = event["event"], event["device"], event.get("why", "")
        if kind in ("registered", "waits", "joined"):
            if id not in self._devices and len(self._devices) >= MOST:
                return None
            return self._arrive(self._devices.setdefault(id, Seen(id)), event, now)
        if (its := self._devices.get(id)) is None or "connection" in event:
            if kind != "refused":
                return None
            self.turned_away += 1
            self._strangers.append({"who": id, "why": why, "when": now})
            return _STRANGER, f"refused: {id}: {why}"
        if kind in ("heard", "answered", "late", "started", "kept", "declined"):
            its.heard = now
        line = self._count(its, kind, event, now)
        if kind in ("lost", "late", "refused", "declined"):
            is_counted = kind == "lost" and self._lost_in.get(id) == event.get("round")  # in an exchange before
            setattr(its, kind, getattr(its, kind) + (not is_counted))
            if kind == "lost":
                self._lost_in[id] = event.get("round")
            if its.state == CONNECTED:
                its.why, its.when = why, now
        return None if line is None else (its.id, line)

    def _arrive(self, its: Seen, event: Mapping[str, Any], now: float) -> tuple[str, str] | None:
        is_new = its.state == AWAITED and its.client is None
        was_there, its.state = its.state == CONNECTED, CONNECTED
        its.since = its.since if was_there and its.since is not None else now
        its.heard, its.version = now, event.get("fedloom") or its.version
        its.name = event.get("name") or its.name
        its.client, its.examples = event.get("client", its.client), event.get("examples", its.examples)
        self._failing.discard(its.id)
        if event["event"] != "joined":
            return its.id, f"registered: {its.label}, {its.examples} examples{self._other(its)}"
        if not self.has_begun or was_there:
            return None
        return its.id, f"{'joined' if is_new else 'back'}: {its.label}{self._other(its)}"

    def _other(self, its: Seen) -> str:
        """Return in words which version a device has, where it is not that of the server."""
        return f", with fedloom {its.version}, and here {self._version}" * (its.version not in ("", self._version))

    def _count(self, its: Seen, kind: str, event: Mapping[str, Any], now: float) -> str | None:
        """Take an event of a known device, and return its line."""
        why, of_round = event.get("why", ""), f" in round {event['round']}" if "round" in event else ""
        if kind == "asked":
            its.sent, self._asked[its.id] = its.sent + event["bytes"], now
        elif kind == "heard":
            now_in = min(self.round + 1, self.rounds)
            before = its.seconds or 0.0 if its.round == now_in else 0.0
            its.seconds = round(before + now - self._asked.get(its.id, now), 3)
            its.round, its.received = now_in, its.received + event["bytes"]
            if its.id in self._failing and its.state == CONNECTED:  # else it is a last answer
                self._failing.discard(its.id)
                return f"back: {its.label} answers again"
        elif kind == "started":
            its.sent += event["bytes"]
        elif kind == "answered":
            its.answered, its.round = its.answered + 1, event["round"]
            self.round = max(self.round, event["round"] - 1)  # of a run that goes on
        elif kind == "left":
            was_removed, is_removed = its.state == REMOVED, why == UNLISTED
            its.state = REMOVED if is_removed or was_removed else GONE
            its.since, its.why, its.when = None, why, now
            self._failing.add(its.id)
            if not was_removed:
                return f"{'removed' if is_removed else 'lost'}: {its.label}: {why}"
        elif kind == "lost" and its.id not in self._failing and its.state == CONNECTED:
            self._failing.add(its.id)
            return f"lost{of_round}: {its.label}: {why}"
        elif kind in ("late", "refused"):
            if kind == "refused" and not of_round:  # it does not take part
                its.state, its.since = GONE, None
            return f"{kind}{of_round}: {its.label}: {why}"
        return None


def _order(its: Seen) -> tuple[bool, int, str]:
    return its.client is None, its.client or 0, its.label
