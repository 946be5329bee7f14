"""Refuse networks that draw what no seed governs, write on what none may move, or answer by what they saw before."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.batch import probe
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.network_state import changed, generators, marks
from fedloom.core.passes import UNGOVERNED
from fedloom.core.types import Params, Weights
from fedloom.wording import some_of

Inputs = Callable[[torch.dtype], tuple[Tensor, Tensor]]  # see `check_passes`
_NAMED = 4  # of what changes, in a message


def check_passes(model: Model, inputs: Inputs, dtype: torch.dtype) -> list[str]:
    """Refuse a network whose passes would reach those of another client, or of another run.

    It may draw random numbers that no seed of a client governs, write on what all share, or answer to the same examples
    otherwise once it has seen others. Its attributes may change: what it saves there for its author reaches nobody.

    Args:
        model: the network.
        inputs: makes, in some dtype, some examples and as many others.
        dtype: that of the run.

    Returns:
        The names of attributes that change with each batch, though no answer here shows it.

    Raises:
        SettingError: it is one of those.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before, own = _generators(), [generators(network) for network in model.networks]
        seen = _seen_twice(model, inputs, dtype)
        drawn = [name for i, old in enumerate(own) for name in changed(old, generators(model.networks[i]))]
        if drawn or _generators() != before:
            by = f", by {_listed(drawn)}," if drawn else ""
            raise SettingError(UNGOVERNED.format(f"The forward of {model.name}{by}"))
        if seen.where and dtype != torch.float64:
            seen = _in_float64(model, inputs, seen)
    if seen.where:
        kept = f"it keeps {_listed(seen.moved)}" if seen.moved else "it keeps something beside its attributes"
        raise SettingError(
            "a network answers the same to the same examples whatever it has seen before, or one client's examples "
            f"would reach another's model, and {model.name} answers otherwise {seen.where} after others ({kept} from "
            "pass to pass): compute it anew in each forward, or register as a buffer what is to go on from batch to "
            "batch of a client"
        )
    return seen.adding_up


@dataclass(frozen=True)
class _Seen:
    """Findings of two passes over the same examples, the second after one over others.

    Attributes:
        where: in training or in evaluation, if answers or buffers were not the same; "" if they were.
        moved: the names of what was not as before, then.
        adding_up: those of attributes that were there before and are otherwise after the second pass than after one.
    """

    where: str
    moved: list[str]
    adding_up: list[str]


def _seen_twice(model: Model, inputs: Inputs, dtype: torch.dtype) -> _Seen:
    model = model.bind(0, dtype)
    weights, network = awake(model.init(0, dtype)), model.networks[0]
    x, other = inputs(dtype)
    frozen = {n: (t._version, t.clone()) for n, t in model.frozen.items()}

    def trained(x: Tensor) -> tuple[Any, Params]:
        return _trained(model, weights, x)

    try:
        evaluated = _evaluated(model, weights, x)
        with model.leaving():
            first = trained(x)
            once = marks(network)
        with model.leaving() as give:
            made, around = marks(network), marks(network, beyond=True)
            trained(other)
            second = trained(x)
            twice = marks(network)
            moved = changed(around, marks(network, beyond=True))
            give(moved)
            model(weights, other)
            again = _evaluated(model, weights, x)
            moved += [name for name in changed(made, marks(model.networks[1])) if name not in moved]
    finally:
        _check_frozen(model, frozen)
    where = "" if alike(first, second) else "in training"
    where = where or ("" if alike(evaluated, again) else "in evaluation")
    return _Seen(where, moved, [name for name in changed(once, twice) if name in made])


def _in_float64(model: Model, inputs: Inputs, seen: _Seen) -> _Seen:
    """Return what is seen in float64, where rounding moves nothing; what was seen where it cannot be computed so."""
    try:
        return _seen_twice(model, inputs, torch.float64)
    except Exception:  # whose forward makes tensors of one dtype
        return seen


def alike(first: Any, second: Any) -> bool:
    """Return whether the tensors of two answers are the same, up to the rounding of their dtype.

    Args:
        first: a pytree.
        second: of the same structure, or it is another answer.
    """
    (one, spec), (two, other) = tree.flatten(first), tree.flatten(second)
    return spec == other and all(map(_near, one, two))


def _near(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return True  # is refused elsewhere, or is none of the answers
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    finite = torch.isfinite(a)
    if not torch.equal(finite, torch.isfinite(b)):
        return False
    a, b = a[finite], b[finite]
    if not a.numel():
        return True
    near, least = (1e-8, 1e-6) if a.dtype == torch.float64 else (1e-4, 1e-3)  # of the largest, which may be rounding
    return bool((a - b).abs().max() <= near * max(float(a.abs().max()), least))


def awake(weights: Weights) -> Weights:
    """Return weights without parameters that begin at 0, which would hide what lies behind them.

    Args:
        weights: initial ones, which do not change.
    """
    draw = torch.Generator().manual_seed(0)

    def woken(p: Tensor) -> Tensor:
        if p.any() or not p.is_floating_point():
            return p
        noise = torch.randn(p.shape, generator=draw, dtype=p.dtype).to(p.device)
        return noise * (p[0].numel() ** -0.5 if p.ndim > 1 else 0.1)

    return Weights(params=Params({n: woken(p) for n, p in weights.params.items()}), buffers=weights.buffers)


def _evaluated(model: Model, weights: Weights, x: Tensor) -> Tensor:
    """Return the logits in evaluation mode; raise SettingError where the pass writes on parameters."""
    given = Params({n: p.clone() for n, p in weights.params.items()})
    logits = model(Weights(params=given, buffers=weights.buffers), x)
    for name, p in given.items():
        if p._version or not torch.equal(p, weights.params[name]):  # also where it writes what was there
            raise SettingError(
                f"a network does not change its parameters while it is evaluated, or results would depend on how "
                f"often it is, and {model.name} writes on {name!r}, as nn.Embedding(max_norm=...) does: let forward "
                "compute with a copy, such as F.normalize(self.weight), or write where self.training alone"
            )
    return logits


def _trained(model: Model, weights: Weights, x: Tensor) -> tuple[Any, Params]:
    """Return the logits in training mode and the buffers; raise SettingError where a parameter is another tensor."""
    given = Params({n: p.clone() for n, p in weights.params.items()})  # on which it may write
    at = {n: p.data_ptr() for n, p in given.items()}
    found = model.train(Weights(params=given, buffers=weights.buffers), probe(x))
    for name, p in given.items():
        if p.data_ptr() != at[name]:
            raise SettingError(model.assigned(name))
    return found


def _check_frozen(model: Model, before: Mapping[str, tuple[int, Tensor]]) -> None:
    """Raise SettingError where frozen tensors were written on, after putting them back."""
    for name, (version, values) in before.items():
        if model.frozen[name]._version != version:
            model.frozen[name].copy_(values)
            raise SettingError(
                f"all clients share the frozen tensors of a network, and {model.name} writes on {name!r}: let "
                "forward compute with a copy, or register what it counts as a buffer of one number or of floats"
            )


def _generators() -> tuple[Any, ...]:
    """Return the states of the global generators that a network may draw from."""
    legacy: Any = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), legacy[1].tolist(), legacy[2:]


def _listed(names: Iterable[str]) -> str:
    return some_of(dict.fromkeys(names), _NAMED, say=repr)
