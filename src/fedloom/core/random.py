"""All randomness comes from (seed, round, client, purpose): never from rank, engine or arrival order."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor


def derive(seed: int, *words: int | str) -> int:
    """Return a 62-bit integer that depends on every argument (BLAKE2 of their text)."""
    text = "/".join(map(str, (seed, *words))).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 2


def generator(seed: int, *words: int | str) -> np.random.Generator:
    """Return a NumPy generator that belongs to (seed, *words)."""
    return np.random.Generator(np.random.PCG64(derive(seed, *words)))


def uniform(key: Tensor, site: int, shape: torch.Size) -> Tensor:
    """Return uniform numbers in [0, 1) from a counter: element j of `shape` depends on (key, site, j) alone.

    So neither padding rows nor stacking clients changes anyone's bits. `key`: [] int64. Returns float32 of `shape`.
    The mixer is the 32-bit finaliser `x ^= x >> 16; x *= 0x45d9f3b` (twice), in int64 so that it is exact everywhere.
    """
    count = 1
    for n in shape:
        count *= n
    j = torch.arange(count, device=key.device).reshape(shape)
    low, high = key & 0xFFFFFFFF, (key >> 32) & 0x3FFFFFFF
    x = _mix((j ^ low) & 0xFFFFFFFF)
    x = _mix((x + high + site * 0x9E3779B1) & 0xFFFFFFFF)
    x = _mix((x ^ (j >> 32) ^ low) & 0xFFFFFFFF)
    return (x >> 8).to(torch.float32) * (1.0 / (1 << 24))


def normal(key: Tensor, site: int, shape: torch.Size) -> Tensor:
    """Return standard normal numbers (Box and Muller) with the properties of `uniform`; float32 of `shape`."""
    radius = (-2.0 * torch.log1p(-uniform(key, 2 * site, shape))).sqrt()
    return radius * torch.cos(2.0 * math.pi * uniform(key, 2 * site + 1, shape))


def fold_in(key: Tensor, word: Tensor | int) -> Tensor:
    """Return a new key [] int64 from a key and a counter (the batch within a round)."""
    low = _mix((key ^ word) & 0xFFFFFFFF)
    return _mix((low + (key >> 32) + word * 0x9E3779B1) & 0xFFFFFFFF) | (low << 30)


def _mix(x: Tensor) -> Tensor:
    x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return x ^ (x >> 16)
