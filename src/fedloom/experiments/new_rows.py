"""New rows for a trained model: a table, arrays or a data source, made into inputs as the run's own rows were."""

from __future__ import annotations

import functools
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.core.errors import SettingError
from fedloom.core.naming import did_you_mean
from fedloom.data import Dataset, Examples, from_arrays
from fedloom.data.arrays import read_arrays
from fedloom.data.columns import Columns, NoColumnError, class_labels
from fedloom.data.formats import refuse
from fedloom.data.parquet import is_parquet, read_frame
from fedloom.data.preparation import MISSING
from fedloom.data.roles import Roles
from fedloom.data.sites import is_pattern, site_files
from fedloom.data.tables import columns_of_frame
from fedloom.data.text_table import TextTable, read_columns, ungrouped
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.wire.registration import RemoteExamples

_ROLES = ("label", "target", "client", "split", "group", "drop", "gaps")  # of columns that are no features
_SHOWN = 12  # names in a message
_Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class NewRows:
    """Rows as a model of a run takes them.

    Attributes:
        examples: inputs, and targets where they were asked for; else class 0 for all.
        places: the line of each row in its file, or its number from 0.
        counted: what places are, "line" or "row".
        sites: the client or site of each row; nothing where rows have none.
    """

    examples: Examples
    places: _Places
    counted: str = "row"
    sites: tuple[str, ...] = ()


@dataclass(frozen=True)
class RowReader:
    """Read new rows for the models of a run.

    Args:
        train: the run's examples.
        experiment: how the run was asked for; None where it was started from Python with objects of its own.
    """

    train: Examples
    experiment: Experiment | None = None

    def read(self, data: Any, *, with_targets: bool) -> NewRows:
        """Return new rows.

        `data`: a table (.csv, .tsv, .parquet, or a pattern of them; `?label=y&client=site&drop=id` says what else its
        columns are), a .npz file with x and y, or any other data source by name; or an array, a data frame of pandas,
        `Examples` or a `Dataset`. Of a source with test rows these are taken.

        Raises:
            ValueError: columns, shapes, values or classes are not those of the run.
        """
        if isinstance(data, str | os.PathLike):
            return self._of_source(os.fspath(data), with_targets)
        if hasattr(data, "iloc") and hasattr(data, "columns"):
            roles, _ = self._roles({})
            return self._of_frame(Path("data frame"), data, roles, with_targets)
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
            return self._of_dataset(Dataset(_inputs(data, "array"), None), False)
        raise SettingError(
            f"data are a file or source by name, a data frame, an array, Examples or a Dataset, got "
            f"{type(data).__name__}: pass one of these"
        )

    # ---- arrays and other sources

    def _of_source(self, source: str, with_targets: bool) -> NewRows:
        path, _, written = source.partition("?")
        if catalogue.is_table(source):
            return self._of_tables(path, _arguments(source, written), with_targets)
        if path.endswith(".npz") and "x" in _arrays_in(Path(path)):
            return self._of_arrays(Path(path), with_targets)
        return self._of_dataset(catalogue.data(source, whole=True), with_targets)

    def _of_arrays(self, path: Path, with_targets: bool) -> NewRows:
        if with_targets and "y" not in _arrays_in(path):
            refuse(path, "to evaluate takes the arrays x and y", "x alone", "save y too: numpy.savez(path, x=x, y=y)")
        found = read_arrays(path, ("x", "y") if with_targets else ("x",))
        if not len(found["x"]):
            refuse(path, "x must have rows", "none", "save some")
        made = _inputs(found["x"], path.stem)
        if with_targets:
            y = found["y"]
            if len(y) != len(made):
                refuse(path, "x and y must have as many rows", f"{len(made)} and {len(y)}", "save them of the same rows")
            if self.train.y.is_floating_point():
                made = replace(made, y=torch.from_numpy(y.astype(np.float32)), num_classes=self.train.num_classes)
            else:
                if y.ndim != 1 or y.dtype.kind not in "iuf" or (y != np.round(y)).any() or y.min() < 0:
                    rule = "y must hold class numbers (N,), whole numbers from 0, as the run's data number classes"
                    refuse(path, rule, f"{y.dtype} of shape {y.shape}", "number classes so")
                made = replace(made, y=torch.from_numpy(y.astype(np.int64)), num_classes=int(y.max()) + 1)
        return self._of_dataset(Dataset(made, None), with_targets)

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
        if self._preparation is not None:
            if part.preparation is None:
                raise SettingError(
                    f"the run was trained on a table that is prepared, got arrays in {part.name}: give a table with "
                    f"its columns, {_some(self._columns())}"
                )
            x = torch.from_numpy(self._preparation.new_rows(part.preparation.frame))
            part = replace(part, x=x, preparation=None, columns=())
        elif part.columns and self.train.columns and part.columns != self.train.columns:
            if sorted(part.columns) != sorted(self.train.columns):
                _check_names(part.name, part.columns, self.train.columns)
            part = replace(part, x=part.x[:, [part.columns.index(name) for name in self.train.columns]])
        y = self._numbered(part) if with_targets else None
        names = () if owners is None else tuple(part.owners[k] if part.owners else str(k) for k in owners.tolist())
        return NewRows(self._inputs_of(part, y), np.arange(len(part)), "row", names)

    def _numbered(self, part: Examples) -> Tensor:
        """Return targets as the run has them; classes by their names."""
        floats = self.train.y.is_floating_point()
        if floats != part.y.is_floating_point() or (floats and part.y.shape[1:] != self.train.y.shape[1:]):
            raise SettingError(
                f"targets of the run are {_kind(self.train)}, got {_kind(part)} in {part.name}: give targets of that kind"
            )
        if floats:
            return part.y.to(self.train.y.dtype)
        if not (part.classes and self.train.classes):
            if int(part.y.max()) >= self.train.num_classes:
                raise SettingError(
                    f"classes of the run are the numbers 0 to {self.train.num_classes - 1}, got {int(part.y.max())} in "
                    f"{part.name}: number classes as the run's data do"
                )
            return part.y
        used = [part.classes[k] for k in part.y.unique().tolist()]
        places = self._class_places(part.name, used)
        return torch.tensor([places.get(name, 0) for name in part.classes])[part.y]

    def _class_places(self, where: str, names: Sequence[str]) -> dict[str, int]:
        known = self.train.classes or tuple(map(str, range(self.train.num_classes)))
        if unknown := [name for name in names if name not in known]:
            raise SettingError(
                f"classes of the run are {_some(known)}, got {unknown[0]!r} in {where}"
                f"{did_you_mean(unknown[0], known)}: spell classes as the run's data do"
            )
        return {name: k for k, name in enumerate(known)}

    def _inputs_of(self, part: Examples, y: Tensor | None) -> Examples:
        """Return rows with targets `y` as the run's examples are: of their shape, and normalised as they are."""
        train = self.train
        if tuple(part.shape) != tuple(train.shape):
            raise SettingError(
                f"rows must have the shape of the run's, {_shape(train)}, got {_shape(part)} in {part.name}: give the "
                "same features in the same order, or images of the same size"
            )
        stored = train if not self._by_places else self._unstandardised.train
        if (part.x.dtype == torch.uint8) != (stored.x.dtype == torch.uint8):
            raise SettingError(
                f"rows must be stored as the run's, {_dtype(stored)}, got {_dtype(part)} in {part.name}: give values "
                f"of that type and scale"
            )
        if not torch.isfinite(part.x.float()).all():
            raise SettingError(f"rows must be finite, got NaN or infinity in {part.name}: fill them in or leave them out")
        if self._by_places:
            part = self._unstandardised._replace(test=replace(part, y=part.y)).standardised().test or part
        x = part.x if part.x.dtype == torch.uint8 else part.x.to(train.x.dtype)
        targets = torch.zeros(len(x), dtype=torch.int64) if y is None else y
        if isinstance(train, RemoteExamples):  # devices have their own way from stored values to inputs
            assert self.experiment is not None
            own = catalogue.normalise(self.experiment.data.normalise, Dataset(part, None)).train.normalise
            return replace(part, x=x, y=targets, num_classes=train.num_classes, classes=train.classes, normalise=own)
        return replace(train, x=x, y=targets, preparation=None, groups=None, augment=None, name=part.name)

    @property
    def _by_places(self) -> bool:
        return self.experiment is not None and self.experiment.data.normalise == "places"

    @functools.cached_property
    def _unstandardised(self) -> Dataset:
        """The run's data before each place was standardised."""
        assert self.experiment is not None
        data = replace(self.experiment.data, normalise="source", public=0, public_source=None, augment="none")
        return replace(self.experiment, data=data).dataset()[0]

    # ---- tables

    def _columns(self) -> tuple[str, ...]:
        """Return the columns of features as tables have them."""
        prepared = self._preparation
        return self.train.columns if prepared is None else tuple(map(str, prepared.frame.columns))

    @property
    def _preparation(self) -> Any:
        return self._unstandardised.train.preparation if self._by_places else self.train.preparation

    def _said(self) -> dict[str, str]:
        """Return what the run's source says of columns."""
        source = "" if self.experiment is None else self.experiment.data.source
        if not catalogue.is_table(source):
            return {}
        return dict(pair.partition("=")[::2] for pair in source.partition("?")[2].split("&") if pair)

    def _roles(self, given: Mapping[str, str]) -> tuple[Roles, frozenset[str]]:
        """Return the roles of columns, and the words that mean a gap: as of the run where nothing else is given."""
        said = self._said()

        def of(name: str) -> str | None:
            return given.get(name, said.get(name))

        targets = tuple((of("target") or "").split(",")) if of("target") else self.train.targets
        if self.train.y.is_floating_point() and targets:
            label = None
        else:
            label, targets = of("label") or "label", ()
        drop = {*(said.get("drop") or "").split(","), *(given.get("drop") or "").split(",")} - {""}
        read = {} if self._preparation is None else self._preparation.read
        gaps = {*(of("gaps") or "").split(","), *read.get("gaps", ())} - {""}
        roles = Roles(label, targets, of("client"), of("split"), of("group"), tuple(sorted(drop)), ())
        return roles, frozenset(gaps)

    def _of_tables(self, path: str, given: Mapping[str, str], with_targets: bool) -> NewRows:
        several = is_pattern(path)
        files = site_files(path) if several else [Path(path)]
        roles, gaps = self._roles(given)
        if "client" in given and several:
            raise SettingError(f"each file of {path} is a site, got client={given['client']}: leave it out")
        if not self._columns():
            raise SettingError(
                f"the run was trained on rows whose features have no names, {_shape(self.train)}, got the table {path}: "
                "give a .npz file with x, or examples from Python"
            )
        parts = []
        for file in files:
            if is_parquet(file):
                part = self._of_frame(file, read_frame(file), roles, with_targets, "client" in given)
            else:
                part = self._of_text(file, roles, gaps, with_targets, "client" in given)
            parts.append(replace(part, sites=(file.stem,) * len(part.places)) if several else part)
        if len(parts) == 1:
            return parts[0]
        x, y = (torch.cat([getattr(part.examples, name) for part in parts]) for name in ("x", "y"))
        whole = replace(parts[0].examples, x=x, y=y)
        places = np.concatenate([part.places for part in parts])
        return NewRows(whole, places, parts[0].counted, tuple(site for part in parts for site in part.sites))

    def _of_text(
        self, path: Path, roles: Roles, gaps: frozenset[str], with_targets: bool, named: bool
    ) -> NewRows:
        if not path.is_file():
            raise SettingError(f"there is no file {str(path)!r}; give the path of a table with a header line")
        try:
            text = TextTable.recognised(path, (), self._columns())
        except NoColumnError:  # `_check_names` says all that is wrong
            text = TextTable.recognised(path, (), ())
        text = replace(text, gaps=gaps)
        roles = self._there(path, text.header, roles, with_targets, named)
        marked = self._thousands()
        words = {*roles.words, *self._words(), *marked} & {*text.header}
        read = read_columns(text, words, set(roles.drop))
        if not len(read.lines):
            refuse(path, "the table must have rows", "a header alone", "add some")
        for name, shown in marked.items():
            if name in read.words:
                cells = read.words.pop(name)
                found = ungrouped([*cells, shown])  # by the marks of the run's table, which one cell does not tell
                if found is None:
                    bad = next(cell for cell in cells if cell not in MISSING and ungrouped([cell, shown]) is None)
                    refuse(path, f"{name!r} must hold numbers as in the run's table ({shown})", repr(bad), "write it alike")
                read.numbers[name] = found[0][:-1]
        return self._made(path, read, roles, with_targets)

    def _of_frame(
        self, place: Path, frame: Any, roles: Roles, with_targets: bool, named: bool = False
    ) -> NewRows:
        header = [str(name) for name in frame.columns]
        if not self._columns():
            raise SettingError(
                f"the run was trained on rows whose features have no names, {_shape(self.train)}, got a data frame: "
                "give an array"
            )
        roles = self._there(place, header, roles, with_targets, named)
        words = tuple(name for name in self._words() if name in header)
        read, bad = columns_of_frame(place, frame, replace(roles, categories=words))
        if not len(frame):
            refuse(place, "the table must have rows", "a header alone", "add some")
        if wrong := [bad[name] for name in self._columns() if name in bad]:
            refuse(place, "columns of features must be as in the run's table", "; ".join(wrong), "convert them")
        return self._made(place, read, roles, with_targets)

    def _there(self, path: Path, header: Sequence[str], roles: Roles, with_targets: bool, named: bool) -> Roles:
        """Return the roles of the columns that a table has; what is neither feature nor of a role is refused.

        `named`: the column of clients was named for this table, so it must be there.
        """
        columns, there = self._columns(), set(header)
        wanted = [*([roles.label] if roles.label else []), *roles.targets]
        if with_targets and (lacks := [name for name in wanted if name not in there]):
            refuse(
                path, f"to evaluate takes the columns {_some(wanted)}", f"none called {_some(lacks)}",
                "name it (?label=NAME, ?target=NAME), or predict alone",
            )  # fmt: skip
        if named and roles.client not in there:
            refuse(path, f"the column {roles.client!r} must be there", _some(tuple(header)), "name one that is")
        _check_names(str(path), [n for n in header if n not in {*roles.named, *roles.drop}], columns)
        unused = [] if with_targets else wanted
        unused += [name for name in (roles.split, roles.group) if name]
        return Roles(
            roles.label if with_targets else None,
            roles.targets if with_targets else (),
            roles.client if roles.client in there else None,
            None,
            None,
            tuple(name for name in (*roles.drop, *unused) if name in there and name not in columns),
            (),
        )

    def _words(self) -> list[str]:
        """Return the columns that hold words in the run's table."""
        prepared = self._preparation
        return [] if prepared is None else [str(n) for n, of in prepared.frame.items() if of.dtype.kind != "f"]

    def _thousands(self) -> dict[str, str]:
        """Return the columns in which marks part thousands in the run's table, and a cell of each that shows it."""
        if (prepared := self._preparation) is not None:
            return dict(prepared.read.get("thousands", {}))
        source = "" if self.experiment is None else self.experiment.data.source.partition("?")[0]
        out: dict[str, str] = {}
        if catalogue.is_table(source):
            for file in site_files(source) if is_pattern(source) else [Path(source)]:
                if not is_parquet(file):
                    text = TextTable.recognised(file, (), self._columns())
                    out |= read_columns(text, set(), {*text.header} - {*self._columns()}).grouped
        return out

    def _made(self, path: Path, read: Columns, roles: Roles, with_targets: bool) -> NewRows:
        """Return rows of the columns of a table."""
        columns, words = self._columns(), set(self._words())
        x: npt.NDArray[Any]
        for name in columns:
            if name not in words:
                _check_numbers(path, read, name)
        if (prepared := self._preparation) is not None:
            import pandas as pd

            frame = {
                name: [np.nan if cell in MISSING else cell for cell in read.words[name]]
                if name in words
                else read.numbers[name]
                for name in columns
            }
            kinds = {name: object if name in words else float for name in columns}
            x = prepared.new_rows(pd.DataFrame({name: pd.Series(of, dtype=kinds[name]) for name, of in frame.items()}))
        else:
            x = np.stack([read.numbers[name] for name in columns], 1)
            if (gaps := np.isnan(x)).any():
                row, column = np.argwhere(gaps)[0]
                refuse(
                    path, "rows must have a number in each column, as in the run's table, which is not prepared",
                    f"a gap in {columns[column]!r} in {read.at(int(row))}",
                    "fill it in, leave the row out, or train with prepare=standard",
                )  # fmt: skip
        made = Examples(torch.from_numpy(x.astype(np.float32)), torch.zeros(len(x), dtype=torch.int64), 1, name=path.stem)
        y = self._targets(path, read, roles) if with_targets else None
        sites = () if roles.client is None else tuple(read.words[roles.client])
        return NewRows(self._inputs_of(made, y), np.asarray(read.lines), read.counted, sites)

    def _targets(self, path: Path, read: Columns, roles: Roles) -> Tensor:
        if roles.label is None:
            for name in roles.targets:
                _check_numbers(path, read, name)
            y = np.stack([read.numbers[name] for name in roles.targets], 1).astype(np.float32)
            if (gaps := np.isnan(y)).any():
                row, column = np.argwhere(gaps)[0]
                refuse(
                    path, "targets must be a number in every row",
                    f"{roles.targets[column]!r} without a value in {read.at(int(row))}", "leave the row out",
                )  # fmt: skip
            shaped = torch.from_numpy(y[:, 0] if self.train.y.ndim == 1 else y)
            if shaped.shape[1:] != self.train.y.shape[1:]:
                raise SettingError(
                    f"the run has {self.train.num_classes} targets, got {_some(roles.targets)} in {path}: name as many"
                )
            return shaped
        cells = read.words[roles.label]
        if gaps := [row for row, cell in enumerate(cells) if cell in MISSING]:
            refuse(
                path, f"{roles.label!r} must have a class in every row to evaluate", f"a gap in {read.at(gaps[0])}",
                "leave the row out",
            )  # fmt: skip
        y, classes = class_labels(path, roles.label, cells)
        places = self._class_places(str(path), classes)
        return torch.tensor([places[name] for name in classes])[torch.from_numpy(y)]


def _arguments(source: str, written: str) -> dict[str, str]:
    """Return what is said of the columns of a new table."""
    out: dict[str, str] = {}
    for pair in written.split("&") if written else ():
        key, _, value = pair.partition("=")
        if key not in _ROLES or not value or key in out:
            raise SettingError(
                f"of a table of new rows one says, each once, some of {', '.join(_ROLES)}, as in FILE.csv?label=y&drop=id, "
                f"got {pair!r} in {source!r}{did_you_mean(key, set(_ROLES) - {key})}: how columns are prepared, the run "
                "says"
            )
        out[key] = value
    return out


def _arrays_in(path: Path) -> set[str]:
    """Return the names of the arrays in a file; what is wrong with it, its reader says."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return set()


def _inputs(x: Any, name: str) -> Examples:
    return from_arrays(x, np.zeros(len(x), np.int64), num_classes=1, name=name)


def _check_names(where: str, given: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse features that a model does not know, and those that it misses, in one message."""
    lacks = [name for name in wanted if name not in set(given)]
    extra = [name for name in given if name not in set(wanted)]
    if not (lacks or extra):
        return
    said = [f"no {name!r}{did_you_mean(name, extra)}" for name in lacks[:_SHOWN]]
    said += [f"and {len(lacks) - _SHOWN} more missing"] * (len(lacks) > _SHOWN)
    if extra:
        said.append(f"{_some(extra)} besides")
    remedies = ["name columns as in the table that was trained on"] * bool(lacks)
    remedies += [f"leave out what is no feature: ?drop={','.join(extra[:_SHOWN])}"] * bool(extra)
    raise SettingError(
        f"{where}: rows must have the columns {_some(wanted)}, in any order, got {', '.join(said)}: {'; '.join(remedies)}"
    )


def _check_numbers(path: Path, read: Columns, name: str) -> None:
    """Refuse words in a column of numbers."""
    if name in read.mixed:
        row, word, _ = read.mixed[name]
    elif name in read.numbers:
        return
    else:
        row, word = next(((i, c) for i, c in enumerate(read.words[name]) if c not in MISSING), (-1, ""))
        if row < 0:  # gaps alone
            read.numbers[name] = np.full(len(read.lines), np.nan)
            return
    refuse(
        path, f"{name!r} must hold numbers, as in the run's table", f"{word[:60]!r} in {read.at(row)}",
        f"write numbers, or name words that mean a gap (?gaps={word[:20]})",
    )  # fmt: skip


def _kind(examples: Examples) -> str:
    return f"{examples.num_classes} columns of numbers" if examples.y.is_floating_point() else "classes"


def _shape(examples: Examples) -> str:
    return " x ".join(map(str, examples.shape))


def _dtype(examples: Examples) -> str:
    return str(examples.x.dtype).removeprefix("torch.")


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_SHOWN])) + f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
