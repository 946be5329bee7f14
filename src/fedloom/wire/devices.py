"""Clients that are devices, each with data of its own, of which nothing is here but what it has registered."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.errors import CodecError, DeclinedError, FedloomError, RankError, RefusedError, SettingError
from fedloom.core.types import Weighted, state
from fedloom.engines.engine import Engine, Send
from fedloom.engines.message import JUDGING, Answer, Call, Request, Seen
from fedloom.storage.store import Version
from fedloom.wire.fleet import Fleet, NoResponse
from fedloom.wire.processes import in_order
from fedloom.wire.rehearsal import Rehearsals
from fedloom.wire.service import LIMIT, answer_of, request_bytes
from fedloom.wire.transport import head_of, part, sealed, unpack, unsealed

_DIGEST = re.compile(r"[0-9a-f]{32}")
INVITATION = "invitation"  # in the place of the method: whether a device takes part in the round


@state
class Held:
    """In the place of a state that a device keeps: the exchange in which the server accepted it, and its digest."""

    round: Tensor  # [] int64, -1 before the first
    exchange: Tensor  # [] int64
    digest: Tensor  # [16] uint8, zeros where there are no tensors in it


NOTHING = Held(round=torch.tensor(-1), exchange=torch.tensor(-1), digest=torch.zeros(16, dtype=torch.uint8))


class Devices(Engine):
    """Asks the devices of a `fleet`, and takes nothing that they say on trust.

    The Aggregator of a round: it hears every device that was asked or waits until the deadline, whichever comes first,
    and averages what passed. A device that does not answer, declines or is refused is lost to the round and named in
    its record, as a simulated one is. Each request names the exchange that was accepted last and the last round whose
    checkpoint is on disk (`durable`), and the digest of the state that came of it; each answer bears the number of its
    request, and the digests of the state that it began from and of the new one. Structures are compared with a
    rehearsal before a tensor is made; an upload weighs no more than the examples that were registered.

    Devices keep their states, unless states are to travel (`counts_states`): then the server is the store of personal
    models, by client and round, and a device may be another machine in every round.
    """

    name = "devices"
    elsewhere = True
    fleet: Fleet | None = None

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.rehearsals = Rehearsals(self.population, self.algorithm)
        self.limit = LIMIT
        self._numbers = itertools.count(1)
        p = self.population
        some = [p.assignment.index(name) for name, members in p.members.items() if members]
        self._has_states = any(tree.leaves(self.runtime.fresh(k)) for k in some)

    def answers(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[tuple[Request, Any, Answer]]:
        yield from in_order(clients, self._asked(call, clients, send))

    def decliners(self, round: int, clients: Sequence[int]) -> dict[int, str]:
        call, out = Call(INVITATION, (), round, JUDGING, 0.0), dict[int, str]()
        requests = {k: Request.to(call, [k], self.population.seed) for k in clients}
        for k, answer in self._exchange(requests, None):
            try:
                self._open(k, answer)
            except FedloomError as error:
                out[k] = self._failed(k, error, round)
        return out

    def refused(self, clients: Mapping[int, str], round: int) -> None:
        for k, why in clients.items():
            self._failed(k, RefusedError(why), round)

    def _asked(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[tuple[Request, Any, Answer]]:
        if self.watch is not None:
            raise SettingError("a round of devices cannot be computed again: their examples are not here")
        requests = {k: self.request(call, [k], send) for k in clients}
        for k, answer in self._exchange(requests, call.broadcast):
            try:
                found = self._taken(requests[k], self._open(k, answer))
            except FedloomError as error:
                self.lost[k] = self._failed(k, error, call.round)
                self.traffic.refused += not isinstance(error, RankError | DeclinedError)
                continue
            self._fleet.audit("answered", self._fleet.names[k], round=call.round + 1, method=call.method)
            yield requests[k], *found

    def request(self, call: Call, clients: Sequence[int], send: Send) -> Request:
        accepted = {k: v for k in clients if (v := self._version(k)) is not None}
        return Request.to(call, clients, self.population.seed, accepted, send(clients))

    def fresh(self, key: int) -> Any:
        return NOTHING if key < self.population.num_clients and self._stays else super().fresh(key)

    @property
    def _stays(self) -> bool:
        """True if states stay with the devices."""
        return self._has_states and not self.options.counts_states

    def _version(self, client: int) -> Version | None:
        if not self._stays or client not in self.states:
            return None
        held = self.states[client]
        return int(held.round), int(held.exchange)

    def _digest(self, client: int) -> str | None:
        """Return the digest of the state that the server accepted last of a device.

        It is None where the device keeps no state, or where none was accepted yet.
        """
        if self._version(client) is None:
            return None
        digest: Tensor = self.states[client].digest
        return bytes(digest.tolist()).hex() if digest.any() else None

    @property
    def _fleet(self) -> Fleet:
        if self.fleet is None:
            raise SettingError("no device is there to be asked: what a run of devices computes, they compute")
        return self.fleet

    # ---- over the wire

    def _exchange(
        self, requests: dict[int, Request], broadcast: tuple[Any, ...] | None
    ) -> Iterator[tuple[int, memoryview | NoResponse]]:
        """Send each client its request, and yield what comes, by client."""
        self._fleet.gather()
        fleet, made, clients = self._fleet, None if broadcast is None else part(broadcast), dict[str, int]()
        if broadcast is not None:
            fleet.expect(max(map(self._size, requests.values()), default=0))
        self._sent = dict(zip(requests, self._numbers, strict=False))
        messages = {}
        for k, request in requests.items():
            name, number, round = fleet.names[k], self._sent[k], request.call.round
            own = self.stack([k]) if self.options.counts_states and made is not None else None
            durable = round if self.durable is None else self.durable
            beside = {"to": name, "durable": durable, "held": self._digest(k)}
            clients[name] = k
            messages[name] = sealed(request_bytes(request, number, (number, made), own, **beside), fleet.tokens[name])
        for name, answer in fleet.ask(messages, self.options.deadline):
            yield clients[name], answer

    def _size(self, request: Request) -> int:
        """Return the bytes that an answer may have; what cannot be rehearsed is rejected when it has come."""
        try:
            return min(self.limit, self.rehearsals.size(request))
        except FedloomError:
            return self.limit

    def _open(self, client: int, answer: memoryview | NoResponse) -> memoryview:
        """Return the answer of a device, if it is one to the newest request.

        Raises:
            FedloomError: there is none, or it is not, or the device declines.
        """
        if isinstance(answer, NoResponse):
            raise RankError(answer.why)
        name = self._fleet.names[client]
        data = unsealed(answer, self._fleet.tokens[name], self.limit)
        head = head_of(data, self.limit)
        if head.get("from") != name:
            raise RefusedError(f"it answers for {head.get('from')!r:.80}")
        problem = head.get("problem")
        if isinstance(problem, dict) and problem.get("kind") == "DeclinedError":
            raise DeclinedError(str(problem.get("text")))
        if head.get("number") != self._sent[client]:
            raise RefusedError(f"it answers request {head.get('number')!r:.40}, and was sent {self._sent[client]}")
        if problem is not None:
            what = problem.get("what") or problem.get("text") if isinstance(problem, dict) else problem
            raise RefusedError(f"it has failed: {what!s:.200}")
        return data

    def _taken(self, request: Request, data: memoryview) -> tuple[Any, Answer]:
        """Return (new state or where it is held, answer) from bytes that may be anybody's."""
        message = unpack(data, check=lambda _, name, like: self.rehearsals.check(request, name, like), limit=self.limit)
        message.head["warnings"] = []  # the words of a device are for its own log
        travels = self.options.counts_states and request.call.exchange != JUDGING
        if ("state" in message.parts) != travels:
            raise CodecError("a state comes with the answer to a request that brought one, and only then")
        states, answer = answer_of(message, request)
        nodes, spec = tree.flatten(answer.upload, is_leaf=lambda node: isinstance(node, Weighted | Seen))
        nodes = [self._plausible(request, node) for node in nodes]
        answer = Answer(tree.unflatten(nodes, spec), answer.losses, answer.steps, after=answer.after)
        if answer.after is not None:
            self._plausible(request, answer.after)
        if self._stays:
            began, held = message.head.get("began"), self._digest(request.clients[0])
            if began != held:
                raise RefusedError(
                    f"it began from the state {began!r:.10}, and that of this device is {held!r:.10}: bring its own "
                    "state folder back"
                )
            if request.call.exchange != JUDGING:
                round, exchange = (torch.tensor([int(n)]) for n in (request.call.round, request.call.exchange))
                states = Held(round, exchange, _as_bytes(message.head.get("made")))
        return states, answer

    def _plausible(self, request: Request, node: Any) -> Any:
        """Return a part of an upload, its weight no larger than what was registered."""
        size = int(self.population.sizes[request.clients[0]])
        if isinstance(node, Weighted):
            if not bool((node.weight.isfinite() & (node.weight > 0)).all()):  # of weights of 0 alone there is no mean
                raise RefusedError("an upload weighs a finite number above 0")
            return Weighted(value=node.value, weight=node.weight.clamp(max=size))
        if isinstance(node, Seen):
            f, k = self.population.federation, request.clients[0]
            held = max(int(part.sizes[k]) for part in (f.local_test, f.local_val, f.partition) if part is not None)
            counts = torch.stack([node.right, node.examples, node.trained])
            if int(counts.min()) < 0 or int(counts.max()) > held or bool((node.right > node.examples).any()):
                raise RefusedError("what a device got right is no more than the examples that it has registered")
        return node

    def _failed(self, client: int, error: FedloomError, round: int) -> str:
        """Return why there is no answer of a client that counts, and write it to the audit log."""
        event = {RankError: "lost", DeclinedError: "declined"}.get(type(error), "refused")
        self._fleet.audit(event, self._fleet.names[client], str(error), round=round + 1)
        return f"{event}: {str(error)[:200]}"


def _as_bytes(digest: Any) -> Tensor:
    """Return the digest of a new state, [1, 16], from what a device says; zeros where it keeps none."""
    if digest is not None and not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        raise CodecError(f"the digest of a state is 32 hexadecimal digits, got {digest!r:.80}")
    return torch.tensor([list(bytes.fromhex(digest or "00" * 16))], dtype=torch.uint8)
