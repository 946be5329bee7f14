"""The client half of the way of an upload: what encoders make of it where the client is, and what the server reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace as replace_fields
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.client import Client
from fedloom.core.errors import SettingError, StackingError
from fedloom.core.random import derive, fold_in
from fedloom.core.types import Params, Tree, Weights, replace, state
from fedloom.engines.accounting import PayloadSize, is_named, sent_models, sets_in
from fedloom.engines.links import Asked, Encoder, Link, Question

_PURPOSE = derive(0, "encoder") & 0x7FFFFFFF  # of what encoders draw


@state
class Encoded:
    """Stand-in for named tensors on their way: what travels of them."""

    sent: Any
    like: Params  # [0, ...] each: their names, shapes and types, of which nothing travels


@state
class WithKept:
    """State of a client whose uploads are encoded."""

    own: Any  # what its algorithm keeps
    kept: dict[str, Any]  # what encoders keep, by method: of each set of named tensors, of each encoder


class Encoders:
    """The encoders of a run over the methods of its algorithm.

    `encoders`: those of uploads. `download`: that of what all clients are sent, if there is one.

    Raises:
        SettingError: no method uploads named tensors, or takes some where downloads are encoded.
    """

    def __init__(self, encoders: Sequence[Encoder], algorithm: Algorithm[Any, Any]) -> None:
        self.encoders, kind = tuple(e for e in encoders if not e.of_downloads), type(algorithm)
        self.download: Any = next((e for e in encoders if e.of_downloads), None)
        methods = [name for name in dir(kind) if getattr(getattr(kind, name, None), "on_client", False)]
        self.bills = {name: PayloadSize(getattr(algorithm, name)) for name in methods}
        self.sets = {name: sets_in(bill.up) if self.encoders else 0 for name, bill in self.bills.items()}
        if self.encoders and not any(self.sets.values()):
            raise SettingError(
                f"{type(self.encoders[0]).__name__} encodes the Weights and Params of uploads, and {kind.__name__} "
                "uploads none by the annotations of its methods: leave it out, or annotate what they return"
            )
        if self.download and not any(sets_in(hint) for bill in self.bills.values() for hint in bill.down):
            raise SettingError(
                f"{type(self.download).__name__} encodes the Weights and Params that clients are sent, and "
                f"{kind.__name__} sends none by the annotations of its methods: leave it out, or annotate arguments"
            )

    def first(self, own: Any, params: Params) -> WithKept:
        """Return the state of a client at its first contact."""
        made = {name: [[e.init(params) for e in self.encoders] for _ in range(n)] for name, n in self.sets.items()}
        return WithKept(own=own, kept=made)

    def encode(
        self, method: str, client: Client[Any], arguments: tuple[Any, ...], upload: Tree, kept: dict[str, Any]
    ) -> tuple[Tree, dict[str, Any]]:
        """Return what travels of a client's upload, and what its encoders keep.

        Args:
            method: of the algorithm, which has made the upload.
            client: who sends.
            arguments: of the method.
            upload: as the method returned it.
            kept: by encoders so far.
        """
        if not self.encoders:
            return upload, kept
        models = sent_models(self.bills[method], (), upload, arguments)
        if len(models) != (count := self.sets[method]):
            raise StackingError(
                f"{method} uploads {len(models)} sets of named tensors, Weights or Params, and its annotation says "
                f"{count}: annotate what it returns, so that {type(self.encoders[0]).__name__} finds them"
            )
        places, new = iter(zip(models, kept[method], strict=True)), list[Any]()

        def encoded(values: Params) -> Encoded:
            (sort, model), mine = next(places)
            if model is None and sort == "model" and (needs := [e for e in self.encoders if e.of_differences]):
                raise SettingError(
                    f"{type(needs[0]).__name__} encodes what an upload changes of the model that was sent, and "
                    f"{method} uploads one in whose place no model or one of several was sent: leave it out"
                )
            if model is not None:
                values = Params({name: t - model.params[name] for name, t in values.items()})
            key = fold_in(fold_in(client.key, _PURPOSE), len(new))
            made, left = self._encoded(replace(client, key=key), values, mine)
            new.append(left)
            return made

        return with_sets(upload, is_named, encoded), {**kept, method: new}

    def _encoded(self, client: Client[Any], values: Params, kept: Sequence[Any]) -> tuple[Encoded, list[Any]]:
        """Return one set of named tensors as all encoders have made it, and what each keeps of it."""
        sent: Any = values
        left, before = list[Any](), ""
        for number, (encoder, mine) in enumerate(zip(self.encoders, kept, strict=True)):
            name = type(encoder).__name__
            if not tree.same_structure(sent, values):
                raise StackingError(f"{name} encodes named tensors, and {before} before it sends others: turn them")
            sent, new = encoder.encode(replace(client, key=fold_in(client.key, number)), sent, mine)
            if other := [leaf for leaf in tree.leaves(sent) if not isinstance(leaf, Tensor)]:
                raise StackingError(f"{name} must send tensors, got {type(other[0]).__name__}")
            if not tree.same_structure(new, mine):
                raise StackingError(
                    f"{name} must keep what init makes, of its structure, shapes and types, got "
                    f"{tree.unlike(new, mine)}: write init, or return what fits it"
                )
            left.append(new)
            before = name
        return Encoded(sent=sent, like=_like(values)), left

    def decode(self, question: Question, asked: Asked, *, blank: bool = False) -> Tree:
        """Return the uploads of n clients as their methods made them, up to what encoders lose.

        `blank`: as if all values were 0.
        """
        request, _, answer = asked
        n = len(request.clients)

        def placeholder(node: Encoded) -> Params:
            return Params({name: torch.empty(n, *t.shape[2:], device="meta") for name, t in node.like.items()})

        shapes = with_sets(answer.upload, _is_encoded, placeholder)
        models = iter(sent_models(question.bill, request.call.broadcast, shapes, request.scatter))

        def decoded(node: Encoded) -> Params:
            (_, model), like = next(models), _without_storage(node.like)
            sent = [tree.take(node.sent, i) for i in range(n)]
            values: Params = tree.stack([_zeros(node.like, like) if blank else self._decoded(s, like) for s in sent])
            return values if model is None else Params({name: model.params[name] + t for name, t in values.items()})

        return with_sets(answer.upload, _is_encoded, decoded)

    def small(self, broadcast: Tree, key: int) -> Tree:
        """Return what travels of what all clients are sent. `key`: of what is drawn for it."""

        def encoded(values: Params) -> Encoded:
            server = SimpleNamespace(key=torch.tensor(key, device=next((t.device for t in values.values()), None)))
            return Encoded(sent=self.download.encode(server, values, self.download.init(values))[0], like=_like(values))

        return with_sets(broadcast, is_named, encoded)

    def whole(self, travelled: Tree, *, blank: bool = False) -> Tree:
        """Return what clients are sent, of what has travelled; `blank`: without storage, of shapes alone."""

        def decoded(node: Encoded) -> Params:
            like = Params({name: t.new_empty(t.shape[1:], device="meta") for name, t in node.like.items()})
            return like if blank else self.download.decode(node.sent, like)

        return with_sets(travelled, _is_encoded, decoded)

    def _decoded(self, sent: Any, like: Params) -> Params:
        values = sent
        for encoder in reversed(self.encoders):
            values = encoder.decode(values, like)
            if not tree.same_structure(values, like):
                raise StackingError(
                    f"{type(encoder).__name__}.decode must give back the values' names, shapes and types, got "
                    f"{tree.unlike(values, like)}"
                )
        return values  # type: ignore[no-any-return]


class Decoded(Link):
    """Encoded uploads: counted as they have travelled, and read. What a device sends and nobody can read is refused."""

    def __init__(self) -> None:
        self._unread: dict[tuple[int, ...], str] = {}

    def answers(self, question: Question, answers: Iterator[Asked]) -> Iterator[Asked]:
        engine, self._unread = question.engine, {}
        for request, states, answer in answers:
            asked, encoders = (request, states, answer), engine.runtime.encoders
            up: list[Counter[str]] = question.bill.of_uploads(answer.upload, len(request.clients))
            try:
                upload = encoders.decode(question, asked)
            except Exception as error:
                if not engine.elsewhere:
                    raise
                self._unread[request.clients] = f"what it sent cannot be decoded: {error!s:.200}"
                upload = encoders.decode(question, asked, blank=True)
            yield request, states, replace_fields(answer, upload=upload, up=up)

    def refuse(self, question: Question, asked: Asked) -> dict[int, str]:
        clients = asked[0].clients
        return dict.fromkeys(clients, self._unread[clients]) if clients in self._unread else {}


def _is_encoded(node: Any) -> bool:
    return isinstance(node, Encoded)


def with_sets(upload: Tree, is_one: Callable[[Any], bool], made: Callable[[Any], Any]) -> Tree:
    """Return an upload with something else in the place of each set of named tensors; buffers stay."""
    nodes, spec = tree.flatten(upload, is_leaf=is_one)
    for place, node in enumerate(nodes):
        if isinstance(node, Weights):
            (params, *buffers), inside = tree.flatten(node, is_leaf=lambda part: isinstance(part, Params))
            nodes[place] = tree.unflatten([made(params), *buffers], inside)
        elif is_one(node):
            nodes[place] = made(node)
    return tree.unflatten(nodes, spec)


def _like(values: Params) -> Params:
    return Params({name: t.new_empty((0, *t.shape)) for name, t in values.items()})


def _without_storage(like: Params) -> Params:
    """Return the values of one client, of stacked placeholders [n, 0, ...], without storage."""
    return Params({name: torch.empty(t.shape[2:], dtype=t.dtype, device="meta") for name, t in like.items()})


def _zeros(stacked: Params, like: Params) -> Params:
    return Params({name: torch.zeros_like(t, device=stacked[name].device) for name, t in like.items()})
