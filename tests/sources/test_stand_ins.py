"""Made-up data have the shape of what they stand for, and what a comparison is about: clients that differ."""

from __future__ import annotations

import numpy as np
import pytest

from fedloom.sources import load


@pytest.mark.slow
def test_vehicle_like_has_the_shape_of_vehicle() -> None:
    train, test, owners, _ = load("vehicle_like", "nowhere")
    assert owners is not None
    sizes = np.bincount(owners)
    assert (len(sizes), len(train), train.shape, train.num_classes, test) == (23, 43_695, (100,), 2, None)
    assert (round(sizes.mean()), round(sizes.std())) == (1900, 349)
    assert abs(train.x.std(0) - 1).max() < 0.2
    assert train.fingerprint() == load("vehicle_like", ".").train.fingerprint()


@pytest.mark.slow
def test_its_clients_are_better_served_alone() -> None:
    """By differences of class means, which are the best linear models here."""
    train, _, owners, _ = load("vehicle_like", ".")
    x, sign = train.x.numpy(), 2 * train.y.numpy() - 1

    def right(rows: np.ndarray, direction: np.ndarray) -> float:
        return float((np.sign(x[rows] @ direction) == sign[rows]).mean())

    common = (x * sign[:, None]).mean(0)
    everybody = np.arange(len(x))
    each = [np.flatnonzero(owners == k) for k in range(23)]
    alone = np.mean([right(mine, (x[mine] * sign[mine, None]).mean(0)) for mine in each])
    assert 0.75 < right(everybody, common) < 0.87 < alone < 0.95
