"""Which engine to use, by a written rule, and whether a model can be stacked at all."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
import torch
from torch.func import grad, vmap

from fedloom.core import tree
from fedloom.core.batches import Batch
from fedloom.core.errors import EngineWarning
from fedloom.core.model import Model, own_defaults
from fedloom.core.optimiser import Local
from fedloom.core.types import Weights
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.simulated import Simulation
from fedloom.engines.stacked import Stacked

EngineName = Literal["auto", "loop", "stacked"]
MIN_PARALLEL = 3.0  # clients that a lock-step advances on average, below which a stack does not pay on a CPU


def choose(name: EngineName, population: Population, local: Local, cohort_size: int) -> tuple[type[Simulation], str]:
    """The engine and why. The rule of "auto", first line that holds:

    1. a model that `vmap` cannot take: loop (also where "stacked" was asked for, with a warning);
    2. a GPU: stacked;
    3. convolutions on a CPU: loop (`vmap` makes them grouped convolutions, slower than one after the other);
    4. fewer than 3 clients in parallel per lock-step, by the sizes of the clients: loop;
    5. else stacked.
    """
    if name == "loop":
        return Loop, "asked for"
    for label, model in population.models.items():
        problem = stacking_problem(model, population)
        if problem is not None:
            reason = f"model {label!r} cannot be stacked ({problem})"
            if name == "stacked":
                warnings.warn(f"{reason}: using the loop engine instead", EngineWarning, stacklevel=2)
            return Loop, reason
    if name == "stacked":
        return Stacked, "asked for"
    if population.device.type == "cuda":
        return Stacked, "a GPU"
    if any(m.has_convolutions for m in population.models.values()):
        return Loop, "convolutions on a CPU"
    steps = np.full(population.num_clients, local.steps) if local.steps else -(-population.sizes // local.batch_size)
    largest = np.sort(steps)[-max(1, len(steps) // max(1, cohort_size)) :].mean()  # of a typical cohort
    parallel = min(cohort_size, population.num_clients) / len(population.models) * steps.mean() / largest
    if parallel < MIN_PARALLEL:
        return Loop, f"about {parallel:.1f} clients in parallel"
    return Stacked, f"about {parallel:.0f} clients in parallel"


@own_defaults()
def stacking_problem(model: Model, population: Population) -> str | None:
    """Why `vmap` cannot train two copies of this model at once; None if it can."""
    weights = tree.cast(model.init(0), device=population.device, dtype=population.dtype)
    examples = population.federation.train
    x = examples.normalise(examples.x[:1].to(population.device), population.dtype)
    x = x.repeat(2, 2, *[1] * (x.ndim - 1))  # two clients with two examples each: a forward may look at its input
    mask = torch.ones(2, dtype=torch.bool, device=population.device)

    def loss(weights: Weights, x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        logits, _ = model.train(weights, Batch(x=x, y=mask.long(), mask=mask, key=key))
        return logits.square().sum()

    try:
        keys = torch.arange(2, device=population.device)
        vmap(grad(lambda p, b, x, k: loss(Weights(params=p, buffers=b), x, k)))(
            tree.stack([weights.params] * 2), tree.stack([weights.buffers] * 2), x, keys
        )
    except Exception as error:  # whatever a user's forward raises under vmap is the reason to name
        return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])[:160]
    return None
