"""Settings that Optuna picks, one trial after the other, by what those before have given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from fedloom.core.errors import SettingError
from fedloom.wording import install

RANGES = "log:LOW:HIGH, uniform:LOW:HIGH or int:LOW:HIGH"


def is_range(values: object) -> TypeGuard[str]:
    """Return whether values are written as a range to pick from, not listed."""
    return isinstance(values, str) and values.partition(":")[0] in ("log", "uniform", "int")


class Search:
    """Optuna's tree-structured Parzen estimator: ten trials at random, then where good ones have been.

    The same space, seed and scores give the same trials, so that a search is taken up again by telling it what the
    trials that are there have given. https://arxiv.org/abs/2304.11127.

    Raises:
        SettingError: Optuna is not installed, or a range is none.
    """

    def __init__(
        self,
        space: Mapping[str, Sequence[Any] | str],
        seed: int,
        maximise: bool,
        first: Sequence[Mapping[str, Any]] = (),  # choices within the space that are picked before any other
    ) -> None:
        try:
            import optuna
        except ImportError as error:
            raise SettingError(f"a search needs Optuna ({error}): {install('search')}") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # the sweep has its own words
        found = {key: _distribution(key, values) for key, values in space.items()}
        sampler = optuna.samplers.TPESampler(seed=seed)
        self._space, self._distributions, self._failed = space, found, optuna.trial.TrialState.FAIL
        self._study = optuna.create_study(direction="maximize" if maximise else "minimize", sampler=sampler)
        for point in first:
            self._study.enqueue_trial({k: v if is_range(space[k]) else space[k].index(v) for k, v in point.items()})

    def pick(self) -> dict[str, Any]:
        """Return the settings to try next; `learn` is told what they give before the next call."""
        self._trial = self._study.ask(self._distributions)
        lists = {key: values for key, values in self._space.items() if not is_range(values)}
        return {key: lists[key][at] if key in lists else at for key, at in self._trial.params.items()}

    def learn(self, score: float | None) -> None:
        """Take the score of the settings picked last; None: the trial failed."""
        self._study.tell(self._trial, score, state=self._failed if score is None else None)


def ends(key: str, text: str) -> tuple[float, float]:
    """Return both ends of a range, of the type that is picked.

    Raises:
        SettingError: the text is no range.
    """
    try:
        kind, low, high = text.split(":")
        return (int(low), int(high)) if kind == "int" else (float(low), float(high))
    except ValueError as error:
        raise _no_range(key, text, error) from None


def _distribution(key: str, values: Sequence[Any] | str) -> Any:
    from optuna import distributions

    if not is_range(values):
        return distributions.CategoricalDistribution(range(len(values)))
    low, high = ends(key, values)
    try:
        if isinstance(low, int):
            return distributions.IntDistribution(low, int(high))
        return distributions.FloatDistribution(low, high, log=values.startswith("log"))
    except ValueError as error:
        raise _no_range(key, values, error) from None


def _no_range(key: str, text: str, error: ValueError) -> SettingError:
    return SettingError(f"{key} needs a range {RANGES}, got {text!r}: {error}")
