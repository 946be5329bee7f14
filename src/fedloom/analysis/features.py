"""Features of test examples: on the unit circle (FedNTD, appendix N) and in the plane by t-SNE (appendix O)."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.random import generator
from fedloom.core.types import Weights
from fedloom.data import Examples

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def features(model: Model, weights: Weights, examples: Examples) -> Floats:
    """What the last layer gets for each example, in evaluation mode, [N, D]."""
    like, batch_size = next(iter(weights.params.values())), model.evaluation_batch(250)
    out = []
    with torch.no_grad():
        for start in range(0, len(examples), batch_size):
            x = examples.normalise(examples.x[start : start + batch_size].to(like.device), like.dtype)
            out.append(model.features(weights, x).double().cpu())
    return np.asarray(torch.cat(out).numpy())


def balanced_rows(y: npt.ArrayLike, per_class: int, seed: int = 0) -> Ints:
    """Positions of `per_class` examples of each class (all of a class that has fewer), drawn once, in stored order."""
    labels = np.asarray(y)
    rng = generator(seed, "balanced")
    chosen = [rng.permutation(np.flatnonzero(labels == c))[:per_class] for c in np.unique(labels)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def to_circle(points: npt.ArrayLike) -> Floats:
    """Points [N, 2] moved onto the unit circle; the zero vector, which has no direction, stays.

    Raises:
        ValueError: these are no points in the plane.
    """
    table = np.asarray(points, np.float64)
    if table.ndim != 2 or table.shape[1] != 2:
        raise ValueError(
            f"the circle needs features of 2 units, [N, 2], got {list(table.shape)}: train the model hypersphere_cnn"
        )
    norms = np.linalg.norm(table, axis=1, keepdims=True)
    return np.asarray(table / np.where(norms > 0, norms, 1.0))


def angles(points: npt.ArrayLike) -> Floats:
    """atan2(y, x) of points [N, 2] other than zero, in (-pi, pi]."""
    table = to_circle(points)
    table = table[np.abs(table).max(1) > 0]
    return np.asarray(np.arctan2(table[:, 1], table[:, 0]))


def angle_density(angle: npt.ArrayLike, at: npt.ArrayLike) -> Floats:
    """Gaussian density of angles [N] that goes around the circle, at the angles `at` [M]; it integrates to 1.

    The bandwidth is Scott's n^(-1/5) times the circular standard deviation sqrt(-2 log R), which is taken as that of
    uniform angles, pi / sqrt(3), where it is larger.

    Raises:
        SettingError: scikit-learn is not installed.
        ValueError: there are no angles.
    """
    a, grid = np.asarray(angle, np.float64), np.asarray(at, np.float64)
    if not len(a):
        raise ValueError("a density needs angles, got none")
    R = min(1.0, float(np.abs(np.exp(1j * a).mean())))
    spread = min(np.sqrt(-2 * np.log(R)) if R > 0 else np.inf, np.pi / np.sqrt(3))
    width = max(float(spread) * len(a) ** -0.2, 1e-2)  # equal angles: a narrow peak, not an infinite one
    turns = 2 * np.pi * np.arange(-2, 3)
    around = (a[:, None] + turns).reshape(-1, 1)  # each angle and its copies, a turn apart
    return np.asarray(len(turns) / width * _gaussians(around / width, grid[:, None] / width))


def plane_density(points: npt.ArrayLike, at: npt.ArrayLike, blur: float = 0.0) -> Floats | None:
    """Gaussian kernel density (Scott's rule) of points [N, 2] at places [M, 2]; None where points lie on a line.

    Args:
        points: [N, 2].
        at: [M, 2].
        blur: standard deviation of a smoothing on top. That of a pixel's width makes a raster's sum right, which
            kernels narrower than a pixel would fall through; with it points may lie on a line.

    Raises:
        SettingError: scikit-learn is not installed.
    """
    table, places = np.asarray(points, np.float64), np.asarray(at, np.float64)
    spread = np.linalg.svd(table - table.mean(0), compute_uv=False) if len(table) > 2 else np.zeros(1)
    if spread[-1] <= 1e-6 * spread[0] and not (blur > 0 and len(table)):
        return None
    kernel = np.cov(table.T) * len(table) ** (-1 / 3) if len(table) > 1 else np.zeros((2, 2))
    white = np.linalg.inv(np.linalg.cholesky(kernel + blur**2 * np.eye(2)))
    return float(np.linalg.det(white)) * _gaussians(table @ white.T, places @ white.T)


def tsne(points: npt.ArrayLike, seed: int = 0, perplexity: float = 30.0) -> Floats:
    """Features [N, D] in the plane, [N, 2], by t-SNE from a PCA start; the same for the same seed.

    Positions have no unit, and distances between far groups no meaning.

    Raises:
        SettingError: scikit-learn is not installed.
        ValueError: there are too few points for the perplexity.
    """
    table = np.asarray(points, np.float32)
    if len(table) <= perplexity:
        raise ValueError(f"t-SNE needs more points than its perplexity {perplexity:g}, got {len(table)}: give more")
    if table.shape[1] < 2:
        raise ValueError(f"t-SNE starts from two principal components, got features of {table.shape[1]} unit")
    made = _sklearn("manifold").TSNE(
        n_components=2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=seed
    )
    return np.asarray(made.fit_transform(table), np.float64)


def _gaussians(points: Floats, at: Floats) -> Floats:
    """The mean of Gaussians of width 1 around points [N, D] at places [M, D]; it integrates to 1."""
    return np.asarray(np.exp(_sklearn("neighbors").KernelDensity(bandwidth=1.0).fit(points).score_samples(at)))


def _sklearn(module: str) -> Any:
    try:
        return importlib.import_module(f"sklearn.{module}")
    except ImportError:
        raise SettingError("t-SNE and densities need scikit-learn: pip install 'fedloom[analysis]'") from None
