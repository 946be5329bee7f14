"""Bounds of what was guessed by hand, the trade-off of a promise in closed form, and canaries of made-up mechanisms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

pytest.importorskip("dp_accounting")

from fedloom.privacy.leakage import Canaries, Guess, Measured, Promise, bounds, measured, scores, telling


def drawn(count: int, promise: Promise, noise: float, seed: int = 0) -> Canaries:
    """Canaries of the mechanism that is promised, but with this noise."""
    draw = np.random.default_rng(seed)
    shape = count, promise.rounds
    inside = (draw.random(shape) < promise.rate) + noise * draw.normal(size=shape)
    return Canaries(inside, noise * draw.normal(size=shape), promise.noise)


def test_bounds_are_those_of_clopper_and_pearson() -> None:
    """Of none and of all in closed form, and of others where the binomial tail is the risk."""
    low, high = bounds(np.array([0.0, 1.0, 0.3]), 10)
    assert low[0] == 0
    assert high[0] == pytest.approx(1 - 0.0125**0.1)
    assert (low[1], high[1]) == (pytest.approx(0.0125**0.1), 1)
    chances = [sum(math.comb(10, k) * p**k * (1 - p) ** (10 - k) for k in range(4)) for p in (low[2], high[2])]
    assert 1 - chances[0] + math.comb(10, 3) * low[2] ** 3 * (1 - low[2]) ** 7 == pytest.approx(0.0125)  # 3 or more
    assert chances[1] == pytest.approx(0.0125)  # 3 or fewer


def test_epsilon_of_guesses_by_hand() -> None:
    assert Guess(0.6, 0.1, 0.5, 0.2).epsilon(0.1) == pytest.approx(np.log(0.4 / 0.2))
    assert Guess(0.99, 0.5, 0.95, 0.55).epsilon(0.05) == pytest.approx(np.log((1 - 0.55 - 0.05) / 0.05))
    assert Measured(Promise(1, 1.0, 1.0, 0.1), Guess(0, 0, 0.05, 0.9), Guess(0, 0, 0, 1)).epsilon == 0


@pytest.mark.parametrize(("rounds", "noise"), [(1, 1.0), (4, 2.5)])
def test_what_a_promise_allows_is_in_closed_form_where_all_are_drawn(rounds: int, noise: float) -> None:
    alarms = np.array([0.001, 0.05, 0.3])
    most = Promise(rounds, 1.0, noise, 1e-5).most_hits(alarms)
    assert most == pytest.approx(ndtr(ndtri(alarms) + np.sqrt(rounds) / noise), rel=0.01)


def test_scores_by_hand() -> None:
    seen = np.array([[0.5, 1.5, 1.4]])
    ratio, change = scores(Canaries(seen, seen, 0.5), 0.2, seen)
    factors = [0.8 + 0.2 * np.exp((x - 0.5) / 0.25) for x in seen[0]]
    assert ratio == pytest.approx(np.log(np.prod(factors)))
    assert change == pytest.approx(1.1)


@pytest.mark.slow
@pytest.mark.parametrize("promise", [Promise(3, 0.3, 0.6, 1e-3), Promise(2, 1.0, 1.0, 1e-3)])
def test_less_noise_than_was_promised_is_found(promise: Promise) -> None:
    """Half of it, and a fifth less. That epsilon is not far from the true one: the bound is tight."""
    for less, kept in ((1.0, True), (0.8, False), (0.5, False)):
        truth = Promise(promise.rounds, promise.rate, less * promise.noise, promise.delta)
        found = measured(drawn(6000, promise, truth.noise), promise)
        assert found.kept is kept
        assert found.epsilon <= found.epsilon_of_kind <= truth.epsilon
        assert found.epsilon_of_kind > 0.6 * truth.epsilon


def test_half_the_noise_is_found() -> None:
    promise = Promise(1, 1.0, 1.0, 1e-3)
    assert measured(drawn(400, promise, 1.0), promise).kept
    found = measured(drawn(400, promise, 0.5), promise)
    assert not found.kept
    assert promise.epsilon < found.epsilon_of_kind < Promise(1, 1.0, 0.5, 1e-3).epsilon


def test_noise_that_repeats_is_found() -> None:
    draw, promise = np.random.default_rng(0), Promise(6, 0.3, 2.0, 1e-3)
    there, same = draw.random((400, 6)) < 0.3, 2 * draw.normal(size=(2, 400, 1))
    found = measured(Canaries(there + same[0], np.zeros((400, 6)) + same[1], 2.0), promise)
    assert found.epsilon > promise.epsilon
    assert not found.kept


def test_what_shows_nothing_has_no_epsilon() -> None:
    draw, promise = np.random.default_rng(0), Promise(3, 0.5, 1.0, 1e-3)
    nothing = measured(Canaries(draw.normal(size=(500, 3)), draw.normal(size=(500, 3)), 1.0), promise)
    assert nothing.epsilon < 0.3
    assert nothing.epsilon_of_kind < 0.3
    assert nothing.kept


def test_without_noise_nothing_was_promised() -> None:
    draw, promise = np.random.default_rng(0), Promise(3, 0.5, 0.0, 1e-3)
    there = (draw.random((500, 3)) < 0.5) * 1.0
    found = measured(Canaries(there, 0 * there, 0.0), promise)
    assert found.epsilon > 3
    assert found.epsilon_of_kind == np.inf == promise.epsilon
    assert found.kept


def test_false_alarms_that_tell_most_are_few_where_few_are_drawn() -> None:
    assert 5 / 500 <= telling(Promise(5, 0.05, 0.5, 1e-3), 500) < 0.15
