"""A client's mean loss over some of its examples and its derivatives, batch by batch: autograd goes through no fold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedloom.core.batch import Batch, outside_training
from fedloom.core.batches import Batches
from fedloom.core.fold import fold
from fedloom.core.losses import Loss
from fedloom.core.model import Model
from fedloom.core.task import Objective, Task, loss_of, per_weight, weight_of
from fedloom.core.tree import map_tree, zeros_like
from fedloom.core.types import Params, Weights, replace


def mean_loss(model: Model, task: Task, weights: Weights, batches: Batches) -> Tensor:
    """Return the task's mean loss over the rows of `batches`, in evaluation mode, [] float64; 0 without rows.

    It is the mean that a batch of all of them would have: of sequences that over the targets that count.

    Args:
        model: the network.
        task: the loss.
        weights: of the network.
        batches: such as `client.train.whole()`.
    """

    def add(total: tuple[Tensor, Tensor], batch: Batch, weights: Weights) -> tuple[Tensor, Tensor]:
        batch = outside_training(batch)
        weight = weight_of(task, batch)
        return total[0] + weight * loss_of(task, model(weights, batch.x), batch).double(), total[1] + weight

    zero = torch.zeros((), dtype=torch.float64, device=batches.num_examples.device)
    found: Tensor = per_weight(*fold(add, (zero, zero), batches, weights))
    return found


def mean_gradient(model: Model, task: Task, weights: Weights, batches: Batches) -> Params:
    """Return the gradient of the task's mean loss over the rows of `batches` at `weights`, like `weights.params`.

    In evaluation mode, without dropout.

    Args:
        model: the network.
        task: the loss.
        weights: at which the gradient is taken.
        batches: such as `client.train.whole()`, one pass over all of the client's examples.
    """

    def of_batch(weights: Weights, batch: Batch) -> Params:
        return slope(model, task, weights, batch)

    return _mean(of_batch, task, weights, batches)


def objective_gradient(model: Model, task: Task, weights: Weights, batches: Batches) -> Params:
    """Return the gradient at `weights` of what training minimises on the rows of `batches`, like `weights.params`.

    It is the gradient of their mean loss L, in evaluation mode. For a task that is an `Objective` O(L, n, w), such as
    `SVM`, it is dO/dL grad L + dO/dw, with n the number of rows.
    """
    g = mean_gradient(model, task, weights, batches)
    if not isinstance(task, Objective):
        return g
    by_loss, by_weights = _partials(task, batches)(
        mean_loss(model, task, weights, batches).to(_dtype(g)), weights.params
    )
    return by_loss * g + by_weights


def objective_hessian_times(model: Model, task: Task, weights: Weights, batches: Batches, v: Params) -> Params:
    """Return H v: the Hessian of what training minimises on the rows of `batches` times v, like `weights.params`.

    The product is exact, and H is never formed. For the mean loss L it is the gradient of <grad L, v>. For an
    `Objective` O(L, n, w) it is dO/dL H v + d(dO/dL) grad L + d(dO/dw). Here H is the Hessian of L, and d is the change
    as w moves along v and L by <grad L, v>.
    """
    product = _loss_hessian_times(model, task, weights, batches, v)
    if not isinstance(task, Objective):
        return product
    partials, g = _partials(task, batches), mean_gradient(model, task, weights, batches)

    def along(loss: Tensor, params: Params) -> Tensor:
        by_loss, by_weights = partials(loss, params)
        return by_loss * g.dot(v) + by_weights.dot(v)

    loss = mean_loss(model, task, weights, batches).to(_dtype(g))
    d_by_loss, d_by_weights = grad(along, argnums=(0, 1))(loss, weights.params)  # second derivatives are symmetric
    found: Params = partials(loss, weights.params)[0] * product + d_by_loss * g + d_by_weights
    return found


def batch_gradient(loss: Loss, weights: Weights, batch: Batch) -> tuple[Params, Tensor, Params]:
    """Return the gradient of a batch's loss, the loss, and the buffers as they have moved.

    The gradient is a constant where a loss of its own is made of it: nothing is differentiated twice.

    Args:
        loss: such as `client.loss`, in training mode.
        weights: at which the gradient is taken.
        batch: of B examples, rows of padding among them.

    Returns:
        The gradient, like `weights.params`; the loss, []; the buffers.
    """

    def value(params: Params) -> tuple[Tensor, tuple[Tensor, Params]]:
        found = loss(Weights(params, weights.buffers), batch)
        return found.value, (found.value, found.weights.buffers)

    g, (found, buffers) = grad(value, has_aux=True)(map_tree(Tensor.detach, weights.params))
    return g, found, buffers


def slope(model: Model, task: Task, weights: Weights, batch: Batch) -> Params:
    """Return the gradient of the mean loss of a batch, like `weights.params`, in evaluation mode."""
    batch = outside_training(batch)

    def loss(params: Params) -> Tensor:
        return loss_of(task, model(replace(weights, params=params), batch.x), batch)

    found: Params = grad(loss)(weights.params)
    return found


def _loss_hessian_times(model: Model, task: Task, weights: Weights, batches: Batches, v: Params) -> Params:
    """Return the Hessian of the mean loss times v: the gradient of <gradient, v>."""

    def of_batch(weights: Weights, batch: Batch, v: Params) -> Params:
        def along(params: Params) -> Tensor:
            return slope(model, task, replace(weights, params=params), batch).dot(v)

        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels of attention have no second derivative
            product: Params = grad(along)(weights.params)
        return product

    return _mean(of_batch, task, weights, batches, v)


def _partials(task: Objective, batches: Batches) -> Callable[[Tensor, Params], tuple[Tensor, Params]]:
    """Return the function that gives dO/dL, [], and dO/dw for the mean loss L and the weights w."""
    count = batches.mask.sum()
    return grad(lambda loss, params: task.objective(loss, count, params), argnums=(0, 1))


def _dtype(params: Params) -> torch.dtype:
    return next(iter(params.values())).dtype


def _mean(of_batch: Callable[..., Params], task: Task, weights: Weights, batches: Batches, *context: Any) -> Params:
    """Return the mean of what `of_batch(weights, batch, *context)` gives, each batch weighed as in the mean loss."""

    def add(total: tuple[Params, Tensor], batch: Batch, weights: Weights, *context: Any) -> tuple[Params, Tensor]:
        batch = outside_training(batch)
        weight = weight_of(task, batch).to(_dtype(weights.params))
        return total[0] + weight * of_batch(weights, batch, *context), total[1] + weight

    zero = torch.zeros((), dtype=_dtype(weights.params), device=batches.num_examples.device)
    found: Params = per_weight(*fold(add, (zeros_like(weights.params), zero), batches, weights, *context))
    return found
