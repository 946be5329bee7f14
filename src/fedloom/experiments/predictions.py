"""Predict new rows by a trained model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedloom.coordinator.job import Job
from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError
from fedloom.core.task import Task, targets_of
from fedloom.core.task_measures import Score, TaskMeasure, silent_rows
from fedloom.data import Examples
from fedloom.evaluate.accuracy import evaluate_rows
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.mask_pictures import write_masks
from fedloom.experiments.prediction_rows import NewRows, RowReader
from fedloom.experiments.trained_model import ModelAfterRound, job_of, task_of, trained_model
from fedloom.storage.files import path_of
from fedloom.storage.output import as_csv, check_new, publish
from fedloom.tasks import Hinge


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a trained model for N rows.

    Attributes:
        values: class numbers [N] int64; of a regression [N, D] float64 in the unit of the targets; of several labels
            [N, L] bool; of pixels masks, [N, H, W] int64.
        probabilities: of each class or label, [N, C] float64; None where the task has none.
        names: of the classes, the targets or the labels.
        places: the line of each row in its file, or its number from 0, [N].
        counted: what `places` are, "line" or "row".
        sites: the client or site of each row; nothing where rows have none.
        whose: "global model", or "model of client 3".
        round: after which it was taken.
        threshold: from which probability the answer is class 1, where validation chose it in the run; else None.
        files: the file of each row, where images were read from a folder; else nothing.
        kept: cells of the columns that go through (`FILE.csv?keep=patient`), of each row.
    """

    values: npt.NDArray[Any]
    probabilities: npt.NDArray[np.float64] | None
    names: tuple[str, ...]
    places: npt.NDArray[np.int64]
    counted: str
    sites: tuple[str, ...]
    whose: str
    round: int
    threshold: float | None = None
    files: tuple[Path, ...] = ()
    kept: Mapping[str, Sequence[object]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def labels(self) -> list[str]:
        """The name of the class that is said of each row.

        Raises:
            SettingError: the task has no classes.
        """
        if self.values.ndim != 1:
            raise SettingError("labels are names of classes, and these predictions are of another task: take values")
        return [self.names[k] for k in self.values]

    def rows(self) -> Iterator[list[object]]:
        """Yield the header of a table, then each row.

        Raises:
            SettingError: predictions are masks.
        """
        if self.values.ndim > 2:
            raise SettingError(
                f"a table has a row for each example, got masks of {self.values[0].size:,} pixels each: write them as "
                "pictures, masks(FOLDER) (--out FOLDER)"
            )
        classes = self.values.ndim == 1
        said = ["prediction"] if classes else list(self.names)
        likely = [] if self.probabilities is None else [f"probability {name}" for name in self.names]
        yield [self.counted, *["site"] * bool(self.sites), *self.kept, *said, *likely]
        values = self.labels if classes else self.values.astype(np.int64 if self.values.dtype == bool else np.float64)
        for k, place in enumerate(self.places.tolist()):
            own = [values[k]] if isinstance(values, list) else values[k].tolist()
            p = [] if self.probabilities is None else self.probabilities[k].tolist()
            yield [place, *self.sites[k : k + 1], *(cells[k] for cells in self.kept.values()), *own, *p]

    def csv(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write a table: place of each row, site, what is kept, what is said, probabilities; return the path.

        Raises:
            SettingError: the file exists, unless `overwrite`.
        """
        return write_table(path, self.rows(), overwrite)

    def masks(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write each mask as a grey PNG file of its image's name, and the table masks.csv of them; return its path.

        Raises:
            SettingError: predictions are no masks, two images have one name, or a file exists, unless `overwrite`.
        """
        return write_masks(path_of(folder), self.values, self.files, self.names, overwrite)


def write_table(path: str | os.PathLike[str], rows: Iterator[list[object]], overwrite: bool) -> Path:
    """Write rows as CSV, whole or not at all.

    Raises:
        SettingError: the file exists, unless `overwrite`.
    """
    path = path_of(path)
    check_new(path, overwrite)
    return publish(path.parent, path.name, as_csv(rows).encode())


@dataclass(frozen=True)
class _Logits:
    """Stand-in of a task, for what is made of the logits of rows that have no targets; by default these themselves."""

    take: Callable[[Tensor], Tensor]
    targets: ClassVar[str] = "classes"

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return logits.new_zeros(())

    @property
    def measures(self) -> tuple[TaskMeasure, ...]:
        return (Score(name="logits", title="", meaning="", outputs=self.take, values=_none),)


@dataclass(frozen=True)
class _Masks:
    """Take the predicted class of each pixel, of logits [B, C, H, W]; -1 where nothing is said."""

    task: Any

    def __call__(self, logits: Tensor) -> Tensor:
        said: Tensor = self.task.predicted(logits)
        return said.masked_fill(~logits.amax(1).isfinite(), -1)


def _same(logits: Tensor) -> Tensor:
    return logits


def _none(outputs: Tensor, y: Tensor, real: Tensor) -> Tensor:
    raise NotImplementedError


def logits_of(found: ModelAfterRound, examples: Examples) -> Tensor:
    """Return the outputs of a trained model, [N, ...]."""
    return outputs_by(found, examples, _same)


def outputs_by(found: ModelAfterRound, examples: Examples, take: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what is made of the outputs of a trained model, batch by batch, [N, ...]."""
    try:
        return evaluate_rows(found.model, found.weights, _Logits(take), ("logits",), examples).outputs["logits"]
    except IndexError as error:
        if not examples.has_tokens:
            raise
        raise SettingError(
            f"token ids are those of the run, below the size of the embedding of {found.name}, got ids up to "
            f"{int(examples.x.max())}: number tokens by the vocabulary of the run"
        ) from error


def opened(run: str | os.PathLike[str], job: Job | None, allow_code: bool) -> tuple[Job, Experiment | None]:
    """Return the job of a run, and how it was asked for: by words, or None where `job` is given."""
    if job is not None:
        return job, None
    experiment = Experiment.from_directory(run, allow_code=allow_code)
    return job_of(experiment, run), experiment


def predict(
    run: str | os.PathLike[str],
    data: Any,
    *,
    client: int | str | None = None,
    at: int | str | None = None,
    model: str | None = None,
    job: Job | None = None,
    allow_code: bool = False,
) -> Predictions:
    """Return what a model of a finished run says of new rows, which are prepared as the rows that it trained on.

    Args:
        run: the run's directory.
        data: a table with the run's columns of features, in any order (`new.csv`, `new.csv?drop=id`, a pattern of
            files), a .npz file with x, any other source as of `--data`; or an array, a data frame, or `Examples`. Of a
            source with test rows these are taken. Targets may be missing.
        client: number or name of a client, for its personal model; None: the global model.
        at: a round that was kept, or "best": the best round on validation data; None: the last.
        model: which architecture of the global model, where there are several.
        job: what the run was, where it was started from Python with objects of its own.
        allow_code: whether code that the run's settings name may be imported.

    Raises:
        SettingError: there is no such model or round, rows do not have the columns, shape or types of the run's, or the
            data that it trained on changed or are gone.
        StorageError: a file of the run is damaged.
        ValueError: a file breaks a rule of its format.
    """
    job, experiment = opened(run, job, allow_code)
    found = trained_model(run, job, client=client, at=at, model=model)
    return predict_by(found, RowReader(job.federation.train, experiment), task_of(found, run), data)


def predict_by(found: ModelAfterRound, reader: RowReader, by: tuple[Task, float | None], data: Any) -> Predictions:
    """Return what a trained model says of new rows; `by`: the task with its threshold, as `task_of` returns them."""
    train, (task, threshold) = reader.train, by
    if not hasattr(task, "predicted") and not hasattr(task, "probabilities"):
        raise SettingError(
            f"the task {type(task).__name__} does not say what a model predicts: give it a method predicted(logits), "
            "and probabilities(logits) where classes have them"
        )
    new = reader.read(data, with_targets=False)
    likely = None
    if targets_of(task) == "pixels":
        values = outputs_by(found, new.examples, _Masks(task))  # logits of all pixels may not have room
        _check_said(found, (values < 0).flatten(1).any(1), new)
    else:
        logits = logits_of(found, new.examples)
        _check_answers(found, task, logits, new)
        values = _predicted(task, logits)
        if hasattr(task, "probabilities") and not isinstance(task, Hinge):  # a margin is no probability
            likely = task.probabilities(logits)
    return Predictions(
        values=values.numpy(),
        probabilities=None if likely is None else likely.numpy(),
        names=_names(task, train, values),
        places=new.places,
        counted=new.counted,
        sites=new.sites,
        whose=found.whose,
        round=found.round,
        threshold=threshold,
        files=new.files,
        kept=new.kept,
    )


def _check_answers(found: ModelAfterRound, task: Task, logits: Tensor, new: NewRows) -> None:
    """Raise SettingError where the model says nothing of a row, which would be read as its first class."""
    if logits.ndim != 2:  # of a sequence, what is said of places that do not count may be anything
        return
    _check_said(found, silent_rows(task, logits, new.examples.y), new)


def _check_said(found: ModelAfterRound, silent_of: Tensor, new: NewRows) -> None:
    """Raise SettingError where the model says nothing of a row: `silent_of`, [N] bool."""
    if len(silent := silent_of.nonzero().flatten().tolist()):
        raise SettingError(
            f"a prediction is made of outputs that are numbers, and those of the {found.whose} after round "
            f"{found.round} are NaN or infinite for {len(silent):,} of {len(silent_of):,} rows, first "
            f"{new.counted} {new.places[silent[0]]}: take an earlier round (at), such as the best"
        )


def _predicted(task: Any, logits: Tensor) -> Tensor:
    if hasattr(task, "predicted"):
        said: Tensor = task.predicted(logits)
    else:
        said = task.probabilities(logits).argmax(-1)
    return said.long() if targets_of(task) == "classes" else said


def _names(task: Task, train: Examples, values: Tensor) -> tuple[str, ...]:
    """Return the names of classes or targets; their numbers where they have none."""
    if targets_of(task) in ("classes", "pixels"):
        return train.classes or tuple(map(str, range(train.num_classes)))
    names = tuple(train.targets)
    return names or (
        ("prediction",)
        if values.ndim == 1 or values.shape[1] == 1
        else tuple(f"prediction {k}" for k in range(values.shape[1]))
    )
