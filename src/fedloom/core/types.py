"""The vocabulary: frozen pytrees of tensors that travel between server and clients. No logic but their own.

`torch.utils._pytree` is private to PyTorch; this module, `tree` and `codec` are the only ones that name it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, Generic, TypeVar, dataclass_transform

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

T = TypeVar("T")

Params = dict[str, Tensor]  # qualified name -> tensor; over K stacked clients each has one leading axis
Tree = Any  # any pytree of tensors: Tensor, dict, tuple, list, @state


def static(*, default: Any = dataclasses.MISSING) -> Any:
    """A field of a `@state` class that carries no tensors: hashable, equal on all clients of a stack."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def state(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass and a pytree: what server and clients keep and send.

    Fields are pytrees of tensors unless declared with `static()`. Shapes are written beside the fields.

    >>> @state
    ... class Control:
    ...     c: Params  # like the model
    """
    made: Any = dataclasses.dataclass(frozen=True, eq=False)(cls)
    fields = dataclasses.fields(made)
    dynamic = [f.name for f in fields if not f.metadata.get("static")]
    fixed = [f.name for f in fields if f.metadata.get("static")]

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(value, n) for n in dynamic], tuple(getattr(value, n) for n in fixed)

    def unflatten(children: Any, context: tuple[Any, ...]) -> Any:
        value = object.__new__(
            made
        )  # without __init__: PyTorch unflattens with placeholders that validation would refuse
        for name, child in zip(dynamic, children, strict=True):
            object.__setattr__(value, name, child)
        for name, child in zip(fixed, context, strict=True):
            object.__setattr__(value, name, child)
        return value

    def with_keys(value: Any) -> tuple[list[tuple[pytree.KeyEntry, Any]], tuple[Any, ...]]:
        children, context = flatten(value)
        return [(pytree.GetAttrKey(n), c) for n, c in zip(dynamic, children, strict=True)], context

    pytree.register_pytree_node(
        made,
        flatten,
        unflatten,
        flatten_with_keys_fn=with_keys,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",  # by which a message says what it holds
        to_dumpable_context=json.dumps,
        from_dumpable_context=lambda text: tuple(json.loads(text)),
    )
    return cls


@state
class Weights:
    """A model's tensors: `params` are trained, `buffers` (BatchNorm statistics, counters) follow the data.

    Arithmetic of `fedloom.core.tree` works on both; penalties use `.params` only; integer buffers are never averaged.
    """

    params: Params
    buffers: Params = dataclasses.field(default_factory=dict)

    def select(self, keep: Callable[[str], bool]) -> Weights:
        """The entries whose qualified name satisfies `keep`."""
        return Weights(
            params={n: t for n, t in self.params.items() if keep(n)},
            buffers={n: t for n, t in self.buffers.items() if keep(n)},
        )

    def merge(self, other: Weights) -> Weights:
        """These weights with the entries of `other` put over them; the order of names is kept."""
        return Weights(params={**self.params, **other.params}, buffers={**self.buffers, **other.buffers})


@state
class Maybe(Generic[T]):
    """A value that may be absent (a first teacher). The stack carries zeros for it; codec and byte counter skip it."""

    present: Tensor  # [] bool
    value: T  # zeros where absent

    @staticmethod
    def some(value: T) -> Maybe[T]:
        return Maybe(present=torch.ones((), dtype=torch.bool), value=value)

    @staticmethod
    def none(like: T) -> Maybe[T]:
        return Maybe(present=torch.zeros((), dtype=torch.bool), value=pytree.tree_map(torch.zeros_like, like))

    def otherwise(self, default: T) -> T:
        """The value where present, `default` elsewhere; no branch, so it may be used on a client."""
        return pytree.tree_map(  # type: ignore[no-any-return]
            lambda v, d: torch.where(self.present, v, d), self.value, default
        )


@state
class Weighted(Generic[T]):
    """A summable upload: `Cohort.reduce` returns the mean of the values, weighted by `weight`."""

    value: T
    weight: Tensor  # [] >= 0


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a client of the cohort did not answer. A failure is a value, never an exception."""

    client: int
    reason: str


def replace(value: T, **changes: Any) -> T:
    """A copy of a `@state` value with some fields replaced."""
    return dataclasses.replace(value, **changes)  # type: ignore[type-var]
