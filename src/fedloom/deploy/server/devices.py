"""Engine of devices: each client's data are on its own device, and the server knows its registration alone."""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.errors import (
    CodecError,
    DeclinedError,
    FedloomError,
    RankError,
    RefusedError,
    SettingError,
    SettingWarning,
    warn,
)
from fedloom.core.task_measures import impossible
from fedloom.core.types import Weighted, Weights, state
from fedloom.deploy.registration import INVITATION
from fedloom.deploy.server.answer_shapes import AnswerShapes
from fedloom.deploy.server.device_events import away
from fedloom.deploy.server.fleet import Fleet, NoResponse
from fedloom.engines.engine import Engine
from fedloom.engines.loop import Loop
from fedloom.engines.message import EVALUATING, GIVEN, Answer, Call, EvaluationResult, Request
from fedloom.engines.message_bytes import Part, head_of, part, same_shapes, seal, unpack, unseal
from fedloom.engines.processes import in_order
from fedloom.engines.server_side import Send
from fedloom.engines.service import LIMIT, answer_of, request_bytes
from fedloom.ranks.communication import UNLISTED
from fedloom.storage.store import Version

if TYPE_CHECKING:
    from fedloom.deploy.server.started_requests import StartedRequests  # most runs wait

T = TypeVar("T")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_IN_A_ROW = 5  # answers of a device that were refused, after which somebody is told
PATIENCE = 120.0  # seconds that a device has to keep a model of the finished run
_AFTER_ALL = 1 << 40  # the number of the first message with such a model, above those of all requests


@state
class StateVersion:
    """Version of a state that a device keeps: the exchange in which the server accepted it, and its digest."""

    round: Tensor  # [] int64, -1 before the first
    exchange: Tensor  # [] int64
    digest: Tensor  # [16] uint8, zeros where there are no tensors in it


NO_STATE = StateVersion(round=torch.tensor(-1), exchange=torch.tensor(-1), digest=torch.zeros(16, dtype=torch.uint8))


class Devices(Engine):
    """Engine that sends requests to the devices of a `fleet` and checks every answer.

    It is the Aggregator of a round: it waits for all selected devices or for the deadline, and averages the answers
    that pass. A device that does not answer, declines or is refused is lost to the round and named in its record, like
    a simulated client. A request names the last round whose checkpoint is on disk (`durable`), the exchange accepted
    last, and the digest of its state. An answer bears the number of its request, and the digests of the state before
    and after. Structures are compared with a rehearsal before a tensor is made. An upload weighs at most the registered
    number of examples.

    Devices keep their states, unless states travel (`counts_states`). Then the server is the store of personal models,
    by client and round, and a device may be another machine in every round.
    """

    name = "devices"
    elsewhere = on_one_thread = True
    uses = frozenset({"deadline"})
    fleet: Fleet | None = None
    started: StartedRequests | None = None  # requests under way, of a run that does not wait

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.shapes = AnswerShapes(self.population, self.algorithm, self.options.encoders)
        self.limit = LIMIT
        self._final: dict[str, Any] | None = None  # what is said beside a model of the finished run
        self._in_a_row = Counter[int]()  # answers that were refused, by client, since one was taken
        self._has_trained = False  # whether devices were asked to train, in this process
        p = self.population
        one_of_each = [p.assignment.index(name) for name, members in p.members.items() if members]
        self._has_states = any(tree.leaves(self.runtime.fresh(k)) for k in one_of_each)

    def answers(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[tuple[Request, Any, Answer]]:
        if self.started is not None and call.exchange == EVALUATING:
            clients = self.started.idle(clients)
        if (link := self.adding) is None or call.exchange == EVALUATING:
            yield from in_order(clients, self._ask_devices(call, clients, send))
        else:
            from fedloom.deploy.server.masked_exchange import MaskedExchange  # most runs have no masks

            yield from MaskedExchange(self, link.sum, call, clients, send).answers()

    def removed(self) -> Collection[int]:
        """Return the clients whose devices have no registered key any more; none if that holds for all."""
        if self.fleet is None or not (removed := self.fleet.removed()) or len(removed) == len(self.fleet.names):
            return ()
        return {k for k, name in enumerate(self.fleet.names) if name in removed}

    def absent(self, round: int) -> Collection[int]:
        return {*super().absent(round), *away(self.population.federation.train.remote or {}, round)}

    def clients_change(self) -> bool:
        return self.fleet is not None and self.started is None and self.fleet.changes()

    def decliners(self, round: int, clients: Sequence[int]) -> dict[int, str]:
        call, out = Call(INVITATION, (), round, EVALUATING, 0.0), dict[int, str]()
        requests = {k: Request.to(call, [k], self.population.seed) for k in clients}
        for k, answer in self._exchange(requests, None):
            try:
                self.opened(k, answer)
            except FedloomError as error:
                out[k] = self.record_failure(k, error, round)
        return out

    def judged(self, clients: Sequence[int], refused: Mapping[int, str], round: int) -> None:
        for k in clients:
            self._in_a_row[k] = self._in_a_row[k] + 1 if k in refused else 0
        for k, why in refused.items():
            self.record_failure(k, RefusedError(why), round)
            if self._in_a_row[k] == _IN_A_ROW:
                name = self._fleet.names[k]
                warn(
                    f"the last {_IN_A_ROW} answers of device {name} were refused, and so will be those to come, if "
                    f"nothing changes ({why[:200]}): if it is honest, begin with --bound clip:median:5, which takes "
                    "what is too large as long as the bound; else remove its key",
                    SettingWarning,
                )

    def _ask_devices(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[tuple[Request, Any, Answer]]:
        if self.watch is not None:
            raise SettingError("a round of devices cannot be replayed, since their examples are not here")
        requests, asked = {k: self.request(call, [k], send) for k in clients}, time.monotonic()
        if self._final is None:
            for k, response in self.taken(requests, call.sent, self.read_answer):
                fields: dict[str, Any] = {"round": call.round + 1, "method": call.method}
                fields |= {} if call.exchange == EVALUATING else {"seconds": round(time.monotonic() - asked, 3)}
                self._fleet.audit("answered", self._fleet.names[k], **fields)
                yield requests[k], *response
            return
        for k, _ in self.taken(requests, call.sent, lambda request, message: None):
            self._handed_out.add(k)
            self._fleet.audit("kept", self._fleet.names[k], round=call.round + 1, model=self._final["kind"])

    def taken(
        self,
        requests: dict[int, Request],
        broadcast: tuple[Any, ...] | None,
        read: Callable[[Request, memoryview], T],
        more: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    ) -> Iterator[tuple[int, T]]:
        """Send devices requests, and yield what is read of the answers that may be taken; the others are lost.

        `more`: entries of the heads of requests, by client.
        """
        for k, answer in self._exchange(requests, broadcast, more):
            try:
                response = read(requests[k], self.opened(k, answer))
            except FedloomError as error:
                self.lost[k] = self.record_failure(k, error, requests[k].call.round)
                self.traffic.refused += not isinstance(error, RankError | DeclinedError)
                continue
            yield k, response

    def hand_out(self, server: dict[str, Any], clients: Sequence[int], round: int, threshold: float | None) -> set[int]:
        """Send devices their models of the finished run, and return the clients that have one.

        Each is sent the global model of its architecture, and what the model by which it is evaluated is made of, where
        that is its own. It keeps them in its folder, and sends nothing back.
        """
        self._fleet.numbers, self._handed_out = itertools.count(_AFTER_ALL), set[int]()
        models = self.algorithm.global_models(server, self.population.models)
        try:
            if models:
                own = [k for k in clients if self.population.assignment[k] in models]
                self._final = {"kind": "global", "threshold": threshold}
                self._evaluate(models, own, round, None, GIVEN)
            if self.algorithm.personalises or not models:
                self._final = {"kind": "personal", "threshold": threshold}
                self._evaluate(server, clients, round, None)
        finally:
            self._final = None
        return self._handed_out

    def request(self, call: Call, clients: Sequence[int], send: Send) -> Request:
        accepted = {k: v for k in clients if (v := self.version(k)) is not None}
        return Request.to(call, clients, self.population.seed, accepted, send(clients))

    def fresh(self, key: int) -> Any:
        return NO_STATE if key < self.population.num_clients and self._states_stay else super().fresh(key)

    def personal(self, server: dict[str, Any], clients: Sequence[int], round: int) -> dict[int, Weights]:
        """Return the models by which clients are evaluated after `round`; without a fleet, those that need no device.

        Raises:
            SettingError: a state is on its device, or a model is trained on the device's examples.
        """
        if self.fleet is not None:
            return super().personal(server, clients, round)
        trained = self.algorithm.evaluation_training is not None
        for needs, where, remedy in (
            (self._states_stay, "made of states that devices keep", "train with run.stateless = true"),
            (trained, "trained on a device's examples", "evaluate it on the device"),
        ):
            if needs:
                raise SettingError(
                    f"a personal model of a finished run follows from the server's files, and those of "
                    f"{type(self.algorithm).__name__} are {where}: {remedy}, or take the global model"
                )
        here = Loop(self.population, self.algorithm, self.options)
        here.states = self.states
        return here.personal(server, clients, round)

    @property
    def adding(self) -> Any:
        """The link that sees nothing but sums of uploads (`privacy/secure_sums.py`); None where uploads are seen."""
        return next((link for link in self.options.links if link.sums_only), None)

    @property
    def least(self) -> int:  # type: ignore[override]
        return 0 if self.fleet is None else self.fleet.least

    @property
    def _states_stay(self) -> bool:
        """True if devices keep their states."""
        return self._has_states and not self.options.counts_states

    def version(self, client: int) -> Version | None:
        """Return the exchange of the state that a device keeps and that was accepted last."""
        if not self._states_stay or client not in self.states:
            return None
        accepted = self.states[client]
        return int(accepted.round), int(accepted.exchange)

    def _digest(self, client: int) -> str | None:
        """Return the digest of a device's last accepted state; None where it keeps no state or none was accepted."""
        if self.version(client) is None:
            return None
        digest: Tensor = self.states[client].digest
        return bytes(digest.tolist()).hex() if digest.any() else None

    @property
    def _fleet(self) -> Fleet:
        if self.fleet is None:
            raise SettingError("a run of devices needs a fleet, got none: start it with fedloom serve")
        return self.fleet

    # ---- over the wire

    def _exchange(
        self,
        requests: dict[int, Request],
        broadcast: tuple[Any, ...] | None,
        more: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    ) -> Iterator[tuple[int, memoryview | NoResponse]]:
        """Send each client its request, and yield (client, answer or NoResponse)."""
        if self._final is None:
            self._fleet.admit_arrivals()
        fleet, packed = self._fleet, None if broadcast is None else part(broadcast)
        deadline = self.options.deadline if self._final is None else PATIENCE
        if broadcast is not None and self._final is None:
            fleet.expect(max(map(self.size, requests.values()), default=0))
        self._request_numbers = dict(zip(requests, self._fleet.numbers, strict=False))
        clients = {fleet.names[k]: k for k in requests}
        messages = (
            (name, self.message(requests[k], self._request_numbers[k], packed, more.get(k, {})))
            for name, k in clients.items()
        )
        for name, answer in fleet.ask(messages, deadline):
            yield clients[name], answer

    def message(self, request: Request, number: int, packed: Part | None, more: Mapping[str, Any]) -> bytes:
        """Return the message to a device. `packed`: what all clients are sent; `more`: entries of its head."""
        (k,), round = request.clients, request.call.round
        name = self._fleet.names[k]
        state = self.stack([k]) if self.options.counts_states and packed is not None else None
        durable = round if self.durable is None else self.durable
        durable = durable if self.started is None else self.started.durable(self.version(k), k)
        fields = {"to": name, "durable": durable, "held": self._digest(k), **more}
        fields |= {} if self._final is None else {"final": self._final}
        self._has_trained |= request.call.exchange != EVALUATING
        fields |= {"initial": True} if round == 0 and not self._has_trained else {}
        return seal(request_bytes(request, number, (number, packed), state, **fields), self._fleet.tokens[name])

    def start_requests(self) -> StartedRequests:
        """Return what asks devices without waiting for their answers."""
        from fedloom.deploy.server.started_requests import StartedRequests  # most runs wait

        self.started = self.started or StartedRequests(self, self._fleet)
        return self.started

    def size(self, request: Request) -> int:
        """Return the most bytes of an answer; a request that cannot be rehearsed is rejected with its answer."""
        try:
            return min(self.limit, self.shapes.size(request))
        except FedloomError:
            return self.limit

    def opened(self, client: int, answer: memoryview | NoResponse, number: int | None = None) -> memoryview:
        """Return the answer of a device to the request with this number; None: the newest.

        Raises:
            FedloomError: there is none, it answers another request, or the device declines.
        """
        if isinstance(answer, NoResponse):
            raise RankError(answer.reason)
        name = self._fleet.names[client]
        data = unseal(answer, self._fleet.tokens[name], self.limit)
        head = head_of(data, self.limit)
        if head.get("from") != name:
            raise RefusedError(f"it answers for {head.get('from')!r:.80}")
        problem = head.get("problem")
        if isinstance(problem, dict) and problem.get("kind") == "DeclinedError":
            raise DeclinedError(str(problem.get("text")))
        if head.get("number") != (sent := self._request_numbers[client] if number is None else number):
            raise RefusedError(f"it answers request {head.get('number')!r:.40}, and was sent {sent}")
        if problem is not None:
            what = problem.get("what") or problem.get("text") if isinstance(problem, dict) else problem
            raise RefusedError(f"it has failed: {what!s:.200}")
        return data

    def read_answer(self, request: Request, data: memoryview, upload: Any = None) -> tuple[Any, Answer]:
        """Return (new state or its version, answer) from untrusted bytes.

        `upload`: another one than the method's, without storage.
        """

        def check(_: Any, name: str, like: Any) -> None:
            if name == "upload" and upload is not None:
                same_shapes(upload, name, like)
            else:
                self.shapes.check(request, name, like)

        message = unpack(data, check=check, limit=self.limit)
        message.head["warnings"] = []  # warnings of a device go to its own log
        travels = self.options.counts_states and request.call.exchange != EVALUATING
        if ("state" in message.parts) != travels:
            raise CodecError("a state comes with the answer to a request that brought one, and only then")
        states, answer = answer_of(message, request)
        nodes, spec = tree.flatten(answer.upload, is_leaf=lambda node: isinstance(node, Weighted | EvaluationResult))
        nodes = [self._check_plausible(request, node) for node in nodes]
        answer = Answer(tree.unflatten(nodes, spec), answer.losses, answer.steps, after=answer.after)
        for found in answer.after.values():
            self._check_plausible(request, found)
        if self._states_stay:
            start_digest, accepted_digest = message.head.get("began"), self._digest(request.clients[0])
            if start_digest != accepted_digest:
                raise RefusedError(
                    f"it began from the state {start_digest!r:.10}, and that of this device is "
                    f"{accepted_digest!r:.10}: bring its own state folder back"
                )
            if request.call.exchange != EVALUATING:
                round, exchange = (torch.tensor([int(n)]) for n in (request.call.round, request.call.exchange))
                states = StateVersion(round, exchange, _digest_bytes(message.head.get("made")))
        return states, answer

    def _check_plausible(self, request: Request, node: Any) -> Any:
        """Return a part of an upload with its weight limited to the registered number of examples."""
        size = int(self.population.at(request.call.round).partition.sizes[request.clients[0]])
        if isinstance(node, Weighted):
            if not bool((node.weight.isfinite() & (node.weight > 0)).all()):  # weights that are all 0 have no mean
                raise RefusedError("an upload weighs a finite number above 0")
            return Weighted(value=node.value, weight=node.weight.clamp(max=size))
        if isinstance(node, EvaluationResult):
            f, k = self.population.federation, request.clients[0]
            max_count = max(int(part.sizes[k]) for part in (f.local_test, f.local_val, f.partition) if part is not None)
            counts = torch.stack([node.examples, node.trained])
            if int(counts.min()) < 0 or int(counts.max()) > max_count:
                raise RefusedError("a device evaluates no more than the examples that it has registered")
            one, n = tree.take(node, 0), int(node.examples)  # of [1, ...], one client
            if name := impossible(self.population.task, one.sums, one.scores, n):
                raise RefusedError(f"no {n:,} examples have the {name} that it sends")
        return node

    def record_failure(self, client: int, error: FedloomError, round: int) -> str:
        """Return the reason why a client's answer does not count, and write it to the audit log."""
        event = {RankError: "lost", DeclinedError: "declined"}.get(type(error), "refused")
        if str(error) != UNLISTED:  # else the log has said so when its connection ended
            self._fleet.audit(event, self._fleet.names[client], str(error), round=round + 1)
        return f"{event}: {str(error)[:200]}"


def _digest_bytes(digest: Any) -> Tensor:
    """Return a digest in hexadecimal as bytes, [1, 16]; zeros where the device keeps no state."""
    if digest is not None and not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        raise CodecError(f"the digest of a state is 32 hexadecimal digits, got {digest!r:.80}")
    return torch.tensor([list(bytes.fromhex(digest or "00" * 16))], dtype=torch.uint8)
