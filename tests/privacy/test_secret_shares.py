"""Shares: as many as the threshold give the secret back, whichever they are; fewer fit every secret."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from fedloom.privacy import secret_shares
from fedloom.privacy.secret_shares import combine, split


@given(st.binary(min_size=16, max_size=16), st.integers(1, 12), st.data())
@settings(max_examples=60, deadline=None)
def test_any_that_are_enough_give_the_secret_back(secret: bytes, count: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, count))
    shares = dict(enumerate(split(secret, count, threshold)))
    chosen = data.draw(st.permutations(range(count)))[: data.draw(st.integers(threshold, count))]
    assert combine({k: shares[k] for k in chosen}, threshold) == secret


def test_fewer_say_nothing() -> None:
    """With one share too few, every secret fits: for each there is one last share that would give it."""
    prime, secret = secret_shares._PRIME, bytes(range(16))
    shares = split(secret, 5, 3)
    assert combine(dict(enumerate(shares[:2])), 2) != secret
    for other in (bytes(16), b"\xff" * 16, secret):
        points = {0: int.from_bytes(other), 1: int.from_bytes(shares[0]), 2: int.from_bytes(shares[1])}

        def at(x: int) -> int:
            total = 0
            for i, y in points.items():  # noqa: B023
                term = y
                for j in points:  # noqa: B023
                    term = term if i == j else term * (x - j) * pow(i - j, -1, prime) % prime
                total += term
            return total % prime

        assert combine({0: shares[0], 1: shares[1], 2: at(3).to_bytes(17)}, 3) == other


def test_shares_are_new_each_time() -> None:
    assert not set(split(bytes(16), 5, 3)) & set(split(bytes(16), 5, 3))


def test_a_wrong_share_gives_another_secret() -> None:
    secret, shares = bytes(range(16)), dict(enumerate(split(bytes(range(16)), 4, 3)))
    assert combine(shares | {1: b"\xff" * 17}, 3) != secret
