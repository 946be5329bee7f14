"""The disagreement of the gradients of clients, and of classes (FedNTD, definition 2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.analyses.measures.flat import gradient
from fedloom.core.model import Model
from fedloom.core.task import Task
from fedloom.core.types import Weights
from fedloom.data import Examples

Floats = npt.NDArray[np.float64]


def gradient_diversity(gradients: Tensor | npt.ArrayLike) -> float:
    """Return Lambda = mean_k ||g_k||^2 / ||mean_k g_k||^2 of K gradients [K, d] (FedNTD, eq. 8).

    At least 1, and 1 only where all agree; infinite where their mean is zero, NaN where one of them is not finite.
    """
    table = torch.as_tensor(gradients).double()
    if table.ndim != 2 or not len(table):
        raise ValueError(f"gradient diversity needs gradients [K, d] of at least one client, got {list(table.shape)}")
    if not bool(table.isfinite().all()):  # of a model that has diverged: nothing agrees or disagrees
        return float("nan")
    of_mean = float(table.mean(0).square().sum())
    of_each = float(table.square().sum(1).mean())
    return of_each / of_mean if of_mean > 0 else float("inf")


def class_gradients(
    model: Model, weights: Weights, task: Task, examples: Examples, batch_size: int = 250
) -> tuple[Tensor, Tensor]:
    """Return the gradients g_c by class, [C', d], and the C' classes that have examples.

    g_c is the gradient of the mean loss over the examples of class c.

    Raises:
        ValueError: the model normalises by the batch in evaluation too: among their own class alone, examples would
            meet another function than in a mixed batch.
    """
    if model.by_batch:
        raise ValueError(
            f"{model.name} takes BatchNorm statistics of the batch in evaluation too, so that a class has no gradient "
            "of its own; look at a network with running statistics, or with GroupNorm"
        )
    y = examples.y.cpu()
    there = torch.unique(y)
    rows = [torch.nonzero(y == c).flatten() for c in there]
    each = [gradient(model, weights, task, examples.select(r), batch_size) for r in rows]
    return torch.stack(each), there


def gram(gradients: Tensor) -> Floats:
    """Return the inner products of C gradients, [C, d] -> [C, C]; proposition 1 assumes the identity (scaled)."""
    table = gradients.double()
    return np.asarray((table @ table.T).cpu().numpy())


def cosines(gram: Floats) -> Floats:
    """Return the cosines between gradients from their Gram matrix, [C, C]; NaN beside a gradient that is zero."""
    norms = np.sqrt(np.diag(gram))
    product = norms[:, None] * norms
    return np.asarray(gram / np.where(product > 0, product, np.nan))
