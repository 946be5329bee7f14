"""Numbers of clients and rows that a step of a stack computes: few numbers, so that few graphs exist."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.batch import padded

_WORTH_A_CUT = 1000  # rows of padding; a lock-step of its own costs as much as 100 to 300 rows of a linear model


def by_width(mask: Tensor) -> list[tuple[Tensor, int]]:
    """Return groups of clients, [K_g] int64 each, with a width that holds their batches; none if all stay together.

    `mask`: [K, S, B]. The narrower half of those that are left is cut off while that saves enough; always halves, so
    that few graphs exist. One step in batches of 200, K = 1,000, in the order of what they need:

        clients     rows in a batch     width    rows computed, of 200,000 in one lock-step
        500         at most 27          32       16,000
        250         at most 60          64       16,000
        125         at most 110         128      16,000
        125         up to 200           200      25,000: their narrower half needs 200 as well
    """
    K, _, B = mask.shape
    if K // 2 * (B - 1) < _WORTH_A_CUT:  # a cohort of ten, however unequal
        return []
    needed = (mask.any(1) * torch.arange(1, B + 1, device=mask.device)).amax(1)  # [K]
    ranks = torch.argsort(needed, descending=True, stable=True)
    widths = [min(padded(n), B) for n in needed[ranks].tolist()]
    parts, left = [], K
    while left > 1:
        half = left // 2
        wide, narrow = widths[0], widths[left - half]
        if half * (wide - narrow) < _WORTH_A_CUT:
            break
        parts.append((ranks[left - half : left], narrow))
        left -= half
    return [*parts, (ranks[:left], widths[0])] if parts else []


def rounded(active: int, K: int) -> int:
    """Return 1, 2, 4, 8, ... or K: the smallest that holds the active clients, so that few graphs exist."""
    return min(1 << (active - 1).bit_length(), K)
