"""The loss of a sum of discrete Gaussians, beside the exact one by convolution, and the epsilon of all rounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedloom.privacy.concentrated import correction, epsilon, loss, noise_for, rounded_norm

RESERVE = 60  # numbers on either side of 0


def of_sum(scale: float, clients: int) -> np.ndarray:
    """The exact probabilities of the sum of the noise of some clients."""
    x = np.arange(-RESERVE, RESERVE + 1)
    one = np.exp(-(x**2) / (2 * scale**2), dtype=np.longdouble)
    out = one = one / one.sum()
    for _ in range(clients - 1):
        out = np.convolve(out, one)
    return out


def divergence(p: np.ndarray, shift: int, order: float) -> float:
    """The exact Renyi divergence of a distribution from itself moved by a whole number."""
    here, there = p[shift:], p[: len(p) - shift]
    both = (here > 1e-300) & (there > 1e-300)
    return float(np.log((here[both] ** order * there[both] ** (1 - order)).sum()) / (order - 1))


@pytest.mark.parametrize("scale", [0.75, 1.0, 2.0])
@pytest.mark.parametrize("clients", [1, 2, 5])
@pytest.mark.parametrize("shift", [1, 2])
def test_no_sum_loses_more_than_is_said(scale: float, clients: int, shift: int) -> None:
    exact, said = of_sum(scale, clients), loss(shift, scale, clients, 1)
    for order in (1.1, 2.0, 5.0, 16.0):
        assert divergence(exact, shift, order) <= order * said * (1 + 1e-9)
    assert divergence(exact, shift, 2.0) > 0.5 * 2.0 * shift**2 / (2 * clients * scale**2)  # and it is not far off


def test_a_sum_of_discrete_gaussians_is_none_and_the_correction_holds() -> None:
    """Two of scale 0.75 beside one of the same variance: the largest quotient is within tau, and not within nothing."""
    two = of_sum(0.75, 2)
    x = np.arange(len(two)) - len(two) // 2
    one = np.exp(-(x**2) / (4 * 0.75**2), dtype=np.longdouble)
    middle = np.abs(x) < 12
    off = float(np.abs(np.log(two / (one / one.sum())))[middle].max())
    assert 1e-4 < off <= correction(0.75, 2)
    assert correction(0.75, 2) == pytest.approx(10 * math.exp(-(math.pi**2) * 0.75**2))
    assert correction(0.75, 3) == pytest.approx(10 * (math.exp(-5.551652) + math.exp(-7.402203)), rel=1e-5)
    assert correction(0.75, 1) == 0


def test_the_loss_is_the_least_of_three() -> None:
    assert loss(2.0, 3.0, 4, 10) == pytest.approx(4 / 72, rel=1e-12)  # no correction to speak of
    tau = correction(1.0, 5)
    assert loss(10, 1.0, 5, 4) == pytest.approx(100 / 10 + 4 * tau)
    wide = loss(1, 1.0, 5, 100_000)
    assert wide == pytest.approx((1 / 5 + 2 * tau / math.sqrt(5) + tau**2 * 100_000) / 2)
    assert wide < 1 / 10 + tau * 100_000
    assert math.isinf(loss(1, 0.5, 4, 3))


@pytest.mark.parametrize("dimension", [1, 100, 10_000])
@pytest.mark.parametrize("norm", [0.5, 30.0, 1e6])
def test_rounding_at_random_keeps_the_norm_as_often_as_is_said(norm: float, dimension: int) -> None:
    draw = np.random.default_rng(0)
    vector = draw.normal(size=dimension)
    vector *= norm / np.linalg.norm(vector)
    under, bound = np.floor(vector), rounded_norm(norm, dimension)
    kept = [np.linalg.norm(under + (draw.random(dimension) < vector - under)) <= bound for _ in range(200)]
    assert np.mean(kept) > 1 - math.exp(-0.5)
    assert norm <= bound <= norm + math.sqrt(dimension)


@pytest.mark.slow
def test_epsilon_is_that_of_dp_accounting_and_close_to_the_exact_one() -> None:
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.rdp import rdp_privacy_accountant

    for rho, delta in ((1e-3, 1e-6), (0.1, 1e-5), (2.0, 1e-3)):
        orders = 1 + np.geomspace(1e-2, 1e4, 4000)
        want = rdp_privacy_accountant.compute_epsilon(orders, rho * orders, delta)[0]
        assert epsilon(rho, delta) == pytest.approx(want, rel=1e-4)
        exact = privacy_loss_distribution.from_gaussian_mechanism(
            1 / math.sqrt(2 * rho), value_discretization_interval=1e-4
        ).get_epsilon_for_delta(delta)
        assert exact < epsilon(rho, delta) < 1.25 * exact + 0.02
    assert epsilon(0.0, 1e-5) == 0.0
    assert math.isinf(epsilon(math.inf, 1e-5))


def test_the_least_noise_is_found_to_four_digits() -> None:
    def epsilon_of(noise: float) -> float:
        return epsilon(20 * 0.5 / noise**2, 1e-5)

    found = noise_for(4.0, epsilon_of)
    assert found is not None
    assert epsilon_of(found) <= 4 < epsilon_of(found * (1 - 1e-3))
    assert f"{found:.4g}" == f"{found}"
    assert noise_for(1e-6, epsilon_of) is None
