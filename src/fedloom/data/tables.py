"""Tables with a header line, as comma-separated text."""

from __future__ import annotations

import csv
import os
import re
from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedloom.data import formats
from fedloom.data.examples import Dataset, from_arrays
from fedloom.data.formats import FormatError, refuse
from fedloom.data.partition import pooled
from fedloom.data.partition import split as hold_out

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def read_csv(
    path: str | os.PathLike[str],
    *,
    label: str = "label",
    client: str | None = None,
    split: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Return the rows of a .csv file (UTF-8) as feature vectors (N, D) float32, in file order.

    Columns that are not named here are features and hold numbers. Classes are the values of the label column in
    sorted order, numerically if all are integers; an integer has one spelling.

    Args:
        path: a file that begins with a line of distinct column names.
        label: column of class labels, integers or names.
        client: column of natural clients.
        split: column that says `train` or `test` for every row. With `client`, the test rows stay in `train` too,
            marked in `held_out`, to judge their clients on.
        test_fraction: without `split`, the part of all rows that becomes the test set, in [0, 1): stratified by class,
            at random. At 0 there is no test set.
        seed: of this choice, 0 to 2**32 - 1.

    Raises:
        ValueError: a column is missing, a row has another number of cells than the header, a cell is not what its
            column needs, or there is no row to train on.
    """
    path = Path(path)
    if not path.is_file():
        raise FormatError(f"there is no file {str(path)!r}; give the path of a .csv file with a header line")
    named: dict[str, list[str]] = {name: [] for name in (label, client, split) if name is not None}
    x, columns = _table(path, named)
    y, num_classes = _classes(path, label, named[label])
    owners = None if client is None else number(named[client])
    if split is None:
        test = np.zeros(len(y), np.bool_)
        test[hold_out(pooled(len(y)), y, test_fraction, seed)[1].indices] = True
    else:
        test = _parts(path, split, named[split])
    examples = replace(from_arrays(x, y, num_classes=num_classes, name=path.stem), columns=columns)
    testing = examples.select(np.flatnonzero(test)) if test.any() else None
    if owners is not None and split is not None:
        return Dataset(examples, testing, owners, test)
    return Dataset(examples.select(np.flatnonzero(~test)), testing, None if owners is None else owners[~test])


def number(values: Iterable[Hashable]) -> npt.NDArray[np.int64]:
    """Number values from 0 in the order of their first appearance."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


def _table(path: Path, named: dict[str, list[str]]) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    """Return the features and their names; append the cells of the columns in `named` to its lists."""
    if (size := path.stat().st_size) > formats.LIMIT:
        refuse(path, f"the file must be at most {formats.LIMIT} bytes", size, "use a .npz file")
    values = array("d")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            if len(set(header)) < len(header) or not named.keys() <= set(header) or len(header) == len(named):
                rule = f"the header must be distinct names with {', '.join(map(repr, named))} and a feature"
                refuse(path, rule, ", ".join(header)[:200] or "nothing", "name the columns")
            features = [i for i, name in enumerate(header) if name not in named]
            places = [(cells, header.index(name)) for name, cells in named.items()]
            for row in reader:
                if not row:  # an empty line
                    continue
                where = f"line {reader.line_num}"
                if len(row) != len(header):
                    refuse(path, f"{where} must have {len(header)} cells", len(row), "quote cells that hold commas")
                try:
                    values.extend([_float(row[i]) for i in features])
                except ValueError:
                    wrong = next(i for i in features if not _is_number(row[i]))
                    rule = f"{where}, column {header[wrong]!r} must be a number"
                    refuse(path, rule, repr(row[wrong])[:60], "encode it, or drop the column")
                for cells, i in places:
                    cells.append(row[i].strip())
    except (csv.Error, UnicodeDecodeError) as error:
        refuse(path, "the file must be comma-separated text in UTF-8", error, "write it again")
    if not values:
        refuse(path, "the table must have rows", "a header alone", "add some")
    with np.errstate(over="ignore"):
        x = np.frombuffer(values).astype(np.float32).reshape(-1, len(features))
    if not np.isfinite(x).all():
        row_number, column = np.argwhere(~np.isfinite(x))[0]
        rule = f"row {row_number + 1}, column {header[features[column]]!r} must be finite in float32"
        refuse(path, rule, values[row_number * len(features) + column], "impute or drop it")
    return x, tuple(header[i] for i in features)


def _float(cell: str) -> float:
    """The number in a cell. Python also reads 1_000, and digits of other scripts."""
    if "_" in cell or not cell.isascii():
        raise ValueError(cell)
    return float(cell)


def _is_number(cell: str) -> bool:
    try:
        _float(cell)
    except ValueError:
        return False
    return True


def _classes(path: Path, column: str, cells: Sequence[str]) -> tuple[npt.NDArray[np.int64], int]:
    spellings: dict[int, str] = {}
    for cell in sorted(set(cells)):
        if _INTEGER.fullmatch(cell) and spellings.setdefault(int(cell), cell) != cell:
            other = spellings[int(cell)]
            refuse(path, f"an integer in {column!r} must have one spelling", f"{other} and {cell}", "write it alike")
    integers = all(_INTEGER.fullmatch(cell) for cell in cells)
    for cell in () if integers else cells:
        if not cell or (_is_number(cell.replace("_", "")) and not _INTEGER.fullmatch(cell)):
            refuse(
                path, f"labels in {column!r} must be integers or names", repr(cell)[:60], "number the classes from 0"
            )
    values = np.array([int(cell) for cell in cells], np.int64) if integers else np.array(cells, object)
    classes, y = np.unique(values, return_inverse=True)
    return y.astype(np.int64), len(classes)


def _parts(path: Path, column: str, cells: Sequence[str]) -> npt.NDArray[np.bool_]:
    if wrong := set(cells) - {"train", "test"}:
        refuse(path, f"{column!r} must say train or test", repr(min(wrong))[:60], "name the part of every row")
    if "train" not in cells:
        refuse(path, f"{column!r} must say train for some rows", "test for all", "choose rows to train on")
    return np.array([cell == "test" for cell in cells])
