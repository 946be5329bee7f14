"""Features on the circle and in the plane."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import Examples, Model
from fedloom.analyses.measures import balanced_rows, features, tsne
from fedloom.models import LeNet

GRID = np.linspace(-np.pi, np.pi, 721)


def test_features_are_those_of_the_network() -> None:
    x = torch.randn(7, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    network = LeNet(1, 16, 3)
    model = Model(network)
    found = features(model, model.init(0), Examples(x, torch.zeros(7, dtype=torch.int64), 3))
    with torch.no_grad():
        np.testing.assert_allclose(found, network.features(x).numpy(), atol=1e-5)


def test_rows_are_balanced_and_the_same_every_time() -> None:
    y = np.array([0] * 10 + [1] * 3 + [2] * 10)
    rows = balanced_rows(y, 5, seed=1)
    assert np.bincount(y[rows]).tolist() == [5, 3, 5]
    assert (np.diff(rows) > 0).all()
    assert rows.tolist() == balanced_rows(y, 5, seed=1).tolist()
    assert rows.tolist() != balanced_rows(y, 5, seed=2).tolist()


@pytest.mark.slow
def test_tsne_keeps_neighbours_together_and_repeats() -> None:
    rng = np.random.default_rng(0)
    group = np.arange(60) % 3
    points = rng.normal(size=(3, 8))[group] * 10 + rng.normal(size=(60, 8))
    at = tsne(points, perplexity=10)
    away = np.square(at[:, None] - at).sum(-1) + np.diag(np.full(60, np.inf))
    assert (group[away.argmin(1)] == group).all()
    np.testing.assert_array_equal(at, tsne(points, perplexity=10))


def test_tsne_needs_more_points_than_its_perplexity_and_two_units() -> None:
    points = np.random.default_rng(0).normal(size=(31, 8))
    with pytest.raises(ValueError, match="more points than its perplexity 30, got 30"):
        tsne(points[:30])
    with pytest.raises(ValueError, match="features of 1 unit"):
        tsne(points[:, :1])
