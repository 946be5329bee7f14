"""Controller of a device: it checks requests, and accepts or declines them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedloom.core import tree
from fedloom.core.errors import DeclinedError, RefusedError
from fedloom.deploy.device.device_results import KINDS, DeviceResults
from fedloom.deploy.device.model_manager import ModelManager
from fedloom.deploy.device.monitor import Limits, Reading, SystemMonitor
from fedloom.deploy.registration import INVITATION, MASKED
from fedloom.engines.message import EVALUATING, Answer, Request
from fedloom.engines.message_bytes import head_of, pack, seal, unseal
from fedloom.engines.runtime import Runtime
from fedloom.engines.service import LIMIT, Service, integer, problem

if TYPE_CHECKING:
    from fedloom.deploy.device.device_masks import DeviceMasks  # which needs cryptography

SECONDS = 1.0  # between two readings of the monitor while a device computes
STEPS = 100_000  # of training in a request, by default
_LONGEST = 10_000  # characters of an error's description for the server


class Controller(Service):
    """Device as the server sees it: bytes in, bytes out, over any transport.

    A request reaches the `runtime` (the Training Optimizer) if it is addressed to this device (`name`), is sealed with
    the `token` from the server, is newer than all before, and its round is not over; and if the reading of `monitor`
    violates none of `start_limits`. A reading that violates one of `abort_limits` ends a request while it is computed.
    One request is answered at a time, with at most `steps` training steps. `models` stores the states; None for a
    stateless device. `results` has the numbers of this device and its models of the finished run, which a request with
    `final` brings; these are not sent back. `leave_reason()` returns why the device wants to leave, or None. `masks`:
    of a run with secure aggregation.
    """

    def __init__(
        self,
        name: str,
        token: str,
        runtime: Runtime,
        models: ModelManager | None,
        *,
        monitor: SystemMonitor = Reading,
        start_limits: Limits | None = None,
        abort_limits: Limits | None = None,
        leave_reason: Callable[[], str | None] = lambda: None,
        limit: int = LIMIT,
        steps: int = STEPS,
        results: DeviceResults | None = None,
        masks: DeviceMasks | None = None,
    ) -> None:
        super().__init__(runtime, keeper=models, limit=limit)
        self.steps, self._steps_taken = steps, 0  # of the request at hand
        self.results, self.masks = results, masks
        runtime.between = self._check_between_steps
        self.name, self.token, self.models, self.monitor, self.leave_reason = name, token, models, monitor, leave_reason
        self.start_limits, self.abort_limits = start_limits or Limits(), abort_limits or Limits()
        self._lock = threading.Lock()
        self._number = 0  # of the newest request
        self._newest_training = (-1, -1)  # (round, exchange) of the newest training that was answered
        self._is_initial = False  # whether the request at hand is of the model before the first round
        self._last_check = 0.0

    def describe_error(self, error: Exception) -> dict[str, Any]:
        """Describe an error by its kind and words; a trace or a line would show paths and code of this device."""
        description = {
            name: value[:_LONGEST] if isinstance(value, str) else value for name, value in problem(error).items()
        }
        return {**description, "trace": "", "line": ""}

    def __call__(self, data: bytes | memoryview) -> bytes:
        """Return the answer to any message."""
        if not self._lock.acquire(blocking=False):
            error = DeclinedError("it is busy with another request")
            return seal(pack({"problem": problem(error), "from": self.name}, {}), self.token)
        try:
            return seal(super().__call__(data), self.token)
        finally:
            self._lock.release()

    def stamp(self) -> dict[str, Any]:
        return {**super().stamp(), "from": self.name}

    def _answer(self, data: bytes | memoryview) -> tuple[dict[str, Any], dict[str, Any]]:
        data, self._steps_taken = unseal(data, self.token, self.limit), 0
        head = head_of(data, self.limit)
        self._check_request(head)
        final, self._is_initial = head.get("final"), head.get("initial") is True
        if self.masks is not None:
            self.masks.check(head)
        small = final is not None or head.get("method") == MASKED  # others wait for it
        limited = None if small else self.start_limits.violation(self.monitor())
        if (reason := self.leave_reason() or limited) is not None:
            raise DeclinedError(reason)
        if final is not None:
            return self._keep(final, head, super()._answer(data)[1])
        if head.get("method") == INVITATION:
            return {"problem": None, "steps": []}, {}
        if self.masks is not None and head.get("method") == MASKED:
            return self.masks.answer(head.get("masked"))
        answer = super()._answer(data)
        if self.masks is not None and head["exchange"] != EVALUATING:
            self.masks.sent = self._broadcast[1]
            answer = answer[0], self.masks.masked(head, answer[1])
        if head["exchange"] != EVALUATING:
            self._newest_training = head["round"], head["exchange"]
        if self.models is not None:
            self.models.prune(head["durable"])
        return answer

    def note(self, request: Request, answer: Answer) -> None:
        if self.results is not None:
            self.results.note(request, answer, initial=self._is_initial)

    def _keep(self, final: Any, head: dict[str, Any], parts: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Keep a model of the finished run, and return an answer without it."""
        kind, threshold = (final.get("kind"), final.get("threshold")) if isinstance(final, dict) else (None, None)
        if kind not in KINDS or head.get("exchange") != EVALUATING or type(threshold) not in (float, type(None)):
            raise RefusedError(f"a model of a finished run is the global or the personal one, got {final!r:.80}")
        if self.results is not None:
            p = self.runtime.population
            model, round = p.models[p.assignment[0]], integer(head, "round") + 1
            self.results.keep(kind, model, tree.take(parts["upload"], 0), round, threshold)
        return {"problem": None, "steps": []}, {}

    def _check_request(self, head: dict[str, Any]) -> None:
        """Raise RefusedError unless this device may answer the request now."""
        if head.get("to") != self.name or head.get("clients") != [self.runtime.population.first]:
            raise RefusedError(f"the request is for {head.get('to')!r:.80}, and this is device {self.name}")
        number, round, durable = (integer(head, name) for name in ("number", "round", "durable"))
        exchange = head.get("exchange")
        if number <= self._number:
            raise RefusedError(f"request {number} was sent twice, or is older than {self._number}")
        self._request_number = self._number = number
        if round + (exchange == EVALUATING) < durable:
            raise RefusedError(f"round {round} is over: the server has a checkpoint after round {durable}")
        if type(exchange) is int and (round, exchange) <= self._newest_training:
            raise RefusedError(f"round {round}, exchange {exchange} was answered before, up to {self._newest_training}")

    def _check_between_steps(self) -> None:
        """Raise DeclinedError, before a training step, if the training must end."""
        self._steps_taken += 1
        if self._steps_taken > self.steps:
            raise DeclinedError(f"aborted: {too_many_steps(self._steps_taken, self.steps)}")
        if (
            (reason := self.leave_reason()) is None
            and self.abort_limits.is_set
            and time.monotonic() >= self._last_check + SECONDS
        ):
            self._last_check, reason = time.monotonic(), self.abort_limits.violation(self.monitor())
        if reason is not None:
            raise DeclinedError(f"aborted: {reason}")


def too_many_steps(asked: int, limit: int) -> str:
    """Return the message for a request with more training steps than a device takes."""
    return f"the server asks for {asked:,} training steps in a request, and this device takes at most {limit:,}"
