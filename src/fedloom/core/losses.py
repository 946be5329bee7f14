"""Losses that algorithms share: of logits, and of a model as `minimise` wants them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.batch import Batch
from fedloom.core.model import Model
from fedloom.core.task import Objective, Task, loss_of
from fedloom.core.types import BatchLoss, Params, Weights, replace

Loss = Callable[..., BatchLoss]  # (weights, batch, *context) -> the loss of the batch


def task_loss(model: Model, task: Task) -> Loss:
    """Return the loss that the task has a model minimise: `(weights, batch, *context) -> BatchLoss`.

    Args:
        model: the network, in training mode.
        task: the loss of its outputs.
    """

    def loss(weights: Weights, batch: Batch, *context: Any) -> BatchLoss:
        logits, buffers = model.train(weights, batch)
        value = objective(task, logits, batch, weights.params)
        return BatchLoss(value=value, logits=logits, weights=replace(weights, buffers=buffers))

    return loss


def objective(task: Task, logits: Tensor, batch: Batch, params: Params) -> Tensor:
    """Return what training minimises on a batch, []: the task's loss, or what an `Objective` makes of it.

    Args:
        task: the loss.
        logits: the network's outputs, [B, C].
        batch: targets, and which rows are real.
        params: the network's parameters, for a task with a penalty on them.
    """
    loss = loss_of(task, logits, batch)
    return task.objective(loss, batch.mask.sum(), params) if isinstance(task, Objective) else loss


def soft_target_loss(model: Model, tau: float) -> Loss:
    """Return the loss KL(batch.target || softmax(logits / tau)), without a factor tau^2.

    `batch.target`: [B, C] probabilities.
    """

    def loss(weights: Weights, batch: Batch, *context: Any) -> BatchLoss:
        logits, buffers = model.train(weights, batch)
        value = batch.mean(divergence(logits / tau, batch.target))
        return BatchLoss(value=value, logits=logits, weights=replace(weights, buffers=buffers))

    return loss


def soft_prediction(model: Model, tau: float) -> Callable[[Weights, Tensor], Tensor]:
    """Return softmax(logits / tau) in evaluation mode, as `Batches.predict` wants it: (weights, x) -> [B, C]."""
    return lambda weights, x: F.softmax(model(weights, x) / tau, -1)


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T^2 * KL(softmax(teacher / T) || softmax(student / T)) for each example, [B].

    Hinton, Vinyals, Dean. *Distilling the Knowledge in a Neural Network.* 2015. https://arxiv.org/abs/1503.02531

    Args:
        student: logits [B, C].
        teacher: logits [B, C].
        temperature: T, above 0.
    """
    return temperature**2 * divergence(student / temperature, F.softmax(teacher / temperature, -1))


def divergence(student: Tensor, target: Tensor) -> Tensor:
    """Return KL(target || softmax(student)) by example, [B].

    `student`: logits [B, C]; `target`: probabilities [B, C].
    """
    return F.kl_div(F.log_softmax(student, -1), target, reduction="none").sum(-1)


def divergence_of_logits(teacher: Tensor, student: Tensor) -> Tensor:
    """Return KL(softmax(teacher) || softmax(student)) by example, [B]; logits [B, C]. Gradients flow into both."""
    log_p = F.log_softmax(teacher, -1)
    return (log_p.exp() * (log_p - F.log_softmax(student, -1))).sum(-1)


def not_true(logits: Tensor, y: Tensor) -> Tensor:
    """Return the logits of all classes except the true one, [B, C] and [B] -> [B, C - 1]."""
    classes = torch.arange(logits.shape[-1] - 1, device=logits.device)
    return logits.gather(-1, classes + (classes >= y[:, None]))
