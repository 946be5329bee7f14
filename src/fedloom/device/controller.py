"""The Controller of a device: who may ask it what, and whether it takes part."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from fedloom.core.errors import DeclinedError, RefusedError
from fedloom.device.model_manager import ModelManager
from fedloom.device.monitor import Limits, Reading, SystemMonitor
from fedloom.engines.message import JUDGING
from fedloom.engines.runtime import Runtime
from fedloom.wire.devices import INVITATION
from fedloom.wire.service import LIMIT, Service, integer, problem
from fedloom.wire.transport import head_of, pack, seal, unseal

SECONDS = 1.0  # between two looks at the monitor while a device computes
STEPS = 100_000  # of training in a request, unless said otherwise
_LONGEST = 10_000  # characters of what the server is told of an error


class Controller(Service):
    """A device as the server sees it: bytes in, bytes out, whatever carries them.

    A request reaches the `runtime` (the Training Optimizer) only if it is meant for this device (`name`), bears the
    `token` that the server gave it when it joined, is newer than all before, of no round that is over, and if the
    `monitor` says that no limit of `begin` is passed. What passes one of `go_on` ends a request in the middle of it.
    One request is answered at a time, of at most `steps` training steps. `models`: keeps its states; None for a device
    that keeps none. `leaving`: says why the device wants to leave, None as long as it does not.
    """

    def __init__(
        self,
        name: str,
        token: str,
        runtime: Runtime,
        models: ModelManager | None,
        *,
        monitor: SystemMonitor = Reading,
        begin: Limits | None = None,
        go_on: Limits | None = None,
        leaving: Callable[[], str | None] = lambda: None,
        limit: int = LIMIT,
        steps: int = STEPS,
    ) -> None:
        super().__init__(runtime, keeper=models, limit=limit)
        self.steps, self._taken = steps, 0  # of the request at hand
        runtime.between = self._between
        self.name, self.token, self.models, self.monitor, self.leaving = name, token, models, monitor, leaving
        self.begin, self.go_on = begin or Limits(), go_on or Limits()
        self._free = threading.Lock()
        self._number = 0  # of the newest request
        self._newest = (-1, -1)  # (round, exchange) of the newest training that was answered
        self._looked = 0.0

    def describe_error(self, error: Exception) -> dict[str, Any]:
        """Its kind and words alone: a trace has paths and code of this device."""
        said = {name: value[:_LONGEST] if isinstance(value, str) else value for name, value in problem(error).items()}
        return {**said, "trace": ""}

    def __call__(self, data: bytes | memoryview) -> bytes:
        """Return the answer to a message, whatever it is."""
        if not self._free.acquire(blocking=False):
            busy = DeclinedError("it is busy with another request")
            return seal(pack({"problem": problem(busy), "from": self.name}, {}), self.token)
        try:
            return seal(super().__call__(data), self.token)
        finally:
            self._free.release()

    def stamp(self) -> dict[str, Any]:
        return {**super().stamp(), "from": self.name}

    def _answer(self, data: bytes | memoryview) -> tuple[dict[str, Any], dict[str, Any]]:
        data, self._taken = unseal(data, self.token, self.limit), 0
        head = head_of(data, self.limit)
        self._admit(head)
        if (why := self.leaving() or self.begin.passed(self.monitor())) is not None:
            raise DeclinedError(why)
        if head.get("method") == INVITATION:
            return {"problem": None, "steps": []}, {}
        found = super()._answer(data)
        if head["exchange"] != JUDGING:
            self._newest = head["round"], head["exchange"]
        if self.models is not None:
            self.models.prune(head["durable"])
        return found

    def _admit(self, head: dict[str, Any]) -> None:
        """Raise RefusedError unless the caller may ask this of this device now."""
        if head.get("to") != self.name or head.get("clients") != [self.runtime.population.first]:
            raise RefusedError(f"the request is for {head.get('to')!r:.80}, and this is device {self.name}")
        number, round, durable = (integer(head, name) for name in ("number", "round", "durable"))
        exchange = head.get("exchange")
        if number <= self._number:
            raise RefusedError(f"request {number} was sent twice, or is older than {self._number}")
        self._request_number = self._number = number
        if round + (exchange == JUDGING) < durable:
            raise RefusedError(f"round {round} is over: the server has a checkpoint after round {durable}")
        if type(exchange) is int and (round, exchange) <= self._newest:
            raise RefusedError(f"round {round}, exchange {exchange} was answered before, up to {self._newest}")

    def _between(self) -> None:
        """Before each training step: whether to go on."""
        self._taken += 1
        if self._taken > self.steps:
            raise DeclinedError(f"aborted: {too_many_steps(self._taken, self.steps)}")
        if (why := self.leaving()) is None and self.go_on.any and time.monotonic() >= self._looked + SECONDS:
            self._looked, why = time.monotonic(), self.go_on.passed(self.monitor())
        if why is not None:
            raise DeclinedError(f"aborted: {why}")


def too_many_steps(asked: int, most: int) -> str:
    """Return what to say of a server that asks for more training steps than a device takes."""
    return f"the server asks for {asked:,} training steps in a request, and this device takes at most {most:,}"
