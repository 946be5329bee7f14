"""The columns of a table: their values, and what is wrong with them."""

from __future__ import annotations

import difflib
import re
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedloom.tables.file_checks import FormatError, refuse
from fedloom.tables.gaps import MISSING
from fedloom.tables.roles import first_repeated
from fedloom.wording import some_of

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_WHOLE = re.compile(r"([+-]?[0-9]{1,18})\.0*")
DATE = re.compile(r"[0-9]{1,4}([-./])[0-9]{1,2}\1[0-9]{1,4}([ T].*)?")
MOST_CATEGORIES = 1000  # of a column, and in at least two rows each on average: more are names of things
_FEW = 20  # which any column may have
_SHOWN = 12  # bad columns in a message
_SPELT = 3  # words of a column with several spellings in it


@dataclass
class Columns:
    """The columns of a table: float64 numbers, NaN where there is none, or words, "" where there is none."""

    numbers: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    words: dict[str, list[str]] = field(default_factory=dict)
    lines: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    counted: str = "line"  # what `lines` are
    mixed: dict[str, tuple[int, str, int]] = field(default_factory=dict)  # row, word, count: where numbers should be
    grouped: dict[str, str] = field(default_factory=dict)  # columns with thousands' marks, and a cell that has them
    files: tuple[tuple[int, str], ...] = ()  # the first row of each file and its name, where there are several

    def at(self, row: int) -> str:
        of = [name for first, name in self.files if first <= row]
        return f"{self.counted} {self.lines[row]}" + (f" of {of[-1]}" if of else "")


class NoColumnError(FormatError):
    """A table lacks columns that were named: `columns`. `rule`: the message without its remedy."""

    def __init__(self, path: Path, header: Sequence[str], columns: Sequence[str]) -> None:
        known = {name.casefold(): name for name in header}
        said = []
        for name in columns:
            close = difflib.get_close_matches(name.casefold(), known, n=1)
            said.append(f"{name!r} (did you mean {known[close[0]]!r}?)" if close else f"{name!r}")
        self.columns = columns
        self.rule = f"{path}: there is no column {', '.join(said)}, got {', '.join(header)[:200] or 'nothing'}"
        self.rule += " (data in line 1, without a line of names before it?)" if _look_like_data(header) else ""
        unsaid = "label" in columns  # what `read_csv` takes where nobody says another
        remedy = "say which one is the label (label=NAME)" if unsaid else "name columns as the first line does"
        super().__init__(f"{self.rule}: {remedy} [FL-TABLE-002]")


def check_header(path: Path, header: Sequence[str], others: Sequence[str], features: Sequence[str]) -> None:
    twice = first_repeated(header)
    if twice is not None and _look_like_data(header):
        refuse(
            path, "the first line must name the columns", f"data in line 1, {', '.join(header)[:100]!r}",
            "write a line of names before it, or read it with pandas (header=None) and fedloom.from_frame, where "
            "columns are called 0, 1, ...",
        )  # fmt: skip
    if twice is not None:
        refuse(path, "columns must have distinct names", f"{twice!r} twice", "rename one in the first line")
    there = set(header)
    if missing := [name for name in dict.fromkeys([*others, *features]) if name not in there]:
        raise NoColumnError(path, header, missing)
    if "" in there and "" not in others:
        refuse(
            path,
            "columns of features must have names",
            f"none in place {header.index('') + 1}",
            "name it in the first line or leave it out; pandas writes row numbers so, unless to_csv has index=False",
        )
    if not there - set(others):
        refuse(path, "a table must have a column of features", ", ".join(header)[:200], "drop fewer columns")


def _look_like_data(header: Sequence[str]) -> bool:
    """Return whether half of the names of columns are numbers, and not rising ones, as pandas counts columns."""
    numbers = [name for name in header if _is_number(name)]
    whole = [int(name) for name in numbers if _INTEGER.fullmatch(name)]
    counts = len(whole) == len(numbers) and all(a < b for a, b in pairwise(whole))
    return 2 * len(numbers) >= len(header) > 0 and not counts


def most_words(rows: int) -> int:
    """Return how many different words a column of so many rows may have."""
    return min(MOST_CATEGORIES, max(_FEW, rows // 2))


def check_columns(path: Path, read: Columns, prepared: bool, bad: Mapping[str, str], shared: bool = False) -> None:
    """Refuse columns that cannot be features, all in one message; `bad`: what is wrong with some of them already.

    `shared`: other clients' rows decide on columns too, so one without any value here is warned of alone.
    """
    found, empty = dict(bad), list[str]()
    fills = dates = False  # whether to prepare them is a remedy, and to count days
    for name, (row, word, count) in read.mixed.items():
        found[name] = f"{name!r} with {word[:60]!r} in {read.at(row)}" + f" and {count - 1} more" * (count > 1)
    for name, values in read.numbers.items():
        gaps = np.isnan(values)
        with np.errstate(over="ignore"):
            endless = ~gaps & ~np.isfinite(values.astype(np.float32))
        if gaps.all() and shared:
            empty.append(name)
        elif gaps.all():
            found.setdefault(name, f"{name!r} with nothing")
        elif endless.any():
            row = int(endless.argmax())
            found.setdefault(name, f"{name!r} with {values[row]:g} in {read.at(row)}, too large for float32")
        elif gaps.any() and not prepared and name not in found:
            found[name] = f"{name!r} with {gaps.sum()} missing, first in {read.at(int(gaps.argmax()))}"
            fills = True
    for name, cells in read.words.items():
        kinds = set(cells) - MISSING
        if not prepared:
            row = next((i for i, cell in enumerate(cells) if cell not in MISSING), 0)
            found.setdefault(name, f"{name!r} with {cells[row][:60]!r} in {read.at(row)}")
            fills = True
        elif not kinds and shared:
            empty.append(name)
            continue
        elif not kinds:
            found.setdefault(name, f"{name!r} with nothing")
            continue
        is_date = all(map(DATE.fullmatch, kinds))
        if prepared and len(kinds) > (most := _FEW if is_date else most_words(len(cells))):
            dates |= is_date
            what = "dates" if is_date else "words"
            found.setdefault(
                name, f"{name!r} with {len(kinds):,} different {what} such as {min(kinds)[:60]!r}, more than {most:,}"
            )
    if empty:
        warnings.warn(
            f"{path.name}: {', '.join(map(repr, empty))} with nothing here, which the other rows fill", stacklevel=4
        )
    if not found:
        return
    listed = some_of(found.values(), _SHOWN, "; ")
    rule = "columns of features must be numbers" + ", or a few different words" * prepared
    remedies = ["prepare them (prepare=standard makes numbers of words and fills gaps)"] * fills
    if prepared and read.mixed:
        word = next(iter(read.mixed.values()))[1]
        remedies += [
            f"name words that mean a gap (gaps={word[:60]})",
            "name those that hold categories (categories=NAME)",
        ]
    remedies += ["make numbers of dates, such as days since the first (pandas, then fedloom.from_frame)"] * dates
    remedy = ", ".join([*remedies, "mend them"])
    refuse(path, rule, listed, f"{remedy}, or leave them out: drop={','.join(found)} [FL-TABLE-001]")


def same_word(word: str) -> str:
    """Return what spellings of one word have in common.

    They may differ in case, spaces, full or half width, composed or decomposed letters, and signs without width.
    """
    if not word.isascii():
        word = "".join(c for c in unicodedata.normalize("NFKC", word) if unicodedata.category(c) != "Cf")
    return " ".join(unicodedata.normalize("NFC", word.casefold()).split())


def warn_of_spellings(place: Path, columns: Mapping[str, Iterable[str]]) -> None:
    """Warn of words that look like one word in several spellings, and count as several.

    `columns`: the words of each column, in which gaps do not count.
    """
    found = []
    for column, words in columns.items():
        spellings: dict[str, list[str]] = {}
        for word in sorted(set(words) - MISSING):
            spellings.setdefault(same_word(word), []).append(word)
        several = [" and ".join(_shown(some)) for some in spellings.values() if len(some) > 1]
        found += [f"{some_of(several, _SPELT)[:200]} in {column!r}"] if several else []
    if found:
        warnings.warn(
            f"{place}: one word has one spelling, got {some_of(found, _SHOWN, '; ')}, each of which counts as another: "
            "write them alike, if they mean the same",
            stacklevel=4,
        )


def _shown(words: Sequence[str]) -> Iterable[str]:
    """Return words in quotes, by the numbers of their letters where they look the same."""
    same = len({unicodedata.normalize("NFC", word) for word in words}) < len(words)
    return map(ascii if same else repr, words)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def check_gaps(path: Path, read: Columns, column: str, cells: Sequence[str]) -> None:
    """Refuse cells that mean a gap where every row needs a class or a client."""
    gaps = [row for row, cell in enumerate(cells) if cell in MISSING]
    if gaps:
        more = f" and {len(gaps) - 1} more" * (len(gaps) > 1)
        refuse(
            path,
            f"{column!r} must have a value in every row",
            f"{cells[gaps[0]]!r} in {read.at(gaps[0])}{more}, which means a gap",
            "fill it in, leave the row out, or rename a class or client that is called so",
        )


def class_labels(path: Path, column: str, cells: Sequence[str]) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Return the labels, and what the classes are called."""
    if all(_INTEGER.fullmatch(cell) or _WHOLE.fullmatch(cell) for cell in cells):  # 3.0, as columns with gaps are saved
        cells = [_WHOLE.sub(r"\1", cell) for cell in cells]
    spellings: dict[int, str] = {}
    for cell in sorted(set(cells)):
        if _INTEGER.fullmatch(cell) and spellings.setdefault(int(cell), cell) != cell:
            other = spellings[int(cell)]
            refuse(path, f"an integer in {column!r} must have one spelling", f"{other} and {cell}", "write it alike")
    integers = all(_INTEGER.fullmatch(cell) for cell in cells)
    for cell in () if integers else cells:
        if _is_number(cell.replace("_", "")) and not _INTEGER.fullmatch(cell):
            refuse(
                path, f"labels in {column!r} must be integers or names", repr(cell)[:60], "number the classes from 0"
            )
    values = np.array([int(cell) for cell in cells], np.int64) if integers else np.array(cells, object)
    classes, y = np.unique(values, return_inverse=True)
    return y.astype(np.int64), tuple(map(str, classes))


def test_rows(path: Path, column: str, cells: Sequence[str]) -> npt.NDArray[np.bool_]:
    if wrong := set(cells) - {"train", "test"}:
        refuse(path, f"{column!r} must say train or test", repr(min(wrong))[:60], "name the part of every row")
    if "train" not in cells:
        refuse(path, f"{column!r} must say train for some rows", "test for all", "choose rows to train on")
    return np.array([cell == "test" for cell in cells])
