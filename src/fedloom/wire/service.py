"""A client's end of the wire: from the bytes of a request to the bytes of an answer."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fedloom.core import errors, tree
from fedloom.core.errors import ClientError, CodecError, FedloomError, warn
from fedloom.engines.accounting import PayloadSize
from fedloom.engines.finite import mean_losses, not_finite
from fedloom.engines.message import JUDGING, Answer, Call, Request, Summed
from fedloom.engines.norms import too_large, upload_norms
from fedloom.engines.runtime import Runtime
from fedloom.storage.store import Version
from fedloom.wire.admission import check_argument, one_of, parameters
from fedloom.wire.transport import Message, Part, pack, part, same_shapes, shapes_of, unpack

LIMIT = 1 << 30  # bytes of a message, unless said otherwise
_WARNINGS, _WORDS = 100, 1000  # of an answer to strangers, whose head is short: how many, characters of each


class StateKeeper(Protocol):
    """Place where a client keeps its state between requests."""

    began: str | None  # the digest of the state that was asked for last; None: of the first, or there are none

    def state(self, accepted: Version | None, digest: str | None) -> Any:
        """Return the state that the server accepted last.

        It came about in the exchange `accepted` and has this digest; None: none was accepted yet.
        """

    def offer(self, state: Any, version: Version) -> str | None:
        """Hold a new state until the next request says whether it was accepted, and return its digest."""


class Service:
    """Service that answers requests in bytes.

    A client's state comes with the request and goes back with the answer. Where there is a `keeper`, it has the state
    of its one client, and the next request tells it what became of the state.

    `trusted`: the other end is a part of this program, so that structures are taken as they come, and clients may be
    asked for the sum of their uploads. `norm_bound`: as of an engine, for uploads that are summed here.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        keeper: StateKeeper | None = None,
        trusted: bool = False,
        limit: int = LIMIT,
        norm_bound: float | None = None,
    ) -> None:
        self.runtime, self.keeper, self.trusted, self.limit = runtime, keeper, trusted, limit
        self.norm_bound = norm_bound
        self._broadcast: tuple[int, Any] = (-1, ())  # the newest, by its number
        self._answers: int | None = None  # the number of the request that is being answered, once it is known

    def __call__(self, data: bytes | memoryview) -> bytes:
        """Return the answer to a message; a request that is rejected is answered by the reason."""
        self._answers = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                head, parts = self._answer(data)
                made = {name: part(value) for name, value in parts.items()}
            except Exception as error:  # an answer is due whatever happens
                head, made = {"problem": self.told(error)}, {}
        most, each = (None, None) if self.trusted else (_WARNINGS, _WORDS)
        said = [[type(w.message).__name__, str(w.message)[:each]] for w in caught[:most]]
        return pack({**head, **self.stamp(), "warnings": said}, made)

    def told(self, error: Exception) -> dict[str, Any]:
        """Return what the other end hears of an error."""
        return problem(error)

    def stamp(self) -> dict[str, Any]:
        """Return what every answer says in addition."""
        return {"number": self._answers}

    def _answer(self, data: bytes | memoryview) -> tuple[dict[str, Any], dict[str, Any]]:
        check, limit = (None, None) if self.trusted else (self._check, self.limit)
        message = unpack(data, check=check, limit=limit, device=self.runtime.population.device)
        self._answers, keeper = message.head.get("number"), self.keeper
        request = self._request(message)
        if keeper is None:
            states = message.parts.get("state", ())
        else:
            states = tree.stack([keeper.state(request.accepted[0], message.head.get("held"))])
        if self.trusted and message.head.get("summed"):
            return self._summed(request, states)
        states, answer = self.runtime.answer(request, states)
        parts: dict[str, Any] = {"upload": answer.upload, "losses": list(answer.losses)}
        parts |= {} if answer.after is None else {"after": answer.after}
        head = {"problem": None, "steps": answer.steps} | ({} if keeper is None else {"began": keeper.began})
        if request.call.exchange != JUDGING:
            if keeper is not None:
                head["made"] = keeper.offer(tree.take(states, 0), (request.call.round, int(request.call.exchange)))
            else:
                parts["state"] = states
        return head, parts

    def _summed(self, request: Request, states: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the answer of some clients, one after the other, with the sum of their uploads."""
        total, each, after = tree.WeightedMean(), list[dict[str, Any]](), list[Any]()
        bill, new = PayloadSize(self.runtime.method(request.call.method)), list[Any]()
        for i, k in enumerate(request.clients):
            one, bound = request.one(i), self.norm_bound
            moved, answer = self.runtime.answer(one, tree.take(states, slice(i, i + 1)))
            wrong = not_finite(one, moved, answer)
            large = {} if bound is None else too_large(one, upload_norms(answer.upload, 1), bound)
            if not (wrong or large):
                total.add(answer.upload)
            (up,) = bill.of_uploads(answer.upload, 1)
            loss = mean_losses(one, answer).get(k)
            each.append({"wrong": wrong.get(k), "large": large.get(k), "loss": loss, "up": up})
            new.append(moved)
            after += [] if answer.after is None else [answer.after]
        sums, types = total.sums() if total else ((), None)
        parts = {"total": sums, "state": tree.cat(new)} | ({"after": tree.cat(after)} if after else {})
        return {"problem": None, "each": each, "types": types}, parts

    def _request(self, message: Message) -> Request:
        """Return the request of a message, if it may be asked.

        Numbers must be numbers, and clients must be ours. Unless the other end is trusted, `_check` has seen that the
        payload is what the method takes.
        """
        head, ids, number = message.head, self._clients(message.head), integer(message.head, "broadcast")
        exchange, judged = head.get("exchange"), head.get("judged")
        if exchange != JUDGING and not (type(exchange) is int and 0 <= exchange < 1 << 30):
            raise CodecError(f"exchange must be a number or {JUDGING!r}, got {exchange!r:.80}")
        if judged not in (None, "val", "test", "all"):
            raise CodecError(f"judged must be 'val', 'test' or 'all', got {judged!r:.80}")
        if "broadcast" in message.parts:
            self._broadcast = number, message.parts["broadcast"]
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
        call = Call(method, self._broadcast[1], integer(head, "round"), exchange, rate, judged)
        if not 0 <= call.round < 1 << 30:
            raise CodecError(f"round must be in 0..{(1 << 30) - 1}, got {call.round!s:.80}")
        return Request(call, ids, keys, accepted, message.parts.get("scatter", ()))

    def _clients(self, head: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the numbers that clients have here, where those of a part of a population begin with 0."""
        ids, p = _integers(head, "clients"), self.runtime.population
        end = p.first + p.num_clients
        if not ids or not all(p.first <= k < end for k in ids):
            raise CodecError(f"clients {ids[:8]!s:.80} are not here, only {p.first} to {end - 1}")
        return tuple(k - p.first for k in ids)

    def _check(self, head: dict[str, Any], name: str, like: Any) -> None:
        """Raise CodecError unless a part is what the method takes, or what clients here keep."""
        ids, runtime = self._clients(head), self.runtime
        if name == "state" and self.keeper is None:
            mine = runtime.fresh(ids[0])
            same_shapes(tree.stack([shapes_of(mine)] * len(ids)), name, like)
            return
        takes = parameters(runtime.method(str(head.get("method"))))
        if name not in ("broadcast", "scatter") or not isinstance(like, tuple) or len(like) > len(takes):
            raise CodecError(f"{head.get('method')!r:.80} takes {len(takes)} arguments, got a part {name!r:.80}")
        takes = takes[: len(like)] if name == "broadcast" else takes[len(takes) - len(like) :]
        values = like if name == "broadcast" else one_of(like)
        own = runtime.initial(runtime.population.assignment[ids[0]])
        for i, (value, annotation) in enumerate(zip(values, takes, strict=True)):
            check_argument(value, annotation, own, f"{name}[{i}]")


def request_bytes(
    request: Request, number: int, broadcast: tuple[int, Part | None], state: Any, **beside: Any
) -> bytes:
    """Return a request as bytes.

    `number`: the number that the answer will bear. `broadcast`: its own number, and its part, None where the other end
    has it. `state`: stacked; None where clients keep theirs. `beside`: what else its head says.
    """
    call = request.call
    head = {
        "method": call.method, "round": call.round, "exchange": call.exchange, "rate": call.rate, "judged": call.judged,
        "clients": request.clients, "keys": request.keys, "accepted": request.accepted,
        "number": number, "broadcast": broadcast[0], **beside,
    }  # fmt: skip
    given = {"broadcast": broadcast[1], "state": state, "scatter": request.scatter or None}
    return pack(head, {name: value for name, value in given.items() if value is not None})


def answer_of(message: Message, request: Request) -> tuple[Any, Answer]:
    """Return (new states, () where they stay with the client; answer) from an answer's bytes.

    Raises:
        FedloomError: what the client raised.
        CodecError: it is no answer.
    """
    said = message.head.get("warnings", ())
    if not isinstance(said, list | tuple) or not all(isinstance(pair, list) and len(pair) == 2 for pair in said):
        raise CodecError(f"not an answer: warnings are pairs, got {said!r:.80}")
    for kind, text in said:
        warn(str(text), _known(str(kind), Warning, errors.EngineWarning))
    if message.head.get("problem") is not None:
        raise_problem(message.head["problem"], request)
    if request.call.sums:
        return _summed(message, request)
    try:
        steps = tuple(tuple(int(s) for s in each) for each in message.head["steps"])
        answer = Answer(
            message.parts["upload"], tuple(message.parts["losses"]), steps, after=message.parts.get("after")
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CodecError(f"not an answer: {error!r}") from None
    taken = [t.shape[1] for t in answer.losses]
    if (
        len(steps) != len(taken)
        or any(len(each) != len(request.clients) for each in steps)
        or not all(0 <= n <= most for each, most in zip(steps, taken, strict=True) for n in each)
    ):
        raise CodecError(f"an answer counts the steps {steps!r:.80} of losses over {taken!r:.80}")
    return message.parts.get("state", ()), answer


def _summed(message: Message, request: Request) -> tuple[Any, Answer]:
    """Return (new states, answer) of clients whose uploads came as their sum."""
    each, types = list(zip(request.clients, message.head["each"], strict=True)), message.head["types"]
    summed = Summed(
        tree.WeightedMean() if types is None else tree.WeightedMean.of(message.parts["total"], types),
        {k: (told["wrong"][0], told["wrong"][1]) for k, told in each if told["wrong"]},
        {k: told["large"] for k, told in each if told["large"]},
        {k: told["loss"] for k, told in each if told["loss"] is not None},
        [Counter(told["up"]) for _, told in each],
    )
    return message.parts["state"], Answer((), (), (), after=message.parts.get("after"), summed=summed)


def problem(error: Exception) -> dict[str, Any]:
    """Return an error of a client as a part of its answer."""
    cause = error.__cause__ if isinstance(error, FedloomError) else error
    trace = "" if cause is None else "".join(traceback.format_exception(cause))
    found = {
        "kind": type(error).__name__,
        "text": str(error),
        "what": f"{type(error).__name__}: {error}",
        "trace": trace,
    }
    about = {"batch": error.batch, "what": error.what, "client": error.client} if isinstance(error, ClientError) else {}
    return found | about


def raise_problem(said: Mapping[str, Any], request: Request) -> None:
    """Raise what a client said went wrong, as if it had happened here."""
    if not isinstance(said, Mapping) or type(said.get("batch")) not in (int, type(None)):
        raise CodecError(f"not an answer: a problem is told by name, got {said!r:.80}")
    kind = _known(str(said.get("kind")), FedloomError, ClientError)
    if issubclass(kind, ClientError):
        who = request.clients[0] if len(request.clients) == 1 else said.get("client")
        who = who if who in request.clients else -1
        error: FedloomError = kind(
            str(said.get("what")), client=who, round=request.call.round + 1, batch=said.get("batch")
        )
    else:
        error = kind(str(said.get("text")))
    if said.get("trace"):
        error.add_note(f"In the process of the client:\n{said['trace']}")
    raise error


def _known(name: str, base: type[Any], otherwise: type[Any]) -> type[Any]:
    found = getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, base) else otherwise


def integer(head: Mapping[str, Any], name: str) -> int:
    """Return what the head of a message says, if it is a whole number."""
    if type(head.get(name)) is not int:
        raise CodecError(f"{name} must be a whole number, got {head.get(name)!r:.80}")
    return int(head[name])


def _integers(head: Mapping[str, Any], name: str) -> Sequence[int]:
    found = head.get(name)
    if not isinstance(found, list) or not all(type(n) is int for n in found):
        raise CodecError(f"{name} must be a list of whole numbers, got {found!r:.80}")
    return found
