"""A run directory as analyses see it: its history, and some of its rounds computed again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedloom.coordinator import History, Job
from fedloom.coordinator.replay import RoundReplay
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.task import Task
from fedloom.core.types import Weights
from fedloom.data import Examples
from fedloom.evaluate import classify
from fedloom.experiments.experiment import Experiment
from fedloom.storage.files import path_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_CURVE = 10  # rounds of a curve, where none are named: each costs a round of training
_ROOM = 1 << 30  # bytes of models of past rounds to keep: several analyses look at the same ones


class NobodyTrainedError(SettingError):
    """A round in which no client of an architecture trained: none was sampled, or none of those answered."""


class ReplayedRound:
    """A past round computed again, with the clients of one architecture that trained in it.

    Attributes:
        number: which round.
        start: the global model that the clients received.
        clients: who trained, K of them. May be empty; the rounds that `AnalysedRun.replayed` and
            `AnalysedRun.replayed_rounds` give have at least one.
        trained: the model of each of them after its local training.
        after: the global model after the round.

    Raises:
        SettingError: the run has no global model that clients train from.
    """

    def __init__(self, run: AnalysedRun, number: int) -> None:
        replay, job = run.past.replay(number), run.job
        algorithm, name = job.algorithm, run.model_name
        models = job.population.models
        start, after = (algorithm.global_models(s, models).get(name) for s in (replay.before, replay.after))
        if start is None or after is None or job.trainees.in_one_place:
            raise SettingError(
                f"{type(algorithm).__name__} has no global model that clients train from, which this compares with"
            )
        mine = {k: w for k, w in replay.trained().items() if job.population.assignment[k] == name}
        self._run, self.number = run, number
        self.start, self.after = start, after
        self.clients, self.trained = list(mine), list(mine.values())
        there = job.federation.there(number - 1)
        self.rows = [there.rows(k) for k in self.clients]

    @cached_property
    def counts(self) -> Ints:
        """Training examples of each client by class, [K, C]."""
        federation = self._run.job.federation
        y, classes = federation.train.y, federation.num_classes
        own = [y[rows.copy()].cpu().numpy() for rows in self.rows]
        return np.array([np.bincount(labels, minlength=classes) for labels in own], np.int64).reshape(-1, classes)

    @cached_property
    def start_accuracy(self) -> Floats:
        """Accuracy on the global test set of the model that the clients received, by class, [C]."""
        return self._run.per_class(self.start)

    @cached_property
    def after_accuracy(self) -> Floats:
        """Accuracy on the global test set of the global model after the round, by class, [C]."""
        return self._run.per_class(self.after)

    @cached_property
    def trained_accuracy(self) -> Floats:
        """Accuracy on the global test set of each client's model after its local training, by class, [K, C]."""
        return np.array([self._run.per_class(w) for w in self.trained])

    def own(self, i: int) -> Examples:
        """Return the training examples of the i-th client."""
        return self._run.job.federation.train.select(self.rows[i])


@dataclass(frozen=True, eq=False)
class AnalysedRun:
    """The run in a directory, as analyses look at it.

    Attributes:
        directory: the run's.
        rounds: which rounds to look at. An empty list is all of them; None is the last in which somebody trained, and
            for curves ten of them, evenly.
        model: which architecture, where the run has several.
        allow_code: whether code that the run's settings name may be imported, as of `Experiment.from_directory`.
        client: number or name of the client whose model is looked at, by an analysis that looks at one.
        steps: of an analysis that fits something; None: its own number.
        shadows: how many runs on halves of the examples are trained for membership inference; None: none.
    """

    directory: Path
    rounds: Sequence[int] | None = None
    model: str | None = None
    allow_code: bool = False
    client: int | str | None = None
    steps: int | None = None
    shadows: int | None = None

    @classmethod
    def of(
        cls,
        directory: str | os.PathLike[str],
        rounds: Sequence[int] | None = None,
        model: str | None = None,
        *,
        allow_code: bool = False,
        client: int | str | None = None,
        steps: int | None = None,
        shadows: int | None = None,
    ) -> AnalysedRun:
        """Open the run in a directory.

        Raises:
            SettingError: there is no run, or several, it has finished no round, or a round is not among its rounds.
        """
        made = cls(path_of(directory), rounds, model, allow_code, client, steps, shadows)
        if not (made.directory / "metrics.jsonl").exists():
            Experiment.code_of(made.directory)  # which names the runs below, where there are several
        last = made.last_round
        wrong = [t for t in rounds or () if not 1 <= t <= last]
        if wrong:
            raise SettingError(f"the run in {directory} has the rounds 1 to {last}, got {', '.join(map(str, wrong))}")
        if last < 1:
            raise SettingError(f"the run in {directory} has finished no round yet; resume it first")
        return made

    @cached_property
    def history(self) -> History:
        """Log of the run."""
        return History.read(self.directory)

    @cached_property
    def job(self) -> Job:
        """The run's algorithm, clients and settings, made again from its settings file.

        Raises:
            SettingError: its data drift.
        """
        made = Experiment.from_directory(self.directory, allow_code=self.allow_code).job()
        if made.federation.drift is not None:
            raise SettingError(
                "analyses compare models of several rounds on the same examples, and data.drift makes others of them: "
                "analyse a run without"
            )
        return made

    @cached_property
    def past(self) -> RoundReplay:
        """The run's past rounds, computed again from its checkpoints.

        Raises:
            SettingError: its rounds do not wait.
        """
        found = RoundReplay(self.job, self.directory)
        found.check_waits()
        return found

    @property
    def last_round(self) -> int:
        """The last round that the run has finished."""
        return int(self.history.metrics[-1]["round"])

    @property
    def single_round(self) -> int:
        """The round for analyses of one: the last that was asked for, or else the last of the run."""
        return max(self.rounds) if self.rounds else self.last_round

    @property
    def curve_rounds(self) -> list[int]:
        """The rounds for analyses of many, in rising order."""
        if self.rounds:
            return sorted(set(self.rounds))
        last = self.last_round
        first = min(self.past.files.checkpoints.rounds(), default=0) + 1  # of a branch, after the rounds it took over
        if self.rounds is not None or first >= last:
            return list(range(first, last + 1))
        return sorted({round(t) for t in np.linspace(first, last, min(last + 1 - first, _CURVE))})

    @cached_property
    def model_name(self) -> str:
        """The architecture that is looked at.

        Raises:
            SettingError: the run has several and none is named, or it has none of this name.
        """
        names = list(self.job.population.models)
        if self.model is None and len(names) > 1:
            raise SettingError(f"the run has the models {', '.join(names)}; choose one with --model")
        if self.model is not None and self.model not in names:
            raise SettingError(_unknown(self.model, names))
        return self.model or names[0]

    @property
    def network(self) -> Model:
        """The network of that architecture."""
        return self.job.population.models[self.model_name]

    @property
    def task(self) -> Task:
        """Task that the run's models learn, with the measures of an answer."""
        return self.job.population.task

    def held_out_accuracy(self, models: Mapping[int, Weights]) -> Floats:
        """Return the accuracy of a model for each of K clients on its held-out examples, [K]; each client has some."""
        population, federation = self.job.population, self.job.federation
        assert federation.local_test is not None  # else no client was evaluated
        return np.array(
            [
                classify(
                    population.models[population.assignment[k]], w, self.task,
                    federation.train.select(federation.local_test.rows(k)),
                ).accuracy
                for k, w in models.items()
            ]
        )  # fmt: skip

    def require_classes(self, what: str) -> None:
        """Raise SettingError where the data have one class only; `what` needs two."""
        if (C := self.job.federation.num_classes) < 2:
            raise SettingError(f"{what} needs at least two classes, got {C}")

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
        """Return the accuracies of a model on the global test set by class, [C]."""
        return classify(self.network, weights, self.task, self.test).per_class

    def replayed(self, number: int | None = None) -> ReplayedRound:
        """Compute a round again, and keep it while there is room; by default the one for analyses of one round.

        The default is the last round asked for, or else the last in which somebody trained.

        Raises:
            NobodyTrainedError: nobody trained in this round or, where none is named, in any.
        """
        if number is None and not self.rounds:
            for t in range(self.last_round, 0, -1):
                with suppress(NobodyTrainedError):
                    return self.replayed(t)
            raise NobodyTrainedError(f"no client with the model {self.model_name} trained in any round of this run")
        return self._somebody_trained(self._computed(self.single_round if number is None else number))

    def replayed_rounds(self) -> Iterator[ReplayedRound]:
        """Yield the rounds for analyses of many, in rising order, without those in which nobody trained.

        Raises:
            NobodyTrainedError: nobody trained in a round that was named, or in any of the rounds.
        """
        empty = True
        for t in self.curve_rounds:
            made = self._computed(t)
            if made.clients or self.rounds:
                yield self._somebody_trained(made)
                empty = False
        if empty:
            raise NobodyTrainedError(
                f"no client with the model {self.model_name} trained in the rounds {_some(self.curve_rounds)}; "
                "name others with --rounds"
            )

    def left_out(self, seen: Iterable[int]) -> list[str]:
        """Return a sentence about the rounds that `replayed_rounds` left out, given those that it gave.

        The list is empty where it left out none.
        """
        without = sorted(set(self.curve_rounds) - set(seen))
        if not without:
            return []
        return [f"Left out: no client with the model {self.model_name} trained in {_named(without)}."]

    def aggregated(self) -> tuple[int, Weights]:
        """Return the last round, or the last one asked for, and the global model after it, whoever trained in it."""
        made = self._computed(self.single_round)
        return made.number, made.after

    def _somebody_trained(self, made: ReplayedRound) -> ReplayedRound:
        if not made.clients:
            raise NobodyTrainedError(
                f"no client with the model {self.model_name} trained in round {made.number}; name another round"
            )
        return made

    def _computed(self, number: int) -> ReplayedRound:
        if number in self._kept:
            return self._kept[number]
        made = ReplayedRound(self, number)
        models = sum(len(m.trained) + 2 for m in (*self._kept.values(), made))
        if models * tree.nbytes(made.start) <= _ROOM:
            self._kept[number] = made
        return made

    @cached_property
    def _kept(self) -> dict[int, ReplayedRound]:
        return {}

    def logged_accuracy(self) -> LoggedAccuracy:
        """Return the accuracies by class that the run has logged, after the rounds since training began.

        Where one round is asked for, the rounds end with it, as if the run had ended there. Where several are asked
        for, all rounds until the last of them are returned, and those asked for are marked in `shown`.

        Raises:
            SettingError: the run has logged none, or one of several models is named and the log holds their mean.
        """
        kept = [int(m["round"]) for m in self.history.metrics if m["round"] > 0 and m.get("class_accuracy") is not None]
        if not kept:
            raise SettingError(
                f"the run in {self.directory} has logged no accuracy by class: it has no global model or no test set"
            )
        names = list(self.history.manifest.get("models", ()))
        if names and self.model not in (None, *names):
            raise SettingError(_unknown(str(self.model), names))
        if self.model is not None and len(names) > 1:
            raise SettingError(
                f"the run has logged accuracies by class as a mean over the models {', '.join(names)}, and not of "
                f"{self.model} alone: leave --model out"
            )
        until = sum(t <= max(self.rounds) for t in kept) if self.rounds else len(kept)
        named = set(self.rounds or ())
        asked = named if len(named) > 1 else set(kept)
        remarks = [f"Mean over the models {', '.join(names)}, weighted by their clients."] if len(names) > 1 else []
        remarks += [f"Unproved: {self.history.unproved}."] if self.history.unproved else []
        rounds = kept[:until]
        if len(rounds) < rounds[-1]:
            remarks.append(f"The global model was evaluated in {len(rounds)} of {rounds[-1]} rounds: what is said of")
            remarks[-1] += " earlier rounds is of these."
        return LoggedAccuracy(
            rounds, self.history.per_class[:until], np.array([t in asked for t in rounds]), len(kept), remarks
        )


@dataclass(frozen=True, eq=False)
class LoggedAccuracy:
    """Accuracies of the global model by class as the run has logged them."""

    rounds: list[int]  # [T]
    per_class: Floats  # [T, C]
    shown: npt.NDArray[np.bool_]  # [T], which rounds were asked for
    total: int  # rounds in the log, those after T included
    remarks: list[str]  # of which models they are, and what nothing proves of them


def _unknown(name: str, names: Iterable[str]) -> str:
    return f"the run has no model {name!r}; it has {', '.join(names)}"


def _some(rounds: Sequence[int]) -> str:
    """List rounds: 1, 2, 3; of many: 1, 2, 3, ... 50."""
    return ", ".join(map(str, rounds)) if len(rounds) <= 12 else f"{', '.join(map(str, rounds[:3]))}, ... {rounds[-1]}"


def _named(rounds: Sequence[int]) -> str:
    return f"round{'s' * (len(rounds) > 1)} {', '.join(map(str, rounds))}"
