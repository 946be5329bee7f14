"""A run directory as analyses see it: its history, and some of its rounds computed again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedloom.coordinator import History, Job
from fedloom.coordinator.past import Past
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.task import Task
from fedloom.core.types import Weights
from fedloom.data import Examples
from fedloom.evaluate import classify
from fedloom.experiments.experiment import from_directory

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_CURVE = 10  # rounds of a curve, where none are named: each costs a round of training
_ROOM = 1 << 30  # bytes of models of past rounds to keep: several analyses look at the same ones


class Moment:
    """One round, with the clients of one architecture that trained in it: what they got, made of it, and what came out.

    Raises:
        SettingError: the run has no global model, or none of this architecture's clients trained in this round.
    """

    def __init__(self, studied: Studied, number: int) -> None:
        replay, job = studied.past.replay(number), studied.job
        algorithm, name = job.algorithm, studied.model_name
        models = job.population.models
        start, after = (algorithm.global_models(s, models).get(name) for s in (replay.before, replay.after))
        if start is None or after is None or algorithm.pooled:
            raise SettingError(
                f"{type(algorithm).__name__} has no global model that clients train from, which this compares with"
            )
        mine = {k: w for k, w in replay.trained().items() if job.population.assignment[k] == name}
        if not mine:
            raise SettingError(f"no client with the model {name} trained in round {number}; name another round")
        self._studied, self.number = studied, number
        self.start, self.after = start, after
        self.clients, self.trained = list(mine), list(mine.values())
        y, classes = job.federation.train.y, job.federation.num_classes
        self.rows = [job.federation.partition.rows(k) for k in self.clients]
        own = [y[rows.copy()].cpu().numpy() for rows in self.rows]
        self.counts: Ints = np.array([np.bincount(labels, minlength=classes) for labels in own], np.int64)  # [K, C]

    @cached_property
    def start_accuracy(self) -> Floats:
        """Of the global model that the clients received, by class, [C]."""
        return self._studied.per_class(self.start)

    @cached_property
    def after_accuracy(self) -> Floats:
        """Of the global model after the round, by class, [C]."""
        return self._studied.per_class(self.after)

    @cached_property
    def trained_accuracy(self) -> Floats:
        """Of each client's model after its local training, by class, [K, C]."""
        return np.array([self._studied.per_class(w) for w in self.trained])

    def own(self, i: int) -> Examples:
        """The training examples of the i-th client."""
        return self._studied.job.federation.train.select(self.rows[i])


@dataclass(frozen=True, eq=False)
class Studied:
    """The run in a directory.

    `rounds`: which rounds to look at (all: an empty list; None: the last, and for curves ten of them, evenly).
    `model`: which architecture, where the run has several.
    """

    directory: Path
    rounds: Sequence[int] | None = None
    model: str | None = None

    @classmethod
    def of(
        cls, directory: str | os.PathLike[str], rounds: Sequence[int] | None = None, model: str | None = None
    ) -> Studied:
        """Raises SettingError if there is no run, or a round is not among its rounds."""
        made = cls(Path(directory), rounds, model)
        last = made.last_round
        wrong = [t for t in rounds or () if not 1 <= t <= last]
        if wrong:
            raise SettingError(f"the run in {directory} has the rounds 1 to {last}, got {', '.join(map(str, wrong))}")
        if last < 1:
            raise SettingError(f"the run in {directory} has finished no round yet; resume it first")
        return made

    @cached_property
    def history(self) -> History:
        return History.read(self.directory)

    @cached_property
    def job(self) -> Job:
        return from_directory(self.directory).job()

    @cached_property
    def past(self) -> Past:
        return Past(self.job, self.directory)

    @property
    def last_round(self) -> int:
        return int(self.history.metrics[-1]["round"])

    @property
    def one(self) -> int:
        """The round for analyses of one round: the last one asked for."""
        return max(self.rounds) if self.rounds else self.last_round

    @property
    def several(self) -> list[int]:
        """The rounds for analyses of many."""
        if self.rounds:
            return sorted(set(self.rounds))
        last = self.last_round
        if self.rounds is not None:
            return list(range(1, last + 1))
        return sorted({round(t) for t in np.linspace(1, last, min(last, _CURVE))})

    @cached_property
    def model_name(self) -> str:
        names = list(self.job.population.models)
        if self.model is None and len(names) > 1:
            raise SettingError(f"the run has the models {', '.join(names)}; choose one with --model")
        if self.model is not None and self.model not in names:
            raise SettingError(f"the run has no model {self.model!r}; it has {', '.join(names)}")
        return self.model or names[0]

    @property
    def network(self) -> Model:
        return self.job.population.models[self.model_name]

    @property
    def task(self) -> Task:
        return self.job.population.task

    @property
    def test(self) -> Examples:
        """The global test set.

        Raises:
            SettingError: there is none.
        """
        found = self.job.federation.test
        if found is None:
            raise SettingError(f"the run in {self.directory} has no global test set, which this analysis measures on")
        return found

    def per_class(self, weights: Weights) -> Floats:
        """Accuracies on the global test set by class, [C]."""
        return classify(self.network, weights, self.task, self.test).per_class

    def moment(self, number: int | None = None) -> Moment:
        """A round computed again; the round for analyses of one where none is named. Kept while there is room."""
        at = self.one if number is None else number
        if at in self._moments:
            return self._moments[at]
        made = Moment(self, at)
        models = sum(len(m.trained) + 2 for m in (*self._moments.values(), made))
        if models * tree.nbytes(made.start) <= _ROOM:
            self._moments[at] = made
        return made

    @cached_property
    def _moments(self) -> dict[int, Moment]:
        return {}

    @property
    def logged(self) -> tuple[list[int], Floats]:
        """Rounds after training began whose accuracies by class were logged, and these, [T, C].

        Raises:
            SettingError: there are none.
        """
        kept = [m for m in self.history.metrics if m["round"] > 0 and m.get("class_accuracy") is not None]
        if not kept:
            raise SettingError(
                f"the run in {self.directory} has logged no accuracy by class: it has no global model or no test set"
            )
        return [int(m["round"]) for m in kept], self.history.per_class
