"""Randomness from counters: what a number depends on, and on what it does not."""

from __future__ import annotations

import pytest
import torch

from fedloom.core.random import derive, fold_in, generator, normal, uniform

KEY, SHAPE = torch.tensor(derive(1, "client", 3)), torch.Size((40, 50))


def test_a_key_depends_on_every_word() -> None:
    assert len({derive(*words) for words in ((0,), (1,), (0, 1), (0, "a", 1), (0, "a", 2), (0, "b", 1))}) == 6
    assert all(0 <= derive(seed, "x") < 2**62 for seed in range(50))
    assert generator(0, "a", 1).random() == generator(0, "a", 1).random() != generator(0, "a", 2).random()


@pytest.mark.parametrize("draw", [uniform, normal])
def test_a_number_depends_on_its_key_its_site_and_its_place_alone(draw) -> None:  # type: ignore[no-untyped-def]
    whole = draw(KEY, 2, SHAPE)
    assert torch.equal(draw(KEY, 2, torch.Size((3, 50))), whole[:3])
    assert len(whole.unique()) > 1900
    for other in (draw(KEY + 1, 2, SHAPE), draw(KEY, 3, SHAPE), draw(KEY ^ (1 << 40), 2, SHAPE)):
        assert abs(float(torch.corrcoef(torch.stack([whole.flatten(), other.flatten()]))[0, 1])) < 0.1


def test_numbers_have_their_distribution() -> None:
    u, z = uniform(KEY, 0, SHAPE), normal(KEY, 0, SHAPE)
    assert 0 <= float(u.min()) < float(u.max()) < 1
    assert float(u.mean()) == pytest.approx(0.5, abs=0.03)
    assert (float(z.mean()), float(z.std())) == pytest.approx((0, 1), abs=0.06)
    assert 0.66 < float((z.abs() < 1).double().mean()) < 0.71


def test_keys_of_batches_differ_in_both_halves() -> None:
    keys = torch.stack([fold_in(KEY, word) for word in range(200)])
    for half in (keys & 0x3FFFFFFF, keys >> 32):
        assert len(half.unique()) == 200
    assert len({int(fold_in(KEY ^ (1 << bit), 7)) for bit in range(0, 62, 5)}) == 13
