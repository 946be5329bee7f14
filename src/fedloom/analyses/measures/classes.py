"""Measure what a model knows by class: rows of accuracies, their steadiness, accuracy on clients' own distributions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedloom.core.model import Model
from fedloom.core.task import Task
from fedloom.core.types import Weights
from fedloom.data import Examples
from fedloom.evaluate import classify, in_local, out_local

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def shares(counts: npt.ArrayLike) -> Floats:
    """Return the class distributions p of clients, [..., C], from their examples by class (FedNTD, eq. 6).

    Raises:
        ValueError: a client has no examples.
    """
    table = np.asarray(counts, np.float64)
    total = table.sum(-1, keepdims=True)
    if not (total > 0).all() or (table < 0).any():
        raise ValueError("a class distribution needs examples: counts must be >= 0, with one or more for each client")
    return np.asarray(table / total)


def complement(share: Floats) -> Floats:
    """Return the out-local distributions (1 - p_c) / (C - 1), [..., C] (FedNTD, eq. 7)."""
    return np.asarray((1.0 - share) / (share.shape[-1] - 1))


def normalised_rows(per_class: npt.ArrayLike) -> Floats:
    """Return accuracies by class as shares of their sum, [..., C] (FedNTD, fig. 10; A-hat of fig. 8).

    NaN for a class without test examples. A row without a right answer becomes uniform over the others.
    """
    rows = np.array(per_class, np.float64)
    finite = np.isfinite(rows)
    total = np.where(finite, rows, 0.0).sum(-1, keepdims=True)
    uniform = np.where(finite, 1.0 / np.maximum(finite.sum(-1, keepdims=True), 1), np.nan)
    return np.asarray(np.where(total > 0, rows / np.where(total > 0, total, 1.0), uniform))


def consistency(per_class: npt.ArrayLike) -> Floats:
    """Return the cosine between the accuracies by class of neighbouring rounds, [T, C] -> [T - 1] (FedNTD, fig. 2b).

    Near 1 where what the global model knows stays the same. NaN where one of the two rows is zero.
    """
    rows = np.array(per_class, np.float64)
    if rows.ndim != 2:
        raise ValueError(f"consistency needs accuracies [rounds, classes], got shape {rows.shape}")
    rows = np.where(np.isfinite(rows), rows, 0.0)
    norms = np.linalg.norm(rows, axis=1)
    product = norms[1:] * norms[:-1]
    return np.asarray((rows[1:] * rows[:-1]).sum(1) / np.where(product > 0, product, np.nan))


@dataclass(frozen=True)
class LocalAccuracy:
    """Accuracies of K models on their clients' own class distributions and on the complements (FedNTD, fig. 4).

    Clients whose classes have no test example are NaN, and left out of means.
    """

    inside: Floats  # [K]
    outside: Floats  # [K]
    sizes: Ints  # [K], examples of each client

    def mean(self) -> tuple[float, float]:
        """Return in-local and out-local accuracy, mean over clients."""
        return finite_mean(self.inside), finite_mean(self.outside)

    def std(self) -> tuple[float, float]:
        """Return the standard deviation of in-local and out-local accuracy over clients.

        It is unbiased, and NaN for fewer than two clients.
        """
        return finite_std(self.inside), finite_std(self.outside)

    def weighted(self) -> tuple[float, float]:
        """Return in-local and out-local accuracy, mean over clients weighted by their number of examples."""
        return finite_mean(self.inside, self.sizes), finite_mean(self.outside, self.sizes)


def local_accuracy(counts: npt.ArrayLike, per_class: npt.ArrayLike) -> LocalAccuracy:
    """Return in- and out-local accuracy of K clients (FedNTD, eq. 6 and 7).

    Args:
        counts: examples of each client by class, [K, C].
        per_class: accuracies by class of one model for all of them, [C], or of each client's, [K, C].
    """
    table = np.asarray(counts, np.int64)
    rows = np.broadcast_to(np.asarray(per_class, np.float64), table.shape)
    p = shares(table)
    return LocalAccuracy(
        inside=np.array([in_local(share, a) for share, a in zip(p, rows, strict=True)]),
        outside=np.array([out_local(share, a) for share, a in zip(p, rows, strict=True)]),
        sizes=table.sum(1),
    )


def pooled_accuracy(counts: npt.ArrayLike, per_class: npt.ArrayLike) -> tuple[float, float]:
    """Return in- and out-local accuracy of an aggregated model on the pooled examples of its round's clients.

    `per_class`: the model's accuracies by class, [C]. `counts`: examples of each client by class, [K, C].
    """
    found = local_accuracy(np.asarray(counts, np.int64).sum(0, keepdims=True), per_class)
    return float(found.inside[0]), float(found.outside[0])


@dataclass(frozen=True)
class Personalised:
    """Accuracies that one client gets from a model (FedNTD, fig. 11 and 12)."""

    own: float  # accuracy on its own training examples
    test: float  # on test examples with its class distribution: sum_c p_c a_c, the exact expectation


def personalised(model: Model, weights: Weights, task: Task, own: Examples, per_class: Floats) -> Personalised:
    """Evaluate a model on a client's training examples `own`; `per_class`: its accuracies on the test set, [C]."""
    found = classify(model, weights, task, own)
    return Personalised(own=found.accuracy, test=float(in_local(shares(found.total), per_class)))


def finite_mean(values: Floats, weights: npt.ArrayLike | None = None) -> float:
    """Return the mean of the finite ones among numbers [N]; NaN where there is none."""
    finite = np.isfinite(values)
    if not finite.any():
        return float("nan")
    return float(np.average(values[finite], weights=None if weights is None else np.asarray(weights)[finite]))


def finite_std(values: Floats) -> float:
    """Return the unbiased standard deviation of the finite ones among numbers [N]; NaN for fewer than two."""
    finite = values[np.isfinite(values)]
    return float(finite.std(ddof=1)) if len(finite) > 1 else float("nan")
