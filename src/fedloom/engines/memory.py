"""Estimate how much memory a training step holds for each client of a stack."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from fedloom.core import tree
from fedloom.core.batch import probe
from fedloom.core.errors import quiet_vmap
from fedloom.core.model import Model
from fedloom.core.network_makers import own_defaults
from fedloom.core.types import Params, Weights
from fedloom.engines.population import Population

COPIES = 8  # of the trained weights that a step holds: weights, gradients, momenta, what was received, and copies


def step_bytes(model: Model, population: Population, batch_size: int, rule: Any = None) -> int:
    """Return the bytes that a training step holds for one client: copies of what is trained, and activations.

    `rule`: of gradients by example, which are there too.
    """
    trained = model.num_params * torch.finfo(population.dtype).bits // 8
    return COPIES * trained + (rule.held(trained) if rule else 0) + batch_size * activation_bytes(model, population)


def frozen_bytes(population: Population) -> int:
    """Return the bytes of all frozen tensors, which every client of a stack shares."""
    return sum(t.nbytes for model in population.models.values() for t in model.frozen.values())


@own_defaults()
def activation_bytes(model: Model, population: Population) -> int:
    """Return the bytes that an example takes in a training step at most: inputs, activations and their gradients.

    Steps of a stack over 4 and over 2 examples make the same tensors in the same order; half of the largest difference
    of what is there at a time is what an example takes. A network that cannot be tried has 0: what is wrong with it is
    said elsewhere.
    """
    examples, device = population.federation.train, population.device
    stack = tree.stack([tree.cast(model.init(0), device=device, dtype=population.dtype)])

    def loss(params: Params, buffers: Params, x: Tensor) -> Tensor:
        logits, _ = model.train(Weights(params, buffers), probe(x))
        return logits.square().sum()

    held = []
    for count in (2, 4):
        with LiveBytes() as live, quiet_vmap():
            x = examples.normalise(examples.x[:1].to(device), population.dtype)
            x = x.repeat(1, count, *[1] * (x.ndim - 1))
            try:
                vmap(grad(loss))(stack.params, stack.buffers, x)
            except Exception:
                return 0
            del x
        held.append(live.counts)
    return max((four - two for two, four in zip(*held, strict=False)), default=0) // 2


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that counts the bytes of the tensors that were made in it and are still there: `counts`, after each."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: list[int] = []
        self._now = 0
        self._known = weakref.WeakSet[torch.UntypedStorage]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree.leaves(out):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()) not in self._known:
                self._known.add(storage)
                self._now += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes()).atexit = False
                self.counts.append(self._now)
        return out

    def _free(self, size: int) -> None:
        self._now -= size
