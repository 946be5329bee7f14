"""Diagonal Fisher information: which weights matter for what a client knows."""

from __future__ import annotations

import torch

from fedloom.core.batch import Batch
from fedloom.core.batches import Batches
from fedloom.core.derivatives import slope
from fedloom.core.fold import fold
from fedloom.core.model import Model
from fedloom.core.task import Task
from fedloom.core.tree import zeros_like
from fedloom.core.types import Params, Weights, replace


def fisher(model: Model, task: Task, weights: Weights, batches: Batches) -> Params:
    """Return the diagonal Fisher information: the mean over batches of (gradient of the batch's loss)^2.

    It is like `weights.params`, of true labels and in evaluation mode. The gradient is that of the batch's mean loss:
    batches of one example (`batches.in_order(1)`) give the empirical Fisher, batches of B up to B times less.
    """

    def square(total: Params, batch: Batch, weights: Weights) -> Params:
        gradient = slope(model, task, weights, batch)
        return total + gradient * gradient

    total: Params = fold(square, zeros_like(weights.params), batches, weights)
    return total / batches.num_steps.clamp(min=1)


def first_pass(batches: Batches, batch_size: int, examples: int) -> Batches:
    """Return the batches of the first pass over the client's examples, until more than `examples` are seen.

    The batch with which more than `examples` are seen is the last. `batches`: training batches of `batch_size`, passes
    one after the other.
    """
    whole = torch.div(batches.num_examples + batch_size - 1, batch_size, rounding_mode="floor")
    steps = torch.minimum(batches.num_steps, whole.clamp(max=examples // batch_size + 1))
    return replace(batches, num_steps=steps)
