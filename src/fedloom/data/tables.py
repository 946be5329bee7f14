"""Data sets from tables with a header line: text files and data frames."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedloom.data.columns import Columns, check_columns, check_gaps, check_header, class_labels, roles, test_rows
from fedloom.data.examples import Dataset, from_arrays
from fedloom.data.formats import FormatError, refuse
from fedloom.data.hold_out import split as split_rows
from fedloom.data.partition import pooled
from fedloom.data.preparation import MISSING, Preparation, spelt
from fedloom.data.text_table import TextTable, read_columns

if TYPE_CHECKING:
    import pandas as pd


def read_csv(
    path: str | os.PathLike[str],
    *,
    label: str = "label",
    client: str | None = None,
    split: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    gaps: Sequence[str] = (),
    prepare: Any = None,
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
    words and gaps (empty cells, NA, N/A, NaN, null and ?) are features too, by scikit-learn (`fedloom[tables]`). It is
    fitted on the rows that train: here on all that are no test rows, and anew by `federate`.

    Args:
        path: the file.
        label: column of class labels, integers or names.
        client: column of natural clients.
        split: column that says `train` or `test` for every row. With `client`, the test rows stay in `train` too,
            marked in `held_out`, to judge their clients on.
        drop: columns that are left out.
        categories: columns of numbers that are names, such as postcodes; prepared as words.
        gaps: more words that mean a gap, such as "k.A.".
        prepare: "standard": numbers are standardised, gaps are the median, words become one column of 0 and 1 each; or
            a transformer of scikit-learn, which is given a data frame of the features.
        test_fraction: without `split`, the part of all rows that becomes the test set, in [0, 1): stratified by class,
            at random. At 0 there is no test set.
        seed: of this choice, 0 to 2**32 - 1.

    Raises:
        ValueError: a column is missing, a row has another number of cells than the header, columns do not hold what
            they need to (all of them in one message), or there is no row to train on.
    """
    path = Path(path)
    if not path.is_file():
        raise FormatError(f"there is no file {str(path)!r}; give the path of a .csv file with a header line")
    named, drop, categories = roles((label, client, split), drop, categories)
    text = TextTable.recognised(path, [*named, *drop], categories)
    text = replace(text, gaps=frozenset([gaps] if isinstance(gaps, str) else gaps))
    read = read_columns(text, set(named) | set(categories), set(drop))
    said: dict[str, Any] = {"separator": text.separator, "encoding": text.encoding, "dropped": list(drop)}
    if text.gaps:
        said["gaps"] = sorted(text.gaps)
    if read.grouped:
        said["thousands"] = read.grouped
    return _dataset(path, read, (label, client, split), path.stem, prepare, said, test_fraction, seed)


def from_frame(
    frame: pd.DataFrame,
    *,
    label: str = "label",
    client: str | None = None,
    split: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    prepare: Any = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    name: str = "frame",
) -> Dataset:
    """Return the rows of a pandas data frame as feature vectors (N, D) float32; arguments are those of `read_csv`.

    Gaps are NaN and None. Columns that have numbers for names are named by their text: 3 is "3".

    Columns of numbers and of true and false are numbers, those of objects, text and categories are words.

    Raises:
        ValueError: as of `read_csv`, a column holds neither, such as dates, or this is no data frame of pandas.
    """
    if not hasattr(frame, "iloc") or not hasattr(frame, "columns"):
        raise ValueError(
            f"frame must be a pandas DataFrame, got {type(frame).__name__}: pandas.DataFrame(...) makes one, and "
            "frame.to_pandas() of polars"
        )
    place, header = Path(name), [str(column) for column in frame.columns]
    label, client, split = str(label), client if client is None else str(client), split if split is None else str(split)
    drop, categories = (_texts(names) for names in (drop, categories))
    named, drop, categories = roles((label, client, split), drop, categories)
    check_header(place, header, [*named, *drop], categories)
    lines = np.arange(len(frame))
    read, bad = Columns(lines=lines, counted="row"), dict[str, str]()
    dropped, as_words = set(drop), {*named, *categories}
    for i, column in enumerate(header):
        values = frame.iloc[:, i].infer_objects()
        if column in dropped:
            continue
        if values.dtype.kind in "biuf" and column not in as_words:
            read.numbers[column] = values.to_numpy(np.float64, na_value=np.nan)
        elif values.dtype.kind in "mMc":
            bad[column] = f"{column!r} with {values.dtype} values"
        else:
            read.words[column] = ["" if gap else spelt(v) for v, gap in zip(values, values.isna(), strict=True)]
    return _dataset(
        place, read, (label, client, split), name, prepare, {"dropped": list(drop)}, test_fraction, seed, bad
    )


def _texts(names: Sequence[Any]) -> list[str]:
    """Return the names of columns as text; a single name becomes a list of it."""
    return [str(name) for name in ([names] if isinstance(names, str | int) else names)]


def number(values: Iterable[Hashable]) -> npt.NDArray[np.int64]:
    """Return a number for each value, from 0 in the order of their first appearance."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


def _dataset(
    path: Path,
    read: Columns,
    named: tuple[str, str | None, str | None],
    name: str,
    prepare: Any,
    said: dict[str, Any],
    test_fraction: float,
    seed: int,
    bad: Mapping[str, str] = MappingProxyType({}),
) -> Dataset:
    label, client, split = named
    if not len(read.lines):
        refuse(path, "the table must have rows", "a header alone", "add some")
    labels, users, parts = (None if n is None else read.words.pop(n) for n in named)
    assert labels is not None
    check_columns(path, read, prepare is not None, bad)
    for column, cells in ((label, labels), (client, users)):
        if column is not None and cells is not None:
            check_gaps(path, read, column, cells)
    y, classes = class_labels(path, label, labels)
    if split is None:
        test = np.zeros(len(y), np.bool_)
        test[split_rows(pooled(len(y)), y, test_fraction, seed)[1].indices] = True
    else:
        assert parts is not None
        test = test_rows(path, split, parts)
    preparation = None
    if prepare is None:
        columns = tuple(read.numbers)
        x = np.stack([values.astype(np.float32) for values in read.numbers.values()], axis=1)
    else:
        preparation = Preparation.of(_frame(read), prepare, said).fitted(np.flatnonzero(~test), y)
        x, columns = preparation.features()
    called = () if classes == tuple(map(str, range(len(classes)))) else classes
    examples = replace(
        from_arrays(x, y, num_classes=len(classes), name=name, classes=called),
        columns=columns,
        owners=() if users is None else tuple(dict.fromkeys(users)),
        preparation=preparation,
    )
    owners = None if users is None else number(users)
    testing = examples.select(np.flatnonzero(test)) if test.any() else None
    if owners is not None and split is not None:
        return Dataset(examples, testing, owners, test)
    return Dataset(examples.select(np.flatnonzero(~test)), testing, None if owners is None else owners[~test])


def _frame(read: Columns) -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise ValueError("to prepare a table takes pandas: pip install 'fedloom[tables]'") from None
    words = {
        name: pd.Series([np.nan if cell in MISSING else cell for cell in cells], dtype=object)
        for name, cells in read.words.items()
    }
    return pd.DataFrame({**{name: pd.Series(values) for name, values in read.numbers.items()}, **words})
