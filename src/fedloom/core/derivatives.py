"""A client's mean loss over some of its examples and its derivatives, batch by batch: autograd goes through no fold."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad

from fedloom.core.batches import Batch, Batches
from fedloom.core.fold import fold
from fedloom.core.model import Model
from fedloom.core.task import Task
from fedloom.core.tree import zeros_like
from fedloom.core.types import Params, Weights, replace


def mean_loss(model: Model, task: Task, weights: Weights, batches: Batches) -> Tensor:
    """The task's mean loss over the rows of `batches`, in evaluation mode, [] float64; 0 where there are none."""

    def add(total: Tensor, batch: Batch, weights: Weights) -> Tensor:
        return total + batch.mask.sum() * task.loss(model(weights, batch.x), batch).double()

    zero = torch.zeros((), dtype=torch.float64, device=batches.num_examples.device)
    return fold(add, zero, batches, weights) / batches.num_examples.clamp(min=1)


def mean_gradient(model: Model, task: Task, weights: Weights, batches: Batches) -> Params:
    """The gradient of the task's mean loss over the rows of `batches` at `weights`, like `weights.params`.

    In evaluation mode, without dropout. `client.train.whole()` is one pass over all of the client's examples.
    """

    def add(total: Params, batch: Batch, weights: Weights) -> Params:
        return total + batch.mask.sum() * slope(model, task, weights, batch)

    return _mean(fold(add, zeros_like(weights.params), batches, weights), batches)


def hessian_times(model: Model, task: Task, weights: Weights, batches: Batches, v: Params) -> Params:
    """H v: the Hessian of that loss at `weights` times a vector, exactly. H is never formed: H v is the gradient of
    <gradient, v>.
    """

    def add(total: Params, batch: Batch, weights: Weights, v: Params) -> Params:
        def along(params: Params) -> Tensor:
            return slope(model, task, replace(weights, params=params), batch).dot(v)

        product: Params = grad(along)(weights.params)
        return total + batch.mask.sum() * product

    return _mean(fold(add, zeros_like(weights.params), batches, weights, v), batches)


def slope(model: Model, task: Task, weights: Weights, batch: Batch) -> Params:
    """The gradient of the mean loss of a batch, like `weights.params`, in evaluation mode."""

    def loss(params: Params) -> Tensor:
        return task.loss(model(replace(weights, params=params), batch.x), batch)

    found: Params = grad(loss)(weights.params)
    return found


def _mean(total: Params, batches: Batches) -> Params:
    return total / batches.mask.sum().clamp(min=1)
