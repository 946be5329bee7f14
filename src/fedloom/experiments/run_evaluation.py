"""The measures of a trained model on new rows, with intervals, over all rows and by site."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.coordinator.job import Job
from fedloom.core.errors import SettingError, SettingWarning, warn
from fedloom.core.task import Task, targets_of
from fedloom.core.task_measures import TaskMeasure, chosen_measures, measures_of
from fedloom.evaluate.accuracy import RowResults, evaluate_rows
from fedloom.evaluate.bootstrap import LEAST_ROWS, RESAMPLES, Interval, intervals
from fedloom.experiments.prediction_rows import NewRows, RowReader, held_out_by
from fedloom.experiments.predictions import opened, write_table
from fedloom.experiments.trained_model import ModelAfterRound, task_of, trained_model


@dataclass(frozen=True, eq=False)
class RunEvaluation:
    """Measures of a trained model on N rows, each with its 95 % bootstrap interval.

    Attributes:
        measures: over all rows, by name.
        by_site: over the rows of each client or site, of those with 30 rows or more; nothing where rows have none.
        few: the sites with fewer rows, and how many they have.
        sizes: the number of rows of each site.
        rows: N.
        loss: mean loss over all rows.
        whose: "global model", or "model of client 3".
        round: after which it was taken.
        described: what the measures are, by name.
        threshold: from which probability the answer is class 1, where validation chose it in the run; else None.
        trained_on: the number of rows that equal a training row of the run in inputs and target; None where training
            rows are not known, as those of devices.
    """

    measures: dict[str, Interval]
    by_site: dict[str, dict[str, Interval]]
    few: dict[str, int]
    sizes: dict[str, int]
    rows: int
    loss: float
    whose: str
    round: int
    described: dict[str, TaskMeasure]
    threshold: float | None = None
    trained_on: int | None = None

    def table(self) -> Iterator[list[object]]:
        """Yield the header of a table, then a row for each site and measure; the site of all rows is ""."""
        yield ["site", "rows", "measure", "value", "low", "high", "resamples"]
        whole = "", self.rows, self.measures
        for site, size, measured in [whole, *((site, self.sizes[site], of) for site, of in self.by_site.items())]:
            for name, of in measured.items():
                yield [site, size, name, *(_cell(v) for v in (of.value, of.low, of.high)), of.defined]

    def csv(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the table of all measures, with empty cells where one is undefined, and return the path.

        Raises:
            SettingError: the file exists, unless `overwrite`.
        """
        return write_table(path, self.table(), overwrite)


def _cell(value: float) -> object:
    return value if np.isfinite(value) else ""


def evaluate_run(
    run: str | os.PathLike[str],
    data: Any = None,
    *,
    client: int | str | None = None,
    at: int | str | None = None,
    model: str | None = None,
    measures: Sequence[str] = (),
    resamples: int = RESAMPLES,
    seed: int = 0,
    job: Job | None = None,
    allow_code: bool = False,
    on_hundredth: Callable[[int], None] | None = None,
) -> RunEvaluation:
    """Return the measures of a model of a finished run on new rows with targets, each with its 95 % interval.

    The interval is the percentile bootstrap's: rows are drawn again with replacement, `resamples` times. Sites are the
    clients that the data name: a column `client`, the files of a pattern, or the natural clients of a source. Rows that
    equal training rows of the run are measured too, with a warning where chance does not explain their number.

    Args:
        run: the run's directory.
        data: rows as of `predict`, with their classes or targets; None: what `client` itself holds out in the run.
        client: number or name of a client, for its personal model; None: the global model.
        at: a round that was kept, or "best": the best round on validation data; None: the last.
        model: which architecture of the global model, where there are several.
        measures: names of measures of the run's task; none: all.
        resamples: of each interval.
        seed: of the resamples.
        job: what the run was, where it was started from Python with objects of its own.
        allow_code: whether code that the run's settings name may be imported.
        on_hundredth: called with 1 to 100, as so many hundredths of the intervals are done.

    Raises:
        SettingError: as of `predict`, the task has no such measure, or classes are not those of the run; without data,
            no client is named, or it holds nothing out here.
        ValueError: a file breaks a rule of its format, or there are no targets.
    """
    if data is None and client is None:
        raise SettingError(
            "a model is evaluated on rows, and none are named: give new ones (--data FILE), or a client that holds "
            "some out (--client NAME)"
        )
    job, experiment = opened(run, job, allow_code)
    own = held_out_by(job.federation, client) if data is None else None
    found = trained_model(run, job, client=client, at=at, model=model)
    if own is not None:
        data = NewRows(job.federation.at(max(0, found.round - 1)).train.select(own), own)
    reader = RowReader(job.federation.train, experiment, job.federation.partition.indices)
    by = task_of(found, run)
    return evaluate_by(
        found,
        reader,
        by,
        data,
        headline=job.settings.headline,
        measures=measures,
        resamples=resamples,
        seed=seed,
        on_hundredth=on_hundredth,
    )


def evaluate_by(
    found: ModelAfterRound,
    reader: RowReader,
    by: tuple[Task, float | None],
    data: Any,
    *,
    headline: str = "",
    measures: Sequence[str] = (),
    resamples: int = RESAMPLES,
    seed: int = 0,
    on_hundredth: Callable[[int], None] | None = None,
) -> RunEvaluation:
    """Return the measures of a trained model on new rows; `by`: the task with its threshold, as `task_of` returns them.

    Raises:
        SettingError: as of `evaluate_run`.
    """
    if resamples < 1:
        raise SettingError(f"resamples must be at least 1, got {resamples}: 1000 is usual")
    if seed < 0:
        raise SettingError(f"seed of the resamples must be at least 0, got {seed}: choose one (--seed 0)")
    task, threshold = by
    names = chosen_measures(task, measures or tuple(measures_of(task)), headline)
    new = reader.read(data, with_targets=True)
    if targets_of(task) == "labels" and not bool(((y := new.examples.y) == 0).logical_or(y == 1).all()):
        other = y[(y != 0) & (y != 1)][0]
        raise SettingError(
            f"labels are 0 or 1, got {float(other):g} in {new.examples.name}: mend its columns of labels"
        )
    trained_on = reader.trained_on(new.examples)
    if trained_on is not None and trained_on.is_notable:
        warn(
            f"{trained_on.count:,} of {trained_on.rows:,} rows equal training rows of the run in inputs and target "
            f"(by chance {trained_on.by_chance:.0%}): measures on these are not those of new rows; leave them out, or "
            "evaluate on rows that no client trained on",
            SettingWarning,
        )
    results = evaluate_rows(found.model, found.weights, task, names, new.examples)
    sites = np.array(new.sites, object)
    sizes = {site: int((sites == site).sum()) for site in dict.fromkeys(new.sites)}
    few = {site: size for site, size in sizes.items() if size < LEAST_ROWS}
    drawn = resamples * (len(new.examples) + sum(size for site, size in sizes.items() if site not in few))
    on_rows = None if on_hundredth is None else _hundredths(drawn, on_hundredth)

    def measured(rows: RowResults) -> dict[str, Interval]:
        """Return the measures of some rows, the headline first."""
        found = intervals(rows, task, resamples=resamples, seed=seed, on_rows=on_rows)
        return {names[0]: found[names[0]], **found}

    by_site = {site: measured(results.select(np.flatnonzero(sites == site))) for site in sizes if site not in few}
    known = measures_of(task)
    return RunEvaluation(
        measures=measured(results),
        by_site=by_site,
        few=few,
        sizes=sizes,
        rows=len(new.examples),
        loss=results.loss,
        whose=found.whose,
        round=found.round,
        threshold=threshold,
        trained_on=None if trained_on is None else trained_on.count,
        described={name: known[name] for name in names},
    )


def _hundredths(whole: int, on_hundredth: Callable[[int], None]) -> Callable[[int], None]:
    """Return a function that adds up work of which `whole` is all, and tells of each hundredth that is done."""
    done = 0

    def add(work: int) -> None:
        nonlocal done
        before, done = 100 * done // whole, done + work
        for hundredth in range(before + 1, 100 * done // whole + 1):
            on_hundredth(hundredth)

    return add
