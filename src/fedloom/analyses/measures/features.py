"""Read a model on examples: its features and logits, features in the plane by t-SNE, and balanced subsets."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.random import generator
from fedloom.core.types import Weights
from fedloom.data import Examples
from fedloom.wording import install

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def features(model: Model, weights: Weights, examples: Examples) -> Floats:
    """Return the input of the last layer for each example, in evaluation mode, [N, D]."""
    return np.asarray(_in_batches(model, weights, examples, model.features).double().cpu().numpy())


def logits(model: Model, weights: Weights, examples: Examples) -> Tensor:
    """Return the model's logits for each example, in evaluation mode, [N, C]."""
    return _in_batches(model, weights, examples, model)


def _in_batches(model: Model, weights: Weights, examples: Examples, of: Callable[[Weights, Tensor], Tensor]) -> Tensor:
    """Apply a function to all examples, in the batches that the network is evaluated in."""
    like, batch_size = next(iter(weights.params.values())), model.evaluation_batch(250)
    out = []
    with torch.no_grad():
        for start in range(0, len(examples), batch_size):
            x = examples.normalise(examples.x[start : start + batch_size].to(like.device), like.dtype)
            out.append(of(weights, x))
    return torch.cat(out)


def balanced(examples: Examples, per_class: int) -> Examples:
    """Return the same examples of each class every time: `per_class` of each, or all that there are."""
    return examples.select(balanced_rows(examples.y.cpu().numpy(), per_class))


def balanced_rows(y: npt.ArrayLike, per_class: int, seed: int = 0) -> Ints:
    """Return the positions of `per_class` examples of each class, drawn once, in stored order.

    A class that has fewer gives all its examples.
    """
    labels = np.asarray(y)
    rng = generator(seed, "balanced")
    chosen = [rng.permutation(np.flatnonzero(labels == c))[:per_class] for c in np.unique(labels)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def tsne(points: npt.ArrayLike, seed: int = 0, perplexity: float = 30.0) -> Floats:
    """Place features [N, D] in the plane, [N, 2], by t-SNE from a PCA start; the same for the same seed.

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
    made = sklearn("manifold").TSNE(
        n_components=2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=seed
    )
    return np.asarray(made.fit_transform(table), np.float64)


def sklearn(module: str) -> Any:
    """Import a module of scikit-learn, which comes with the extra `analysis`.

    Raises:
        SettingError: it is not installed.
    """
    try:
        return importlib.import_module(f"sklearn.{module}")
    except ImportError:
        raise SettingError(f"t-SNE and densities need scikit-learn: {install('analysis')}") from None
