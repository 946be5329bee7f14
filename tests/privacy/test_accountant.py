"""Epsilon beside the same computed otherwise: losses by cells, convolved by FFT; and by Renyi divergences."""

from __future__ import annotations

import itertools
import math
import sys

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.special import ndtr

import fedloom as fl
from convolved_losses import convolved
from fedloom.privacy import accountant


def test_epsilon_of_the_gaussian_alone_is_the_known_one() -> None:
    """Balle and Wang, ICML 2018, theorem 8: k rounds are one with the noise divided by the root of k."""
    for rounds, noise, delta in ((1, 1.0, 1e-5), (10, 3.0, 1e-5), (40, 8.0, 1e-6)):
        found, mu = accountant.epsilon(rounds, 1.0, noise, delta), math.sqrt(rounds) / noise
        assert ndtr(mu / 2 - found / mu) - math.exp(found) * ndtr(-mu / 2 - found / mu) == pytest.approx(
            delta, rel=0.02
        )


def schedules(count: int) -> list[tuple[int, float, float, float]]:
    draw = np.random.default_rng(0)
    found = list[tuple[int, float, float, float]]()
    while len(found) < count:
        rounds, rate = int(10 ** draw.uniform(0, 3.3)), min(1.0, 10 ** draw.uniform(-2.3, 0.3))
        noise, delta = 10 ** draw.uniform(-0.3, 1), 10 ** draw.uniform(-7, -3)
        found.append((rounds, rate, noise, delta))
    return found


@pytest.mark.some(4)
@pytest.mark.parametrize("schedule", schedules(200))
def test_epsilon_is_that_of_losses_that_are_convolved_here(schedule: tuple[int, float, float, float]) -> None:
    found, other = accountant.epsilon(*schedule), convolved(*schedule)
    assert found == pytest.approx(other, rel=0.01)
    assert found > other * (1 - 1e-4)  # it is rounded up


def test_epsilon_is_close_where_it_is_small() -> None:
    schedule = (7, 0.0213, 7.15, 8e-7)
    assert accountant.epsilon(*schedule) == pytest.approx(convolved(*schedule), rel=0.01)


@pytest.mark.parametrize("schedule", [(40, 0.1, 1.0, 1e-5), (1000, 0.01, 0.7, 1e-6)])
@pytest.mark.filterwarnings("ignore")
def test_renyi_divergences_give_a_little_more(schedule: tuple[int, float, float, float]) -> None:
    rounds, rate, noise, delta = schedule
    renyi = RdpAccountant([*range(2, 64)])
    renyi.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), rounds)
    assert accountant.epsilon(*schedule) < renyi.get_epsilon(delta) < 1.3 * accountant.epsilon(*schedule)


def test_rounds_cost_more_and_none_cost_nothing() -> None:
    found = [accountant.epsilon(rounds, 0.1, 1.0, 1e-5) for rounds in range(6)]
    assert found[0] == 0
    assert all(a < b for a, b in itertools.pairwise(found))
    assert accountant.epsilon(3, 0.1, 0.0, 1e-5) == math.inf


@pytest.mark.some(1)
@pytest.mark.parametrize(("most", "rounds", "rate"), [(4.0, 40, 0.1), (2.0, 40, 0.1), (1.0, 5, 0.5), (60.0, 3, 1.0)])
def test_the_noise_that_is_found_is_the_least(most: float, rounds: int, rate: float) -> None:
    noise = accountant.noise_for(most, rounds, rate, 1e-5)
    assert accountant.epsilon(rounds, rate, noise, 1e-5) <= most < accountant.epsilon(rounds, rate, 0.998 * noise, 1e-5)
    assert float(f"{noise:.4g}") == noise


def test_what_no_noise_gives_is_refused() -> None:
    with pytest.raises(fl.SettingError, match="no noise up to 10000 times the clip norm gives epsilon = 1e-09"):
        accountant.noise_for(1e-9, 9, 0.5, 1e-5)


def test_without_the_library_a_run_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    with pytest.raises(fl.SettingError, match=r"counted by dp-accounting \(.*pip install '<PATH>\[privacy\]'"):
        accountant.check_installed()
