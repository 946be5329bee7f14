"""The vocabulary: frozen pytrees of tensors that travel between server and clients, and arithmetic on them.

`torch.utils._pytree` is private to PyTorch; this module, `tree` and `codec` are the only ones that name it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, dataclass_transform

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

T = TypeVar("T")
A = TypeVar("A", bound="Arithmetic")
Tree = Any  # any pytree of tensors: Tensor, dict, tuple, list, @state
STATES: set[str] = set()  # the names by which messages say that they hold a @state class


def static(*, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field of a `@state` class that carries no tensors: hashable, equal on all clients of a stack."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def state(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and a pytree: what server and clients keep and send.

    Fields are pytrees of tensors unless declared with `static()`. Shapes are written beside the fields.

    >>> @state
    ... class Control:
    ...     c: Params  # like the model

    Args:
        cls: a class with annotated fields.

    Returns:
        The same class.
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

    name = f"{cls.__module__}.{cls.__qualname__}"
    STATES.add(name)
    pytree.register_pytree_node(
        made,
        flatten,
        unflatten,
        flatten_with_keys_fn=with_keys,
        serialized_type_name=name,
        to_dumpable_context=json.dumps,
        from_dumpable_context=lambda text: tuple(json.loads(text)),
    )
    return cls


class Arithmetic:
    """Pytrees of one structure as the vectors of a paper: x + y, x - y, -x, a * x, x / a, and x * y leaf by leaf.

    `a` is a number or a 0-d tensor. Integer and boolean leaves (counters, flags) are those of the left tree, never
    computed with. A `@state` class of your own has these operators if it derives from this one.
    """

    __array_ufunc__ = None  # a NumPy number leaves the product to the tree

    def __add__(self: A, other: A) -> A:
        return _floats(lambda x, y: x + y, self, other)

    def __sub__(self: A, other: A) -> A:
        return _floats(lambda x, y: x - y, self, other)

    def __neg__(self: A) -> A:
        return _floats(lambda x: -x, self)

    def __mul__(self: A, a: float | Tensor | A) -> A:
        return _floats(lambda x, y: x * y, self, a) if isinstance(a, Arithmetic) else _floats(lambda x: a * x, self)

    __rmul__ = __mul__

    def __truediv__(self: A, a: float | Tensor) -> A:
        return _floats(lambda x: x / a, self)

    def sq_norm(self) -> Tensor:
        """Return the sum of the squares of all floating leaves, [] of their dtype."""
        return torch.stack([x.square().sum() for x in pytree.tree_leaves(self) if x.is_floating_point()]).sum()

    def dot(self: A, other: A) -> Tensor:
        """Return the inner product over all floating leaves, [].

        Args:
            other: of the same structure.
        """
        pairs = zip(pytree.tree_leaves(self), pytree.tree_leaves(other), strict=True)
        return torch.stack([(x * y).sum() for x, y in pairs if x.is_floating_point()]).sum()


def _floats(fn: Callable[..., Tensor], first: T, *rest: Tree) -> T:
    return pytree.tree_map(  # type: ignore[no-any-return]
        lambda x, *others: fn(x, *others) if x.is_floating_point() else x, first, *rest
    )


class Params(dict[str, Tensor], Arithmetic):
    """Tensors by qualified name; over K stacked clients each has one leading axis."""

    def select(self, keep: Callable[[str], bool]) -> Params:
        """Return the entries whose name satisfies `keep`.

        Args:
            keep: a condition on a tensor's name.
        """
        return Params({n: t for n, t in self.items() if keep(n)})


_PARAMS = f"{__name__}.Params"
STATES.add(_PARAMS)
pytree.register_pytree_node(
    Params,
    lambda p: (list(p.values()), list(p)),
    lambda tensors, names: Params(zip(names, tensors, strict=True)),
    flatten_with_keys_fn=lambda p: ([(pytree.MappingKey(n), t) for n, t in p.items()], list(p)),
    serialized_type_name=_PARAMS,
    to_dumpable_context=json.dumps,
    from_dumpable_context=json.loads,
)


@state
class Weights(Arithmetic):
    """A model's tensors: `params` are trained, `buffers` (BatchNorm statistics, counters) follow the data.

    Arithmetic works on both; penalties use `.params` only; integer buffers are never averaged.
    """

    params: Params
    buffers: Params

    def __init__(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor] | None = None) -> None:
        object.__setattr__(self, "params", params if isinstance(params, Params) else Params(params))
        object.__setattr__(self, "buffers", buffers if isinstance(buffers, Params) else Params(buffers or {}))

    def select(self, keep: Callable[[str], bool]) -> Weights:
        """Return the entries whose qualified name satisfies a condition.

        Args:
            keep: the condition, on names such as `fc.weight`.
        """
        return Weights(params=self.params.select(keep), buffers=self.buffers.select(keep))

    def merge(self, other: Weights) -> Weights:
        """Return these weights with the entries of others put over them; the order of names is kept.

        Args:
            other: weights with some of the names.
        """
        return Weights(params={**self.params, **other.params}, buffers={**self.buffers, **other.buffers})

    def towards(self, other: Weights, rate: float) -> Weights:
        """Return params + rate * (those of `other` - params), with the buffers of `other`.

        At rate 1 the params are those of `other` to the last bit.

        Args:
            other: weights of the same network.
            rate: 0 stays, 1 arrives.
        """
        moved = other.params if rate == 1.0 else self.params + rate * (other.params - self.params)
        return Weights(params=moved, buffers=other.buffers)


@state
class BatchLoss:
    """The loss of a batch, with the pass that gave it. Numbers are added to it, and scale it, like any other.

    >>> loss = task_loss(w, batch) + mu / 2 * (w.params - received.params).sq_norm()
    """

    value: Tensor  # []
    logits: Tensor  # [B, C]
    weights: Weights  # those that were used, with the buffers as the batch has moved them
    beside: Any = None  # what `Algorithm.train_beside` trains beside them, with such buffers; None: none has moved

    def __add__(self, term: float | Tensor) -> BatchLoss:
        return self._with(self.value + term)

    def __sub__(self, term: float | Tensor) -> BatchLoss:
        return self._with(self.value - term)

    def __mul__(self, factor: float | Tensor) -> BatchLoss:
        return self._with(self.value * factor)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, factor: float | Tensor) -> BatchLoss:
        return self._with(self.value / factor)

    def _with(self, value: Tensor) -> BatchLoss:
        return BatchLoss(value=value, logits=self.logits, weights=self.weights, beside=self.beside)


@state
class Beside(Generic[T]):
    """Tensors that are trained or move beside a model: whatever it holds is not the model of this training."""

    value: T


@state
class Maybe(Generic[T]):
    """A value that may be absent (a first teacher). The stack carries zeros for it; codec and byte counter skip it."""

    present: Tensor  # [] bool
    value: T  # zeros where absent

    @staticmethod
    def some(value: T) -> Maybe[T]:
        """Return a Maybe that holds a value.

        Args:
            value: a pytree of tensors.
        """
        return Maybe(present=torch.ones((), dtype=torch.bool), value=value)

    @staticmethod
    def none(like: T) -> Maybe[T]:
        """Return a Maybe that holds nothing.

        Args:
            like: a pytree with the structure and shapes that a value has.
        """
        return Maybe(present=torch.zeros((), dtype=torch.bool), value=pytree.tree_map(torch.zeros_like, like))

    @staticmethod
    def where(present: Tensor, value: T) -> Maybe[T]:
        """Return a Maybe of a value that may be present.

        Args:
            present: bool, [], or [K] of a value that is stacked.
            value: a pytree of tensors.
        """

        def there(t: Tensor) -> Tensor:
            return torch.where(present.reshape(present.shape + (1,) * (t.ndim - present.ndim)), t, torch.zeros_like(t))

        return Maybe(present=present, value=pytree.tree_map(there, value))

    def otherwise(self, default: T) -> T:
        """Return the value where it is present, a default elsewhere; without a branch, so a client can use it.

        Args:
            default: of the structure of the value.
        """
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
    """Reason why a client of the cohort did not answer in an exchange of a round, `exchange` counted from 0.

    A failure is a value, never an exception.
    """

    client: int
    reason: str
    exchange: int = 0


def replace(value: T, **changes: Any) -> T:
    """Return a copy of a `@state` value with some fields replaced.

    Args:
        value: of a class that `state` has made.
        **changes: new values of fields, by name.
    """
    return dataclasses.replace(value, **changes)  # type: ignore[type-var]
