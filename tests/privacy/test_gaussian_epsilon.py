"""Epsilon of Gaussian noise in closed form, beside dp-accounting, and the noise that an epsilon needs."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from fedloom.privacy.gaussian_epsilon import epsilon, noise_for


@pytest.mark.some(6)
@pytest.mark.parametrize("seed", range(200))
def test_it_is_that_of_losses_that_are_composed(seed: int) -> None:
    """Releases of any number and noise, each of which other examples move by two clip norms."""
    draw = np.random.default_rng(seed)
    noise, releases = 10 ** draw.uniform(0.2, 1.5), int(draw.integers(1, 40))
    delta = 10 ** draw.uniform(-8, -3)
    one = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sensitivity=2, value_discretization_interval=0.01 / math.sqrt(releases) * min(1.0, 2 / noise)
    )
    composed = one.self_compose(releases).get_epsilon_for_delta(delta)
    mu = 2 * math.sqrt(releases) / noise
    assert epsilon(mu, delta) == pytest.approx(composed, rel=0.01, abs=1e-3)
    assert epsilon(mu, delta) == pytest.approx(dp_accounting.get_epsilon_gaussian(1 / mu, delta), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("mu", [1e-3, 0.3, 1.0, 5.0, 80.0, 1e4])
def test_it_is_the_least_one_from_above(mu: float) -> None:
    """By the definition, with integrals of the density in the place of the formula where these can be computed."""
    found = epsilon(mu, 1e-5)
    if 0.3 <= mu <= 5:
        x = np.linspace(-12, 12 + mu, 400_001)
        near, far = np.exp(-((x - mu) ** 2) / 2), np.exp(-(x**2) / 2)
        for value, within in ((found, True), (0.999 * found, False)):
            delta = np.trapezoid(np.maximum(near - math.exp(value) * far, 0), x) / math.sqrt(2 * math.pi)
            assert (delta <= 1e-5 * (1 + 1e-6)) == within
    assert 0 <= found <= mu**2 / 2 + mu * math.sqrt(2 * math.log(1e5))


def test_it_is_nothing_without_releases_and_infinite_without_noise() -> None:
    assert epsilon(0.0, 1e-5) == epsilon(1e-6, 1e-5) == 0.0
    assert epsilon(math.inf, 1e-5) == math.inf


@pytest.mark.parametrize("most", [0.01, 0.5, 4.0, 300.0])
@pytest.mark.parametrize("releases", [1, 7])
def test_the_noise_of_an_epsilon_is_the_least_one(most: float, releases: int) -> None:
    noise = noise_for(most, releases, 2.0, 1e-6)
    assert epsilon(2 * math.sqrt(releases) / noise, 1e-6) <= most
    assert epsilon(2 * math.sqrt(releases) / (0.998 * noise), 1e-6) > most
    assert float(f"{noise:.4g}") == pytest.approx(noise, rel=1e-12)
