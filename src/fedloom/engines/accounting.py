"""Tell what travels: bytes by kind, as algorithms annotate arguments, uploads and states; what was sent for an upload.

    @on_client
    def local_update(self, client: Client[C], x: Weights, c: Annotated[Params, "control"]) -> tuple[
        C, tuple[Weighted[Weights], Annotated[Weighted[Params], "control"]]    # new state, upload
    ]: ...

What nothing says is "model".
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Annotated, Any

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.errors import StackingError
from fedloom.core.types import Maybe, Params, Tree, Weighted, Weights

KINDS = ("model", "personal", "fisher", "gradient", "control", "predictions")


class PayloadSize:
    """Bytes of the messages of one method, by kind."""

    def __init__(self, method: Callable[..., Any]) -> None:
        hints = _hints(method)
        self.down = [hints.get(name) for name in list(inspect.signature(method).parameters)[1:]]
        answer = typing.get_args(hints.get("return"))
        self.up = answer[1] if len(answer) == 2 else None

    def of_request(self, broadcast: tuple[Any, ...], scatter: tuple[Any, ...], count: int) -> list[Counter[str]]:
        """Return the bytes by kind that each of `count` clients is sent.

        Each is sent the same broadcast, and its own entry of `scatter`.
        """
        hints = [*self.down, *[None] * (len(broadcast) + len(scatter) - len(self.down))]
        same: Counter[str] = Counter()
        for value, hint in zip(broadcast, hints, strict=False):
            for kind, part in _parts(value, hint):
                same.update(_booked(kind, part, tree.nbytes(part)))
        theirs = hints[len(broadcast) :][: len(scatter)]  # a method may take more, with defaults
        return [same + mine for mine in _each(zip(scatter, theirs, strict=True), count)]

    def of_uploads(self, uploads: Any, count: int) -> list[Counter[str]]:
        """Return the bytes by kind that each of `count` clients sends, stacked.

        The weights of `Weighted` are control data and are not counted.
        """
        return _each([(uploads, self.up)], count, weighted=True)

    def parts_of_uploads(self, uploads: Any) -> Iterator[tuple[str, Any]]:
        """Yield (kind, part) of uploads, in the order of their leaves, without the weights of `Weighted`."""
        for kind, part in _parts(uploads, self.up, weighted=True):
            nodes, spec = tree.flatten(part, is_leaf=lambda n: isinstance(n, Weighted))
            yield kind, tree.unflatten([n.value if isinstance(n, Weighted) else n for n in nodes], spec)


def of_states(states: list[Any]) -> list[int]:
    """Return the bytes of each state.

    Neither the flag of a `Maybe` nor a whole number beside the weights (the round of a model) is payload.
    """
    return [sum(t.nbytes for t in _kept(state)) for state in states]


def of_new_states(states: list[Any], there: list[Any]) -> list[int]:
    """Return the bytes of each state beyond what the other end has: tensors in `there` need not be sent again.

    A client of pFedSD keeps the model that it uploads: its new state costs nothing.
    """
    return [
        sum(t.nbytes for t in _kept(state) if not any(_same(t, known) for known in tree.leaves(has)))
        for state, has in zip(states, there, strict=True)
    ]


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def _kept(state: Any) -> list[Tensor]:
    """Return the tensors of a state that are there, without flags of `Maybe` and whole numbers beside the weights."""
    out: list[Tensor] = []
    for node in tree.flatten(state, is_leaf=lambda n: isinstance(n, Maybe | Weights))[0]:
        if isinstance(node, Maybe):
            out.extend(_kept(node.value) if bool(node.present) else [])
        elif isinstance(node, Weights):
            out.extend(tree.leaves(node))
        elif node.ndim or node.is_floating_point():
            out.append(node)
    return out


def _each(values: Iterable[tuple[Any, Any]], count: int, weighted: bool = False) -> list[Counter[str]]:
    """Return the bytes by kind of each of `count` clients, for stacked values with their annotations."""
    out = [Counter[str]() for _ in range(count)]
    for value, hint in values:
        for kind, part in _parts(value, hint, weighted=weighted):
            sent = _without_weights(part) if weighted else part
            for mine, size in zip(out, tree.nbytes_each(sent, count), strict=True):
                mine.update(_booked(kind, sent, size))
    return out


def _booked(kind: str, part: Any, size: int) -> dict[str, int]:
    """Return the bytes of a part by kind.

    Where its kind is not "model", the flag that says whether a `Maybe` is there is control.
    """
    return {kind: size - 1, "control": 1} if isinstance(part, Maybe) and kind != "model" else {kind: size}


def _without_weights(uploads: Any) -> list[Any]:
    nodes = tree.flatten(uploads, is_leaf=lambda n: isinstance(n, Weighted))[0]
    return [n.value if isinstance(n, Weighted) else n for n in nodes]


def _parts(value: Any, hint: Any, kind: str = "model", weighted: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield (kind, part) of a tree by its annotation; one part where that says no more. `weighted`: without weights."""
    if typing.get_origin(hint) is Annotated:
        kind = _kind(hint) or kind
        hint = typing.get_args(hint)[0]
    args = typing.get_args(hint)
    if weighted and isinstance(value, Weighted):
        yield from _parts(value.value, args[0] if args else None, kind, weighted)
    elif type(value) is tuple:
        each = args[:1] * len(value) if args[1:] == (...,) else args
        for part, its in zip(value, each if len(each) == len(value) else [None] * len(value), strict=True):
            yield from _parts(part, its, kind, weighted)
    elif is_dataclass(value) and (own := _marked(type(value))):  # type: ignore[arg-type]
        for field in fields(value):
            if not field.metadata.get("static"):
                yield from _parts(getattr(value, field.name), own.get(field.name), kind, weighted)
    else:
        yield kind, value


@functools.cache
def _marked(kind: type) -> dict[str, Any]:
    """Return the annotations of a class if one of its fields says what it is, else nothing."""
    hints = _hints(kind)
    return hints if any(_kind(hint) for hint in hints.values()) else {}


def _kind(hint: Any) -> str | None:
    """Return the kind of value that an annotation names; None where it names none.

    Raises:
        StackingError: there is no such kind.
    """
    said = [word for word in getattr(hint, "__metadata__", ()) if isinstance(word, str)]
    if said and said[0] not in KINDS:
        raise StackingError(f"what travels is one of {', '.join(KINDS)}, got the annotation {said[0]!r}: name one")
    return said[0] if said else None


def _hints(what: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(what, include_extras=True)
    except NameError:  # of what only type checkers import
        return {}


def sent_tensors(
    payload: PayloadSize, broadcast: tuple[Any, ...], uploads: Tree, scatter: tuple[Any, ...] = ()
) -> list[Tensor | None]:
    """Return what was sent in the place of each leaf of stacked uploads, without the weights of means.

    It is known of `Weights` that the method sends as a model (by its annotations): it is the model with all of their
    tensors, in the first argument that has such a model: one that was `broadcast`, [...], or `scatter`ed, [n, ...]. Of
    all else it is None: a gradient or a control variate is a difference already. It is None, too, where that argument
    holds several such models, from which each client may have taken another.
    """
    out: list[Tensor | None] = []
    for _, node, sent in _beside(payload, broadcast, uploads, scatter):
        if sent is None:
            out += [None] * len(tree.leaves(node))
        else:
            out += [sent.params[name] for name in node.params] + [sent.buffers[name] for name in node.buffers]
    return out


def sent_models(
    payload: PayloadSize, broadcast: tuple[Any, ...], uploads: Tree, scatter: tuple[Any, ...] = ()
) -> list[tuple[str, Weights | None]]:
    """Return the kind of each `Weights` or `Params` of uploads, in their order, and what was sent in its place.

    It is known where `sent_tensors` knows it.
    """
    return [(kind, sent) for kind, node, sent in _beside(payload, broadcast, uploads, scatter) if is_named(node)]


def sets_in(hint: Any, names: Mapping[Any, Any] = MappingProxyType({})) -> int:
    """Return how many `Weights` and `Params` a value with this annotation has; 0 of what the annotation leaves open.

    `names`: what stands for type variables.
    """
    hint = names.get(hint, hint) if isinstance(hint, typing.TypeVar) else hint
    origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is Annotated:
        return sets_in(args[0], names)
    if origin in (Weights, Params):
        return 1
    if origin is tuple:
        return sum(sets_in(each, names) for each in args)
    if not is_dataclass(origin):
        return 0
    given = [names.get(each, each) if isinstance(each, typing.TypeVar) else each for each in args]
    inner = dict(zip(getattr(origin, "__parameters__", ()), given, strict=False))
    return sum(sets_in(each, inner) for each in _hints(origin).values())


def is_named(node: Any) -> bool:
    """Return whether a node of a tree is a set of named tensors: `Weights` or `Params`."""
    return isinstance(node, Weights | Params)


def _beside(
    payload: PayloadSize, broadcast: tuple[Any, ...], uploads: Tree, scatter: tuple[Any, ...]
) -> Iterator[tuple[str, Any, Weights | None]]:
    """Yield the nodes of uploads, sets of named tensors whole: kind, node, and what was sent in its place."""
    for kind, value in payload.parts_of_uploads(uploads):
        for node in tree.flatten(value, is_leaf=is_named)[0]:
            known = kind == "model" and _is_weights(node)
            yield kind, node, _model_for(node, broadcast, scatter) if known else None


def _model_for(stacked: Weights, broadcast: tuple[Any, ...], scatter: tuple[Any, ...]) -> Weights | None:
    """Return the model with all tensors of stacked ones in the first argument that has one; None of several."""
    for lead, arguments in ((1, broadcast), (0, scatter)):
        for argument in arguments:
            nodes = tree.flatten(argument, is_leaf=_is_weights)[0]
            models = [m for m in nodes if _is_weights(m) and _has(m.params, stacked.params, lead)]
            if fitting := [m for m in models if _has(m.buffers, stacked.buffers, lead)]:
                return fitting[0] if len(fitting) == 1 else None
    return None


def _has(model: Params, stacked: Params, lead: int) -> bool:
    return all(name in model and model[name].shape == rows.shape[lead:] for name, rows in stacked.items())


def _is_weights(node: Any) -> bool:
    return isinstance(node, Weights)
