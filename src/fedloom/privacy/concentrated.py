"""Privacy of a sum to which clients add discrete Gaussian noise each, and the epsilon of all rounds.

Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation",
ICML 2021, arXiv:2102.06387. A sum of discrete Gaussians is none: what this costs is `correction`, their tau. Losses are
those of concentrated differential privacy (rho), which add up over rounds. They are of one client whose upload is there
or is zeros, whose noise is there in both cases; nothing is taken off for who was drawn, since the server knows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

_MOST = 1e4  # of a noise, beyond which no run learns anything
_DIGITS = 4  # of a noise that is found


def rounded_norm(norm: float, dimension: int) -> float:
    """Return the bound of the norm of a vector that was rounded at random to whole numbers.

    Rounding keeps it with a probability of at least 1 - e^(-1/2), and is done again otherwise (their theorem 1, with
    that beta).

    Args:
        norm: of the vector before, at most.
        dimension: how many numbers it has.
    """
    root = math.sqrt(dimension)
    return min(norm + root, math.sqrt(norm * norm + dimension / 4 + norm + root / 2))


def correction(scale: float, clients: int) -> float:
    """Return by how much each number of a sum of discrete Gaussians differs from one discrete Gaussian at most.

    Args:
        scale: of each.
        clients: how many are added up.
    """
    k = np.arange(1, clients)
    return 10 * float(np.exp(-2 * (math.pi * scale) ** 2 * k / (k + 1)).sum())


def loss(norm: float, scale: float, clients: int, dimension: int) -> float:
    """Return rho of a sum: its Renyi divergence of order alpha is at most alpha rho (their proposition 14).

    Args:
        norm: of what one client adds without noise, whole numbers, at most.
        scale: of the noise of each client.
        clients: whose noise is in the sum.
        dimension: how many numbers it has.
    """
    if scale * scale < 0.5:
        return math.inf
    tau, all_noise = correction(scale, clients), scale * math.sqrt(clients)
    root = math.sqrt(dimension)
    two, one = norm / all_noise, norm * min(root, norm) / all_noise
    return min(
        two**2 / 2 + tau * dimension,
        (two**2 + 2 * one * tau + tau**2 * dimension) / 2,
        (two + tau * root) ** 2 / 2,
    )


def epsilon(rho: float, delta: float) -> float:
    """Return epsilon of a loss at a delta: the least over orders (Canonne, Kamath, Steinke 2020, proposition 12)."""
    if not rho or math.isinf(rho):
        return rho
    orders = 1 + math.sqrt(math.log(1 / delta) / rho) * np.geomspace(1 / 16, 16, 1000)
    found = orders * rho + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    return max(0.0, float(found.min()))


def noise_for(most: float, epsilon_of: Callable[[float], float]) -> float | None:
    """Return the least noise, to 4 digits, whose epsilon is at most that; None: there is none.

    Args:
        most: epsilon.
        epsilon_of: falls as noise grows.
    """
    low, high = 1 / _MOST, _MOST
    if not epsilon_of(high) <= most:
        return None
    while high - low > 10**-_DIGITS / 4 * high:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon_of(middle) <= most else (middle, high)
    step = 10 ** (math.floor(math.log10(high)) - _DIGITS + 1)
    return float(f"{math.ceil(high / step) * step:.{_DIGITS}g}")
