"""Targets that are no classes: numbers of a table's columns, and what is wrong with them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedloom.tables.columns import DATE, Columns
from fedloom.tables.file_checks import refuse
from fedloom.tables.gaps import MISSING
from fedloom.wording import some_of

_WITH_UNIT = re.compile(r"[+-]?[0-9]+(?:[.,][0-9]+)?\s*([^\d\s.,+-]\S*)")
_ROWS = 5  # that a message names
_FEW = 20  # different words, which are classes then
_ALIKE = 1e-9  # how far a correlation may be from 1 where rounding alone parts two columns

Numbers = npt.NDArray[np.float64]


def take_targets(path: Path, read: Columns, names: Sequence[str], bad: dict[str, str]) -> npt.NDArray[np.float32]:
    """Take the columns of targets out of a table and return them, (N,) of one column and (N, D) of several.

    `bad`: columns that hold neither numbers nor words, and what they hold.

    Raises:
        FormatError: a target is no number in some row; all columns and the first rows stand in one message.
    """
    found: dict[str, str] = {}
    remedies: dict[str, None] = {}
    columns: list[Numbers] = []
    for name in names:
        values, words = read.numbers.pop(name, None), read.words.pop(name, None)
        mixed, unread = read.mixed.pop(name, None), bad.pop(name, None)
        read.grouped.pop(name, None)
        if unread is not None:
            found[name] = unread
            remedies["make numbers of dates, such as days since the first"] = None
        elif words is not None or mixed is not None:
            found[name], remedy = _word(read, name, words, mixed)
            remedies[remedy] = None
        else:
            assert values is not None
            gaps = np.isnan(values)
            with np.errstate(over="ignore"):
                endless = ~gaps & ~np.isfinite(values.astype(np.float32))
            if gaps.any():
                found[name] = f"{name!r} without a value in {_rows(read, gaps)}"
                remedies["leave out rows without a target"] = None
            elif endless.any():
                row = int(endless.argmax())
                found[name] = f"{name!r} with {values[row]:g} in {read.at(row)}, too large for float32"
                remedies["use another unit"] = None
            columns.append(values)
    if found:
        remedy = f"{' and '.join(remedies)} [FL-TABLE-006]"
        refuse(path, "targets must be a number in every row", "; ".join(found.values()), remedy)
    _warn(path, dict(zip(names, columns, strict=True)), read.numbers)
    y = np.stack(columns, axis=1).astype(np.float32)
    return y[:, 0] if len(names) == 1 else y


def _rows(read: Columns, which: npt.NDArray[np.bool_]) -> str:
    return some_of(np.flatnonzero(which).tolist(), _ROWS, say=read.at)


def _word(read: Columns, name: str, words: Sequence[str] | None, mixed: tuple[int, str, int] | None) -> tuple[str, str]:
    """Return what a column of targets holds in the place of numbers, and the remedy."""
    kinds = set[str]() if words is None else set(words) - MISSING
    if words is not None and not kinds:
        return f"{name!r} with nothing", "leave that column out"
    if mixed is not None:
        row, word, count = mixed
    else:
        assert words is not None
        row, word = next((i, cell) for i, cell in enumerate(words) if cell not in MISSING)
        count = sum(cell not in MISSING for cell in words)
    shown = f"{name!r} with {{}}{word[:60]!r} in {read.at(row)}" + f" and {count - 1} more" * (count > 1)
    if DATE.fullmatch(word):
        return shown.format("the date "), "make numbers of dates, such as days since the first"
    if unit := _WITH_UNIT.fullmatch(word):
        return shown.format("the unit of "), f"write the unit {unit[1][:20]!r} into the name and numbers alone below it"
    if mixed is None and len(kinds) <= _FEW:
        return shown.format(""), f"name a column of classes as label={name}"
    return shown.format(""), f"mend it, or name words that mean a gap (gaps={word[:60]}) and leave out their rows"


def _warn(path: Path, targets: Mapping[str, Numbers], features: Mapping[str, Numbers]) -> None:
    """Warn of targets that another column says already, of those that do not vary, and of classes as numbers."""
    said = []
    for name, y in targets.items():
        if (y == y[0]).all():
            said.append(f"the target {name!r} is {y[0]:g} in every row, so there is nothing to learn")
            continue
        if len(y) > 2 and set(np.unique(y)) == {0.0, 1.0}:
            said.append(f"the target {name!r} holds 0 and 1 alone: name classes as label={name}")
        others = {**features, **{other: values for other, values in targets.items() if other > name}}
        same = [other for other, values in others.items() if _says(values, y)]
        if same:
            listed = ", ".join(map(repr, same))
            said.append(
                f"the target {name!r} can be computed of {listed} alone: drop={','.join(same)} if it is no input"
            )
    for text in said:
        warnings.warn(f"{path.name}: {text} [FL-TABLE-012]", stacklevel=5)


def _says(feature: Numbers, y: Numbers) -> bool:
    """Return whether a column is the target, or the target in another unit, wherever it has a value."""
    there = ~np.isnan(feature)
    if there.sum() < 3:
        return False
    a, b = feature[there], y[there]
    a, b = a - a.mean(), b - b.mean()
    with np.errstate(all="ignore"):
        scale = np.sqrt((a * a).sum()) * np.sqrt((b * b).sum())
        return bool(scale > 0 and abs((a * b).sum()) / scale > 1 - _ALIKE)


def class_numbers(count: int) -> tuple[str, ...]:
    """Return the numbers of `count` classes as text, the names of classes without names."""
    return tuple(map(str, range(count)))
