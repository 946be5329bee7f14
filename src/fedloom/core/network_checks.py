"""Refuse networks that draw what no seed governs, or write on what none may move."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.batch import probe
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.passes import UNGOVERNED
from fedloom.core.types import Params, Weights


def check_randomness(model: Model, weights: Weights, x: Tensor) -> None:
    """Raise SettingError if a pass over x draws random numbers that no seed of a client governs, however deep."""
    with torch.random.fork_rng(devices=[]):
        before = _generators()
        model.train(weights, probe(x))
        model(weights, x)
        if _generators() != before:
            raise SettingError(UNGOVERNED.format(f"The forward of {model.name}"))


def check_parameters(model: Model, weights: Weights, x: Tensor) -> None:
    """Raise SettingError if a pass over x writes on what none may move.

    In evaluation mode these are all parameters, which training alone moves; in training too, the frozen tensors,
    which all clients share.
    """
    given = Params({n: p.clone() for n, p in weights.params.items()})
    before = {n: (t._version, t.clone()) for n, t in model.frozen.items()}
    with torch.no_grad():
        model(Weights(params=given, buffers=weights.buffers), x)
        if before:
            model.train(weights, probe(x))
    for name, p in given.items():
        if p._version or not torch.equal(p, weights.params[name]):  # also where it writes what was there
            raise SettingError(
                f"a network does not change its parameters while it is evaluated, or results would depend on how "
                f"often it is, and {model.name} writes on {name!r}, as nn.Embedding(max_norm=...) does: let forward "
                "compute with a copy, such as F.normalize(self.weight), or write where self.training alone"
            )
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
