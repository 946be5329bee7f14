"""A client's end of the wire: from the bytes of a request to the bytes of an answer."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.core import errors, tree
from fedloom.core.errors import ClientError, CodecError, FedloomError, StorageError
from fedloom.engines.admission import check_argument, one_of, parameters
from fedloom.engines.message import JUDGING, Answer, Call, Request
from fedloom.engines.runtime import Runtime
from fedloom.engines.store import ClientStore
from fedloom.engines.transport import Message, Part, pack, part, same_shapes, shapes_of, unpack

LIMIT = 1 << 30  # bytes of a message, unless said otherwise
FETCH = "fetch"  # in the place of the method: the states that clients keep, to be saved


class Service:
    """Answers requests in bytes. A client's state comes with the request and goes back with the answer, or is kept in
    `states`, where the next request says what became of it.

    `trusted`: the other end is a part of this program, so that structures are taken as they come.
    """

    def __init__(self, runtime: Runtime, *, trusted: bool = False, limit: int = LIMIT) -> None:
        self.runtime, self.trusted, self.limit = runtime, trusted, limit
        self.states = ClientStore()
        self._broadcast: tuple[int, Any] = (-1, ())  # the newest, by its number

    def __call__(self, data: bytes | memoryview) -> bytes:
        """The answer to a message; a request that is refused is answered by why."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                head, parts = self._answer(data)
                made = {name: part(value) for name, value in parts.items()}
            except Exception as error:  # an answer is due whatever happens
                head, made = {"problem": problem(error)}, {}
        said = [[type(w.message).__name__, str(w.message)] for w in caught]
        return pack({**head, "warnings": said}, made)

    def _answer(self, data: bytes | memoryview) -> tuple[dict[str, Any], dict[str, Any]]:
        message = unpack(data) if self.trusted else unpack(data, check=self._check, limit=self.limit)
        request = self._request(message)
        if keeps := bool(message.head.get("keep")):
            self._settle(request, message.parts.get("state"))
        if request.call.method == FETCH:
            return {"problem": None, "steps": []}, {
                "upload": self.states.stack(request.clients, self._lost),
                "losses": [],
            }
        states = self.states.stack(request.clients, self.runtime.fresh) if keeps else message.parts.get("state", ())
        states, answer = self.runtime.answer(request, states)
        parts: dict[str, Any] = {"upload": answer.upload, "losses": list(answer.losses)}
        parts |= {} if answer.after is None else {"after": answer.after}
        if request.call.exchange != JUDGING:
            if keeps:
                self.states.offer(request.clients, states, (request.call.round, int(request.call.exchange)))
            else:
                parts["state"] = states
        return {"problem": None, "steps": answer.steps}, parts

    def _request(self, message: Message) -> Request:
        """What is asked, if it may be: numbers are numbers, clients are ours, the payload is what the method takes."""
        head, ids, number = message.head, self._clients(message.head), _integer(message.head, "broadcast")
        exchange, judged = head.get("exchange"), head.get("judged")
        if exchange != JUDGING and type(exchange) is not int:
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
        except (KeyError, TypeError, ValueError) as error:
            raise CodecError(f"not a request: {error!r}") from None
        if not len(keys) == len(accepted) == len(ids):
            raise CodecError(f"a request to {len(ids)} clients has {len(keys)} keys and {len(accepted)} versions")
        call = Call(method, self._broadcast[1], _integer(head, "round"), exchange, rate, judged)
        return Request(call, ids, keys, accepted, message.parts.get("scatter", ()))

    def _clients(self, head: Mapping[str, Any]) -> tuple[int, ...]:
        ids, n = _integers(head, "clients"), self.runtime.population.num_clients
        if not ids or not all(0 <= k < n for k in ids):
            raise CodecError(f"clients {ids[:8]} are not here, only 0 to {n - 1}")
        return tuple(ids)

    def _check(self, head: dict[str, Any], name: str, like: Any) -> None:
        """Raise CodecError unless a part is what the method takes, or what clients here keep."""
        ids, runtime = self._clients(head), self.runtime
        if name == "state":
            mine = runtime.fresh(ids[0])
            same_shapes(tree.stack([shapes_of(mine)] * len(ids)), name, like)
            return
        if name == "broadcast" and head.get("method") == FETCH and like == ():
            return
        takes = parameters(runtime.method(str(head.get("method"))))
        if name not in ("broadcast", "scatter") or not isinstance(like, tuple) or len(like) > len(takes):
            raise CodecError(f"{head.get('method')!r:.80} takes {len(takes)} arguments, got a part {name!r:.80}")
        takes = takes[: len(like)] if name == "broadcast" else takes[len(takes) - len(like) :]
        values = like if name == "broadcast" else one_of(like)
        own = runtime.initial(runtime.population.assignment[ids[0]])
        for i, (value, annotation) in enumerate(zip(values, takes, strict=True)):
            check_argument(value, annotation, own, f"{name}[{i}]")

    def _settle(self, request: Request, states: Any) -> None:
        """Stand where the server does: by what it accepted last, or by a state that it sends to a client that moved."""
        if states is not None:
            self.states.adopt(request.clients, states, request.accepted)
        else:
            for k, accepted in zip(request.clients, request.accepted, strict=True):
                self.states.settle(k, accepted)

    def _lost(self, client: int) -> Any:
        raise StorageError(f"client {client} has no state to send")


def request_bytes(request: Request, number: int, broadcast: Part | None, state: Any, *, keep: bool = False) -> bytes:
    """A request as bytes. `broadcast`: its part, None where the other end has it by its `number`. `state`: stacked;
    where clients `keep` theirs None, unless they move there.
    """
    call = request.call
    head = {
        "method": call.method, "round": call.round, "exchange": call.exchange, "rate": call.rate, "judged": call.judged,
        "clients": request.clients, "keys": request.keys, "accepted": request.accepted, "broadcast": number,
        "keep": keep,
    }  # fmt: skip
    given = {"broadcast": broadcast, "state": state, "scatter": request.scatter or None}
    return pack(head, {name: value for name, value in given.items() if value is not None})


def answer_of(message: Message, request: Request) -> tuple[Any, Answer]:
    """(new states, or () where they stay with the client; answer) from an answer's bytes.

    Raises:
        FedloomError: what the client raised.
        CodecError: it is no answer.
    """
    for kind, text in message.head.get("warnings", ()):
        warnings.warn(text, _known(kind, Warning, errors.EngineWarning), stacklevel=2)
    if message.head.get("problem") is not None:
        raise_problem(message.head["problem"], request)
    try:
        steps = tuple(tuple(int(s) for s in each) for each in message.head["steps"])
        answer = Answer(
            message.parts["upload"], tuple(message.parts["losses"]), steps, after=message.parts.get("after")
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"not an answer: {error!r}") from None
    taken = [t.shape[1] for t in answer.losses]
    if len(steps) != len(taken) or not all(
        0 <= n <= most for each, most in zip(steps, taken, strict=True) for n in each
    ):
        raise CodecError(f"an answer counts the steps {steps!r:.80} of losses over {taken!r:.80}")
    return message.parts.get("state", ()), answer


def problem(error: Exception) -> dict[str, Any]:
    """An error of a client's as a part of its answer."""
    cause = error.__cause__ if isinstance(error, FedloomError) else error
    trace = "" if cause is None else "".join(traceback.format_exception(cause))
    found = {
        "kind": type(error).__name__,
        "text": str(error),
        "what": f"{type(error).__name__}: {error}",
        "trace": trace,
    }
    return {**found, "batch": error.batch, "what": error.what} if isinstance(error, ClientError) else found


def raise_problem(said: Mapping[str, Any], request: Request) -> None:
    """Raise what a client said went wrong, as if it had happened here."""
    kind = _known(str(said.get("kind")), FedloomError, ClientError)
    if issubclass(kind, ClientError):
        who = request.clients[0] if len(request.clients) == 1 else -1
        batch = said.get("batch")
        error: FedloomError = kind(
            str(said.get("what")), client=who, round=request.call.round + 1, batch=None if batch is None else int(batch)
        )
    else:
        error = kind(str(said.get("text")))
    if said.get("trace"):
        error.add_note(f"In the process of the client:\n{said['trace']}")
    raise error


def _known(name: str, base: type[Any], otherwise: type[Any]) -> type[Any]:
    found = getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, base) else otherwise


def _integer(head: Mapping[str, Any], name: str) -> int:
    if type(head.get(name)) is not int:
        raise CodecError(f"{name} must be a whole number, got {head.get(name)!r:.80}")
    return int(head[name])


def _integers(head: Mapping[str, Any], name: str) -> Sequence[int]:
    found = head.get(name)
    if not isinstance(found, list) or not all(type(n) is int for n in found):
        raise CodecError(f"{name} must be a list of whole numbers, got {found!r:.80}")
    return found
