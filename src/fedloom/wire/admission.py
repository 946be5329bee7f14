"""What a client lets in: the arguments that a method is annotated with, in the shapes of its own model.

    @on_client
    def local_update(self, client: Client[C], x: Weights, c: Params) -> ...
                                              broadcast[0]  broadcast[1]; what is scattered comes after them

`Weights` and `Params` may hold a part of the network's tensors, in its shapes and no others, or a stack of several
models; other names are free, as is the shape of a `Tensor`: the limit of a message bounds them.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from torch import Tensor

from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import CodecError, StackingError
from fedloom.core.types import Weights


def parameters(method: Callable[..., Any]) -> list[Any]:
    """Return the annotations of what a method takes beside the client, in order.

    Raises:
        StackingError: one of them says nothing of what it is.
    """
    if getattr(method, "__func__", None) is Algorithm.personal:
        return [Weights]  # by which a client is judged unless its algorithm says otherwise
    hints = typing.get_type_hints(method)
    names = list(inspect.signature(method).parameters)[1:]
    for name in names:
        if hints.get(name, Any) is Any:
            raise StackingError(
                f"{getattr(method, '__qualname__', method)} does not say what {name!r} is: annotate it (Weights, "
                "Tensor, a @state class, ...), so that a client elsewhere knows what it is sent"
            )
    return [hints[name] for name in names]


def check_argument(like: Any, annotation: Any, own: Weights, where: str) -> None:
    """Raise CodecError unless a tree without storage is what an annotation says, in the shapes of a client's model."""
    _check(like, annotation, {**own.params, **own.buffers}, where, {})


def _check(like: Any, kind: Any, own: Mapping[str, Tensor], where: str, names: Mapping[Any, Any]) -> None:
    kind = names.get(kind, kind) if isinstance(kind, TypeVar) else kind
    origin: Any = typing.get_origin(kind) or kind
    args = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        _check_union(like, args, own, where, names)
        return
    if origin is Any or isinstance(origin, TypeVar):
        raise StackingError(f"{where} is annotated with nothing that says what it is: name its type")
    is_one: bool = isinstance(origin, type) and isinstance(like, origin)
    if not is_one:
        raise CodecError(f"{where} must be {_name(kind)}, got {type(like).__name__}")
    if issubclass(origin, dict):
        for key, value in like.items():
            _check(value, args[1] if len(args) == 2 else Tensor, own, f"{where}[{key!r:.80}]", names)
            if isinstance(value, Tensor) and key in own:
                _like_own(value, own[key], f"{where}[{key!r:.80}]")
    elif issubclass(origin, tuple | list):
        each = args[:1] * len(like) if origin is list or args[1:] == (...,) else args
        if len(each) != len(like):
            raise CodecError(f"{where} must have {len(each)} entries, got {len(like)}")
        for i, (value, of) in enumerate(zip(like, each, strict=True)):
            _check(value, of, own, f"{where}[{i}]", names)
    elif is_dataclass(origin):
        inner = dict(zip(getattr(origin, "__parameters__", ()), args, strict=False))
        hints = typing.get_type_hints(origin)
        for field in fields(origin):
            if not field.metadata.get("static"):
                of = names.get(inner.get(field.name), hints[field.name])
                bound = {name: names.get(value, value) for name, value in inner.items()}
                _check(getattr(like, field.name), of, own, f"{where}.{field.name}", bound)


def _check_union(like: Any, args: Any, own: Mapping[str, Tensor], where: str, names: Mapping[Any, Any]) -> None:
    problems = []
    for kind in args:
        try:
            _check(like, kind, own, where, names)
            return
        except CodecError as error:
            problems.append(str(error))
    raise CodecError(problems[0])


def _like_own(value: Tensor, own: Tensor, where: str) -> None:
    if own.shape not in (value.shape, value.shape[1:]) or value.dtype != own.dtype:
        raise CodecError(
            f"{where} is {value.dtype} {list(value.shape)}, and this client's model has {own.dtype} {list(own.shape)}"
        )


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def one_of(stacked: Any) -> Any:
    """Return what one client gets of a stacked tree without storage, [K, ...] -> [...]."""
    return tree.map_tree(lambda t: t.new_empty(t.shape[1:], device="meta"), stacked)
