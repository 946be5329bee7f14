"""The loss around a model: under random noise, and over the plane of its Hessian's leading eigenvectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import grad, vjp

from fedloom.analyses.measures.flat import flat, losses, unflat
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.random import derive
from fedloom.core.task import Task
from fedloom.core.types import Weights, replace
from fedloom.data import Examples
from fedloom.evaluate import classify
from fedloom.wording import install

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """Loss and accuracy at w + noise (FedNTD, fig. 14): S strengths, R draws each."""

    sigma: Floats  # [S]
    loss: Floats  # [S, R]
    accuracy: Floats  # [S, R]


def perturbed(
    model: Model,
    weights: Weights,
    task: Task,
    examples: Examples,
    sigma: npt.ArrayLike,
    *,
    relative: bool = True,
    draws: int = 5,
    seed: int = 0,
) -> Noise:
    """Evaluate at w + sigma * epsilon, with the same `draws` directions epsilon at every strength.

    Args:
        model: the network.
        weights: w.
        task: its loss is evaluated.
        examples: on which.
        sigma: strengths, [S].
        relative: each tensor's noise has sigma times the norm of that tensor, so that layers of different scale are
            disturbed alike; else its values are Gaussian of standard deviation sigma.
        draws: R.
        seed: of the noise.
    """
    strengths = np.atleast_1d(np.asarray(sigma, np.float64))
    loss, accuracy = np.zeros((len(strengths), draws)), np.zeros((len(strengths), draws))
    for r in range(draws):
        g = torch.Generator().manual_seed(derive(seed, "noise", r))
        away = {n: torch.randn(t.shape, generator=g, dtype=t.dtype).to(t.device) for n, t in weights.params.items()}
        if relative:
            away = {n: e * (weights.params[n].norm() / e.norm().clamp(min=1e-12)) for n, e in away.items()}
        for s, strength in enumerate(strengths):
            moved = {n: t + float(strength) * away[n] for n, t in weights.params.items()}
            found = classify(model, replace(weights, params=moved), task, examples)
            loss[s, r], accuracy[s, r] = found.loss, found.accuracy
    return Noise(sigma=strengths, loss=loss, accuracy=accuracy)


def hessian_product(
    model: Model, weights: Weights, task: Task, examples: Examples, batch_size: int = 250
) -> Callable[[Tensor], Tensor]:
    """Return the function v [d] -> H v [d], in evaluation mode.

    H is the Hessian of the mean loss over all examples, and is never formed.
    """

    def product(v: Tensor) -> Tensor:
        direction, total = unflat(v, weights.params), torch.zeros_like(v)
        for share, loss in losses(model, weights, task, examples, batch_size):
            total += share * flat(vjp(grad(loss), weights.params)[1](direction)[0])  # H is symmetric
        return total

    return product


@dataclass(frozen=True)
class Eigen:
    """Eigenpairs of a Hessian, by falling magnitude."""

    values: Floats  # [k]
    vectors: Tensor  # [k, d], orthonormal; the largest component of each is positive, since its sign is arbitrary
    residuals: Floats  # [k], ||H v - value * v||


def hessian_eigen(
    model: Model,
    weights: Weights,
    task: Task,
    examples: Examples,
    k: int = 2,
    *,
    tolerance: float = 1e-4,
    seed: int = 0,
    batch_size: int = 250,
) -> Eigen:
    """Return the k eigenvalues of largest magnitude, and their vectors, by Lanczos iteration (scipy's `eigsh`).

    Largest magnitude, as power iteration finds them: a negative one among them is a direction in which the loss bends
    down. `tolerance`: relative, of the eigenvalues. Memory: some 20 vectors of the model's size.

    Raises:
        SettingError: scipy is not installed.
        ValueError: the model has too few parameters.
    """
    try:
        from scipy.sparse.linalg import LinearOperator, eigsh
    except ImportError:
        raise SettingError(f"Hessian eigenvectors need scipy: {install('analysis')}") from None
    start = flat(weights.params)
    if not 0 < k < len(start):
        raise ValueError(f"k must be in 1..{len(start) - 1} for {len(start)} parameters, got {k}")
    product = hessian_product(model, weights, task, examples, batch_size)

    def multiply(v: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        return product(torch.as_tensor(v.reshape(-1)).to(start)).cpu().numpy()

    kind = start.cpu().numpy().dtype
    probe = np.random.default_rng(derive(seed, "lanczos")).standard_normal(len(start)).astype(kind)
    operator = LinearOperator((len(start), len(start)), matvec=multiply, dtype=kind)
    values, vectors = eigsh(operator, k=k, which="LM", v0=probe, tol=tolerance)
    order = np.argsort(-np.abs(values))
    found = torch.as_tensor(np.ascontiguousarray(vectors.T[order])).to(start)
    peak = found.gather(1, found.abs().argmax(1, keepdim=True))
    found = found * peak.sign()
    values = values[order].astype(np.float64)
    left = [float((product(v) - float(value) * v).norm()) for v, value in zip(found, values, strict=True)]
    return Eigen(values=values, vectors=found, residuals=np.array(left))


def plane(
    model: Model,
    weights: Weights,
    task: Task,
    examples: Examples,
    directions: Tensor,
    grid: npt.ArrayLike,
) -> Floats:
    """Return the mean loss at w + grid[i] * directions[0] + grid[j] * directions[1], [n, n].

    The FIRST direction is along axis 0.
    To draw it over (x, y) = (first, second) direction, transpose it: rows of an image are its y.

    Args:
        model: the network.
        weights: w.
        task: its loss is evaluated.
        examples: on which.
        directions: [2, d], as of `hessian_eigen`.
        grid: [n].
    """
    at, start = np.asarray(grid, np.float64), flat(weights.params)
    out = np.zeros((len(at), len(at)))
    for i, a in enumerate(at):
        for j, b in enumerate(at):
            moved = start + float(a) * directions[0] + float(b) * directions[1]
            there = replace(weights, params=unflat(moved, weights.params))
            out[i, j] = classify(model, there, task, examples).loss
    return out
