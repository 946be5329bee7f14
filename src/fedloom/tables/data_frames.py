"""Data sets from tables with a header line: text files and data frames."""

from __future__ import annotations

import os
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
from fedloom.tables.file_checks import FormatError, refuse
from fedloom.tables.preparation import MISSING, Gaps, Preparation, asked, spelt
from fedloom.tables.roles import Roles
from fedloom.tables.statistics import CommonPreparation
from fedloom.tables.targets import take_targets
from fedloom.tables.text_table import TextTable, read_columns
from fedloom.tables.vocabulary import Tokeniser, TokenKind
from fedloom.wording import install, local_path

if TYPE_CHECKING:
    import pandas as pd

_NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]*)*")


def read_csv(
    path: str | os.PathLike[str],
    *,
    label: str | None = None,
    target: str | Sequence[str] = (),
    client: str | None = None,
    split: str | None = None,
    group: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    gaps: Any = (),
    prepare: Any = None,
    least: int = 1,
    least_clients: int = 1,
    text: str | None = None,
    tokens: TokenKind | Tokeniser | None = None,
    length: int | None = None,
    most: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Return the rows of a table in a text file as feature vectors (N, D) float32, in file order.

    Its first line names the columns. The separator (comma, semicolon, tab or bar; behind semicolons 3,5 is a number)
    and the encoding (UTF-8, UTF-16 with its mark, else Windows-1252) are recognised, and so are thousands' marks in a
    column where some cell has both marks, 66.981,87 or 66,981.87, or one twice (1.234.567). Classes are the values of
    the label column in sorted order, numerically if all are integers; an integer has one spelling. There and in the
    column of clients a gap is refused.

    Columns that are not named here are features. Without `prepare` they hold numbers, as they are. With it, columns of
    words and gaps (empty cells, NA, N/A, NaN, null and ?) are features too (the extra `tables`). It is fitted on the
    rows that train: here on all that are no test rows, and anew by `federate`.

    Args:
        path: the file.
        label: column of class labels, integers or names; "label" where neither it nor `target` is given.
        target: column of numbers to predict in the place of classes, or several.
        client: column of natural clients.
        split: column that says `train` or `test` for every row. With `client`, the test rows stay in `train` too,
            marked in `held_out`, to evaluate their clients on.
        group: column of groups, such as patients; rows of one group never fall on both sides of a split, here and in
            `federate`.
        drop: columns that are left out.
        categories: columns of numbers that are names, such as postcodes; prepared as words.
        gaps: more words or numbers that mean a gap, such as "k.A." or -999, one or several. A number means one however
            a cell writes it, -999.0 too; a word that no cell has is warned of.
        prepare: "standard": numbers are standardised, gaps are the median, words become one column of 0 and 1 each;
            "federated": the same of what clients count and add up (`fedloom.tables.statistics`), the median to 1/1024
            of the range; or a transformer of scikit-learn, which is given a data frame of the features.
        least: of "federated", how many rows of a client must have a word for the client to name it; of a text, how
            often a client must have a token.
        least_clients: of "federated", how many clients must have a word for it to be a feature; of a text, how many
            must have a token for it to be in the vocabulary. It leaves out what fewer clients claim, once `federate`
            knows them.
        text: column of texts, which become token ids (N, length), padded at their end with 0; the other columns without
            a role are left out. The vocabulary is what clients count (`fedloom.tables.vocabulary`).
        tokens: of a text, "words" (unless said) or "characters"; or a tokeniser of your own, a function of a text that
            returns ids, whose `size` says how many there are.
        length: of a text, most tokens of it, 128 unless said; the others are left out.
        most: of a text, the largest vocabulary, the most frequent tokens; 10,000 unless said.
        test_fraction: without `split`, the part of all rows that becomes the test set, in [0, 1): at random, stratified
            by class. At 0 there is no test set.
        seed: of this choice, 0 to 2**32 - 1.

    Raises:
        ValueError: a column is missing, a row has another number of cells than the header, columns do not hold what
            they need to (all of them in one message), or there is no row to train on.
    """
    path = local_path(path)
    if not path.is_file():
        raise FormatError(f"there is no file {str(path)!r}; give the path of a .csv file with a header line")
    roles = Roles.of(label, target, client, split, group, drop, categories, text)
    how = asked(prepare, least, least_clients, roles.text, tokens=tokens, length=length, most=most)
    table = TextTable.recognised(path, roles.others, roles.features)
    table = replace(table, gaps=Gaps.of(gaps))
    dropped = roles.dropped(table.header)
    read = read_columns(table, {*roles.words, *roles.categories}, set(dropped))
    said: dict[str, Any] = {"separator": table.separator, "encoding": table.encoding, "dropped": list(dropped)}
    if table.gaps.words:
        said["gaps"] = sorted(table.gaps.words)
        table.gaps.warn_of_unmet(path, table.met)
    if read.grouped:
        said["thousands"] = read.grouped
    return dataset_of(path, read, roles, path.stem, how, said, test_fraction, seed)


def from_frame(
    frame: pd.DataFrame,
    *,
    label: str | None = None,
    target: str | Sequence[str] = (),
    client: str | None = None,
    split: str | None = None,
    group: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    prepare: Any = None,
    least: int = 1,
    least_clients: int = 1,
    text: str | None = None,
    tokens: TokenKind | Tokeniser | None = None,
    length: int | None = None,
    most: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    name: str = "frame",
) -> Dataset:
    """Return the rows of a pandas data frame as feature vectors (N, D) float32, in their order.

    Gaps are NaN and None, and the words that mean one in a text file, so that a table is the same in each format: "",
    NA, N/A, NaN, null and ?. Columns that have numbers for names are named by their text: 3 is "3". Columns of numbers,
    decimals too, and of true and false are numbers, those of other objects, text and categories are words.

    Args:
        frame: of pandas.
        label: column of class labels; "label" where neither it nor `target` is given.
        target: column of numbers to predict in the place of classes, or several.
        client: column of natural clients.
        split: column that says `train` or `test` for every row.
        group: column of groups, whose rows never fall on both sides of a split.
        drop: columns that are left out.
        categories: columns of numbers that are names, prepared as words.
        prepare: "standard", "federated" or a transformer, as of `read_csv`.
        least: of "federated", how many rows of a client must have a word for the client to name it.
        least_clients: of "federated", how many clients must have a word; of a text, how many must have a token.
        text: column of texts, which become token ids (N, length), as of `read_csv`.
        tokens: of a text, "words", "characters" or a tokeniser of your own.
        length: of a text, most tokens of it, 128 unless said.
        most: of a text, the largest vocabulary; 10,000 unless said.
        test_fraction: without `split`, the part of all rows that becomes the test set, in [0, 1).
        seed: of this choice, 0 to 2**32 - 1.
        name: what the data are called.

    Raises:
        ValueError: as of `read_csv`, a column holds neither, such as dates, or this is no data frame of pandas.
    """
    if not hasattr(frame, "iloc") or not hasattr(frame, "columns"):
        raise ValueError(
            f"frame must be a pandas DataFrame, got {type(frame).__name__}: pandas.DataFrame(...) makes one, and "
            "frame.to_pandas() of polars"
        )
    roles = Roles.of(label, target, client, split, group, drop, categories, text)
    how = asked(prepare, least, least_clients, roles.text, tokens=tokens, length=length, most=most)
    read, bad = columns_of_frame(Path(name), frame, roles)
    said = {"dropped": list(roles.dropped([str(column) for column in frame.columns]))}
    return dataset_of(Path(name), read, roles, name, how, said, test_fraction, seed, bad)


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
    name: str,
    prepare: Any,
    said: dict[str, Any],
    test_fraction: float,
    seed: int,
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
            out = split_rows(whole, strata, test_fraction, seed)[1]
        else:
            out = split_whole_groups(whole, strata, groups, test_fraction, seed)[1]
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
