"""Accuracy per class and per row of one model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.core.batch import Batch
from fedloom.core.layout import by_pixels
from fedloom.core.model import Model
from fedloom.core.network_makers import own_defaults
from fedloom.core.task import Task, loss_of, right_of
from fedloom.core.types import Weights
from fedloom.data import Examples

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClassCounts:
    """Right answers and examples of each class, and the mean loss."""

    right: Ints  # [C]
    total: Ints  # [C]
    loss: float

    @property
    def accuracy(self) -> float:
        """The share of all examples that the model gets right (top-1)."""
        return float(self.right.sum() / self.total.sum())

    @property
    def per_class(self) -> Floats:
        """The share of each class that the model gets right, [C]; NaN for a class without examples."""
        with np.errstate(invalid="ignore"):
            return self.right / np.where(self.total > 0, self.total, np.nan)


def classify(model: Model, weights: Weights, task: Task, examples: Examples) -> ClassCounts:
    """Evaluate a model on examples, in evaluation mode, on the device and in the dtype of its weights.

    Raises:
        ValueError: there are no examples, or their targets are floating point numbers, which have no classes.
    """
    if examples.y.is_floating_point():
        raise ValueError(f"accuracy per class needs int64 labels, got targets of type {examples.y.dtype}")
    right, loss = _evaluate(model, weights, task, examples)
    y = examples.y.cpu().numpy().astype(np.int64)
    return ClassCounts(
        right=np.bincount(y[right], minlength=examples.num_classes).astype(np.int64),
        total=np.bincount(y, minlength=examples.num_classes).astype(np.int64),
        loss=loss,
    )


def rows_right(model: Model, weights: Weights, task: Task, examples: Examples) -> npt.NDArray[np.bool_]:
    """Return which examples a model gets right, [N].

    Raises:
        ValueError: there are no examples.
    """
    return _evaluate(model, weights, task, examples)[0]


def rate_right(
    predict: Callable[[Tensor], Tensor], task: Task, examples: Examples, device: torch.device, dtype: torch.dtype
) -> float:
    """Return the share of all examples that a function of inputs [B, ...] to logits [B, C] gets right.

    It evaluates 500 examples at a time.
    """
    return float(_pass(predict, 500, device, dtype, task, examples)[0].mean())


def in_local(share: Floats, per_class: Floats) -> Floats:
    """Return the accuracy on a client's own class distribution: sum_c p_c a_c (FedNTD, eq. 6).

    Classes without test examples are left out of the mean; NaN for a client that has no other classes.

    Args:
        share: class distributions p of clients, [..., C].
        per_class: accuracies a, [C]; NaN where a class has no test examples.

    Returns:
        [...].
    """
    measured = np.isfinite(per_class)
    weight = share[..., measured]
    total = weight.sum(-1)
    return np.asarray((weight * per_class[measured]).sum(-1) / np.where(total > 0, total, np.nan))


def out_local(share: Floats, per_class: Floats) -> Floats:
    """Return the accuracy on the complement distribution (1 - p_c) / (C - 1) (FedNTD, eq. 7).

    Arguments as of `in_local`.
    """
    return in_local(1.0 - share, per_class)  # which divides by the sum, C - 1


def _evaluate(model: Model, weights: Weights, task: Task, examples: Examples) -> tuple[npt.NDArray[np.bool_], float]:
    like = next(iter(weights.params.values()))
    predict = functools.partial(model, weights, fresh=True)
    return _pass(predict, model.evaluation_batch(500), like.device, like.dtype, task, examples)


@own_defaults()
def _pass(
    predict: Callable[[Tensor], Tensor],
    batch_size: int,
    device: torch.device,
    dtype: torch.dtype,
    task: Task,
    examples: Examples,
) -> tuple[npt.NDArray[np.bool_], float]:
    """Return which examples are right, [N], and their mean loss. `predict` may overwrite its inputs."""
    if not len(examples):
        raise ValueError("there are no examples to evaluate on: give at least one")
    right, total = [], torch.zeros((), dtype=torch.float64, device=device)
    images = examples.x.ndim == 4 and device.type == "cpu"

    def inputs(rows: slice) -> Tensor:
        stored = examples.x[rows]
        x = examples.normalise(stored.to(device), dtype)
        if images:
            return by_pixels(x)
        shared = x.untyped_storage().data_ptr() == stored.untyped_storage().data_ptr()  # nothing was computed
        return x.clone() if shared else x

    with torch.no_grad():
        for start in range(0, len(examples), batch_size):
            rows = slice(start, start + batch_size)
            x, y = inputs(rows), examples.y[rows].to(device)
            logits = predict(x)
            batch = Batch(x=x, y=y, mask=_ones(y), key=torch.zeros((), dtype=torch.int64), full=True)
            total += loss_of(task, logits, batch, functools.partial(inputs, rows)).double() * len(y)
            right.append(right_of(task, logits, y))
    return torch.cat(right).cpu().numpy(), float(total) / len(examples)


def _ones(y: Tensor) -> Tensor:
    return torch.ones(y.shape[:1], dtype=torch.bool, device=y.device)
