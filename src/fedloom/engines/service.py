"""Service at a client's end of the wire: from the bytes of a request to the bytes of an answer."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fedloom.core import errors, tree
from fedloom.core.errors import ClientError, CodecError, FedloomError, line_of, warn
from fedloom.engines.accounting import PayloadSize
from fedloom.engines.argument_checks import check_argument, parameters, unstacked_shapes
from fedloom.engines.message import EVALUATING, Answer, Call, Request, Summed
from fedloom.engines.message_bytes import Message, Part, pack, part, same_shapes, shapes_of, unpack
from fedloom.engines.non_finite import mean_losses, not_finite
from fedloom.engines.runtime import Runtime
from fedloom.engines.upload_bounds import NO_MEDIANS, Bound, Measured
from fedloom.storage.store import Version

LIMIT = 1 << 30  # bytes of a message, by default
_WORKS = 20  # on what a client has trained, by a request
_WARNINGS, _WORDS = 100, 1000  # of an answer to strangers: the most, characters of each


class StateKeeper(Protocol):
    """Place where a client keeps its state between requests."""

    start_digest: str | None  # of the state that `state` returned last; None: it was the first one, or has no tensors

    def state(self, accepted: Version | None, digest: str | None) -> Any:
        """Return the state that the server accepted last, of the exchange `accepted` and with this digest.

        None: no state was accepted yet.
        """

    def offer(self, state: Any, version: Version) -> str | None:
        """Store a new state until the next request says whether it was accepted, and return its digest."""


class Service:
    """Service that answers requests in bytes.

    A client's state comes with the request and goes back with the answer. With a `keeper`, the state of its one client
    stays here, and the next request says whether it was accepted.

    `trusted`: the other end is a part of this program, so structures are not checked, and a request may ask for the sum
    of several clients' uploads. `bound`: of an engine, for uploads that are summed here.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        keeper: StateKeeper | None = None,
        trusted: bool = False,
        limit: int = LIMIT,
        bound: Bound | None = None,
    ) -> None:
        self.runtime, self.keeper, self.trusted, self.limit = runtime, keeper, trusted, limit
        self.bound = bound
        self._broadcast: tuple[int, Any] = (-1, ())  # the newest, by its number
        self._request_number: int | None = None  # of the request at hand, once it is known

    def __call__(self, data: bytes | memoryview) -> bytes:
        """Return the answer to a message; for a rejected request, an answer with the reason."""
        self._request_number = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                head, parts = self._answer(data)
                packed = {name: part(value) for name, value in parts.items()}
            except Exception as error:  # every message gets an answer
                head, packed = {"problem": self.describe_error(error)}, {}
        max_count, max_length = (None, None) if self.trusted else (_WARNINGS, _WORDS)
        notices = [[type(w.message).__name__, str(w.message)[:max_length]] for w in caught[:max_count]]
        return pack({**head, **self.stamp(), "warnings": notices}, packed)

    def describe_error(self, error: Exception) -> dict[str, Any]:
        """Return the description of an error for the other end."""
        return problem(error)

    def stamp(self) -> dict[str, Any]:
        """Return entries for the head of every answer."""
        return {"number": self._request_number}

    def note(self, request: Request, answer: Answer) -> None:
        """Take note of what this end has computed."""

    def _answer(self, data: bytes | memoryview) -> tuple[dict[str, Any], dict[str, Any]]:
        check, limit = (None, None) if self.trusted else (self._check, self.limit)
        message = unpack(data, check=check, limit=limit, device=self.runtime.population.device)
        self._request_number, keeper = message.head.get("number"), self.keeper
        request = self._request(message)
        if keeper is None:
            states = message.parts.get("state", ())
        else:
            states = tree.stack([keeper.state(request.accepted[0], message.head.get("held"))])
        if self.trusted and message.head.get("summed"):
            return self._summed(request, states)
        states, answer = self.runtime.answer(request, states)
        self.note(request, answer)
        parts: dict[str, Any] = {"upload": answer.upload, "losses": list(answer.losses)}
        parts |= {"after": answer.after} if answer.after else {}
        head = {"problem": None, "steps": answer.steps} | ({} if keeper is None else {"began": keeper.start_digest})
        if request.call.exchange != EVALUATING:
            if keeper is not None:
                head["made"] = keeper.offer(tree.take(states, 0), (request.call.round, int(request.call.exchange)))
            else:
                parts["state"] = states
        return head, parts

    def _summed(self, request: Request, states: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Compute clients one after the other, and return their answer with the sum of their uploads."""
        total, results, after = tree.WeightedMean(), list[dict[str, Any]](), list[Any]()
        payload, new_states = PayloadSize(self.runtime.method(request.call.method)), list[Any]()
        for i, k in enumerate(request.clients):
            request_of_one = request.one(i)
            moved, answer = self.runtime.answer(request_of_one, tree.take(states, slice(i, i + 1)))
            non_finite = not_finite(request_of_one, moved, answer)
            too_large_uploads = dict[int, str]()
            if self.bound is not None:
                measured = Measured.of(request_of_one, answer, payload)
                too_large_uploads = measured.beyond(request_of_one, self.bound)
                answer = measured.clipped(request_of_one, answer, self.bound, NO_MEDIANS)
            if not (non_finite or too_large_uploads):
                total.add(answer.upload)
            (up,) = payload.of_uploads(answer.upload, 1)
            loss = mean_losses(request_of_one, answer).get(k)
            results.append({"wrong": non_finite.get(k), "large": too_large_uploads.get(k), "loss": loss, "up": up})
            new_states.append(moved)
            after += [answer.after] if answer.after else []
        sums, types = total.sums() if total else ((), None)
        parts = {"total": sums, "state": tree.cat(new_states)} | ({"after": tree.cat(after)} if after else {})
        return {"problem": None, "each": results, "types": types}, parts

    def _request(self, message: Message) -> Request:
        """Return the request of a message, with its head checked.

        Numbers must be numbers, and clients must be here. Unless the other end is trusted, `_check` has checked the
        payload against the method.
        """
        head, ids, number = message.head, self._clients(message.head), integer(message.head, "broadcast")
        exchange, split, works = head.get("exchange"), head.get("split"), head.get("works", [])
        if exchange != EVALUATING and not (type(exchange) is int and 0 <= exchange < 1 << 30):
            raise CodecError(f"exchange must be a number or {EVALUATING!r}, got {exchange!r:.80}")
        if split not in (None, "val", "test", "all"):
            raise CodecError(f"split must be 'val', 'test' or 'all', got {split!r:.80}")
        if type(works) is not list or len(works) > _WORKS or not all(type(name) is str for name in works):
            raise CodecError(f"works must be at most {_WORKS} names, got {works!r:.80}")
        if "broadcast" in message.parts:
            self._broadcast = number, self._whole(message.parts["broadcast"])
        if self._broadcast[0] != number:
            raise CodecError(f"the request belongs to broadcast {number}, which was not sent")
        try:
            keys = tuple((int(a), int(b)) for a, b in head["keys"])
            accepted = tuple(None if v is None else (int(v[0]), int(v[1])) for v in head["accepted"])
            rate, method = float(head["rate"]), str(head["method"])
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise CodecError(f"not a request: {error!r}") from None
        if not len(keys) == len(accepted) == len(ids):
            raise CodecError(f"a request to {len(ids)} clients has {len(keys)} keys and {len(accepted)} versions")
        round = integer(head, "round")
        call = Call(method, self._broadcast[1], round, exchange, rate, split, works=tuple(works))
        if not 0 <= call.round < 1 << 30:
            raise CodecError(f"round must be in 0..{(1 << 30) - 1}, got {call.round!s:.80}")
        return Request(call, ids, keys, accepted, message.parts.get("scatter", ()))

    def _whole(self, travelled: Any, *, blank: bool = False) -> Any:
        """Return what all clients are sent, of what has travelled; `blank`: without storage."""
        encoders = self.runtime.encoders
        return travelled if encoders is None else encoders.whole(travelled, blank=blank)

    def _clients(self, head: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the numbers of clients within this population, whose first client has number 0."""
        ids, p = _integers(head, "clients"), self.runtime.population
        end = p.first + p.num_clients
        if not ids or not all(p.first <= k < end for k in ids):
            raise CodecError(f"clients {ids[:8]!s:.80} are not here, only {p.first} to {end - 1}")
        return tuple(k - p.first for k in ids)

    def _check(self, head: dict[str, Any], name: str, like: Any) -> None:
        """Raise CodecError unless a part fits the method's arguments, or the states of clients here."""
        ids, runtime = self._clients(head), self.runtime
        if name == "state" and self.keeper is None:
            fresh_state = runtime.fresh(ids[0])
            same_shapes(tree.stack([shapes_of(fresh_state)] * len(ids)), name, like)
            return
        annotations = parameters(runtime.method(str(head.get("method"))))
        if name not in ("broadcast", "scatter") or not isinstance(like, tuple) or len(like) > len(annotations):
            raise CodecError(f"{head.get('method')!r:.80} takes {len(annotations)} arguments, got a part {name!r:.80}")
        annotations = annotations[: len(like)] if name == "broadcast" else annotations[len(annotations) - len(like) :]
        values = self._whole(like, blank=True) if name == "broadcast" else unstacked_shapes(like)
        weights = runtime.initial(runtime.population.assignment[ids[0]])
        for i, (value, annotation) in enumerate(zip(values, annotations, strict=True)):
            check_argument(value, annotation, weights, f"{name}[{i}]")


def request_bytes(
    request: Request, number: int, broadcast: tuple[int, Part | None], state: Any, **fields: Any
) -> bytes:
    """Return a request as bytes.

    `number`: the number of the request, which its answer repeats. `broadcast`: its number and its part; None where the
    other end has it. `state`: stacked; None where clients keep theirs. `fields`: more entries of the head.
    """
    call = request.call
    head = {
        "method": call.method, "round": call.round, "exchange": call.exchange, "rate": call.rate, "split": call.split,
        **({"works": call.works} if call.works else {}),
        "clients": request.clients, "keys": request.keys, "accepted": request.accepted,
        "number": number, "broadcast": broadcast[0], **fields,
    }  # fmt: skip
    parts = {"broadcast": broadcast[1], "state": state, "scatter": request.scatter or None}
    return pack(head, {name: value for name, value in parts.items() if value is not None})


def answer_of(message: Message, request: Request) -> tuple[Any, Answer]:
    """Return (new states, answer) from an answer's message; states are () where they stay with the client.

    Raises:
        FedloomError: the error of the client.
        CodecError: it is no answer.
    """
    notices = message.head.get("warnings", ())
    if not isinstance(notices, list | tuple) or not all(isinstance(pair, list) and len(pair) == 2 for pair in notices):
        raise CodecError(f"not an answer: warnings are pairs, got {notices!r:.80}")
    for kind, text in notices:
        warn(str(text), _error_class(str(kind), Warning, errors.EngineWarning))
    if message.head.get("problem") is not None:
        raise_problem(message.head["problem"], request)
    if request.call.sums:
        return _summed(message, request)
    try:
        steps = tuple(tuple(int(s) for s in each) for each in message.head["steps"])
        answer = Answer(
            message.parts["upload"], tuple(message.parts["losses"]), steps, after=message.parts.get("after", {})
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CodecError(f"not an answer: {error!r}") from None
    lengths = [t.shape[1] for t in answer.losses]
    if (
        len(steps) != len(lengths)
        or any(len(each) != len(request.clients) for each in steps)
        or not all(0 <= n <= most for each, most in zip(steps, lengths, strict=True) for n in each)
    ):
        raise CodecError(f"an answer counts the steps {steps!r:.80} of losses over {lengths!r:.80}")
    return message.parts.get("state", ()), answer


def _summed(message: Message, request: Request) -> tuple[Any, Answer]:
    """Return (new states, answer) of clients whose uploads came as a sum."""
    each, types = list(zip(request.clients, message.head["each"], strict=True)), message.head["types"]
    summed = Summed(
        tree.WeightedMean() if types is None else tree.WeightedMean.of(message.parts["total"], types),
        {k: (result["wrong"][0], result["wrong"][1]) for k, result in each if result["wrong"]},
        {k: result["large"] for k, result in each if result["large"]},
        {k: result["loss"] for k, result in each if result["loss"] is not None},
    )
    up, after = [Counter[str](result["up"]) for _, result in each], message.parts.get("after", {})
    return message.parts["state"], Answer((), (), (), after=after, summed=summed, up=up)


def problem(error: Exception) -> dict[str, Any]:
    """Return an error of a client as a part of its answer."""
    cause = error.__cause__ if isinstance(error, FedloomError) else error
    trace = "" if cause is None else "".join(traceback.format_exception(cause))
    description = {
        "kind": type(error).__name__,
        "text": str(error),
        "what": f"{type(error).__name__}: {error}",
        "trace": trace,
        "line": line_of(error),
    }
    location = (
        {"batch": error.batch, "what": error.what, "client": error.client} if isinstance(error, ClientError) else {}
    )
    return description | location


def raise_problem(reported: Mapping[str, Any], request: Request) -> None:
    """Raise the error that a client has reported, as if it had happened here."""
    if not isinstance(reported, Mapping) or type(reported.get("batch")) not in (int, type(None)):
        raise CodecError(f"not an answer: a problem is an object with names, got {reported!r:.80}")
    kind = _error_class(str(reported.get("kind")), FedloomError, ClientError)
    if issubclass(kind, ClientError):
        client = request.clients[0] if len(request.clients) == 1 else reported.get("client")
        client = client if client in request.clients else -1
        error: FedloomError = kind(
            str(reported.get("what")), client=client, round=request.call.round + 1, batch=reported.get("batch")
        )
    else:
        error = kind(str(reported.get("text")))
    error.line = str(reported.get("line") or "")
    if reported.get("trace"):
        error.add_note(f"In the process of the client:\n{reported['trace']}")
    raise error


def _error_class(name: str, base: type[Any], default: type[Any]) -> type[Any]:
    kind = getattr(errors, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, base) else default


def integer(head: Mapping[str, Any], name: str) -> int:
    """Return an entry of a message's head, which must be a whole number."""
    if type(head.get(name)) is not int:
        raise CodecError(f"{name} must be a whole number, got {head.get(name)!r:.80}")
    return int(head[name])


def _integers(head: Mapping[str, Any], name: str) -> Sequence[int]:
    numbers = head.get(name)
    if not isinstance(numbers, list) or not all(type(n) is int for n in numbers):
        raise CodecError(f"{name} must be a list of whole numbers, got {numbers!r:.80}")
    return numbers
