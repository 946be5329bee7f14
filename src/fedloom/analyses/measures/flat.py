"""Weights as one vector, and gradients of them; what divergence, diversity and the landscape share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.func import grad_and_value

from fedloom.core.batch import Batch, probe
from fedloom.core.model import Model
from fedloom.core.task import Task, loss_of, weight_of
from fedloom.core.types import Params, Weights
from fedloom.data import Examples

Loss = Callable[[Params], Tensor]


def flat(params: Params) -> Tensor:
    """Return all trained tensors as one vector [d], in the order in which their names appear."""
    return torch.cat([t.reshape(-1) for t in params.values()])


def unflat(vector: Tensor, like: Params) -> Params:
    """Return tensors with the names and shapes of others from one vector [d]: the inverse of `flat`."""
    parts = torch.split(vector, [t.numel() for t in like.values()])
    return Params({name: part.view_as(t) for part, (name, t) in zip(parts, like.items(), strict=True)})


def losses(
    model: Model, weights: Weights, task: Task, examples: Examples, batch_size: int = 250
) -> Iterator[tuple[float, Loss]]:
    """Yield each batch's share of the mean loss and its loss as a function of the parameters, in evaluation mode.

    A share is that of the examples, each with its weight in the task's mean. The loss over all examples is the sum of
    share times loss. Nothing is augmented.

    Raises:
        ValueError: there are no examples.
    """
    if not len(examples):
        raise ValueError("a loss needs examples, got none: give at least one")
    like, batch_size = next(iter(weights.params.values())), model.evaluation_batch(batch_size)

    parts = [slice(start, start + batch_size) for start in range(0, len(examples), batch_size)]
    weight = [float(weight_of(task, probe(examples.x[rows], examples.y[rows]))) for rows in parts]
    whole = sum(weight) or 1.0
    for rows, mine in zip(parts, weight, strict=True):
        x = examples.normalise(examples.x[rows].to(like.device), like.dtype)
        batch = probe(x, examples.y[rows].to(like.device))

        def loss(params: Params, batch: Batch = batch) -> Tensor:
            return loss_of(task, model(Weights(params=params, buffers=weights.buffers), batch.x), batch)

        yield mine / whole, loss


def gradient(model: Model, weights: Weights, task: Task, examples: Examples, batch_size: int = 250) -> Tensor:
    """Return the gradient of the mean loss over all examples at these weights, in evaluation mode, [d]."""
    total = torch.zeros_like(flat(weights.params))
    for share, loss in losses(model, weights, task, examples, batch_size):
        found, _ = grad_and_value(loss)(weights.params)
        total += share * flat(found)
    return total
