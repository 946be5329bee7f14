"""New rows for a trained model, made into inputs as the run's own rows were."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.errors import SettingError
from fedloom.data import Dataset, Examples, Normalise, Tokens, from_arrays
from fedloom.data.federation import Federation
from fedloom.data.inputs import IGNORED, next_tokens
from fedloom.data.schema import Schema
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.prediction_names import check_names, class_names, class_places, some_names
from fedloom.experiments.prediction_tables import RunTable, TableRows
from fedloom.experiments.trained_model import client_number
from fedloom.experiments.training_rows import TrainedOn, count_trained
from fedloom.experiments.unknown_words import warn_of_unknown
from fedloom.sources.mask_files import pictures
from fedloom.storage.files import path_of
from fedloom.tables.arrays import names_in, read_arrays
from fedloom.tables.file_checks import refuse
from fedloom.tables.preparation import preparation_of
from fedloom.wording import local_path

_Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class NewRows:
    """Rows as a model of a run takes them.

    Attributes:
        examples: inputs, and targets where they were asked for; else class 0 for all.
        places: the line of each row in its file, or its number from 0.
        counted: what places are, "line" or "row".
        sites: the client or site of each row; nothing where rows have none.
        kept: cells of the columns of a table that were named to be kept, of each row.
        files: the file of each row, where images were read from a folder; else nothing.
    """

    examples: Examples
    places: _Places
    counted: str = "row"
    sites: tuple[str, ...] = ()
    kept: Mapping[str, Sequence[object]] = field(default_factory=dict)
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class RowReader:
    """Read new rows for the models of a run.

    Args:
        train: the run's examples.
        experiment: how the run was asked for; None where it was started from Python with objects of its own.
        training_rows: the rows of `train` that clients train on; None where this is not known.
    """

    train: Examples
    experiment: Experiment | None = None
    training_rows: _Places | None = None

    def read(self, data: Any, *, with_targets: bool) -> NewRows:
        """Return new rows.

        `data`: a table (.csv, .tsv, .parquet, or a pattern of them; `?label=y&client=site&drop=id&keep=patient` says
        what else its columns are), a .npz file with x and y, or any other data source by name; or an array, a data
        frame of pandas, `Examples` or a `Dataset`. Of a source with test rows these are taken. `NewRows` are returned.

        Raises:
            ValueError: columns, shapes, values or classes are not those of the run.
        """
        if isinstance(data, NewRows):
            return data
        if isinstance(data, str | os.PathLike):
            return self._of_source(os.fspath(data), with_targets)
        if hasattr(data, "iloc") and hasattr(data, "columns"):
            return self._of_table(self._table.of_frame(data, with_targets))
        if isinstance(data, Examples):
            data = Dataset(data, None)
        if isinstance(data, Dataset):
            return self._of_dataset(data, with_targets)
        if isinstance(data, np.ndarray | Tensor):
            if with_targets:
                raise SettingError(
                    "to evaluate takes targets, got an array of inputs alone: make examples of both, "
                    "fedloom.from_arrays(x, y)"
                )
            return self._of_dataset(Dataset(_inputs(data, "array", self.train), None), False)
        raise SettingError(
            f"data are a file or source by name, a data frame, an array, Examples or a Dataset, got "
            f"{type(data).__name__}: pass one of these"
        )

    def trained_on(self, new: Examples) -> TrainedOn | None:
        """Count the rows with targets, as `read` returns them, that equal a training row of the run.

        None where training rows are not known: those of devices stay there.
        """
        if self.training_rows is None or self.train.remote is not None:
            return None
        return count_trained(new, self.train, self.training_rows)

    def _of_source(self, source: str, with_targets: bool) -> NewRows:
        path, _, written = source.partition("?")
        if catalogue.is_table(source):
            return self._of_table(self._table.read(path, self._table.arguments(written), with_targets))
        if path.endswith(".npz") and ":" not in path and not path_of(path).is_file():
            raise SettingError(
                f"there is no file {path!r}; give the path of a .npz file with the array x, and y to evaluate"
            )
        if path.endswith(".npz") and (held := names_in(path_of(path))):
            if "x" in held:
                return self._of_arrays(path_of(path), with_targets)
            if "x_train" not in held:
                refuse(
                    Path(path), "new rows are the array x, with their targets y where they are to be evaluated",
                    ", ".join(sorted(held))[:80], "save them under these names: numpy.savez(path, x=x, y=y)",
                )  # fmt: skip
        if self.train.has_pixels and not with_targets and path.startswith("images:"):
            x, files = pictures(local_path(path.partition(":")[2]))
            made = self._of_dataset(Dataset(_inputs(x, Path(path).name, self.train), None), with_targets)
            return replace(made, files=tuple(files))
        return self._of_dataset(catalogue.data(source, whole=True), with_targets)

    def _of_arrays(self, path: Path, with_targets: bool) -> NewRows:
        has_y = with_targets and "y" in names_in(path)
        if with_targets and not has_y and not self._follows_tokens:
            refuse(path, "to evaluate takes the arrays x and y", "x alone", "save y too: numpy.savez(path, x=x, y=y)")
        found = read_arrays(path, ("x", "y") if has_y else ("x",))
        if not len(found["x"]):
            refuse(path, "x must have rows", "none", "save some")
        if has_y and self.train.has_pixels:
            made = from_arrays(found["x"], found["y"], num_classes=self.train.num_classes, name=path.stem)
            return self._of_dataset(Dataset(made, None), with_targets)
        made = _inputs(found["x"], path.stem, self.train)
        if with_targets:
            if self._follows_tokens and not made.has_tokens:
                refuse(path, "x must hold token ids (N, T), integers", _dtype(made), "save x.astype(numpy.int32)")
            y = found["y"] if has_y else next_tokens(made.x, getattr(self.train.normalise, "padding", 0)).numpy()
            made = self._with_targets(path, made, y)
        return self._of_dataset(Dataset(made, None), with_targets)

    def _with_targets(self, path: Path, made: Examples, y: npt.NDArray[Any]) -> Examples:
        """Return rows with the targets of a file, of the type that the run's have."""
        if y.ndim == 0 or len(y) != len(made):
            got = f"{len(made)} and {len(y) if y.ndim else 'one number'}"
            refuse(path, "x and y must have as many rows", got, "save them of the same rows")
        shown = f"{y.dtype} of shape {y.shape}"
        if self.train.y.is_floating_point():
            if y.dtype.kind not in "iufb":
                refuse(path, "y must hold numbers, as the run's targets are", shown, "save y.astype(float)")
            columns = y.shape[1] if y.ndim > 1 else 1
            return replace(made, y=torch.from_numpy(y.astype(np.float32)), num_classes=columns)
        if self._follows_tokens and (y.dtype.kind not in "iu" or y.shape != tuple(made.x.shape) or y.min() < IGNORED):
            rule = f"y must hold the token that follows each place of x (N, T), {IGNORED} where none counts"
            refuse(path, rule, f"{shown} for x of shape {tuple(made.x.shape)}", "leave y out for the next tokens of x")
        if not self._follows_tokens and (
            y.ndim != 1 or y.dtype.kind not in "iuf" or (y != np.round(y)).any() or y.min() < 0
        ):
            rule = "y must hold class numbers (N,), whole numbers from 0, as the run's data number classes"
            refuse(path, rule, shown, "number classes so")
        return replace(made, y=torch.from_numpy(y.astype(np.int64)), num_classes=max(1, int(y.max()) + 1))

    def _of_dataset(self, found: Dataset, with_targets: bool) -> NewRows:
        """Return the test rows of a data set, all rows where it has none."""
        part, owners = found.train, found.owners
        if found.held_out is not None:
            rows = np.flatnonzero(found.held_out)
            part, owners = part.select(rows), None if owners is None else owners[rows]
        elif found.test is not None:
            part, owners = found.test, None
        if not len(part):
            raise SettingError(f"data must have rows, got none in {part.name}: name others")
        part = replace(part, classes=class_names(part))
        prepared = self._table.preparation
        if prepared is not None and prepared.text is not None and part.preparation is not None:
            part = part.prepared(prepared)
            warn_of_unknown(part.x.numpy(), prepared)
        elif prepared is not None:
            if part.preparation is None:
                raise SettingError(
                    f"the run was trained on a table that is prepared, got arrays in {part.name}: give a table with "
                    f"its columns, {some_names(self._table.columns)}"
                )
            made = prepared.new_rows(part.preparation.frame)
            warn_of_unknown(made, prepared)
            part = replace(part, x=torch.from_numpy(made), preparation=None, columns=())
        elif part.columns and self.train.columns and part.columns != self.train.columns:
            if sorted(part.columns) != sorted(self.train.columns):
                check_names(part.name, part.columns, self.train.columns)
            part = replace(part, x=part.x[:, [part.columns.index(name) for name in self.train.columns]])
        y = self._numbered(part) if with_targets else None
        names = () if owners is None else tuple(part.owners[k] if part.owners else str(k) for k in owners.tolist())
        return NewRows(self._inputs_of(part, y), np.arange(len(part)), "row", names)

    def _of_table(self, read: TableRows) -> NewRows:
        if (prepared := self._table.preparation) is not None:
            warn_of_unknown(read.x, prepared)
        y = torch.zeros(len(read.x), dtype=torch.int64)
        how = self.train.normalise if self.train.has_tokens else Normalise()
        made = Examples(torch.from_numpy(read.x), y, 1, how, name=read.name)
        targets = None if read.y is None else torch.from_numpy(read.y)
        return NewRows(self._inputs_of(made, targets), read.places, read.counted, read.sites, read.kept)

    def _numbered(self, part: Examples) -> Tensor:
        """Return targets as the run has them: classes and numbers by their names, those without as they are."""
        floats, shape = self.train.y.is_floating_point(), self.train.y.shape[1:]
        _check_alike(Schema(f"in {part.name}", kind=_kind(part)), Schema("in the run", kind=_kind(self.train)))
        if floats:
            return self._in_order(part).reshape(-1, *shape).to(self.train.y.dtype)
        # A run of arrays may not know what its classes are called: words of as many are in its order.
        known = class_names(self.train) or len(part.classes) != self.train.num_classes
        by_name = known or any(name.isdecimal() for name in part.classes)
        if not (part.has_classes and part.classes and by_name):
            if int(part.y.max()) >= self.train.num_classes:
                what = "tokens" if self._follows_tokens else "classes"
                raise SettingError(
                    f"{what} of the run are the numbers 0 to {self.train.num_classes - 1}, got {int(part.y.max())} in "
                    f"{part.name}: number {what} as the run's data do"
                )
            return part.y
        used = [part.classes[k] for k in np.unique(part.y.numpy())]
        places = class_places(self.train, part.name, used)
        return torch.tensor([places.get(name, 0) for name in part.classes])[part.y]

    def _in_order(self, part: Examples) -> Tensor:
        """Return numbers to predict in the order of the run's targets, where both have names."""
        wanted, there = self.train.targets, part.targets
        if not (wanted and there) or wanted == there:
            return part.y
        if sorted(wanted) != sorted(there):
            raise SettingError(
                f"targets of the run are {some_names(wanted)}, got {some_names(there)} in {part.name}: give the same, "
                "in any order"
            )
        return part.y[:, [there.index(name) for name in wanted]]

    def _inputs_of(self, part: Examples, y: Tensor | None) -> Examples:
        """Return rows with targets `y` as the run's examples are: of their shape, and normalised as they are."""
        train = self.train
        if isinstance(train.normalise, Tokens):
            part, y = _as_long(part, y, train)
        new, run = ({"shape": " x ".join(map(str, each.shape))} for each in (part, train))
        _check_alike(Schema(f"in {part.name}", inputs=new), Schema("in the run", inputs=run))
        stored = train if not self._by_places else self._unstandardised.train
        if train.has_tokens and not part.x.is_floating_point():  # of any width
            part = replace(part, x=part.x.to(torch.int64), normalise=train.normalise)
        elif (part.x.dtype == torch.uint8) != (stored.x.dtype == torch.uint8) and not train.has_tokens:
            raise SettingError(
                f"rows must be stored as the run's, {_dtype(stored)}, got {_dtype(part)} in {part.name}: give values "
                f"of that type and scale"
            )
        if not torch.isfinite(part.x.float()).all():
            raise SettingError(
                f"rows must be finite, got NaN or infinity in {part.name}: fill them in or leave them out"
            )
        if self._by_places:
            part = self._unstandardised._replace(test=replace(part, y=part.y)).standardised().test or part
        if train.has_tokens:
            part = self._within_vocabulary(part)
        x = part.x if part.x.dtype in (torch.uint8, torch.int64) else part.x.to(train.x.dtype)
        none = train.y.new_zeros(len(x), *train.y.shape[1:]) if train.has_pixels else x.new_zeros(len(x)).long()
        targets = none if y is None else y
        if train.remote is not None:  # devices have their own way from stored values to inputs
            assert self.experiment is not None
            own = catalogue.normalise(self.experiment.data.normalise, Dataset(part, None)).train.normalise
            return replace(part, x=x, y=targets, num_classes=train.num_classes, classes=train.classes, normalise=own)
        return replace(train, x=x, y=targets, preparation=None, groups=None, augment=None, name=part.name)

    def _within_vocabulary(self, part: Examples) -> Examples:
        """Return rows of token ids; those that no id of the run's vocabulary are, are refused."""
        how = self.train.normalise
        size = how.vocabulary if isinstance(how, Tokens) else None
        if part.x.is_floating_point() and isinstance(how, Tokens):
            raise SettingError(
                f"rows must be token ids, as the run's, got {_dtype(part)} in {part.name}: give integers"
            )
        if size is not None and int(part.x.max()) >= size:
            raise SettingError(
                f"token ids of the run are 0 to {size - 1}, got {int(part.x.max())} in {part.name}: number tokens as "
                "the run's data do"
            )
        return part

    @property
    def _follows_tokens(self) -> bool:
        """True if the run has a target for each place of a sequence."""
        return self.train.has_tokens and not self.train.y.is_floating_point() and self.train.y.ndim > 1

    @property
    def _by_places(self) -> bool:
        return self.experiment is not None and self.experiment.data.normalise == "places"

    @functools.cached_property
    def _table(self) -> RunTable:
        source = "" if self.experiment is None else self.experiment.data.source
        if self.train.remote is not None:
            source = str(self.train.remote["test"])
        kept = preparation_of(self._unstandardised.train if self._by_places else self.train)
        return RunTable(self.train, source if catalogue.is_table(source) else "", kept)

    @functools.cached_property
    def _unstandardised(self) -> Dataset:
        """The run's data before each place was standardised."""
        assert self.experiment is not None
        data = replace(self.experiment.data, normalise="source", public=0, public_source=None, augment="none")
        return replace(self.experiment, data=data).dataset()[0]


def held_out_by(federation: Federation, client: int | str | None) -> _Places:
    """Return the rows that a client holds out for evaluation, or with None those of all clients.

    Raises:
        SettingError: there is no such client, it holds nothing out, or examples are not on this machine.
    """
    if federation.train.remote is not None:
        raise SettingError(
            "what clients hold out is measured where it is, and that of this run is on devices: give rows that are "
            "here (fedloom evaluate RUN --data FILE)"
        )
    n, held_out = federation.num_clients, federation.local_test
    numbers = range(n) if client is None else [client_number(federation, client)]
    if not 0 <= numbers[0] < n:
        raise SettingError(f"clients are the numbers 0 to {n - 1}, got {numbers[0]}: name one of them")
    rows = [] if held_out is None else [held_out.rows(k) for k in numbers]
    if not sum(map(len, rows)):
        raise SettingError(
            "a model is measured on examples that its clients hold out, got none of "
            f"{'any' if client is None else f'client {client}'}: give rows (fedloom evaluate RUN --data "
            "FILE), or hold some out in another run (--test-fraction 0.2)"
        )
    return np.concatenate(rows).astype(np.int64)


def _as_long(part: Examples, y: Tensor | None, train: Examples) -> tuple[Examples, Tensor | None]:
    """Return sequences, and targets of their places, as long as those of the run, where padding makes them so."""
    padding = getattr(train.normalise, "padding", None)
    missing = train.shape[0] - part.shape[0] if len(part.shape) == len(train.shape) == 1 else 0
    if padding is None or missing <= 0:
        return part, y
    if y is not None and y.ndim > 1:
        y = F.pad(y, (0, missing), value=IGNORED)
    longer = torch.zeros(len(part), dtype=torch.int64) if part.y.ndim > 1 else part.y
    return replace(part, x=F.pad(part.x, (0, missing), value=padding), y=longer), y


def _inputs(x: Any, name: str, train: Examples) -> Examples:
    tokens = isinstance(train.normalise, Tokens) and "int" in str(getattr(x, "dtype", ""))
    how = train.normalise if tokens else None
    return from_arrays(x, np.zeros(len(x), np.int64), num_classes=1, normalise=how, name=name)


def _kind(examples: Examples) -> str:
    columns = examples.y.shape[1:].numel()
    if examples.y.is_floating_point():
        return f"{columns} column{'s' * (columns > 1)} of numbers"
    if examples.has_pixels:
        return "a class for each pixel"
    return "classes" if examples.has_classes else "a token for each place"


def _check_alike(new: Schema, run: Schema) -> None:
    """Refuse new rows that are unlike those of the run."""
    if (told := new.differs_from(run)) is not None:
        raise SettingError(told)


def _dtype(examples: Examples) -> str:
    return str(examples.x.dtype).removeprefix("torch.")
