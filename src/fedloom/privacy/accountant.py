"""Epsilon of rounds that sample each client by itself and add Gaussian noise to a sum, by dp-accounting.

Neighbours differ in one client, who is there or not. Numbers are upper bounds, of privacy loss distributions (PLD) that
are rounded up: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots: Tighter Discrete Approximations of
Privacy Loss Distributions", PoPETs 2022, arXiv:2207.04380.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.core.errors import SettingError
from fedloom.wording import install

Floats = npt.NDArray[np.float64]

_DIGITS = 4  # of a noise multiplier that is found
_MOST = 1e4  # beyond which no run learns anything


@functools.cache
def epsilon(rounds: int, rate: float, noise: float, delta: float) -> float:
    """Return epsilon of some rounds at a delta; infinity without noise.

    Args:
        rounds: in each of which one sum is released.
        rate: probability with which each client is in a round.
        noise: standard deviation, as a multiple of what one client adds to the sum at most.
        delta: of (epsilon, delta).
    """
    if not rounds:
        return 0.0
    if not noise:
        return math.inf
    return float(_losses(rounds, rate, noise).get_epsilon_for_delta(delta))


def deltas(epsilons: Floats, rounds: int, rate: float, noise: float) -> Floats:
    """Return the delta of each of some epsilons; else as of `epsilon`, of one round or more, with noise."""
    return np.asarray(_losses(rounds, rate, noise).get_delta_for_epsilon(epsilons))


def noise_for(most: float, rounds: int, rate: float, delta: float) -> float:
    """Return the least noise, to 4 digits, with which rounds have an epsilon up to `most`; else as of `epsilon`.

    Raises:
        SettingError: there is none.
    """
    low = high = 1.0
    while epsilon(rounds, rate, high, delta) > most:
        low, high = high, 2 * high
        if high > _MOST:
            raise SettingError(
                f"no noise up to {_MOST:g} times the clip norm gives epsilon = {most:g} in {rounds} rounds at delta = "
                f"{delta:g}: raise epsilon, or run fewer rounds"
            )
    while low == high or epsilon(rounds, rate, low, delta) <= most:
        low, high = low / 2, low
        if low < 1 / _MOST:
            break  # so large an epsilon says nothing
    while True:
        scale = 10 ** (_DIGITS - 1 - math.floor(math.log10(high)))
        under, over = math.floor(low * scale + 1e-6), round(high * scale)  # whole: halves of floats may stand still
        if over - under < 2:
            return high
        middle = (under + over) // 2 / scale
        fits = epsilon(rounds, rate, middle, delta) <= most
        low, high = (low, middle) if fits else (middle, high)


def check_installed() -> None:
    """Raise SettingError where the library is not installed."""
    _library()


def _library() -> Any:
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise SettingError(f"privacy is counted by dp-accounting ({error}): {install('privacy')}") from None
    return privacy_loss_distribution


def _losses(rounds: int, rate: float, noise: float) -> Any:
    """Return the distribution of the loss of all rounds."""
    step = _step(rate, noise, _interval(1 << (rounds - 1).bit_length(), rate, noise))
    return step.self_compose(rounds)


@functools.cache
def _step(rate: float, noise: float, interval: float) -> Any:
    return _library().from_gaussian_mechanism(noise, value_discretization_interval=interval, sampling_prob=rate)


def _interval(rounds: int, rate: float, noise: float) -> float:
    """Return the width of a cell of losses: small beside the deviation of one round, and of all rounds squared."""
    return min(0.01 / math.sqrt(rounds) * max(1.0, noise**-2), 0.2 * rate / noise)
