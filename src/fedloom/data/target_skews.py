"""Partitions that need no classes: by quantiles of a target, and of unequal sizes."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedloom.data.drawing import IntArray, check_clients, generator_of, is_hopeless, number_of, starts
from fedloom.data.partition import Partition


def quantiles(targets: npt.ArrayLike | Tensor, num_bins: int) -> IntArray:
    """Return the quantile of each target, as classes that partitions by class divide.

    Equal targets are in one bin, so there are fewer bins where a value is that of many examples; they are numbered from
    0 without a gap.

    Args:
        targets: numbers, (n,), or (n, D), of which the first column counts.
        num_bins: bins of about n / num_bins examples each, at least 2.

    Raises:
        ValueError: these are no finite numbers, `num_bins` is out of range, or all targets are equal.
    """
    values = np.asarray(targets.cpu() if isinstance(targets, Tensor) else targets)
    if values.dtype.kind not in "fiu" or values.ndim not in (1, 2) or not values.size or not np.isfinite(values).all():
        raise ValueError(
            f"targets must be finite numbers (n,) or (n, D), got {values.dtype} of shape {values.shape}: pass train.y"
        )
    first = values if values.ndim == 1 else values[:, 0]
    if not 2 <= num_bins <= len(first):
        raise ValueError(
            f"num_bins must be in 2..{len(first)}, the number of examples, got {num_bins}: 10 makes deciles"
        )
    ordered = np.sort(first)
    edges = ordered[np.arange(1, num_bins) * len(first) // num_bins]  # the first value of each bin but the lowest
    bins = np.unique(np.searchsorted(edges, first, side="right"), return_inverse=True)[1]
    if not bins.any():
        raise ValueError(
            f"targets must differ for quantiles, got {first[0]:g} in nearly all of {len(first)} examples: use iid or "
            "quantity"
        )
    return bins.astype(np.int64)


def quantity(
    labels: npt.ArrayLike | Tensor,
    num_clients: int,
    beta: float,
    seed: int,
    min_size: int = 10,
    max_attempts: int = 20_000,
) -> Partition:
    """Deal all examples in random order, in sizes drawn from a symmetric Dirichlet distribution.

    The quantity skew of NIID-Bench (Li et al., ICDE 2022), draw for draw. Sizes are drawn again until the smallest
    client has `min_size` examples.

    Args:
        labels: class or target of every example, (n, ...); only their number matters.
        num_clients: number of clients N, 1 to n.
        beta: concentration, greater than 0; the smaller, the more unequal.
        seed: 0 to 2**32 - 1.
        min_size: examples that the smallest client must have.
        max_attempts: draws to make before giving up; the original never does.

    Raises:
        ValueError: an argument is out of range, or no draw was accepted.
    """
    n = number_of(labels)
    check_clients(num_clients, n)
    if not (beta > 0 and math.isfinite(beta)):
        raise ValueError(f"beta must be finite and greater than 0, got {beta}: 0.5 is strong skew, 100 nearly none")
    if min_size < 0 or min_size * num_clients > n:
        raise ValueError(
            f"min_size must be in 0..{n // num_clients}, the mean size of {num_clients} clients with {n} examples, got "
            f"{min_size}: take fewer clients, or lower min_size in Python"
        )
    generator = generator_of(seed)
    order = generator.permutation(n)
    fewest = num_clients
    for attempt in range(max_attempts):
        shares = generator.dirichlet(np.repeat(beta, num_clients))
        shares = shares / shares.sum()
        short = int((~(shares * n >= min_size)).sum())  # shares are NaN where all underflow
        if not short:
            cuts = (np.cumsum(shares) * n).astype(np.int64)[:-1]
            return Partition(starts(np.diff(cuts, prepend=0, append=n)), order, f"quantity beta={beta:g}", seed)
        fewest = min(fewest, short)
        if is_hopeless(attempt + 1, fewest):
            break
    raise ValueError(
        f"every client needs min_size={min_size} examples, but none of up to {max_attempts:,} draws with "
        f"beta={beta} and {num_clients} clients left fewer than {fewest:,} short: raise beta or take fewer clients"
    )
