"""Tables of new rows, with the columns of the table that a run was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.core.errors import SettingError
from fedloom.core.grammar import arguments
from fedloom.data import Examples
from fedloom.experiments.prediction_names import check_names, class_places, some_names
from fedloom.storage.files import path_of
from fedloom.tables.columns import DATE, Columns, NoColumnError, class_labels
from fedloom.tables.data_frames import columns_of_frame
from fedloom.tables.dictionary import AS_SHARED, Dictionary, SiteDictionary
from fedloom.tables.file_checks import refuse
from fedloom.tables.gaps import MISSING, Gaps
from fedloom.tables.parquet import is_parquet, read_frame
from fedloom.tables.preparation import Preparation
from fedloom.tables.roles import Roles
from fedloom.tables.sites import is_pattern, site_files, site_names
from fedloom.tables.statistics import CommonPreparation, expected
from fedloom.tables.text_table import TextTable, read_columns, ungrouped
from fedloom.wording import pairs

_ROLES = (  # of columns that are no features, and how the table names them
    "label", "target", "client", "split", "group", "drop", "gaps", "keep", "dictionary", "site",
)  # fmt: skip
_NO_SITE = "missing"  # what rows with a gap in the column of clients are called, as gaps among words are


@dataclass(frozen=True)
class TableRows:
    """Features [N, D] of new rows as the run's are, and their targets where they were asked for.

    `places`: the line of each row in its file, or its number from 0; `counted` says which. `sites`: of each row.
    `kept`: cells of the columns that were named to be kept (`?keep=patient`), of each row.
    """

    name: str
    x: npt.NDArray[Any]
    y: npt.NDArray[Any] | None
    places: npt.NDArray[np.int64]
    counted: str
    sites: tuple[str, ...]
    kept: Mapping[str, Sequence[object]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunTable:
    """The table that a run was trained on, by which tables of new rows are read.

    Args:
        train: the run's examples.
        source: the table as `data.source` names it, of devices the server's own (`--test`); "" where it was no table,
            or the run was started from Python.
        preparation: what made features of its columns; None where they are numbers as they are.
    """

    train: Examples
    source: str
    preparation: Preparation | None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of features as tables have them."""
        kept = self.preparation
        return self.train.columns if kept is None else tuple(map(str, kept.frame.columns))

    def _said(self) -> dict[str, str]:
        """Return what the run's source says of columns."""
        said = {} if self.preparation is None else _federated(self.preparation)
        return said | dict(pairs(self.source.partition("?")[2]))

    def arguments(self, written: str) -> dict[str, str]:
        """Return what is said of the columns of a new table, without what the run says in the same words.

        So a source that was written for training is one of new rows too.
        """
        said = self._said()
        others = [
            pair
            for pair, (key, value) in zip(filter(None, written.split("&")), pairs(written), strict=True)
            if key in _ROLES or not value or said.get(key) != value
        ]
        form = f"{', '.join(_ROLES)}, as in FILE.csv?label=y&drop=id"
        remedy = "how columns are prepared, the run says"
        kinds = dict.fromkeys(_ROLES, str)
        return arguments("a table of new rows", "&".join(others), kinds, form, remedy) if others else {}

    def _roles(self, given: Mapping[str, str]) -> tuple[Roles, Gaps]:
        """Return the roles of columns, and the words that mean a gap: as of the run where nothing else is given."""
        said = self._said()

        def of(name: str) -> str | None:
            return given.get(name, said.get(name))

        targets = tuple((of("target") or "").split(",")) if of("target") else self.train.targets
        if sorted(targets) == sorted(self.train.targets):
            targets = self.train.targets
        if self.train.y.is_floating_point() and targets:
            label = None
        else:
            label, targets = of("label") or "label", ()
        drop = {*(said.get("drop") or "").split(","), *(given.get("drop") or "").split(",")} - {""}
        read = {} if self.preparation is None else self.preparation.read
        gaps = {*(of("gaps") or "").split(","), *read.get("gaps", ())} - {""}
        roles = Roles(label, targets, of("client"), of("split"), of("group"), tuple(sorted(drop)), ())
        return roles, Gaps.of(gaps)

    def read(self, path: str, given: Mapping[str, str], with_targets: bool) -> TableRows:
        """Return the rows of a file, or of the files of a pattern, each of which is a site then.

        `given`: what is said of the columns of these files, where it is not as in the run's table.
        """
        several = is_pattern(path)
        files = site_files(path) if several else [path_of(path)]
        sites = site_names(files)
        roles, gaps = self._roles(given)
        said = {**self._said(), **given}
        dictionary = Dictionary.read(said.get("dictionary"))
        keep = tuple(filter(None, given.get("keep", "").split(",")))
        for noun in ("client", "site"):
            if noun in given and several:
                raise SettingError(f"each file of {path} is a site, got {noun}={given[noun]}: leave it out")
        if not self.columns:
            raise SettingError(
                f"the run was trained on rows whose features have no names, got the table {path}: "
                "give a .npz file with x, or examples from Python"
            )
        parts = []
        for site, file in zip(sites, files, strict=True):
            own = dictionary.site(site, None if several else said.get("site"))
            if is_parquet(file):
                part = self._of_frame(file, read_frame(file), roles, with_targets, "client" in given, keep, own)
            else:
                part = self._of_text(file, roles, gaps, with_targets, "client" in given, keep, own)
            parts.append(replace(part, sites=(site,) * len(part.places)) if several else part)
        if len(parts) == 1:
            return parts[0]
        y = None if parts[0].y is None else np.concatenate([part.y for part in parts if part.y is not None])
        return TableRows(
            name=Path(path).stem,
            x=np.concatenate([part.x for part in parts]),
            y=y,
            places=np.concatenate([part.places for part in parts]),
            counted=parts[0].counted,
            sites=tuple(site for part in parts for site in part.sites),
            kept={name: [cell for part in parts for cell in part.kept[name]] for name in keep},
        )

    def of_frame(self, frame: Any, with_targets: bool) -> TableRows:
        """Return the rows of a data frame of pandas."""
        return self._of_frame(Path("data frame"), frame, self._roles({})[0], with_targets)

    def _of_text(
        self,
        path: Path,
        roles: Roles,
        gaps: Gaps,
        with_targets: bool,
        named: bool,
        keep: tuple[str, ...],
        own: SiteDictionary,
    ) -> TableRows:
        if not path.is_file():
            raise SettingError(f"there is no file {str(path)!r}; give the path of a table with a header line")
        if not path.stat().st_size:
            refuse(path, "a table must have a header line and rows", "an empty file", "write both")
        try:
            text = TextTable.recognised(path, (), self.columns)
        except NoColumnError:  # `check_names` says all that is wrong
            text = TextTable.recognised(path, (), ())
        text = replace(text, gaps=gaps, header=own.header(path, text.header, whole=False))
        roles = self._there(path, text.header, roles, with_targets, named, keep)
        marked = self._thousands(roles.targets)
        words = {*own.shared.roles(roles, text.header).categories, *roles.words, *self._words(), *marked, *keep}
        words &= {*text.header}
        read = read_columns(text, words, set(roles.drop))
        if not len(read.lines):
            refuse(path, "the table must have rows", "a header alone", "add some")
        for name, shown in marked.items():
            if name in read.words:
                cells = read.words.pop(name)
                found = ungrouped([*cells, shown])  # by the marks of the run's table, which one cell does not tell
                if found is None:
                    bad = next(cell for cell in cells if cell not in MISSING and ungrouped([cell, shown]) is None)
                    refuse(
                        path, f"{name!r} must hold numbers as in the run's table ({shown})", repr(bad), "write it alike"
                    )
                read.numbers[name] = found[0][:-1]
        own.bring(path, read)
        return replace(self._made(path, read, roles, with_targets), kept={name: read.words[name] for name in keep})

    def _of_frame(
        self,
        place: Path,
        frame: Any,
        roles: Roles,
        with_targets: bool,
        named: bool = False,
        keep: tuple[str, ...] = (),
        own: SiteDictionary = AS_SHARED,
    ) -> TableRows:
        header = [*own.header(place, [str(name) for name in frame.columns], whole=False)]
        frame = frame.set_axis(header, axis=1)
        if not self.columns:
            raise SettingError(
                "the run was trained on rows whose features have no names, got a data frame: give an array"
            )
        roles = self._there(place, header, roles, with_targets, named, keep)
        cells = {name: frame.iloc[:, header.index(name)] for name in keep}
        kept = {name: [*of.map(str).where(of.notna(), "")] for name, of in cells.items()}
        words = tuple(name for name in self._words() if name in header)
        read, bad = columns_of_frame(place, frame, replace(roles, categories=words))
        own.bring(place, read)
        if not len(frame):
            refuse(place, "the table must have rows", "a header alone", "add some")
        if wrong := [bad[name] for name in self.columns if name in bad]:
            refuse(place, "columns of features must be as in the run's table", "; ".join(wrong), "convert them")
        return replace(self._made(place, read, roles, with_targets), kept=kept)

    def _there(
        self, path: Path, header: Sequence[str], roles: Roles, with_targets: bool, named: bool, keep: tuple[str, ...]
    ) -> Roles:
        """Return the roles of the columns that a table has; what is neither feature nor of a role is refused.

        `named`: the column of clients was named for this table, so it must be there. `keep`: columns that go through to
        the predictions, beside features.
        """
        columns, there = self.columns, set(header)
        wanted = [*([roles.label] if roles.label else []), *roles.targets]
        if with_targets and (lacks := [name for name in wanted if name not in there]):
            refuse(
                path, f"to evaluate takes the columns {some_names(wanted)}", f"none called {some_names(lacks)}",
                "name it (?label=NAME, ?target=NAME), or predict alone",
            )  # fmt: skip
        if (lacks := [name for name in keep if name not in there or name in columns]) or len({*keep}) < len(keep):
            got = some_names(lacks or keep)
            refuse(path, "columns to keep are there, once, and are no features", got, "name others (?keep=patient)")
        if named and roles.client not in there:
            refuse(path, f"the column {roles.client!r} must be there", some_names(tuple(header)), "name one that is")
        if self._leaves_out:  # what else a table has, is left out as it was in the run's
            roles = replace(roles, drop=tuple(n for n in header if n not in {*roles.named, *columns}))
        lacking = () if self.preparation is None else self.preparation.lacking
        wanted_features = expected(columns, header, lacking)
        check_names(str(path), [n for n in header if n not in {*roles.named, *roles.drop, *keep}], wanted_features)
        unused = [] if with_targets else wanted
        unused += [name for name in (roles.split, roles.group) if name]
        return Roles(
            roles.label if with_targets else None,
            roles.targets if with_targets else (),
            roles.client if roles.client in there else None,
            None,
            None,
            tuple(name for name in (*roles.drop, *unused) if name in there and name not in {*columns, *keep}),
            (),
        )

    @property
    def _leaves_out(self) -> bool:
        """True if the run left out what else its tables had: those of texts, and unlike ones of which it took some."""
        return self._is_text or self._said().get("columns") == "shared"

    @property
    def _is_text(self) -> bool:
        return self.preparation is not None and self.preparation.text is not None

    def _words(self) -> list[str]:
        """Return the columns that hold words in the run's table."""
        prepared = self.preparation
        return [] if prepared is None else [str(n) for n, of in prepared.frame.items() if of.dtype.kind != "f"]

    def _thousands(self, targets: Sequence[str]) -> dict[str, str]:
        """Return the columns in which marks part thousands in the run's table, and a cell of each that shows it."""
        known = None if self.preparation is None else self.preparation.read.get("thousands", {})
        names = {*targets, *(self.columns if known is None else ())}  # of which nothing is written down
        source = self.source.partition("?")[0]
        out: dict[str, str] = dict(known or {})
        if source and names:
            for file in site_files(source) if is_pattern(source) else [path_of(source)]:
                if not is_parquet(file):
                    text = TextTable.recognised(file, (), self.columns)
                    out |= read_columns(text, set(), {*text.header} - names).grouped
        return out

    def _made(self, path: Path, read: Columns, roles: Roles, with_targets: bool) -> TableRows:
        """Return rows of the columns of a table."""
        columns, words = self.columns, set(self._words())
        x: npt.NDArray[Any]
        for name in columns:
            if name not in read.numbers and name not in read.words:  # of a union, which this table may lack
                read.words[name] = [""] * len(read.lines)
            if name not in words:
                _check_numbers(path, read, name)
        if (prepared := self.preparation) is not None:
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
        y = self._targets(path, read, roles) if with_targets else None
        owners = () if roles.client is None else read.words[roles.client]
        sites = tuple(_NO_SITE if cell in MISSING else cell for cell in owners)
        x = x if self._is_text else x.astype(np.float32)
        return TableRows(path.stem, x, y, np.asarray(read.lines), read.counted, sites)

    def _targets(self, path: Path, read: Columns, roles: Roles) -> npt.NDArray[Any]:
        if roles.label is None:
            for name in roles.targets:
                _check_numbers(path, read, name)
            numbers = np.stack([read.numbers[name] for name in roles.targets], 1).astype(np.float32)
            if (empty := np.isnan(numbers)).any():
                row, column = np.argwhere(empty)[0]
                refuse(
                    path, "targets must be a number in every row",
                    f"{roles.targets[column]!r} without a value in {read.at(int(row))}", "leave the row out",
                )  # fmt: skip
            shaped = numbers[:, 0] if self.train.y.ndim == 1 else numbers
            if shaped.shape[1:] != self.train.y.shape[1:]:
                raise SettingError(
                    f"the run has {self.train.num_classes} targets, got {some_names(roles.targets)} in {path}: name as "
                    "many"
                )
            return shaped
        cells = read.words[roles.label]
        if gaps := [row for row, cell in enumerate(cells) if cell in MISSING]:
            refuse(
                path, f"{roles.label!r} must have a class in every row to evaluate", f"a gap in {read.at(gaps[0])}",
                "leave the row out",
            )  # fmt: skip
        y, classes = class_labels(path, roles.label, cells)
        places = class_places(self.train, str(path), classes)
        return np.array([places[name] for name in classes])[y]


def _federated(preparation: Preparation) -> dict[str, str]:
    """Return what a source says of a preparation by the statistics of all clients."""
    made = preparation.transformer
    if not isinstance(made, CommonPreparation):
        return {}
    said = {"prepare": "federated", "least": str(made.least), "least_clients": str(made.least_clients)}
    return said | ({"columns": made.columns} if made.columns else {})


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
    date = DATE.fullmatch(word) is not None
    refuse(
        path, f"{name!r} must hold numbers, as in the run's table",
        f"{'the date ' * date}{word[:60]!r} in {read.at(row)}",
        "make the numbers of it that the run's table had"
        if date
        else f"write numbers, or name words that mean a gap (?gaps={word[:20]})",
    )  # fmt: skip
