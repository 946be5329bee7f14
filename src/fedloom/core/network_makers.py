"""Make networks: by a function, with a seed, or by a name."""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedloom import models
from fedloom.core.errors import SettingError
from fedloom.core.naming import by_python_name
from fedloom.core.network_copies import tensors_of


@contextlib.contextmanager
def own_defaults() -> Iterator[None]:
    """Make float32 the default dtype in here, whatever the program's default: results must not differ."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@own_defaults()
def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return what `build` makes with the global generators of PyTorch's CPU, NumPy and Python at a seed.

    They are then where they were; generators of GPUs never move.
    """
    before = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would move those of every GPU
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            return build()
        finally:
            np.random.set_state(before[0])
            random.setstate(before[1])


def check_seeded(build: Callable[[], nn.Module], module: nn.Module, seed: int) -> None:
    """Raise SettingError unless `build` makes the same tensors again.

    Args:
        build: the maker of a network.
        module: what it made with `seed`.
        seed: of the global generators.
    """
    made, again = dict(tensors_of(module)), dict(tensors_of(seeded(build, seed)))
    other = next((n for n, t in made.items() if n not in again or not _same(t, again[n])), None)
    if other is not None:
        raise SettingError(
            f"a function that makes a network makes the same one from the same seed, got {called(build)}, which makes "
            f"another {other!r} when it is called again: draw from the global generators of torch, numpy or random, "
            "which the run's seed governs, or give a generator of its own a seed (numpy.random.default_rng(0))"
        )


def _same(a: Tensor, b: Tensor) -> bool:
    if nn.parameter.is_lazy(a) or nn.parameter.is_lazy(b):  # which have no values yet
        return True
    return torch.equal(a, b) or (a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all()))


def called(build: object) -> str:
    """Return the name of what makes a network, for messages."""
    return getattr(build, "__name__", type(build).__name__)


def missing_arguments(build: Callable[[], nn.Module]) -> list[str]:
    """Return the names of the arguments without which a class or function makes nothing."""
    try:
        own = list(inspect.signature(build).parameters.values())
    except ValueError:  # of what is no Python nobody knows
        return []
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in own if p.default is p.empty and p.kind in named]


def named_maker(text: str, settings: Mapping[str, Any]) -> Callable[[], nn.Module]:
    """Return what makes the network of this name, `module:name` or a name of `fedloom.models`, with these settings.

    Raises:
        SettingError: there is no such network, or it does not take these settings.
    """
    if packaged(text):
        make = getattr(models, text.partition(":")[2])
    else:
        make = by_python_name(text, "network") if ":" in text else functools.partial(models.build, text)
    try:
        module = make(**settings)
    except (TypeError, ValueError) as error:
        raise SettingError(f"network {text!r} does not take the settings {settings}: {error}") from error
    if not isinstance(module, nn.Module):
        raise SettingError(f"network {text!r} must name what makes a torch.nn.Module, got {type(module).__name__}")
    return lambda: make(**settings)


def packaged(text: str) -> bool:
    """Return whether a text names a network of the package's own as `fedloom.models:NAME`, which imports nothing."""
    package, _, name = text.partition(":")
    return package == models.__name__ and name in models.__all__
