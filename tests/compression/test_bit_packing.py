"""Numbers of a few bits in bytes, beside NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedloom.compression.bit_packing import bits_for, bytes_for, packed, unpacked


def packed_by_numpy(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Return the bits of all numbers, the lowest first, in bytes."""
    return np.packbits((numbers[:, None] >> np.arange(bits)) & 1, bitorder="little")


@given(st.integers(1, 33), st.integers(1, 40), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_numbers_are_packed_as_by_numpy_and_come_back(bits: int, count: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 1 << bits, count)
    numbers[0] = (1 << bits) - 1
    raw = packed(torch.from_numpy(numbers), bits)
    assert raw.dtype == torch.uint8
    assert np.array_equal(raw.numpy(), packed_by_numpy(numbers, bits))
    assert len(raw) == bytes_for(count, bits)
    back = unpacked(raw, bits, count)
    assert back.dtype == (torch.uint8 if bits <= 8 else torch.int64)
    assert np.array_equal(back.numpy(), numbers)
    if bits <= 8:
        assert torch.equal(packed(torch.from_numpy(numbers).to(torch.uint8), bits), raw)


@pytest.mark.parametrize(("count", "bits"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (1024, 10), (1025, 11)])
def test_places_take_as_few_bits_as_tell_them_apart(count: int, bits: int) -> None:
    assert bits_for(count) == bits


def test_a_stack_is_packed_client_by_client() -> None:
    numbers = torch.arange(21).reshape(3, 7) % 8
    raw = torch.vmap(lambda row: packed(row, 3))(numbers)
    assert torch.equal(raw, torch.stack([packed(row, 3) for row in numbers]))
    assert torch.equal(torch.vmap(lambda row: unpacked(row, 3, 7))(raw).long(), numbers)
