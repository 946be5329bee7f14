"""Tuning of the methods of a comparison: each gets the same number of tries, evaluated on validation data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedloom.core.choices import grids
from fedloom.core.errors import SettingError
from fedloom.core.own_steps import OwnSteps
from fedloom.experiments.catalogue import kind, label
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_file import flat
from fedloom.experiments.trials import Sweep, Trial

TRIES = 8
FOLDER = "tuning"  # below that of a comparison: the sweep of each method, by its label
LEARNING_RATE = "local.lr"
_REACH = 10.0  # learning rates are tried from a tenth of the one given to ten times it

With = Literal["grid", "optuna"]
Space = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Tuned:
    """Results of tuning a method.

    Attributes:
        method: its label.
        tried: the values of each setting that was varied.
        chosen: its values of these settings in the trial with the best score on validation examples.
        given_score: the score of the settings as they were given, which is the first try; None if it failed.
        score: the best score.
        experiment: the method with the chosen settings.
        moved: whether other settings than those given were chosen.
    """

    method: str
    tried: Space
    chosen: Mapping[str, Any]
    given_score: float | None
    score: float
    experiment: Experiment
    moved: bool

    @classmethod
    def of(cls, sweep: Sweep, trials: Sequence[Trial]) -> Tuned:
        """Return what the trials of a method's sweep say.

        Raises:
            SettingError: no trial has a score.
        """
        method, ranked = label(sweep.base.algorithm), sweep.ranked(trials)
        if not ranked:
            raise SettingError(
                f"no try of {method} has a score ({trials[0].status}): leave it out, or give it a learning rate with "
                f"which it trains (--set {method}.local.lr=0.01)"
            )
        best, first = ranked[0], trials[0]
        tried = {key: [values] if isinstance(values, str) else list(values) for key, values in sweep.space.items()}
        assert best.score is not None
        return cls(method, tried, best.settings, first.score, best.score, best.experiment, best.what != first.what)


def sweep_of(experiment: Experiment, tries: int = TRIES, by: With = "grid", seed: int = 0) -> Sweep:
    """Return the sweep by which a method is tuned: as many trials as `tries`, the first with the settings given.

    Varied are the settings of the algorithm for which its file declares a `Grid`, and the learning rate, unless the
    algorithm has rates of its own in its place (`OwnSteps`). `by`: points of the grid, each value about equally often,
    or Optuna, within the ends of each grid. `seed`: of this choice.

    Raises:
        SettingError: there are too few settings to try, or Optuna is not installed.
    """
    if tries < 2:
        raise SettingError(f"tuning takes at least 2 tries, the first with the settings given, got {tries}: write 8")
    space = _space(experiment, tries)
    given = {key: flat(experiment.described())[key] for key in space}
    if by == "optuna":
        return Sweep(experiment, {k: _range(v) for k, v in space.items()}, search=tries, seed=seed, points=[given])
    return Sweep(experiment, space, points=spread(experiment, space, given, tries, seed))


def spread(
    experiment: Experiment, space: Space, given: Mapping[str, Any], tries: int, seed: int
) -> list[Mapping[str, Any]]:
    """Return points of a grid: first those given, then each time one whose values were tried least so far.

    With mu = 0.1, 1 and lr = 1, 2, and (1, 2) given, the second point is (0.1, 1), and the third one of the two others,
    drawn by the seed. A point that the algorithm refuses is not counted as a try.

    Raises:
        SettingError: the grid has fewer points.
    """
    values = list(space.values())
    order = np.random.default_rng(seed).permutation(int(np.prod([len(v) for v in values])))
    points = np.stack(np.unravel_index(order, [len(v) for v in values]), axis=1)  # [points, settings]
    counts = [np.zeros(len(v), int) for v in values]
    first = np.array([list(v).index(given[key]) for key, v in space.items()])
    out: list[Mapping[str, Any]] = []
    while len(out) < tries:
        if out:
            if not len(points):
                raise SettingError(f"{label(experiment.algorithm)} has {len(out)} settings to try, got {tries} tries")
            used = sum(count[points[:, place]] for place, count in enumerate(counts))
            first = points[int(np.argmin(used))]
        points = points[(points != first).any(axis=1)]
        point = {key: v[at] for (key, v), at in zip(space.items(), first, strict=True)}
        try:
            experiment.with_all(point)
        except SettingError:
            if not out:
                raise
            continue
        out.append(point)
        for count, at in zip(counts, first, strict=True):
            count[at] += 1
    return out


def _space(experiment: Experiment, tries: int) -> dict[str, list[Any]]:
    """Return the values to try of each setting of a method, with those given among them."""
    algorithm, described = kind(experiment.algorithm), flat(experiment.described())
    space = {f"{label(experiment.algorithm)}.{name}": list(values) for name, values in grids(algorithm).items()}
    if not issubclass(algorithm, OwnSteps):
        steps = np.linspace(-1, 1, max(9, tries | 1))
        space[LEARNING_RATE] = [float(f"{described[LEARNING_RATE] * _REACH**step:.3g}") for step in steps]
    for key, values in space.items():
        if described[key] not in values:
            space[key] = sorted([*values, described[key]], key=lambda v: (v is None, v))
    return space


def _range(values: Sequence[Any]) -> Sequence[Any] | str:
    """Return the range of a grid in the words of a search, or the grid itself where it is no range of numbers."""
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in values) or len(values) < 3:
        return values
    low, high = min(values), max(values)
    if all(isinstance(v, int) for v in values):
        return f"int:{low}:{high}"
    return f"log:{low}:{high}" if low > 0 else f"uniform:{low}:{high}"
