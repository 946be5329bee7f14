"""Features on the circle and in the plane."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import gaussian_kde

from fedloom import Examples, Model
from fedloom.analysis import angle_density, angles, balanced_rows, features, plane_density, to_circle, tsne
from fedloom.models import HypersphereCNN, LeNet

GRID = np.linspace(-np.pi, np.pi, 721)


def test_features_are_those_of_the_network() -> None:
    x = torch.randn(7, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    network = LeNet(1, 16, 3)
    model = Model(network)
    found = features(model, model.init(0), Examples(x, torch.zeros(7, dtype=torch.int64), 3))
    with torch.no_grad():
        np.testing.assert_allclose(found, network.features(x).numpy(), atol=1e-5)


def test_features_of_the_hypersphere_are_on_it() -> None:
    network = HypersphereCNN(1, 8, 4)
    z = network.features(torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(z.norm(dim=1), torch.ones(5))
    linear = network.body[-2]
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.zero_()
    z = network.features(torch.zeros(2, 1, 8, 8))
    z.sum().backward()
    assert (z == 0).all()  # the zero vector has no direction, and no NaN
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


def test_points_on_the_circle() -> None:
    found = to_circle([[3.0, 4.0], [0.0, 0.0], [-2.0, 0.0]])
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0], [-1, 0]])
    np.testing.assert_allclose(angles([[0.0, 2.0], [0.0, 0.0], [-1.0, 0.0]]), [np.pi / 2, np.pi])
    with pytest.raises(ValueError, match=r"features of 2 units, \[N, 2\], got \[4, 3\].*hypersphere_cnn"):
        to_circle(np.zeros((4, 3)))


@pytest.mark.parametrize("centre", [0.0, 3.1, -3.1])
def test_the_density_goes_around_the_circle(centre: float) -> None:
    rng = np.random.default_rng(0)
    a = np.angle(np.exp(1j * (centre + 0.3 * rng.normal(size=400))))
    density = angle_density(a, GRID)
    assert np.trapezoid(density, GRID) == pytest.approx(1, abs=1e-3)
    assert density[0] == pytest.approx(density[-1])
    peak = GRID[density.argmax()]
    assert abs(np.angle(np.exp(1j * (peak - centre)))) < 0.15
    turned = angle_density(np.angle(np.exp(1j * (a + 1.0))), np.array([centre + 1.0]))
    assert turned == pytest.approx(angle_density(a, np.array([centre])), rel=1e-9)


def test_the_density_of_few_equal_or_uniform_angles() -> None:
    for a in ([1.0], [1.0] * 50, np.linspace(-np.pi, np.pi, 100, endpoint=False)):
        density = angle_density(a, np.linspace(-np.pi, np.pi, 20001))
        assert np.trapezoid(density, dx=2 * np.pi / 20000) == pytest.approx(1, abs=1e-3)
    assert density.max() / density.min() < 1.01  # uniform
    with pytest.raises(ValueError, match="needs angles, got none"):
        angle_density([], GRID)


def test_the_density_in_the_plane() -> None:
    points = np.random.default_rng(0).normal(size=(500, 2)) * [1.0, 0.5]
    side = np.linspace(-4, 4, 81)
    at = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    density = plane_density(points, at)
    assert density is not None
    assert density.sum() * 0.1**2 == pytest.approx(1, abs=1e-2)
    assert np.abs(at[density.argmax()]).max() < 0.3
    np.testing.assert_allclose(density, gaussian_kde(points.T)(at.T), rtol=1e-9, atol=1e-14)
    assert plane_density(np.ones((9, 2)), at) is None
    assert plane_density(np.array([[0.0, 0], [1, 1], [2, 2]]), at) is None


@pytest.mark.parametrize("count", [1, 2, 300])
def test_a_blurred_density_does_not_fall_through_the_raster(count: int) -> None:
    points = np.array([0.01, 0.99]) + 1e-4 * np.random.default_rng(0).normal(size=(count, 2))
    side, cell = np.linspace(-1.4, 1.4, 70, retstep=True)
    at = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    density = plane_density(points, at, blur=float(cell))
    assert density is not None
    assert density.sum() * cell**2 == pytest.approx(1, abs=1e-3)
    assert np.abs(at[density.argmax()] - points.mean(0)).max() <= cell / 2
    if count > 2:  # as it is without: nothing, or far too much
        sharp = plane_density(points, at)
        assert sharp is not None
        assert abs(sharp.sum() * cell**2 - 1) > 0.5


def test_rows_are_balanced_and_the_same_every_time() -> None:
    y = np.array([0] * 10 + [1] * 3 + [2] * 10)
    rows = balanced_rows(y, 5, seed=1)
    assert np.bincount(y[rows]).tolist() == [5, 3, 5]
    assert (np.diff(rows) > 0).all()
    assert rows.tolist() == balanced_rows(y, 5, seed=1).tolist()
    assert rows.tolist() != balanced_rows(y, 5, seed=2).tolist()


def test_tsne_keeps_neighbours_together_and_repeats() -> None:
    rng = np.random.default_rng(0)
    group = np.arange(60) % 3
    points = rng.normal(size=(3, 8))[group] * 10 + rng.normal(size=(60, 8))
    at = tsne(points, perplexity=10)
    away = np.square(at[:, None] - at).sum(-1) + np.diag(np.full(60, np.inf))
    assert (group[away.argmin(1)] == group).all()
    np.testing.assert_array_equal(at, tsne(points, perplexity=10))
    with pytest.raises(ValueError, match="more points than its perplexity 30, got 20"):
        tsne(points[:20])
    with pytest.raises(ValueError, match="features of 1 unit"):
        tsne(points[:, :1])
