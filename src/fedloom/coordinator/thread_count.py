"""Choose on how many threads PyTorch computes a run, by a written rule."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedloom.coordinator.engine_choice import lock_steps
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.batch import probe
from fedloom.core.model import Model
from fedloom.core.network_makers import own_defaults
from fedloom.core.types import Params, Weights
from fedloom.engines.engine import Engine
from fedloom.engines.population import Population

FLOPS_PER_THREAD = 1e8  # of a lock-step, about a millisecond of a core; measured (docs/benchmarks.md)


def choose_threads(
    kind: type[Engine], algorithm: Algorithm[object, object], population: Population, cohort_size: int
) -> int | None:
    """Return the number of threads of a run that names none; None: as many as PyTorch takes.

    The rule, the first line that holds:

    1. a GPU, processes or devices, where this process trains no client, or an algorithm whose server trains networks:
       as many as PyTorch takes;
    2. a thread for each 1e8 FLOPs that the matrix products and convolutions of a lock-step take, at least 1, at most as
       many as PyTorch takes.

    Threads of small products wait for each other at each of some 70 operations of a lock-step. On quiet cores two gain
    a tenth to a half; where one core has other work, each of these waits may last until the scheduler's next turn.
    """
    if population.device.type != "cpu" or kind.on_one_thread or algorithm.requires.server_training:
        return None
    parallel = lock_steps(population, algorithm.training, cohort_size).clients / len(population.models)
    clients = max(1.0, parallel) if kind.stacked else 1.0
    examples = min(algorithm.training.batch_size, float(population.sizes.mean()))
    flops = clients * examples * max(_flops(model, population) for model in population.models.values())
    return max(1, min(int(flops / FLOPS_PER_THREAD), torch.get_num_threads()))


def _flops(model: Model, population: Population) -> float:
    """Return the FLOPs of one example's gradient, as they were counted when the model was tried, if it was."""
    tried = population.tried.get(model)
    return tried.flops if tried is not None and tried.flops else flops_of(model, population)


@own_defaults()
def flops_of(model: Model, population: Population, others: dict[Any, Any] | None = None) -> float:
    """Return the FLOPs of the matrix products and convolutions of one example's gradient, whatever the engine.

    `others`: those of operators that PyTorch does not count, as `FlopCounterMode` has them.
    """
    examples = population.federation.train
    x = examples.normalise(examples.x[:2], population.dtype)  # two: a forward may treat one apart
    initial = tree.cast(model.init(0), dtype=population.dtype)
    weights = Weights(Params({n: p.detach().requires_grad_() for n, p in initial.params.items()}), initial.buffers)
    with FlopCounterMode(display=False, custom_mapping=others) as counted:
        logits, _ = model.train(weights, probe(x))
        torch.autograd.grad(logits.square().sum(), list(weights.params.values()), allow_unused=True)
    return float(counted.get_total_flops()) / len(x)
