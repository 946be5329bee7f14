"""Fewer numbers: beside NumPy, nearer than zeros or right in the mean, and what cannot be read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from fedloom.compression.bit_packing import bits_for, bytes_for, packed
from fedloom.compression.fewer_numbers import Fewer, LowRank, RandK, TopK
from fedloom.core.errors import CodecError

KEY = torch.tensor(4711)
SEEDS = st.integers(0, 999)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_t(2, shape))


def read(stage: Fewer, values: dict[str, Tensor], key: Tensor = KEY, contracts: bool = True, kept: Any = None) -> Any:
    """Return (what is read of what was sent, what travels beside, numbers, what is kept)."""
    kept = stage.init(values) if kept is None else kept
    beside, numbers, new = stage.encode(key, values, kept, contracts)
    stage.check(beside, values)
    like = stage.shapes({name: t.to("meta") for name, t in values.items()})
    assert {name: (t.shape, t.dtype) for name, t in numbers.items()} == {n: (t.shape, t.dtype) for n, t in like.items()}
    return stage.read(beside, numbers, values), beside, numbers, new


def square(t: Tensor) -> float:
    return float(t.double().square().sum())


@given(SEEDS, st.integers(1, 40), st.sampled_from([0.01, 0.3, 0.99, 1, 7, 100]))
@settings(max_examples=40, deadline=None)
def test_topk_is_that_of_numpy_and_a_contraction(seed: int, size: int, share: float) -> None:
    x = drawn(seed, size)
    back, beside, numbers, _ = read(TopK(share), {"w": x})
    count = min(size, max(1, round(share * size) if share < 1 else int(share)))
    places = np.sort(np.argsort(-np.abs(x.numpy()))[:count])
    expected = np.zeros(size)
    expected[places] = x.numpy()[places]
    assert np.array_equal(back["w"].numpy(), expected)
    assert np.array_equal(numbers["w"].numpy(), x.numpy()[places])
    assert len(beside["w"]) == bytes_for(count, bits_for(size))
    assert square(back["w"] - x) <= (1 - count / size) * square(x) + 1e-12


@given(SEEDS, st.integers(1, 40), st.sampled_from([0.01, 0.3, 7]))
@settings(max_examples=30, deadline=None)
def test_randk_takes_other_places_by_its_key_which_travels(seed: int, size: int, share: float) -> None:
    x, stage = drawn(seed, size), RandK(share)
    back, beside, numbers, _ = read(stage, {"w": x, "v": x}, KEY + seed)
    count = stage.count(size)
    assert beside["w"].nbytes == 8
    for name in ("w", "v"):
        assert numbers[name].shape == (count,)
        assert int((back[name] != 0).sum()) == count
        there = back[name] != 0
        assert torch.equal(back[name][there], x[there])
    if 4 < count < size - 4:
        assert not torch.equal(back["w"], back["v"])


def test_randk_is_right_in_the_mean_and_takes_each_number_as_often() -> None:
    x, stage = drawn(0, 10), RandK(0.3)

    def one(key: Tensor) -> Tensor:
        beside, numbers, _ = stage.encode(key, {"w": x}, {}, False)
        return stage.read(beside, numbers, {"w": x})["w"]

    found = torch.vmap(one)(torch.arange(4000) * 7919)
    assert torch.allclose(found.mean(0), x, atol=0.1 * float(x.abs().max()))
    assert torch.allclose((found != 0).double().mean(0), torch.tensor(0.3).double(), atol=0.03)
    once = found[0] != 0
    assert torch.allclose(found[0][once], x[once] * 10 / 3)


@given(SEEDS, st.integers(2, 9), st.integers(2, 9), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_factors_are_a_projection_of_the_matrix(seed: int, rows: int, columns: int, rank: int) -> None:
    x = drawn(seed, rows, columns)
    stage = LowRank(rank)
    back, _, numbers, kept = read(stage, {"w": x, "b": x[0]})
    assert torch.equal(back["b"], x[0])
    if rank * (rows + columns) >= rows * columns:
        assert torch.equal(back["w"], x)
        assert kept == {}
        return
    left, right = numbers["w left"].numpy(), numbers["w right"].numpy()
    basis = np.linalg.qr(x.numpy() @ stage.init({"w": x})["w"].numpy())[0]  # the same space by another algorithm
    assert np.allclose(left.T @ left, np.eye(rank))
    assert np.allclose(left @ right.T, basis @ basis.T @ x.numpy())
    assert np.isclose(square(back["w"] - x), square(x) - square(back["w"]))


def test_power_iterations_come_to_the_best_factors() -> None:
    """Each begins where the last one ended; of one matrix they end at that of its singular values."""
    x = drawn(3, 12, 3, 4)
    stage, lost, kept = LowRank(2), [], None
    for _ in range(40):
        back, _, _, kept = read(stage, {"w": x}, kept=kept)
        lost.append(square(back["w"] - x))
    values = np.linalg.svd(x.flatten(1).numpy(), compute_uv=False)
    assert lost[-1] == pytest.approx(float((values[2:] ** 2).sum()), rel=1e-4)
    assert lost[0] > 1.01 * lost[-1]
    assert lost[-1] <= (1 - 2 / 12) * square(x)


def test_what_has_a_lower_rank_comes_back_whole() -> None:
    """Zeros too, which leave the next iteration its start; other columns are none, and no noise of rounding."""
    stage = LowRank(3)
    x = torch.outer(drawn(1, 9)[:], drawn(2, 8)).float()
    back, _, numbers, kept = read(stage, {"w": x})
    assert torch.allclose(back["w"], x, atol=1e-5 * float(x.abs().max()))
    assert not numbers["w left"][:, 1:].any()
    zeros, _, _, again = read(stage, {"w": 0 * x}, kept=kept)
    assert not zeros["w"].any()
    assert torch.equal(again["w"], kept["w"])
    assert torch.allclose(kept["w"].norm(dim=0)[:1], torch.ones(1))
    assert torch.equal(kept["w"][:, 1:], stage.init({"w": x})["w"][:, 1:])


def test_what_is_none_of_the_models_tensors_has_factors_and_keeps_none() -> None:
    x = drawn(1, 9, 8)
    back, _, numbers, kept = read(LowRank(1), {"w": x}, kept={})
    assert kept == {}
    assert numbers["w left"].shape == (9, 1)
    assert square(back["w"] - x) < square(x)


@pytest.mark.parametrize("stage", [TopK(0.3), RandK(0.3), LowRank(1)], ids=repr)
def test_a_stack_is_each_client(stage: Fewer) -> None:
    stacked = drawn(5, 3, 6, 5)
    keys, start = torch.arange(3) * 31 + 7, stage.init({"w": stacked[0]})

    def one(key: Tensor, x: Tensor) -> Any:
        beside, numbers, kept = stage.encode(key, {"w": x}, start, False)
        return stage.read(beside, numbers, {"w": x}), kept

    together, kept = torch.vmap(one)(keys, stacked)
    for i in range(3):
        alone, mine = one(keys[i], stacked[i])
        assert torch.allclose(together["w"][i], alone["w"], atol=1e-12)
        assert all(torch.allclose(kept[name][i], t, atol=1e-12) for name, t in mine.items())


@pytest.mark.parametrize("places", [[0, 9, 10], [3, 3, 5], [5, 4, 6]])
def test_places_beyond_the_end_or_twice_are_refused(places: list[int]) -> None:
    stage, x = TopK(3), torch.zeros(10)
    stage.check({"w": packed(torch.tensor([0, 8, 9]), 4)}, {"w": x})
    with pytest.raises(CodecError, match="places of numbers are distinct, in their order and below 10"):
        stage.check({"w": packed(torch.tensor(places), 4)}, {"w": x})
