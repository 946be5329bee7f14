"""How much clients' gradients disagree (FedNTD, definition 2), and how distillation changes that (proposition 1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.analysis.classes import complement
from fedloom.analysis.flat import gradient
from fedloom.core.model import Model
from fedloom.core.task import Task
from fedloom.core.types import Weights
from fedloom.data import Examples

Floats = npt.NDArray[np.float64]


def gradient_diversity(gradients: Tensor | npt.ArrayLike) -> float:
    """Lambda = mean_k ||g_k||^2 / ||mean_k g_k||^2 of K gradients [K, d] (FedNTD, eq. 8).

    At least 1, and 1 only where all agree; infinite where their mean is zero.
    """
    table = torch.as_tensor(gradients).double()
    if table.ndim != 2 or not len(table):
        raise ValueError(f"gradient diversity needs gradients [K, d] of at least one client, got {list(table.shape)}")
    of_mean = float(table.mean(0).square().sum())
    of_each = float(table.square().sum(1).mean())
    return of_each / of_mean if of_mean > 0 else float("inf")


def class_gradients(
    model: Model, weights: Weights, task: Task, examples: Examples, batch_size: int = 250
) -> tuple[Tensor, Tensor]:
    """g_c: the gradient of the mean loss over the examples of each class that has some, [C', d], and those classes.

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
    """Inner products of C gradients, [C, d] -> [C, C]; the identity (scaled) is what proposition 1 assumes."""
    table = gradients.double()
    return np.asarray((table @ table.T).cpu().numpy())


def cosines(gram: Floats) -> Floats:
    """Cosines between gradients from their Gram matrix, [C, C]; NaN beside a gradient that is zero."""
    norms = np.sqrt(np.diag(gram))
    product = norms[:, None] * norms
    return np.asarray(gram / np.where(product > 0, product, np.nan))


def diversity_at(share: Floats, betas: npt.ArrayLike, gram: Floats | None = None) -> Floats:
    """Lambda(beta) where client k's gradient is sum_c (p_c + beta * (1 - p_c) / (C - 1)) g_c, [B] (FedNTD, eq. 9).

    Args:
        share: class distributions p of K clients, [K, C].
        betas: [B].
        gram: inner products of the class gradients, [C, C]; None: orthogonal ones of equal norm.
    """
    G = np.eye(share.shape[1]) if gram is None else np.asarray(gram, np.float64)
    out = []
    for beta in np.atleast_1d(np.asarray(betas, np.float64)):
        a = share + beta * complement(share)  # [K, C]
        mean = a.mean(0)
        below = float(mean @ G @ mean)
        each = float(np.einsum("kc,cd,kd->k", a, G, a).mean())
        out.append(each / below if below > 0 else np.inf)
    return np.array(out)


@dataclass(frozen=True)
class ClosedForm:
    """Proposition 1 for orthogonal class gradients of equal norm and a mean class distribution that is uniform.

    Lambda(beta) = 1 + C V ((C - 1 - beta) / ((C - 1)(1 + beta)))^2: it falls until beta = C - 1, where it is 1, and on
    0 <= beta <= C/2 - 1 by at least M / (1 + beta)^2. It is also Lambda of these clients together with every
    relabelling of theirs by a rotation of the classes: `V` stays and their mean becomes uniform.
    """

    C: int
    V: float  # mean_k ||p^k||^2 - 1/C

    @property
    def M(self) -> float:  # noqa: N802 - the paper's symbol
        """2 C^2 V / (C - 1)^2: positive unless all clients are alike."""
        return 2 * self.C**2 * self.V / (self.C - 1) ** 2

    def at(self, betas: npt.ArrayLike) -> Floats:
        """Lambda(beta), [B]."""
        b, C = np.asarray(betas, np.float64), self.C
        return np.asarray(1 + C * self.V * ((C - 1 - b) / ((C - 1) * (1 + b))) ** 2)

    def slope(self, betas: npt.ArrayLike) -> Floats:
        """dLambda/dbeta, [B]."""
        b = np.asarray(betas, np.float64)
        return np.asarray(-self.M * (self.C / (1 + b) - 1) / (1 + b) ** 2)


def closed_form(share: Floats) -> ClosedForm:
    """Proposition 1's closed form for clients with class distributions p, [K, C]."""
    C = share.shape[1]
    if C < 2:
        raise ValueError(f"proposition 1 needs at least two classes, got {C}")
    return ClosedForm(C=C, V=float(np.square(share).sum(1).mean() - 1 / C))
