"""Requests to devices that are sent at once, and whose answers are taken as they come."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from fedloom.core.errors import DeclinedError, FedloomError, RankError, SettingError
from fedloom.deploy.server.fleet import Fleet, NoResponse, RankFleet
from fedloom.engines.faults import NOT_WITHIN
from fedloom.engines.message import Request
from fedloom.engines.message_bytes import Part, part
from fedloom.storage.store import Version


class StartedRequests:
    """Requests under way to the devices of an engine.

    Args:
        engine: `Devices`, which make requests and read answers.
        fleet: of the devices.

    Attributes:
        refused: answers that came and may not be, since the run has asked last.
    """

    def __init__(self, engine: Any, fleet: Fleet) -> None:
        if not isinstance(fleet, RankFleet):
            raise SettingError(
                f"rounds that do not wait need devices with connections, and {type(fleet).__name__} has none: leave "
                "asynchrony out"
            )
        self.engine, self.fleet, self.refused = engine, fleet, 0
        self._under_way: dict[int, tuple[Request, int, float]] = {}  # by client: number, and the moment of asking
        self._come = deque[tuple[int, memoryview | NoResponse]]()
        self._packed: tuple[Any, Part] | None = None  # what was sent last, and its bytes

    @property
    def wait(self) -> float | None:
        """Seconds to wait for a device if none is left; None: no limit."""
        return self.fleet.wait

    def idle(self, clients: Sequence[int]) -> list[int]:
        """Return those of some clients that compute nothing."""
        return [k for k in clients if k not in self._under_way]

    def free(self) -> Collection[int]:
        """Return the clients that can take a request now, also those whose devices have just come."""
        self._receive(0.0)  # who is gone can come again
        self.fleet.admit_those_there()
        connected = {*self.fleet.connected()}
        return {k for k, name in enumerate(self.fleet.names) if name in connected and k not in self._under_way}

    def start(self, request: Request) -> None:
        """Send a client that is free its request, and return at once."""
        engine, fleet, (k,) = self.engine, self.fleet, request.clients
        sent = request.call.sent
        if self._packed is None or self._packed[0] is not sent:
            self._packed = sent, part(sent)
        fleet.expect(engine.size(request))
        number = next(fleet.numbers)
        message = engine.message(request, number, self._packed[1], {})
        rank = fleet.ranks[fleet.names[k]]
        fleet.started[rank] = fleet.names[k]
        self._under_way[k] = request, number, time.monotonic()
        fleet.manager.post(rank, message)
        fleet.audit.tell("asked", fleet.names[k], bytes=len(message))

    def next(self, seconds: float) -> tuple[int, Any] | None:
        """Return a client, and its (request, new state, answer) or why there is none; None: nothing comes in time."""
        if not self._come:
            self._receive(seconds)
        if not self._come:
            return None
        client, answer = self._come.popleft()
        request, number, asked = self._under_way.pop(client)
        engine, fleet = self.engine, self.fleet
        try:
            states, found = engine.read_answer(request, engine.opened(client, answer, number))
        except FedloomError as error:
            self.refused += not isinstance(error, RankError | DeclinedError)
            return client, engine.record_failure(client, error, request.call.round)
        call, took = request.call, round(time.monotonic() - asked, 3)
        fleet.audit("answered", fleet.names[client], round=call.round + 1, method=call.method, seconds=took)
        return client, (request, states, found)

    def durable(self, version: Version | None, client: int) -> int:
        """Return the round before which a device needs its states no more, but for the one accepted last.

        It is the round of the state that the newest checkpoint names, and 0 until there is one that names the newest
        state: a state of an early round may have been accepted in a late one.

        Args:
            version: of the state accepted last; None: there is none.
            client: of the device.
        """
        if version is None or self.engine.durable is None:
            return 0
        taken: Version = self.engine.states.accepted.get(client, (-1, 0))
        return version[0] + 1 if taken[0] < self.engine.durable else 0

    def _receive(self, seconds: float) -> None:
        """Take what has come; wait so long for the first."""
        fleet, manager = self.fleet, self.fleet.manager
        if not fleet.started:
            time.sleep(seconds)
        for rank in manager.wait([*fleet.started], seconds) if fleet.started else ():
            if fleet.take_receipt(rank):
                continue
            client, answer = fleet.names.index(fleet.started[rank]), fleet.take(rank)
            gone = NoResponse("its connection ended, or it sent too much")
            if answer is not None:
                fleet.audit.tell("heard", fleet.names[client], bytes=len(answer))
            self._come.append((client, gone if answer is None else memoryview(bytes(answer))))
            fleet.started.pop(rank, None)
        if (limit := self.engine.options.deadline) is None:
            return
        for rank, name in [*fleet.started.items()]:
            client = fleet.names.index(name)
            if time.monotonic() >= self._under_way[client][2] + limit:
                fleet.give_away(rank)
                self._come.append((client, NoResponse(f"{NOT_WITHIN} {limit:g} s")))
