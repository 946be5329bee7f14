"""Fewer bits: beside NumPy, nearer than zeros or right in the mean, and what cannot be read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from fedloom.compression.bit_packing import bytes_for, packed
from fedloom.compression.fewer_bits import Bits, Float16, Rounding, Signs
from fedloom.core.errors import CodecError
from fedloom.core.random import uniform

KEY = torch.tensor(4711)
BITS = st.sampled_from([2, 4, 8])


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_t(2, shape))


def read(stage: Rounding, x: Tensor, contracts: bool, key: Tensor = KEY) -> Tensor:
    sent = stage.encode(key, {"w": x}, contracts)
    stage.check(sent, {"w": x})
    return stage.read(sent, {"w": x})["w"]


def by_numpy(x: np.ndarray, bits: int, draws: np.ndarray | None) -> np.ndarray:
    """Return what is read of numbers in bits; without draws of those to the nearest."""
    most = 2 ** (bits - 1) - 1
    step = np.abs(x).max() / most
    low = np.floor(x / step)
    if draws is None:
        return np.rint(x / step) * step
    return (low + (draws >= 1 - (x / step - low))) * step


@given(BITS, st.integers(0, 999), st.integers(1, 30), st.booleans())
@settings(max_examples=50, deadline=None)
def test_bits_are_those_of_numpy(bits: int, seed: int, size: int, contracts: bool) -> None:
    x = drawn(seed, size)
    draws = None if contracts else uniform(KEY, 0, x.shape).double().numpy()
    found = read(Bits(bits), x, contracts).numpy()
    expected = by_numpy(x.numpy(), bits, draws)
    step = np.abs(x.numpy()).max() / (2 ** (bits - 1) - 1)
    assert np.allclose(found, expected, atol=1e-9 * step)
    assert np.abs(found - x.numpy()).max() <= step * (0.5 if contracts else 1) + 1e-9 * step
    if contracts:
        assert (np.abs(found - x.numpy()) <= np.abs(x.numpy()) + 1e-12).all()
        assert np.square(found - x.numpy()).sum() <= (1 - 1 / size) * np.square(x.numpy()).sum() + 1e-9


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_bits_are_right_in_the_mean(bits: int) -> None:
    x, stage = torch.tensor([-1.0, -0.3, 0.0, 0.011, 0.5, 0.99]), Bits(bits)
    found = torch.vmap(lambda key: stage.read(stage.encode(key, {"w": x}, False), {"w": x})["w"])(
        torch.arange(4000) * 7919
    )
    assert torch.allclose(found.mean(0), x, atol=3.5 / (2 ** (bits - 1) - 1) / 2 / 4000**0.5)
    assert not found[:, 2].any()  # 0 is a step
    assert torch.equal(found[:, 0], torch.full((4000,), -1.0))


def test_tensors_have_draws_and_scales_of_their_own() -> None:
    x = torch.full((400,), 0.5)
    x[0] = 1.0
    sent = Bits(2).encode(KEY, {"a": x, "b": 2 * x}, False)
    assert (float(sent["a"]["scale"]), float(sent["b"]["scale"])) == (1.0, 2.0)
    assert not torch.equal(sent["a"]["steps"], sent["b"]["steps"])


@given(st.integers(0, 999), st.integers(1, 30))
@settings(max_examples=30, deadline=None)
def test_signs_are_those_of_numpy_and_a_contraction(seed: int, size: int) -> None:
    x = drawn(seed, size)
    found = read(Signs(), x, True)
    mean = np.abs(x.numpy()).mean()
    assert np.allclose(found.numpy(), mean * np.where(x.numpy() >= 0, 1, -1))
    lost = float((found - x).square().sum())
    assert lost == pytest.approx(float(x.square().sum()) - size * mean**2, abs=1e-9)


@pytest.mark.parametrize(
    ("stage", "size"),
    [(Bits(8), 4 + 13), (Bits(4), 4 + 7), (Bits(2), 4 + 4), (Signs(), 4 + 2), (Float16(), 26)],
    ids=repr,
)
def test_bytes_and_shapes(stage: Rounding, size: int) -> None:
    x = drawn(0, 13).float().view(13, 1)
    sent: Any = stage.encode(KEY, {"w": x}, True)["w"]
    assert sum(t.nbytes for t in (sent.values() if isinstance(sent, dict) else [sent])) == size
    found = read(stage, x, True)
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    if isinstance(stage, Float16):
        assert np.array_equal(found.numpy(), x.numpy().astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("stage", [Bits(2), Bits(8), Signs(), Float16()], ids=repr)
@pytest.mark.parametrize("value", [0.0, 1e-45, float("nan"), float("inf")])
def test_zeros_stay_zeros_and_what_is_not_finite_shows(stage: Rounding, value: float) -> None:
    for contracts in (True, False):
        found = read(stage, torch.tensor([0.0, value]), contracts)
        assert bool(found.isfinite().all()) == (value < 1)
        assert value != 0 or not found.any()
        if isinstance(stage, Bits) and value != 1e-45:  # a number that no step has travels as 0
            steps = stage.encode(KEY, {"w": torch.tensor([0.0, value])}, contracts)["w"]["steps"]
            assert torch.equal(steps, packed(torch.tensor([stage.most] * 2), stage.bits))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_more_steps_than_there_are_are_refused(bits: int) -> None:
    stage, most = Bits(bits), 2**bits - 2
    sent = stage.encode(KEY, {"w": torch.ones(3)}, True)
    assert torch.equal(sent["w"]["steps"], packed(torch.tensor([most] * 3), bits))
    stage.check(sent, {"w": torch.ones(3)})
    sent["w"]["steps"] = packed(torch.tensor([0, most + 1, 0]), bits)
    assert len(sent["w"]["steps"]) == bytes_for(3, bits)
    with pytest.raises(CodecError, match=rf"numbers of {bits} bits are up to {most} steps from the least"):
        stage.check(sent, {"w": torch.ones(3)})
