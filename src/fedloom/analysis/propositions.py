"""FedNTD's propositions 2 and 3, as arithmetic that can be checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.losses import divergence, not_true

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Parts:
    """Distillation from the global model over N examples, taken apart (FedNTD, proposition 2). Means over examples.

    `true` + `not_true` = `full`, and each equals its sum over classes: `true` weighs class c by p_c (what the client
    has), `not_true` by (1 - p_c) / (C - 1) (what it lacks). `not_true` is not the loss of FedNTD, which is over
    probabilities that sum to 1 without the true class: `full` = `binary` + mean of (1 - q_global(y)) * its loss.
    """

    full: float  # KL(q_global || q_local)
    true: float  # the term of each example's own class
    not_true: float  # the terms of all other classes
    true_by_class: Floats  # [C]: p_c times the mean over the examples of c
    not_true_by_class: Floats  # [C]: (C - 1) times (1 - p_c)/(C - 1) times the mean over the examples of other classes
    binary: float  # KL between (true, not true) of both models
    weighted_ntd: float  # mean of (1 - q_global(y)) * L_NTD
    ntd: float  # mean of L_NTD, the loss of FedNTD at tau = 1 without its weight


def kl_parts(local: Tensor, received: Tensor, y: Tensor, temperature: float = 1.0) -> Parts:
    """Take distillation apart.

    Args:
        local: logits of the local model, [N, C].
        received: logits of the global model that the client received, [N, C].
        y: true classes, [N].
        temperature: of both softmaxes; nothing is multiplied by its square.

    Raises:
        ValueError: there are no examples, or shapes differ.
    """
    if local.shape != received.shape or y.shape != local.shape[:1] or not len(y):
        raise ValueError(f"logits [N, C] and classes [N], N >= 1, got {[list(t.shape) for t in (local, received, y)]}")
    student, teacher = local.double() / temperature, received.double() / temperature
    q, log_q, log_l = teacher.softmax(1), teacher.log_softmax(1), student.log_softmax(1)
    terms = q * (log_q - log_l)  # [N, C]
    own = F.one_hot(y, local.shape[1]).bool()
    n, C = terms.shape
    count = own.sum(0).double()
    share = count / n
    true_mean = (terms * own).sum(0) / count.clamp(min=1)  # over the examples of c; 0 where there are none
    other_mean = (terms * ~own).sum(0) / (n - count).clamp(min=1)
    of_rest = (1 - share) / (C - 1)
    ntd = divergence(not_true(student, y), not_true(teacher, y).softmax(1))
    right = q[own]
    rest_q, rest_l = _log_rest(teacher, own), _log_rest(student, own)
    binary = right * (log_q[own] - log_l[own]) + rest_q.exp() * (rest_q - rest_l)
    return Parts(
        full=float(terms.sum(1).mean()),
        true=float(terms[own].mean()),
        not_true=float((terms * ~own).sum(1).mean()),
        true_by_class=(share * true_mean).cpu().numpy(),
        not_true_by_class=((C - 1) * of_rest * other_mean).cpu().numpy(),
        binary=float(binary.mean()),
        weighted_ntd=float(((1 - right) * ntd).mean()),
        ntd=float(ntd.mean()),
    )


def _log_rest(logits: Tensor, own: Tensor) -> Tensor:
    """log(1 - q(y)) without cancellation, [N]."""
    others = logits.masked_fill(own, -torch.inf)
    return others.logsumexp(1) - logits.logsumexp(1)


def mean_optimum(share: npt.ArrayLike, optima: npt.ArrayLike) -> Floats:
    """w_p = sum_c p_c w_c, [..., d]: where the bound of proposition 3 is least. `optima`: the w_c, [C, d]."""
    return np.asarray(np.asarray(share, np.float64) @ np.asarray(optima, np.float64))


def smooth_bound(
    w: npt.ArrayLike, share: npt.ArrayLike, optima: npt.ArrayLike, least: npt.ArrayLike, smoothness: float
) -> float:
    """sum_c p_c L_c(w_c) + lambda/2 sum_c p_c ||w - w_c||^2, which L(w) = sum_c p_c L_c(w) never exceeds.

    Args:
        w: [d].
        share: p, [C].
        optima: w_c, where each class loss is least, [C, d].
        least: L_c(w_c), [C].
        smoothness: lambda, of which every class loss is smooth.
    """
    p, away = np.asarray(share, np.float64), np.asarray(w, np.float64) - np.asarray(optima, np.float64)
    return float(p @ np.asarray(least, np.float64) + smoothness / 2 * p @ np.square(away).sum(1))


def expected_distance(share: npt.ArrayLike, clients: npt.ArrayLike, optima: npt.ArrayLike) -> float:
    """E ||w_p' - w_p|| over clients p' [K, C], from a model at w_p (FedNTD, proposition 3).

    The proposition: for a family of clients that does not change when classes are permuted, it is least where p is
    uniform. That assumes optima w_c that no permutation changes either (equidistant ones). Without it, it is
    false: see `COUNTEREXAMPLE`.
    """
    there, here = mean_optimum(clients, optima), mean_optimum(share, optima)
    return float(np.linalg.norm(there - here, axis=-1).mean())


def relabelled(clients: npt.ArrayLike) -> Floats:
    """Clients p [K, C] and all their rotations of the classes, [K * C, C]: a family that no rotation changes."""
    table = np.asarray(clients, np.float64)
    return np.concatenate([np.roll(table, shift, axis=1) for shift in range(table.shape[1])])


@dataclass(frozen=True)
class Family:
    """Clients p' [K, C] and optima of the class losses [C, d]."""

    clients: Floats
    optima: Floats


COUNTEREXAMPLE = Family(clients=np.eye(3), optima=np.array([[0.0], [0.0], [1.0]]))
"""Clients of one class each, and optima 0, 0, 1: uniform p gives 4/9, p = (1/2, 1/2, 0) gives 1/3."""
