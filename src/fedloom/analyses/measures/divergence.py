"""The drift of clients, beside how unlike their classes are what the global model knows (FedNTD, fig. 8)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedloom.analyses.measures.classes import normalised_rows
from fedloom.analyses.measures.flat import flat
from fedloom.core.types import Weights

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Distance:
    """A distance in the L1 norm and in the L2 norm."""

    l1: float
    l2: float


def weight_divergence(start: Weights, trained: Weights) -> Distance:
    """Return ||w^t - w_k|| over all trained parameters; buffers of BatchNorm are left out."""
    moved = (flat(trained.params) - flat(start.params)).double()
    return Distance(l1=float(moved.abs().sum()), l2=float(moved.square().sum().sqrt()))


def distribution_distance(per_class: npt.ArrayLike, share: npt.ArrayLike) -> Distance:
    """Return ||A-hat - p||.

    A-hat: a model's accuracies as shares of their sum; p: a client's class distribution; [C] each.

    Classes without test examples are left out of both, which sum to 1 over the others. NaN for a client that has no
    other classes.
    """
    accuracy = normalised_rows(per_class)
    there = np.isfinite(accuracy)
    p = np.asarray(share, np.float64)[there]
    apart = accuracy[there] - p / (p.sum() if p.sum() > 0 else np.nan)
    return Distance(l1=float(np.abs(apart).sum()), l2=float(np.sqrt(np.square(apart).sum())))


@dataclass(frozen=True)
class Correlation:
    """Correlation of two measured numbers over n pairs of finite numbers; NaN where one of them does not vary."""

    pearson: float
    spearman: float
    n: int


def correlation(x: npt.ArrayLike, y: npt.ArrayLike) -> Correlation:
    """Return Pearson's and Spearman's coefficients of pairs, [N] and [N]; pairs with a NaN are left out."""
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"a correlation needs pairs, [n] and [n], got shapes {a.shape} and {b.shape}")
    both = np.isfinite(a) & np.isfinite(b)
    a, b = a[both], b[both]
    return Correlation(pearson=_pearson(a, b), spearman=_pearson(_ranks(a), _ranks(b)), n=len(a))


def _pearson(a: Floats, b: Floats) -> float:
    if len(a) < 2 or a.min() == a.max() or b.min() == b.max():  # of which the mean may be another by rounding
        return float("nan")
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else float("nan")


def _ranks(values: Floats) -> Floats:
    """Rank values from 1; equal values share the mean of their ranks."""
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return np.asarray((last - (count - 1) / 2)[inverse])
