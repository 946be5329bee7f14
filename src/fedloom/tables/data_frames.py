"""Data sets from tables with a header line: text files and data frames."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fedloom.data.examples import Dataset, Examples
from fedloom.data.groups import split_whole_groups
from fedloom.data.hold_out import split as split_rows
from fedloom.data.in_memory import from_arrays
from fedloom.data.normalise import Normalise
from fedloom.data.partition import pooled
from fedloom.tables.columns import (
    Columns,
    check_columns,
    check_gaps,
    check_header,
    class_labels,
    test_rows,
    warn_of_spellings,
)
from fedloom.tables.dictionary import Dictionary
from fedloom.tables.file_checks import refuse
from fedloom.tables.gaps import MISSING, Gaps, spelt
from fedloom.tables.preparation import Preparation, asked
from fedloom.tables.roles import Roles
from fedloom.tables.statistics import CommonPreparation
from fedloom.tables.table_words import TableWords, takes_words
from fedloom.tables.targets import take_targets
from fedloom.wording import install

if TYPE_CHECKING:
    import pandas as pd

_NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]*)*")


@takes_words(TableWords)
def from_frame(frame: pd.DataFrame, words: TableWords) -> Dataset:
    """Return the rows of a pandas data frame as feature vectors (N, D) float32, in their order.

    Gaps are NaN and None, and the words that mean one in a text file, so that a table is the same in each format: "",
    NA, N/A, NaN, null and ?. Columns that have numbers for names are named by their text: 3 is "3". Columns of numbers,
    decimals too, and of true and false are numbers, those of other objects, text and categories are words.

    Args:
        frame: of pandas.
        words: those of `fedloom.tables.TableWords`, each by its name, as in `from_frame(frame, label="ill")`.

    Raises:
        ValueError: as of `read_csv`, a column holds neither, such as dates, or this is no data frame of pandas.
    """
    if not hasattr(frame, "iloc") or not hasattr(frame, "columns"):
        raise ValueError(
            f"frame must be a pandas DataFrame, got {type(frame).__name__}: pandas.DataFrame(...) makes one, and "
            "frame.to_pandas() of polars"
        )
    return of_frame(frame, words, "frame")


def of_frame(frame: pd.DataFrame, words: TableWords, name: str) -> Dataset:
    """Return the rows of a data frame.

    Args:
        frame: of pandas.
        words: what its columns are.
        name: what reports call the examples, unless the words do.
    """
    roles, how, place = Roles.of(words), asked(words), Path(words.name or name)
    refuse_gaps(words, place)
    dictionary = Dictionary.read(words.dictionary)
    site = dictionary.site(name, words.site)
    header = site.header(place, list(map(str, frame.columns)))
    roles = dictionary.roles(roles, header)
    read, bad = columns_of_frame(place, frame.set_axis([*header], axis=1) if dictionary.columns else frame, roles)
    site.bring(place, read)
    said = {"dropped": list(roles.dropped(header))} | dictionary.facts
    return dataset_of(place, read, roles, words, place.name, how, said, bad)


def refuse_gaps(words: TableWords, place: Path) -> None:
    """Refuse words that mean a gap, of what is no text file."""
    if gaps := sorted(Gaps.of(words.gaps).words):
        raise ValueError(
            f"gaps are words in text files, got gaps={','.join(gaps)} for {place}: leave it out, and read with NaN for "
            "them, frame.replace(...) of pandas"
        )


def columns_of_frame(place: Path, frame: pd.DataFrame, roles: Roles) -> tuple[Columns, dict[str, str]]:
    """Return the columns of a data frame, and those that hold neither numbers nor words, with what they hold."""
    header = [str(column) for column in frame.columns]
    check_header(place, header, roles.others, roles.features)
    read, bad = Columns(lines=np.arange(len(frame)), counted="row"), dict[str, str]()
    dropped, as_words = set(roles.dropped(header)), {*roles.words, *roles.categories}
    for i, column in enumerate(header):
        values = frame.iloc[:, i].infer_objects()
        if column in dropped:
            continue
        if values.dtype.kind in "biuf" and column not in as_words:
            read.numbers[column] = values.to_numpy(np.float64, na_value=np.nan)
        elif values.dtype.kind in "mMc":
            bad[column] = f"{column!r} with {values.dtype} values"
        elif column not in as_words and _are_decimals(values):
            numbers = [np.nan if gap else float(v) for v, gap in zip(values, values.isna(), strict=True)]
            read.numbers[column] = np.array(numbers, np.float64)
        else:
            read.words[column] = ["" if gap else spelt(v) for v, gap in zip(values, values.isna(), strict=True)]
    return read, bad


def _are_decimals(values: pd.Series[Any]) -> bool:
    """Return whether a column of objects holds numbers, some of them decimals, as databases and Parquet have them."""
    there = values.dropna()
    return any(isinstance(v, Decimal) for v in there) and all(isinstance(v, Decimal | int | float) for v in there)


def number(values: Iterable[Hashable]) -> npt.NDArray[np.int64]:
    """Return a number for each value, from 0 in the order of their first appearance."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


def dataset_of(
    path: Path,
    read: Columns,
    roles: Roles,
    words: TableWords,
    name: str,
    prepare: Any,
    said: dict[str, Any],
    bad: Mapping[str, str] = MappingProxyType({}),
) -> Dataset:
    if not len(read.lines):
        refuse(path, "the table must have rows", "a header alone", "add some")
    unread = dict(bad)
    single = (roles.label, roles.client, roles.split, roles.group)
    labels, users, parts, grouped = (None if name is None else read.words.pop(name) for name in single)
    if roles.text is not None:
        _check_texts(path, read, roles.text)
    targets = take_targets(path, read, roles.targets, unread) if roles.targets else None
    if roles.text is None:
        check_columns(path, read, prepare is not None, unread, isinstance(prepare, CommonPreparation))
    of_cells = None if read.files else users  # else of files, which may be called NA
    for column, cells in ((roles.label, labels), (roles.client, of_cells), (roles.group, grouped)):
        if column is not None and cells is not None:
            check_gaps(path, read, column, cells)
    y, classes = (targets, ()) if labels is None else class_labels(path, roles.label or "", labels)
    named = [(roles.label, classes), (roles.client, of_cells), (roles.group, grouped), *read.words.items()]
    warn_of_spellings(path, {name: words for name, words in named if name and name != roles.text and words})
    assert y is not None
    groups = None if grouped is None else number(grouped)
    if parts is None:
        strata = np.zeros(len(y), np.int64) if labels is None else y
        whole = pooled(len(y))
        if groups is None:
            out = split_rows(whole, strata, words.test_fraction, words.seed)[1]
        else:
            out = split_whole_groups(whole, strata, groups, words.test_fraction, words.seed)[1]
        test = np.zeros(len(y), np.bool_)
        test[out.indices] = True
    else:
        test = test_rows(path, roles.split or "", parts)
        if grouped is not None and (both := _on_both_sides(grouped, test)) is not None:
            refuse(
                path,
                f"a group in {roles.group!r} is on one side of {roles.split!r}",
                f"{both!r} in train and in test",
                "say the same for all of its rows",
            )
    preparation = None
    if prepare is None:
        columns = tuple(read.numbers)
        x = np.stack([values.astype(np.float32) for values in read.numbers.values()], axis=1)
    else:
        preparation = Preparation.of(_frame(read), prepare, said).fitted(np.flatnonzero(~test), y)
        x, columns = preparation.features()
    how = None if preparation is None else preparation.tokens
    if labels is None:
        given = torch.from_numpy(x), torch.from_numpy(y), len(roles.targets)
        whole_table = Examples(*given, how or Normalise(), name=name)
    else:
        called = () if classes == tuple(map(str, range(len(classes)))) else classes
        whole_table = from_arrays(x, y, num_classes=len(classes), normalise=how, name=name, classes=called)
    examples = replace(
        whole_table,
        columns=columns,
        owners=() if users is None else tuple(dict.fromkeys(users)),
        preparation=preparation,
        targets=roles.targets,
        groups=groups,
    )
    owners = None if users is None else number(users)
    testing = examples.select(np.flatnonzero(test)) if test.any() else None
    if owners is not None and parts is not None:
        return Dataset(examples, testing, owners, test)
    return Dataset(examples.select(np.flatnonzero(~test)), testing, None if owners is None else owners[~test])


def _check_texts(path: Path, read: Columns, column: str) -> None:
    """Refuse a column of texts without a text, and one of numbers alone."""
    cells = read.words[column]
    if not any(cells):
        refuse(path, f"the texts of {column!r} must have words", "empty cells alone", "name another column (text=NAME)")
    if all(_NUMBER.fullmatch(cell) for cell in cells if cell):
        shown = next(cell for cell in cells if cell)
        refuse(
            path, f"the texts of {column!r} must be texts", f"numbers alone, such as {shown!r}",
            "leave text out, and numbers are features",
        )  # fmt: skip


def _on_both_sides(groups: Sequence[str], test: npt.NDArray[np.bool_]) -> str | None:
    """Return the first group with rows to train on and rows to test on; None if there is none."""
    side: dict[str, bool] = {}
    return next((g for g, out in zip(groups, test.tolist(), strict=True) if side.setdefault(g, out) != out), None)


def _frame(read: Columns) -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise ValueError(f"to prepare a table takes pandas: {install('tables')}") from None
    words = {
        name: pd.Series([np.nan if cell in MISSING else cell for cell in cells], dtype=object)
        for name, cells in read.words.items()
    }
    return pd.DataFrame({**{name: pd.Series(values) for name, values in read.numbers.items()}, **words})
