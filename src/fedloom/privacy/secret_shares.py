"""Shares of a secret, of which so many give it back and fewer say nothing (Shamir 1979).

A secret is the value at 0 of a random polynomial over the integers modulo the prime 2^130 - 5; share x is its value at
x. Of the libraries that are kept, pycryptodome has shares too, over GF(2^128): a sum of 500 clients, which splits 1,000
secrets and puts 500 together, would take it 216 seconds, and this 3.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

_PRIME = 2**130 - 5
SECRET, SHARE = 16, 17  # bytes


def split(secret: bytes, count: int, threshold: int) -> list[bytes]:
    """Return shares of a secret of 16 bytes, by their places.

    Args:
        secret: what is shared.
        count: how many shares there are.
        threshold: how many of them give the secret back.
    """
    polynomial = [*(secrets.randbelow(_PRIME) for _ in range(threshold - 1)), int.from_bytes(secret)]
    shares = list[bytes]()
    for x in range(1, count + 1):
        value = 0
        for coefficient in polynomial:  # the highest first
            value = (value * x + coefficient) % _PRIME
        shares.append(value.to_bytes(SHARE))
    return shares


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret of which these are shares; where one of them is none, something else.

    Args:
        shares: by their places, from 0, at least as many as the threshold.
        threshold: how many are needed.
    """
    points = [(place + 1, int.from_bytes(share)) for place, share in sorted(shares.items())[:threshold]]
    total = 0
    for x, y in points:
        above, below = 1, 1
        for other, _ in points:
            if other != x:
                above, below = above * other % _PRIME, below * (other - x) % _PRIME
        total += y * above * pow(below, -1, _PRIME)
    return (total % _PRIME % 2**128).to_bytes(SECRET)
