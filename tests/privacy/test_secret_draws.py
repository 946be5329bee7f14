"""Draws of a seed are the same again; those of the system are as they should be, and never the same."""

from __future__ import annotations

import numpy as np
import pytest

from fedloom.privacy.secret_draws import Poisson, normals


@pytest.mark.parametrize("seed", [3, None])
def test_normal_numbers(seed: int | None) -> None:
    found = normals(seed, "sum", 1)(200_001)
    assert found.shape == (200_001,)
    assert abs(found.mean()) < 0.01
    assert found.std() == pytest.approx(1, abs=0.01)
    assert (np.abs(found) > 2).mean() == pytest.approx(0.0455, abs=0.003)
    assert abs(np.corrcoef(found[:100_000], found[100_001:])[0, 1]) < 0.02


def test_a_seed_gives_them_again_and_the_system_does_not() -> None:
    assert (normals(3, "sum", 1)(9) == normals(3, "sum", 1)(9)).all()
    assert (normals(3, "sum", 1)(9) != normals(3, "sum", 2)(9)).all()
    assert (normals(None, "sum", 1)(9) != normals(None, "sum", 1)(9)).all()


@pytest.mark.parametrize("seed", [0, None])
def test_each_client_is_drawn_by_itself(seed: int | None) -> None:
    sampler, sizes = Poisson(0.3, seed), np.ones(2000, np.int64)
    rounds = [sampler(t, sizes, 5) for t in range(100)]
    counts = np.array([len(one) for one in rounds])
    assert counts.mean() == pytest.approx(600, abs=12)
    assert counts.std() == pytest.approx(np.sqrt(2000 * 0.3 * 0.7), rel=0.35)  # and not of one size
    assert rounds[0] != rounds[1]
    assert sampler(0, sizes, 9) == rounds[0] == sorted(set(rounds[0]))
    drawn = np.bincount(np.concatenate(rounds), minlength=2000)
    assert drawn.min() >= 5
    assert drawn.max() < 60


def test_another_seed_draws_others() -> None:
    sizes = np.ones(50, np.int64)
    assert Poisson(0.5, 0)(0, sizes, 1) != Poisson(0.5, 1)(0, sizes, 1)
    assert Poisson(1.0, 0)(0, sizes, 1) == Poisson(1.0, None)(0, sizes, 1) == [*range(50)]
