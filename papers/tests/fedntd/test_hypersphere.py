"""Features on the circle (appendix N)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import gaussian_kde

from analysed import analyse, rows
from fedloom.analyses import AnalysedRun
from fedloom.models import HypersphereCNN
from fedloom_papers.fedntd import hypersphere
from fedloom_papers.fedntd.hypersphere import angle_density, angles, plane_density, to_circle

GRID = np.linspace(-np.pi, np.pi, 721)


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


@pytest.mark.slow
def test_the_density_of_few_equal_or_uniform_angles() -> None:
    for a in ([1.0], [1.0] * 50, np.linspace(-np.pi, np.pi, 100, endpoint=False)):
        density = angle_density(a, np.linspace(-np.pi, np.pi, 20001))
        assert np.trapezoid(density, dx=2 * np.pi / 20000) == pytest.approx(1, abs=1e-3)
    assert density.max() / density.min() < 1.01  # uniform
    with pytest.raises(ValueError, match="needs angles, got none"):
        angle_density([], GRID)


@pytest.mark.parametrize(
    ("angle", "spread"), [([-0.5, 0.5] * 16, np.sqrt(-2 * np.log(np.cos(0.5)))), ([0, np.pi] * 16, np.pi / np.sqrt(3))]
)
def test_the_width_is_by_scotts_rule_and_at_most_that_of_uniform_angles(angle: list[float], spread: float) -> None:
    at, width = np.array([0.0, 0.8, 2.0]), spread / 2  # of 32 angles: 32^(-1/5)
    away = (at[:, None] - np.array(angle))[..., None] + 2 * np.pi * np.arange(-2, 3)
    expected = np.exp(-0.5 * (away / width) ** 2).sum(-1).mean(1) / (width * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(angle_density(angle, at), expected, rtol=1e-6)


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


@pytest.mark.slow
def test_features_on_the_circle(trained: Any, tmp_path: Path) -> None:
    studied = AnalysedRun.of(trained("fedavg", "--model", "hypersphere_cnn", "--rounds", "1"))
    finding, _ = analyse(studied, "hypersphere", tmp_path)
    points = rows(tmp_path / "hypersphere-points.csv")
    assert {str(p["model"]) for p in points} == {
        "global",
        "aggregated",
        *(f"client {k}" for k in studied.replayed().clients),
    }
    np.testing.assert_allclose([np.hypot(p["x"], p["y"]) for p in points], 1, atol=1e-5)
    assert "the radius means nothing" in finding.remarks[0]
    with pytest.raises(ValueError, match="features of 2 units"):
        analyse(AnalysedRun.of(trained("fedntd", "--model", "lenet")), "hypersphere", tmp_path)


def test_the_shading_is_a_density_where_the_points_are() -> None:
    rng, grid = np.random.default_rng(0), np.linspace(-np.pi, np.pi, 5)
    points = {}
    for name, width in (("wide", 0.6), ("narrow", 2e-3)):
        a = 1.2 + width * rng.normal(size=200)
        points[name] = np.stack([np.cos(a), np.sin(a)], 1)
    flat = {name: {0: np.ones(5)} for name in points}
    figure = hypersphere.draw(points, np.zeros(200, np.int64), [0], flat, grid, {})
    for axes, (name, found) in zip(figure.axes[:2], points.items(), strict=True):
        (image,) = axes.images
        density, (left, right, *_) = np.asarray(image.get_array()), image.get_extent()
        cell = (right - left) / len(density)
        assert density.sum() * cell**2 == pytest.approx(1, abs=0.1), name
        centres = left + cell * (np.arange(len(density)) + 0.5)
        assert (centres[0], centres[-1]) == pytest.approx((-1.4, 1.4))
        y, x = np.unravel_index(density.argmax(), density.shape)
        if name == "narrow":
            assert np.abs([centres[x], centres[y]] - found.mean(0)).max() <= cell
