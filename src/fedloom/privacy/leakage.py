"""Leakage that is measured with canaries: a lower bound of epsilon, beside the one that was promised.

A canary is put in or left out, and whoever sees what is released guesses which, by a score above a threshold. Of what
guesses are right follows a lower bound of epsilon, whatever the mechanism is, by bounds of Clopper and Pearson:
Jagielski, Ullman, Oprea, "Auditing Differentially Private Machine Learning", NeurIPS 2020, arXiv:2006.07709. Many
independent canaries in one run: Andrew et al., "One-shot Empirical Privacy Estimation for Federated Learning", ICLR
2024, arXiv:2302.03098. With the trade-off of the mechanism's own kind the bound is tighter: Nasr et al., "Tight
Auditing of Differentially Private Machine Learning", USENIX Security 2023, arXiv:2302.07956.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedloom.privacy import accountant

Floats = npt.NDArray[np.float64]

_RISK = 0.05 / 4  # of each bound; there are four
_LEAST = 1e-3  # noise by which scores are made, where there is none
_EPSILONS = np.concatenate([[0.0], np.geomspace(1e-3, 40.0, 400)])  # of a trade-off
_FAR = 64.0  # times more noise, or less, than was promised


@dataclass(frozen=True)
class Canaries:
    """Canaries as whoever looks at each release sees them.

    Attributes:
        inside: of those that are in, by release, [n, T]: what stands in a canary's direction, in clip norms. It is 1
            where the canary was drawn and 0 where not, plus noise.
        outside: of those that are not, [m, T].
        noise: standard deviation of that noise, as the rule says it.
    """

    inside: Floats
    outside: Floats
    noise: float


@dataclass(frozen=True)
class Promise:
    """Privacy as it is counted: `rounds` releases, in each of which one is drawn with probability `rate`."""

    rounds: int
    rate: float
    noise: float
    delta: float

    @property
    def epsilon(self) -> float:
        return accountant.epsilon(self.rounds, self.rate, self.noise, self.delta)

    def most_hits(self, false_alarms: Floats) -> Floats:
        """Return the largest share of those inside that may be found, at shares of false alarms."""
        if not self.noise:
            return np.ones_like(false_alarms)
        deltas = accountant.deltas(_EPSILONS, self.rounds, self.rate, self.noise)[:, None]
        factors, alarms = np.exp(_EPSILONS)[:, None], np.asarray(false_alarms)[None]
        either = np.minimum(factors * alarms + deltas, 1 - (1 - alarms - deltas) / factors)
        return np.asarray(either.min(0).clip(0, 1))


@dataclass(frozen=True)
class Guess:
    """Guesses of one score and threshold, on canaries by which neither was chosen.

    Attributes:
        found: share of those inside that is found.
        accused: share of those outside that is taken for one inside.
        found_at_least: its bound from below.
        accused_at_most: its bound from above.
    """

    found: float
    accused: float
    found_at_least: float
    accused_at_most: float

    def epsilon(self, delta: float) -> float:
        """Return a lower bound of epsilon at a delta, of any mechanism."""
        return float(_epsilon(np.array(self.found_at_least), np.array(self.accused_at_most), delta))


@dataclass(frozen=True)
class Measured:
    """Leakage that was measured. `by_epsilon`, `by_kind`: guesses by which both bounds are made."""

    promise: Promise
    by_epsilon: Guess
    by_kind: Guess

    @property
    def epsilon(self) -> float:
        """Lower bound of epsilon, whatever the mechanism is."""
        return max(0.0, self.by_epsilon.epsilon(self.promise.delta))

    @property
    def allowed(self) -> float:
        """The largest share that the promise lets be found, where `by_kind` accuses as many as it may."""
        return float(self.promise.most_hits(np.array([self.by_kind.accused_at_most]))[0])

    @property
    def epsilon_of_kind(self) -> float:
        """Lower bound of epsilon of a mechanism that differs from the promised one by its noise alone."""
        promise, guess = self.promise, self.by_kind
        low, high = promise.noise / _FAR, promise.noise * _FAR
        if not promise.noise:
            return math.inf
        while high / low > 1.005:
            middle = math.sqrt(low * high)
            fits = replace(promise, noise=middle).most_hits(np.array([guess.accused_at_most]))[0]
            low, high = (middle, high) if fits >= guess.found_at_least else (low, middle)
        return 0.0 if low * 1.01 > promise.noise * _FAR else replace(promise, noise=high).epsilon

    @property
    def kept(self) -> bool:
        """Truth of the promise as far as it shows: nothing that was measured is beyond it."""
        return self.epsilon <= self.promise.epsilon and self.by_kind.found_at_least <= self.allowed


def measured(canaries: Canaries, promise: Promise) -> Measured:
    """Return what canaries show: half of them choose score and threshold, by which the others are guessed."""
    every = [scores(canaries, promise.rate, seen) for seen in (canaries.inside, canaries.outside)]
    each, alarms = list(zip(*every, strict=True)), telling(promise, len(canaries.inside) // 2)
    by_epsilon, by_kind = list[tuple[float, Guess]](), list[tuple[float, Guess]]()
    for inside, outside in each:
        first, other, then, later = inside[::2], outside[::2], inside[1::2], outside[1::2]
        at = np.unique(np.concatenate([first, other]))
        hits, accused = (1 - np.searchsorted(np.sort(s), at) / len(s) for s in (first, other))
        worth = _epsilon(bounds(hits, len(first))[0], bounds(accused, len(other))[1], promise.delta)
        by_epsilon.append((float(worth.max()), guessed(then, later, at[worth.argmax()])))
        threshold = np.quantile(other, 1 - alarms, method="higher")
        by_kind.append((float(np.mean(first > threshold)), guessed(then, later, np.nextafter(threshold, np.inf))))
    return Measured(promise, *(max(found, key=lambda pair: pair[0])[1] for found in (by_epsilon, by_kind)))


def telling(promise: Promise, count: int) -> float:
    """Return the share of false alarms at which so many guesses tell most of how large the noise is."""
    alarms = np.geomspace(min(0.1, 5 / count), 0.2, 50)
    hits, fewer = (replace(promise, noise=noise).most_hits(alarms) for noise in (promise.noise, 1.2 * promise.noise))
    deviation = np.sqrt(hits * (1 - hits) + np.gradient(hits, alarms) ** 2 * alarms * (1 - alarms))
    return float(alarms[np.argmax((hits - fewer) / (deviation + 1e-9))])


def scores(canaries: Canaries, rate: float, seen: Floats) -> tuple[Floats, Floats]:
    """Return two scores of canaries, [n] each, that are high of those inside.

    The likelihood ratio of in to out, if noise is as the rule says; and how much changes from release to release,
    which alone is left where noise repeats.
    """
    square = max(canaries.noise, _LEAST) ** 2
    with np.errstate(divide="ignore"):
        ratios = np.logaddexp(np.log1p(-rate), np.log(rate) + (seen - 0.5) / square).sum(1)
    return ratios, np.abs(np.diff(seen, axis=1)).clip(max=1.0).sum(1)


def guessed(inside: Floats, outside: Floats, threshold: float) -> Guess:
    """Return the guesses of scores at a threshold."""
    hits, alarms = (np.mean(s >= threshold) for s in (inside, outside))
    return Guess(
        float(hits), float(alarms), float(bounds(hits, len(inside))[0]), float(bounds(alarms, len(outside))[1])
    )


def bounds(share: npt.ArrayLike, count: int) -> tuple[Floats, Floats]:
    """Return a lower and an upper bound of the probability of which a share of `count` trials came out.

    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial", Biometrika
    26, 1934.
    """
    from scipy.stats import beta

    came = np.rint(np.asarray(share) * count)
    low = np.where(came > 0, beta.ppf(_RISK, np.maximum(came, 1), count - came + 1), 0.0)
    high = np.where(came < count, beta.ppf(1 - _RISK, came + 1, np.maximum(count - came, 1)), 1.0)
    return low, high


def _epsilon(found: Floats, accused: Floats, delta: float) -> Floats:
    """Return lower bounds of epsilon, of those found and of those not accused."""
    with np.errstate(divide="ignore", invalid="ignore"):
        pairs = np.log((found - delta) / accused), np.log((1 - accused - delta) / (1 - found))
    return np.asarray(np.maximum(*(np.nan_to_num(p, nan=-np.inf) for p in pairs)))
