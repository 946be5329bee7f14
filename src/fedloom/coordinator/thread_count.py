"""Choose on how many threads PyTorch computes a run, by a written rule."""

from __future__ import annotations

import torch

from fedloom.coordinator.engine_choice import FLOPS_PER_THREAD, lock_steps, step_flops
from fedloom.core.algorithm import Algorithm
from fedloom.engines.engine import Engine
from fedloom.engines.population import Population


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
    flops = (max(1.0, parallel) if kind.stacked else 1.0) * step_flops(population, algorithm.training)
    return max(1, min(int(flops / FLOPS_PER_THREAD), torch.get_num_threads()))
