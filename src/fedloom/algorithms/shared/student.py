"""The student of a server: its network, its loss, its learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Distill
from fedloom.core.losses import Loss, distillation
from fedloom.core.model import Model
from fedloom.core.types import BatchLoss, Weights, replace

V = TypeVar("V")


def student_among(models: Mapping[str, Model], name: str) -> Model:
    """Return the network of a run that a server's student has, by its name.

    Raises:
        SettingError: the run has no such network.
    """
    if name not in models:
        raise SettingError(
            f"student must be one of the run's networks, {', '.join(models)}, got {name!r}: name one of them"
        )
    return models[name]


def student_loss(model: Model, T: float) -> Loss:
    """T^2 KL(softmax(batch.teacher / T) || softmax(logits / T)), mean over the batch; `batch.teacher`: logits."""

    def loss(w: Weights, batch: Batch) -> BatchLoss:
        logits, buffers = model.train(w, batch)
        value = batch.mean(distillation(logits, batch.teacher, T))
        return BatchLoss(value=value, logits=logits, weights=replace(w, buffers=buffers))

    return loss


def like(server: Weights, value: V) -> V:
    """Return a new value where the server's weights are, and of their type."""
    there = tree.leaves(server.params)[0]
    return tree.cast(value, device=there.device, dtype=there.dtype)


def rate(part: Distill, there: Tensor) -> Tensor:
    """Return the rate at which a part of the server learns, [], on a device."""
    return torch.tensor(part.optimiser.lr, dtype=torch.float64, device=there.device)
