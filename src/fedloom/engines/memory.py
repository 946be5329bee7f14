"""How much memory a training step holds for each client of a stack."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedloom.core import tree
from fedloom.core.batch import probe
from fedloom.core.model import Model
from fedloom.core.network_makers import own_defaults
from fedloom.core.types import Weights
from fedloom.engines.population import Population

COPIES = 8  # of the trained weights that a step holds: weights, gradients, momenta, what was received, and copies


def step_bytes(model: Model, population: Population, batch_size: int) -> int:
    """Return the bytes that a training step holds for one client: copies of what is trained, and activations."""
    trained = model.num_params * torch.finfo(population.dtype).bits // 8
    return COPIES * trained + batch_size * activation_bytes(model, population)


def frozen_bytes(population: Population) -> int:
    """Return the bytes of all frozen tensors, which every client of a stack shares."""
    return sum(t.nbytes for model in population.models.values() for t in model.frozen.values())


@own_defaults()
def activation_bytes(model: Model, population: Population) -> int:
    """Return the bytes of an example that a forward pass in training mode keeps for the gradient.

    Tensors that autograd saves are counted in passes over 4 and over 2 examples; half of the difference is what an
    example takes. A network that cannot be tried has 0: what is wrong with it is said elsewhere.
    """
    examples, device = population.federation.train, population.device
    weights = tree.cast(model.init(0), device=device, dtype=population.dtype)
    held = []
    for count in (2, 4):
        x = examples.normalise(examples.x[:1].to(device), population.dtype)
        x = x.repeat(count, *[1] * (x.ndim - 1))
        saved: dict[int, int] = {}

        def note(t: Tensor, saved: dict[int, int] = saved) -> Any:
            saved[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        params = {n: p.detach().requires_grad_() for n, p in weights.params.items()}
        try:
            with saved_tensors_hooks(note, lambda t: t):
                kept = model.train(Weights(params, weights.buffers), probe(x))
            del kept
        except Exception:
            return 0
        held.append(sum(saved.values()))
    return max(0, (held[1] - held[0]) // 2)
