"""A sweep: one experiment with many settings, and the choice between them on validation data."""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from fedloom.coordinator.descriptions import plain
from fedloom.coordinator.history import History
from fedloom.coordinator.job import Job
from fedloom.coordinator.record_entries import chosen, measures_for
from fedloom.coordinator.rounds import OnHistory
from fedloom.coordinator.trial_round import try_round
from fedloom.core.errors import ClientError, FedloomError, SettingError, SettingWarning, warn
from fedloom.evaluate.measure import VALIDATION, Measure
from fedloom.experiments import catalogue
from fedloom.experiments.catalogue import label
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.federations import Federations
from fedloom.experiments.mirrors import mirrored_below
from fedloom.experiments.problem import of_problem
from fedloom.experiments.search import RANGES, Search, ends, is_range
from fedloom.experiments.settings_file import flat
from fedloom.experiments.sweep_directory import check_sweep
from fedloom.storage import files
from fedloom.storage.output import as_csv
from fedloom.storage.strict_json import document
from fedloom.wording import did_you_mean

LAST = 3  # measurements whose mean is a run's score: one alone is noisy, the best of all of them too good

_MOST = 10_000  # trials


@dataclass(frozen=True)
class Trial:
    """One choice of settings, and what came of it.

    Attributes:
        number: of the trial, from 0.
        settings: those that the sweep varies.
        experiment: all settings.
        status: "waiting", "done", "as trial-003" (the same settings, not run again) or "failed: why".
        score: mean over the seeds of the mean of the sweep's measure over its last three measurements.
        std: standard deviation (n - 1) of the score over the seeds, None with one seed.
        measures: each measure, taken in the same rounds in the same way.
    """

    number: int
    settings: Mapping[str, Any]
    experiment: Experiment
    status: str = "waiting"
    score: float | None = None
    std: float | None = None
    measures: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def what(self) -> str:
        """All settings as a text, the same for the same settings."""
        return json.dumps(plain(self.experiment.described()), sort_keys=True)

    @property
    def name(self) -> str:
        """The name of the trial's folder, which has one run for each seed."""
        return f"trial-{self.number:03}"


class Train(Protocol):
    """Function that runs a job; the command line adds a progress bar."""

    def __call__(self, name: str, job: Job, directory: Path, *, resume: bool, on_round: OnHistory) -> History: ...


@dataclass(frozen=True, eq=False)
class Sweep:
    """`base` with every choice of settings in `space`: the product of the lists, or `search` trials that Optuna picks.

    Attributes:
        base: the experiment that is varied.
        space: values by setting as in a settings file (`local.lr`, `fedntd.beta`, or `beta` for the algorithm's own); a
            list, or in a search also a range, `log:0.001:1`, `uniform:0:1` or `int:1:5`.
        by: the measure to choose by; the default stands for the headline on validation examples.
        seeds: each trial is run with all of them (default: that of `base`).
        search: so many trials, each picked by what those before gave, instead of the product (`experiments.search`).
        seed: of the search; a longer one with the same seed begins with the same trials.
        points: choices within `space` that are tried instead of the whole product, or before what a search picks.

    Raises:
        SettingError: a setting or a value is wrong, two trials are the same, or `by` is not measured.
    """

    base: Experiment
    space: Mapping[str, Sequence[Any] | str]
    by: str = VALIDATION
    seeds: Sequence[int] | None = None
    search: int | None = None
    seed: int = 0
    points: Sequence[Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        seeds = (self.base.run.seed,) if self.seeds is None else tuple(self.seeds)
        object.__setattr__(self, "seeds", seeds)
        object.__setattr__(self, "space", self._named())
        if not seeds or len(set(seeds)) < len(seeds):
            raise SettingError(f"a sweep needs at least one seed, each once, got {list(seeds)}")
        tunable = list(self.measures)
        if self.by == VALIDATION:
            object.__setattr__(self, "by", tunable[0])
        if self.by not in tunable:
            raise SettingError(
                f"a sweep chooses by one of {', '.join(tunable)}, got {self.by!r}{did_you_mean(self.by, tunable)}"
            )
        if self.search is not None and not 1 <= self.search <= _MOST:
            raise SettingError(f"search must be in 1..{_MOST:,} trials, got {self.search:,}")
        for trial in self._shown:
            if self.measure.tunable == "local_val" and not trial.experiment.data.val_fraction:
                raise SettingError(
                    f"{self.by} is measured on validation examples, and data.val_fraction is 0: hold some out with "
                    "data.val_fraction (--val-fraction 0.2) [FL-RUN-012]"
                )
        if self.measure.tunable in ("test", "local_test"):
            warn(
                f"{self.by} is measured on test data: selecting by it reports too good a number; hold out validation "
                f"examples (data.val_fraction) and select by {tunable[0]}",
                SettingWarning,
            )

    @cached_property
    def measures(self) -> dict[str, Measure]:
        """The measures that a sweep of this task can choose by, that of validation examples first, parts' own last."""
        run = self.base.run
        main, *others = chosen(catalogue.task(self.base.task), run.measures, run.headline)
        own = [column for name in self.base.parts for column in catalogue.part(name).columns if column.better]
        return {one.name: one for one in (*measures_for(main, others).values(), *own) if one.tunable}

    @property
    def measure(self) -> Measure:
        """The measure to choose by."""
        return self.measures[self.by]

    @property
    def count(self) -> int:
        """Number of trials."""
        return len(self.trials) if self.search is None else self.search

    @property
    def problems(self) -> tuple[str, ...]:
        """Varied settings that change the problem, such as the partition; where there are any, no trial is the best."""
        return tuple(key for key in self.space if of_problem(key))

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """Every trial of the product, before it is run; () of a search, which picks them as it goes."""
        if self.search is not None:
            return ()
        for key, values in self.space.items():
            if is_range(values):
                raise SettingError(f"{key} = {values} is searched: say how many trials (--search 20), or list values")
        if self.points is None and (count := math.prod(map(len, self.space.values()))) > _MOST:
            raise SettingError(f"a sweep has at most {_MOST:,} trials, got {count:,}: search among them (--search 20)")
        every = (dict(zip(self.space, values, strict=True)) for values in itertools.product(*self.space.values()))
        found: dict[str, Trial] = {}
        for point in self.points or every:
            trial = self._trial(len(found), point)
            if found.setdefault(trial.what, trial) is not trial:
                raise SettingError(f"each choice of settings is named once, got {_said(trial)} again; drop the repeats")
        return tuple(found.values())

    def run(
        self,
        directory: str | os.PathLike[str],
        *,
        resume: bool = False,
        on_trial: Callable[[Trial], None] | None = None,
        train: Train | None = None,
    ) -> list[Trial]:
        """Run every trial with every seed in DIRECTORY/trial-000/seed-0, ...; a failing trial stops no other.

        sweep.json (what was asked for) is written before the first trial, sweep.csv (one row per trial) after each,
        best.json (settings of the best trial, as a settings file) after the last, where all are on one problem.
        `resume`: go on with the sweep that is there, bit for bit; a search may have become longer. `on_trial` is called
        after each trial, `train` runs a job.

        Raises:
            SettingError: the settings of a trial contradict each other or the data, its code fails on its first batch
                (which is tried unless `resume`), `directory` holds a sweep or a run, or another sweep than this.
            StorageError: a file cannot be written, or one of a run is damaged.
        """
        folder, federations = files.path_of(directory), Federations()
        self._begin(folder, federations, resume)
        search, trials, tried = self._search(), list(self.trials), dict[str, Trial]()
        for number in range(self.count):
            if search is not None:
                trials.append(self._picked(number, search.pick(), federations))
            trial = trials[number]
            if trial.status != "waiting":
                pass  # its values do not fit together
            elif (same := tried.get(trial.what)) is not None:
                trials[number] = replace(same, number=number, status=f"as {same.name}")
            else:
                trials[number] = tried[trial.what] = self._tried(trial, folder, federations, resume, train or _run)
            if search is not None:
                search.learn(trials[number].score)
            files.write(folder, "sweep.csv", self._table(trials).encode())
            if on_trial is not None:
                on_trial(trials[number])
        if (best := self.ranked(trials)) and not self.problems:
            files.write(folder, "best.json", document(plain(best[0].experiment.described())))
        return trials

    def begin(self, directory: str | os.PathLike[str]) -> dict[str, Experiment]:
        """Write sweep.json, as `run` does, and return the run of every trial and seed by its folder; none is run.

        A sweep that is there goes on.

        Raises:
            SettingError: as of `run`; or it is a search, which picks a trial by the results of those before.
            StorageError: a file cannot be written.
        """
        if self.search is not None:
            raise SettingError(
                f"a search picks each trial by the results of earlier ones, got search = {self.search}: list the "
                "values (--over KEY=V1,V2,...), whose runs are known before"
            )
        folder = files.path_of(directory)
        self._begin(folder, Federations(), resume=(folder / "sweep.json").exists())
        return {place: experiment for trial in self.trials for place, experiment in self._runs(trial).items()}

    def _begin(self, folder: Path, federations: Federations, resume: bool) -> None:
        """Check every trial, before the first is run, and write sweep.json."""
        asked = self._asked()
        check_sweep(folder, asked, resume)
        for trial in self._shown:
            self._check(trial, federations)
        for trial in () if resume else self._shown:
            self._try(trial, federations)
        files.make(folder)
        files.write(folder, "sweep.json", document(asked))

    def ranked(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials that have a score, best first; of equals, the one tried first comes first.

        On several problems they come in the order in which they were tried.
        """
        if self.problems:
            return [t for t in trials if t.score is not None]
        sign = 1.0 if self.measure.better == "low" else -1.0
        scored = [(sign * t.score, t.number, t) for t in trials if t.score is not None]
        return [trial for *_, trial in sorted(scored, key=lambda s: s[:2])]

    # ---- which trials

    def _named(self) -> dict[str, Sequence[Any] | str]:
        """Return the space by full names of settings."""
        own, known = label(self.base.algorithm), flat(self.base.described())
        out: dict[str, Sequence[Any] | str] = {}
        for given, values in self.space.items():
            key = given if Experiment.knows(given) or given.startswith(f"{own}.") else f"{own}.{given}"
            close = [k for k in known if k.endswith(f".{given}")]
            if close and key not in known and not Experiment.knows(given):
                raise SettingError(f"{own} has no setting {given!r}; did you mean {' or '.join(close)}?")
            if key in ("algorithm", "run.seed"):
                remedy = "sweep each on its own" if key == "algorithm" else "name seeds instead (--seed 0,1,2)"
                raise SettingError(f"a sweep chooses between settings of one algorithm, not by {key}: {remedy}")
            if key in out:
                raise SettingError(f"each setting is named once, got {key} again")
            if not isinstance(values, Sized) or not len(values) or (isinstance(values, str) and not is_range(values)):
                raise SettingError(f"{key} needs a list of values or a range {RANGES}, got {values!r}")
            out[key] = values
        if not out:
            raise SettingError("a sweep needs at least one setting to vary (--over local.lr=0.01,0.1)")
        return out

    def _search(self) -> Search | None:
        maximise = self.measure.better == "high"
        return None if self.search is None else Search(self.space, self.seed, maximise, self.points or ())

    @cached_property
    def _shown(self) -> Sequence[Trial]:
        """Trials that show what is wrong: all, or of a search each listed value and both ends of each range."""
        if self._search() is None:  # which checks ranges
            return self.trials
        shown = {key: ends(key, values) if is_range(values) else values for key, values in self.space.items()}
        return [self._trial(0, {key: value}) for key, values in shown.items() for value in values]

    def _trial(self, number: int, picked: Mapping[str, Any]) -> Trial:
        experiment = self.base.with_all(picked)
        described = flat(experiment.described())
        return Trial(number, plain({key: described.get(key) for key in picked}), experiment)

    def _picked(self, number: int, picked: Mapping[str, Any], federations: Federations) -> Trial:
        """Make a trial of a search; it has failed where its values, each checked before, do not fit together."""
        try:
            trial = self._trial(number, picked)
            self._check(trial, federations)
        except SettingError as error:
            return Trial(number, plain(picked), self.base, f"failed: {error}")
        return trial

    def _runs(self, trial: Trial) -> dict[str, Experiment]:
        """Return the experiment for each seed, by the place of its run."""
        seeded = {f"{trial.name}/seed-{s}": trial.experiment.changed("run.seed", s) for s in self.seeds or ()}
        return {place: mirrored_below(experiment, place) for place, experiment in seeded.items()}

    def _check(self, trial: Trial, federations: Federations) -> None:
        """Raise SettingError if a trial cannot be run, or not be evaluated. Warnings come when it is run."""
        experiments = list(self._runs(trial).values())
        for experiment in experiments:
            federation = federations.of(experiment)
            part = self.measure.tunable
            if getattr(federation, part) is None:
                raise SettingError(
                    f"{self.by} is measured on {part}, which this federation lacks: hold examples out (val_fraction, "
                    "test_fraction, test), or choose by something else"
                )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SettingWarning)
                job = experiment.job(federation)
            job.check()

    def _try(self, trial: Trial, federations: Federations) -> None:
        """Compute one batch of a trial by its first seed. Raise SettingError if its code fails."""
        first, *_ = self._runs(trial).values()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SettingWarning)
            job = federations.job(first)
        try_round(job, each="trial of a sweep", which=f"that with {_said(trial)}")

    # ---- what is in the directory

    def _asked(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(
            {
                "format": 1,
                "base": self.base.described(),
                "space": {key: values if is_range(values) else list(values) for key, values in self.space.items()},
                "by": self.by,
                "seeds": self.seeds,
                "search": self.search,
                "seed": self.seed,
                "trials": {trial.name: trial.settings for trial in self.trials},
            }
        )
        return found

    def _table(self, trials: Sequence[Trial]) -> str:
        rows: list[list[Any]] = [["trial", "status", *self.space, "score", "score_std", *self.measures]]
        for t in trials:
            measures = [t.measures.get(name) for name in self.measures]
            rows.append([t.name, t.status, *(t.settings[key] for key in self.space), t.score, t.std, *measures])
        return as_csv(rows)

    # ---- trying

    def _tried(self, trial: Trial, folder: Path, federations: Federations, resume: bool, train: Train) -> Trial:
        found: list[dict[str, float]] = []
        for place, experiment in self._runs(trial).items():
            try:
                job = federations.job(experiment)
                history = train(place, job, folder / place, resume=resume, on_round=self._stop_if_unmeasured)
                found.append(self._ended(history))
            except (ClientError, _UnmeasuredError) as error:
                return replace(trial, status=f"failed: seed {experiment.run.seed}: {error}")
        common = [name for name in self.measures if all(name in measures for measures in found)]
        scores = [measures[self.by] for measures in found]
        return replace(
            trial,
            status="done",
            score=statistics.fmean(scores),
            std=statistics.stdev(scores) if len(scores) > 1 else None,
            measures={name: statistics.fmean(measures[name] for measures in found) for name in common},
        )

    def _stop_if_unmeasured(self, history: History) -> None:
        """Raise where no later round will tell more: the record before training has the measure, be it undefined."""
        part = self.measure.tunable
        evaluated = "global_loss" if part == "test" else self.by
        if part != "partition" and evaluated not in history.metrics[0]:
            raise _UnmeasuredError(
                f"this run does not measure {self.by}: its data or its algorithm have nothing to measure it on"
            )

    def _ended(self, history: History) -> dict[str, float]:
        """Return each measure at the end of a run: its mean over the last rounds that have the measure to choose by."""
        if at_end(history, self.by, self.by) is None:
            raise _UnmeasuredError(
                f"{self.by} is not known at the end of this run: it was not measured or is not finite"
            )
        found = {name: at_end(history, name, self.by) for name in self.measures}
        return {name: value for name, value in found.items() if value is not None}


def at_end(history: History, name: str, by: str) -> float | None:
    """Return a number at the end of a run, as a sweep reads it: its mean over the last rounds that have `by`.

    `by` is the measure that trials are compared by. What was measured before training is left out. It is None where
    none of these rounds has the number, and where `by` was undefined in one of them, as of a run that diverged: without
    that round the trial would look the better.
    """
    rounds = [m for m in history.metrics if m["round"] > 0 and by in m][-LAST:]
    values = [m[name] for m in rounds if m.get(name) is not None]
    return statistics.fmean(values) if values and all(m[by] is not None for m in rounds) else None


class _UnmeasuredError(FedloomError):
    """A run has no score."""


def _run(name: str, job: Job, directory: Path, *, resume: bool, on_round: OnHistory) -> History:
    return job.run(directory, resume=resume, on_round=on_round)


def _said(trial: Trial) -> str:
    return ", ".join(f"{key} = {value}" for key, value in trial.settings.items())
