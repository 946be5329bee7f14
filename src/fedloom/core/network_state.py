"""State of a network beside its registered tensors: put back after each pass, and watched where a network is tried."""

from __future__ import annotations

import functools
import itertools
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_GENERATORS = (
    *(random.Random, np.random.Generator, np.random.BitGenerator, np.random.RandomState, torch.Generator),
    *(itertools.count, itertools.cycle, types.GeneratorType),
)
_REGISTERED = ("_parameters", "_buffers", "_modules")
_OF_MODULES = frozenset(vars(nn.Module()))  # attributes that every module has, such as its hooks
_LIBRARIES = {*sys.stdlib_module_names, "torch", "torchvision", "numpy", "transformers", "peft", "fedloom"}
_DEPTH = 8

Marks = dict[str, Any]  # by the name of an attribute, or of what else a pass can reach: equal as long as it is the same


class KeptState:
    """Attributes of a network's modules, and what is in them, as they were when the network was made."""

    def __init__(self, network: nn.Module) -> None:
        named = dict(network.named_modules())
        self._paths: list[str] = [*named]
        self._parts: list[dict[str, Any]] = [part.__dict__ for part in named.values()]
        registered = [part[name] for part in self._parts for name in _REGISTERED]
        self._registered = [(each, each.copy(), None in [*each.values()]) for each in registered]
        seen = {id(part) for part in named.values()}
        self._inside = [put for _, value in _attributes(network) for put in _putters(value, seen)]

    def attributes(self) -> list[dict[str, Any]]:
        """Return the attributes of each module, as `put_back` takes them."""
        return [part.copy() for part in self._parts]

    def put_back(self, attributes: list[dict[str, Any]]) -> None:
        """Put back these attributes, and what was in them when the network was made.

        Args:
            attributes: what `attributes` has returned before a pass.
        """
        for part, before in zip(self._parts, attributes, strict=True):
            part.clear()
            part.update(before)
        for entries, made, has_none in self._registered:
            if has_none or len(entries) != len(made):  # a forward may register a table, or fill in what was None
                entries.clear()
                entries.update(made)
        for put in self._inside:
            put()

    def give(self, other: KeptState, names: Collection[str]) -> None:
        """Give another copy of the network some attributes as they are in this one.

        Args:
            other: of that copy.
            names: as `marks` has them; of buffers, those alone that a pass is not given.
        """
        for path, mine, theirs in zip(self._paths, self._parts, other._parts, strict=True):
            for held, taker in ((mine, theirs), (mine["_buffers"], theirs["_buffers"])):
                taker.update({n: value for n, value in held.items() if _name(path, n) in names})


def _name(path: str, attribute: str) -> str:
    return f"{path}.{attribute}".removeprefix(".")


def _putters(value: Any, seen: set[int], depth: int = 0) -> Iterator[Callable[[], None]]:
    """Yield functions that put back what is in a value, which is an attribute or stands in one."""
    if id(value) in seen or depth > _DEPTH:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        if value.grad_fn is None and not value.is_meta and not value.is_inference():
            yield _tensor_putter(value)
    elif isinstance(value, np.ndarray):
        if value.flags.writeable:
            yield functools.partial(np.copyto, value, value.copy())
    elif isinstance(value, list | deque):
        yield functools.partial(_refill, value, [*value], "extend")
    elif isinstance(value, set | dict):
        yield functools.partial(_refill, value, value.copy(), "update")
    elif _has_attributes(value):
        yield functools.partial(_refill, vars(value), vars(value).copy(), "update")
    for inner in _inside(value):
        yield from _putters(inner, seen, depth + 1)


def _tensor_putter(t: Tensor) -> Callable[[], None]:
    made, version = t.detach().clone(), [t._version]

    def put() -> None:
        if t._version != version[0]:
            t.detach().copy_(made)
            version[0] = t._version

    return put


def _refill(holder: Any, content: Any, add: str) -> None:
    holder.clear()
    getattr(holder, add)(content)


def _has_attributes(value: Any) -> bool:
    """Return whether a value is a module, or an object of a class of a person's own, which keeps what it likes."""
    if isinstance(value, nn.Module):
        return True
    return hasattr(value, "__dict__") and not isinstance(value, type) and not _of_a_library(type(value).__module__)


def _of_a_library(module: str | None) -> bool:
    return module is None or module.partition(".")[0] in _LIBRARIES


def _inside(value: Any) -> Iterator[Any]:
    """Yield what stands in a collection, or in the attributes of an object."""
    if isinstance(value, Mapping):
        yield from [*value.values()]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from [*value]
    elif _has_attributes(value):
        yield from [*vars(value).values()]


# ---- what is seen of it


def marks(network: nn.Module, *, beyond: bool = False) -> Marks:
    """Return marks of the attributes of a network's modules, by their names.

    Args:
        network: in which nothing computes at the moment.
        beyond: mark also what else a person's own classes and functions reach: attributes of classes, closures,
            defaults, globals.
    """
    known = {id(part) for part in network.modules()}
    found = {name: _mark(value, known.copy()) for name, value in _attributes(network)}
    return found | {name: _mark(value, known.copy()) for name, value in _beyond(network)} if beyond else found


def generators(network: nn.Module) -> Marks:
    """Return marks of the generators of random numbers that a pass can reach, by the name of what holds them."""
    known = {id(part) for part in network.modules()}
    reached = (*_attributes(network), *_beyond(network))
    held = ((name, [*_generators_in(value, known.copy())]) for name, value in reached)
    return {name: [_generator_mark(each) for each in found] for name, found in held if found}


def changed(before: Marks, after: Marks) -> list[str]:
    """Return the names of what is new, or is not as it was.

    Args:
        before: marks at first.
        after: the same later.
    """
    return [name for name, mark in after.items() if name not in before or before[name] != mark]


def _attributes(network: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield what its author has put into the modules of a network, and buffers that a pass is not given."""
    for path, part in network.named_modules():
        own = {name: value for name, value in vars(part).items() if name not in _OF_MODULES}
        own |= {name: b for name, b in part._buffers.items() if b is None or not b.is_meta}
        yield from ((_name(path, name), value) for name, value in own.items())


def _beyond(network: nn.Module) -> Iterator[tuple[str, Any]]:
    known: set[int] = set()
    for part in network.modules():
        for value in vars(part).values():
            yield from _behind(value, known)
        for kind in type(part).__mro__:
            if _of_a_library(kind.__module__) or id(kind) in known:
                continue
            known.add(id(kind))
            for name, value in vars(kind).items():
                if isinstance(value, types.FunctionType):
                    yield from _behind(value, known)
                elif not name.startswith("__"):
                    yield f"{kind.__name__}.{name}", value


def _behind(fn: Any, known: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield what a function of a person's own keeps or reads: closure, defaults, globals; of those it calls, too."""
    fn = getattr(fn, "__func__", fn)
    if not isinstance(fn, types.FunctionType) or _of_a_library(fn.__module__) or id(fn) in known:
        return
    known.add(id(fn))
    held = {f"{name} of a closure": value for name, value in _closure(fn)}
    defaults = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
    held |= {f"a default of {fn.__name__}": defaults} if defaults else {}
    held |= {f"the global {name}": fn.__globals__[name] for name in _names(fn.__code__) if name in fn.__globals__}
    for name, value in held.items():
        if not isinstance(value, types.ModuleType | type):
            yield name, value
            yield from _behind(value, known)


def _closure(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        with_value = True
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            with_value = False
        if with_value:
            yield name, value


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _called(value: Any) -> Iterator[Any]:
    """Yield what a function holds, such as the generator of `rng.random`."""
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType | types.BuiltinMethodType):
        yield value.__self__
    elif isinstance(value, types.FunctionType) and not _of_a_library(value.__module__):
        yield from (inner for _, inner in _closure(value))


def _generators_in(value: Any, seen: set[int], depth: int = 0) -> Iterator[Any]:
    if isinstance(value, _GENERATORS):
        yield value
    elif id(value) not in seen and depth <= _DEPTH:
        seen.add(id(value))
        for inner in (*_inside(value), *_called(value)):
            yield from _generators_in(inner, seen, depth + 1)


def _mark(value: Any, seen: set[int], depth: int = 0) -> Any:
    """Return something that equals that of another time exactly if the value has not changed."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | itertools.count):
        return repr(value)
    if isinstance(value, Tensor):
        return _tensor_mark(value)
    if isinstance(value, np.ndarray):
        return value.shape, str(value.dtype), hash(value.tobytes())
    if isinstance(value, _GENERATORS):
        return _generator_mark(value)
    if id(value) in seen or depth > _DEPTH:
        return type(value).__name__
    seen.add(id(value))
    keys = repr([*value]) if isinstance(value, Mapping) else ""
    return type(value).__name__, keys, *(_mark(inner, seen, depth + 1) for inner in (*_inside(value), *_called(value)))


def _generator_mark(value: Any) -> Any:
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else value.getstate()
    if isinstance(value, np.random.RandomState):
        return _state_mark(value.get_state())
    if isinstance(value, np.random.Generator | np.random.BitGenerator):
        return _state_mark(value.bit_generator.state if isinstance(value, np.random.Generator) else value.state)
    if isinstance(value, torch.Generator):
        return _tensor_mark(value.get_state())
    frame = value.gi_frame if isinstance(value, types.GeneratorType) else None
    return None if frame is None else (frame.f_lasti, repr(frame.f_locals))


def _state_mark(state: Any) -> Any:
    if isinstance(state, Mapping):
        return [_state_mark(each) for each in state.values()]
    if isinstance(state, tuple):
        return [_state_mark(each) for each in state]
    return _mark(state, set())


def _tensor_mark(t: Tensor) -> Any:
    if t.is_meta or t.layout != torch.strided:
        return str(t.dtype), str(t.layout)
    return str(t.dtype), t.shape, hash(t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
