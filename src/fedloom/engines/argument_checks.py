"""Admission: a client accepts only the arguments that a method is annotated with, in the shapes of its own model.

    @on_client
    def local_update(self, client: Client[C], x: Weights, c: Params) -> ...
                                              broadcast[0]  broadcast[1]; scattered arguments come after them

`Weights` and `Params` may hold a part of the network's tensors in their shapes, or a stack of several models. Other
names and the shape of a `Tensor` are free: the limit of a message bounds them.
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
    """Return the annotations of a method's arguments after the client, in order.

    Raises:
        StackingError: an argument has no annotation, or one without information.
    """
    if getattr(method, "__func__", None) is Algorithm.personal:
        return [Weights]  # the default of the evaluation model
    hints = typing.get_type_hints(method)
    names = list(inspect.signature(method).parameters)[1:]
    for name in names:
        if hints.get(name, Any) is Any:
            raise StackingError(
                f"{getattr(method, '__qualname__', method)} needs an annotation of {name!r}: Weights, Tensor, a "
                "@state class, ...; clients elsewhere check by it what they are sent"
            )
    return [hints[name] for name in names]


def check_argument(like: Any, annotation: Any, weights: Weights, path: str) -> None:
    """Raise CodecError unless a tree without storage fits an annotation and the shapes of a client's model."""
    _check(like, annotation, {**weights.params, **weights.buffers}, path, {})


def _check(like: Any, kind: Any, weights: Mapping[str, Tensor], path: str, names: Mapping[Any, Any]) -> None:
    kind = names.get(kind, kind) if isinstance(kind, TypeVar) else kind
    origin: Any = typing.get_origin(kind) or kind
    args = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        _check_union(like, args, weights, path, names)
        return
    if origin is Any or isinstance(origin, TypeVar):
        raise StackingError(f"{path} needs an annotation with a type, got {_name(kind)}")
    is_one: bool = isinstance(origin, type) and isinstance(like, origin)
    if not is_one:
        raise CodecError(f"{path} must be {_name(kind)}, got {type(like).__name__}")
    if issubclass(origin, dict):
        for key, value in like.items():
            _check(value, args[1] if len(args) == 2 else Tensor, weights, f"{path}[{key!r:.80}]", names)
            if isinstance(value, Tensor) and key in weights:
                _check_shape(value, weights[key], f"{path}[{key!r:.80}]")
    elif issubclass(origin, tuple | list):
        annotations = args[:1] * len(like) if origin is list or args[1:] == (...,) else args
        if len(annotations) != len(like):
            raise CodecError(f"{path} must have {len(annotations)} entries, got {len(like)}")
        for i, (value, annotation) in enumerate(zip(like, annotations, strict=True)):
            _check(value, annotation, weights, f"{path}[{i}]", names)
    elif is_dataclass(origin):
        inner = dict(zip(getattr(origin, "__parameters__", ()), args, strict=False))
        hints = typing.get_type_hints(origin)
        for field in fields(origin):
            if not field.metadata.get("static"):
                annotation = names.get(inner.get(field.name), hints[field.name])
                bound = {name: names.get(value, value) for name, value in inner.items()}
                _check(getattr(like, field.name), annotation, weights, f"{path}.{field.name}", bound)


def _check_union(like: Any, args: Any, weights: Mapping[str, Tensor], path: str, names: Mapping[Any, Any]) -> None:
    problems = []
    for kind in args:
        try:
            _check(like, kind, weights, path, names)
            return
        except CodecError as error:
            problems.append(str(error))
    raise CodecError(problems[0])


def _check_shape(value: Tensor, weights: Tensor, path: str) -> None:
    if weights.shape not in (value.shape, value.shape[1:]) or value.dtype != weights.dtype:
        raise CodecError(
            f"{path} must be {weights.dtype} {list(weights.shape)} as in this client's model, got {value.dtype} "
            f"{list(value.shape)}"
        )


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def unstacked_shapes(stacked: Any) -> Any:
    """Return one client's part of a stacked tree without storage, [K, ...] -> [...]."""
    return tree.map_tree(lambda t: t.new_empty(t.shape[1:], device="meta"), stacked)
