"""Find whether a step is a pure function of its arguments, and which steps compute the same."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn

from fedloom.core import tree
from fedloom.core.errors import StackingError
from fedloom.core.model import Model


def refuse_captured(fn: Callable[..., Any]) -> None:
    """Raise StackingError if a step, loss or correction carries tensors instead of taking them as arguments.

    A stack sorts its clients by number of steps. Arguments are sorted with them. A captured tensor is not, and would
    meet the rows of other clients without an error.
    """
    for name, value in _captured(fn):
        if any(isinstance(leaf, Tensor) for leaf in tree.leaves(value)):
            if isinstance(getattr(value, "model", None), Model):  # a client
                raise StackingError(
                    f"the step captures {name!r}, whose tensors a stack of clients would share by accident. Take what "
                    f"you need of it before the step: model, task_loss = {name}.model, {name}.loss"
                )
            raise StackingError(
                f"the step captures the tensor(s) {name!r}; a stack of clients would share them by accident. Pass them "
                f"as context: minimise(loss, ..., {name}) and take them as an argument after the batch, or after the "
                "gradient in `correct`"
            )


def _captured(fn: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield what a callable holds besides its arguments: closure cells, partial arguments, defaults, its own object.

    Models and modules are not searched: what they hold (a builder's closure, a buffer) is the network's, the same for
    all clients.
    """
    if depth > 4:
        return
    if isinstance(fn, functools.partial):
        yield from ((f"argument {i}", a) for i, a in enumerate(fn.args))
        yield from fn.keywords.items()
        nested = [fn.func, *fn.args, *fn.keywords.values()]
    elif hasattr(fn, "__func__"):  # before __code__, which a bound method has too
        yield "self", fn.__self__
        nested = [fn.__func__, fn.__self__]
    elif hasattr(fn, "__code__"):
        cells = dict(zip(fn.__code__.co_freevars, (c.cell_contents for c in fn.__closure__ or ()), strict=True))
        cells.update(fn.__kwdefaults__ or {})
        cells.update({f"default {i}": d for i, d in enumerate(fn.__defaults__ or ())})
        yield from cells.items()
        nested = list(cells.values())
    elif isinstance(fn, (type, nn.Module, Model)):
        return
    else:
        values = dict(getattr(fn, "__dict__", {}))
        if is_dataclass(fn):  # it may have slots
            values.update({f.name: getattr(fn, f.name) for f in fields(fn)})
        yield from values.items()
        nested = list(values.values())
    for value in nested:
        if callable(value) or isinstance(value, functools.partial) or is_dataclass(value):
            yield from _captured(value, depth + 1)


def identity(fn: Any) -> Any:
    """Return a hashable that tells apart callables that compute different things; None, and no tracing, without one."""
    try:
        parts = _parts(fn)
        hash(parts)
    except TypeError:
        return None
    return parts


def _parts(fn: Any) -> Any:
    if isinstance(fn, functools.partial):
        return (
            "partial",
            _parts(fn.func),
            *map(_parts, fn.args),
            *((k, _parts(v)) for k, v in sorted(fn.keywords.items())),
        )
    if isinstance(fn, tuple):
        return tuple(map(_parts, fn))
    if hasattr(fn, "__func__"):
        return ("method", fn.__func__, fn.__self__)
    if hasattr(fn, "__code__"):
        held = [c.cell_contents for c in fn.__closure__ or ()] + list((fn.__kwdefaults__ or {}).values())
        return ("function", fn.__code__, *map(_parts, held), *map(_parts, fn.__defaults__ or ()))
    return (type(fn), fn)
