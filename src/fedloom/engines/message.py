"""An exchange as a message: what a client is asked, and what it answers. Data only.

    engine --- Request: method, round, exchange, rate, keys, accepted, broadcast, scatter ---> runtime
    engine <-- Answer: upload, losses, steps, problem ------------------------------------------ runtime

One request may ask K clients of one architecture at once; they differ in `clients`, `keys`, `accepted` and `scatter`
alone. Inside one process a request is passed as it is; `message_bytes` turns it into bytes and back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from fedloom.core import tree
from fedloom.core.random import derive
from fedloom.core.types import Tree, state
from fedloom.storage.store import Version

HeldOutSplit = Literal["val", "test"]
Rows = Literal["val", "test", "train"]
Split = Literal["val", "test", "all"]  # by which rows; all: those held out to test on, and training rows
GIVEN = "given"  # in the place of the method: a client is evaluated by the model that it is sent
EVALUATION = "evaluation"  # the work on what a client has trained that is fedloom's own: how good it is
NOTES = "notes"  # in the place of a work: what a client notes of itself
EVALUATING = "evaluate"  # in the place of the exchange, where a client is looked at and no state moves


@dataclass(frozen=True)
class Call:
    """Part of a request that is the same for all clients of an exchange."""

    method: str  # name of the algorithm's method
    broadcast: tuple[Any, ...]
    round: int  # from 0
    exchange: int | str  # how often these clients were asked in this round before, or `EVALUATING`
    rate: float  # the round's learning rate
    split: Split | None = None  # on which a client is evaluated
    sums: tuple[tuple[int, ...], ...] = ()  # clients whose uploads are added up before they are sent, where they are
    works: tuple[str, ...] = ()  # what is computed on what each client has trained: `EVALUATION`, or module:function
    encoded: tuple[Any, ...] | None = None  # what travels in the place of `broadcast`, which was read of it

    @property
    def sent(self) -> tuple[Any, ...]:
        """Arguments as they travel to all clients."""
        return self.broadcast if self.encoded is None else self.encoded


@dataclass(frozen=True)
class Request:
    """A call to K clients of one architecture.

    `keys`: for each client, of the order of its batches, and of everything else that it draws in this exchange.
    `accepted`: for each client, when the state came about that it shall start from; None at first contact.
    """

    call: Call
    clients: tuple[int, ...]
    keys: tuple[tuple[int, int], ...]
    accepted: tuple[Version | None, ...]
    scatter: tuple[Any, ...]  # leaves [K, ...]

    @classmethod
    def to(
        cls,
        call: Call,
        clients: Sequence[int],
        seed: int,
        accepted: Mapping[int, Version] | None = None,
        scatter: tuple[Any, ...] = (),
    ) -> Request:
        """Return the request of a run with this seed.

        What a client draws depends on (seed, round, exchange, client) alone.
        """
        words, known = (call.round, call.exchange), accepted or {}
        keys = tuple((derive(seed, "batches", *words, k), derive(seed, "client", *words, k)) for k in clients)
        return cls(call, tuple(clients), keys, tuple(known.get(k) for k in clients), scatter)

    def one(self, place: int) -> Request:
        """Return the request to the client at this place alone."""
        here = slice(place, place + 1)
        clients, keys, accepted = self.clients[here], self.keys[here], self.accepted[here]
        return replace(self, clients=clients, keys=keys, accepted=accepted, scatter=tree.take(self.scatter, here))


@state
class EvaluationResult:
    """Quality of a model for one client. Without training rows, `trained` is 0."""

    sums: dict[str, Tensor]  # of the rows held out, by the task's measures that are sums
    scores: dict[str, Tensor]  # [] float64 by the task's other measures; NaN where one is undefined on these rows
    examples: Tensor  # [] int64, held out
    own: Tensor  # [] bool: whether the client has a model of its own
    loss: Tensor  # [] float64: sum over the rows held out
    trained: Tensor  # [] int64: training rows
    train_loss: Tensor  # [] float64: sum over the training rows


@dataclass(frozen=True)
class Summed:
    """Sum of the uploads that passed, in the place of K uploads, and what is known of each client."""

    total: tree.WeightedMean
    wrong: Mapping[int, tuple[int | None, str]]  # not finite: (batch, what)
    large: Mapping[int, str]  # too large, and how
    losses: Mapping[int, float]  # means, of those that took a step


@dataclass(frozen=True)
class Answer:
    """Answer of K clients. The lists have an entry for each `minimise`, in order.

    `problem`: why there is no upload, where the code of a client failed; `batch`: at which batch.
    """

    upload: Tree  # leaves [K, ...]
    losses: tuple[Tensor, ...]  # [K, S]: by client and step; what lies beyond a client's steps means nothing
    steps: tuple[tuple[int, ...], ...]  # of each client
    problem: str | None = None
    batch: int | None = None
    after: Mapping[str, Any] = field(default_factory=dict)  # of each work on what it has trained, and `NOTES`; [K]
    trained: tuple[int, Any] | None = None  # what a replay looks at: (client axes 0 or 1, carry); never travels
    summed: Summed | None = None  # then there are neither upload nor losses
    up: Sequence[Counter[str]] | None = None  # bytes by kind of each upload, where it no longer is as it travelled
    down: Sequence[Counter[str]] | None = None  # bytes by kind of each request, where they were counted otherwise
    planned: int = 0  # steps that its losses can be of at most, where one client computed it; never travels
