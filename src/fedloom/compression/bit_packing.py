"""Whole numbers of a few bits each, in bytes."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def bits_for(count: int) -> int:
    """Return the bits that tell so many things apart."""
    return max(1, (count - 1).bit_length())


def bytes_for(count: int, bits: int) -> int:
    """Return the bytes that so many numbers take."""
    return -(-count * bits // 8)


def packed(numbers: Tensor, bits: int) -> Tensor:
    """Return numbers [n], each below 2 ** bits, as uint8 [bytes_for(n, bits)]: one after the other, low bits first."""
    digit = math.gcd(bits, 8)
    lowest = torch.arange(0, bits, digit, dtype=numbers.dtype, device=numbers.device)
    digits = (numbers[:, None] >> lowest & ((1 << digit) - 1)).to(torch.uint8).flatten()
    each = 8 // digit
    rows = torch.nn.functional.pad(digits, (0, -len(digits) % each)).view(-1, each)
    return (rows << torch.arange(0, 8, digit, dtype=torch.uint8, device=rows.device)).sum(1, dtype=torch.uint8)


def unpacked(raw: Tensor, bits: int, count: int) -> Tensor:
    """Return the `count` numbers that `packed` was given: uint8 where they fit, else int64."""
    digit = math.gcd(bits, 8)
    places = torch.arange(0, 8, digit, dtype=torch.uint8, device=raw.device)
    digits = (raw[:, None] >> places & ((1 << digit) - 1)).flatten()[: count * (bits // digit)].view(count, -1)
    whole = digits.to(torch.uint8 if bits <= 8 else torch.int64)
    return (whole << torch.arange(0, bits, digit, dtype=whole.dtype, device=raw.device)).sum(1, dtype=whole.dtype)
