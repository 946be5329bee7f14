"""Tables as text: their encoding, their separator, and their columns of numbers and words."""

from __future__ import annotations

import csv
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedloom.data import Dataset
from fedloom.tables import file_checks
from fedloom.tables.columns import Columns, check_header
from fedloom.tables.data_frames import dataset_of
from fedloom.tables.dictionary import Dictionary
from fedloom.tables.file_checks import FormatError, refuse, refuse_other_kinds
from fedloom.tables.gaps import MISSING, Gaps
from fedloom.tables.preparation import asked
from fedloom.tables.roles import Roles
from fedloom.tables.table_words import TableWords, takes_words
from fedloom.wording import local_path

_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+")
_GROUPED = [  # 66.981,87 and 66,981.87: what whole columns must look like, what tells it from a decimal mark, the marks
    (re.compile(rf"[+-]?[0-9]{{1,3}}(\{mark}[0-9]{{3}})*(\{point}[0-9]+)?|[+-]?[0-9]+(\{point}[0-9]+)?"), mark, point)
    for mark, point in ((".", ","), (",", "."))
]
_SEPARATORS = ",;\t|"


@dataclass(frozen=True)
class TextTable:
    """A file of cells, and how it is written."""

    path: Path
    encoding: str
    separator: str
    header: tuple[str, ...]
    gaps: Gaps = field(default_factory=Gaps)
    met: set[str] = field(default_factory=set, compare=False)  # words of `gaps` that cells had

    @classmethod
    def recognised(cls, path: Path, others: Sequence[str], features: Sequence[str]) -> TextTable:
        """Recognise the encoding that the bytes have, and the separator.

        It is the separator by which the header has these names, or most names.
        """
        if (size := path.stat().st_size) > file_checks.LIMIT:
            refuse(path, f"the file must be at most {file_checks.LIMIT} bytes", size, "use a .npz file")
        refuse_other_kinds(path, "the file must be a table as text")
        encoding = _encoding(path)
        headers = {separator: _header(path, encoding, separator) for separator in _SEPARATORS}
        wanted = {*others, *features}
        found = max(headers, key=lambda s: (wanted <= set(headers[s]), len(headers[s])))  # the first of equals
        check_header(path, headers[found], others, features)
        return cls(path, encoding, found, headers[found])

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line numbers, and cells without the spaces around them."""
        try:
            with self.path.open(newline="", encoding=self.encoding) as file:
                reader = csv.reader(file, delimiter=self.separator, strict=True)
                _next(reader)
                while (row := _next(reader)) is not None:
                    if not row:  # an empty line
                        continue
                    if len(row) != len(self.header):
                        rule = f"line {reader.line_num} must have {len(self.header)} cells"
                        refuse(self.path, rule, len(row), f"quote cells that hold {self.separator!r}")
                    cells = [cell.strip() for cell in row]
                    yield reader.line_num, self._without_gaps(cells) if self.gaps.words else cells
        except csv.Error as error:
            refuse(self.path, "the file must be a table as text", error, "write it again as CSV in UTF-8")

    def _without_gaps(self, cells: list[str]) -> list[str]:
        """Return the cells of a row, "" where a word of `gaps` stands."""
        words = [self.gaps.word(cell, self.number) for cell in cells]
        self.met.update(word for word in words if word is not None)
        return [cell if word is None else "" for cell, word in zip(cells, words, strict=True)]

    def number(self, cell: str) -> float:
        """Return the number in a cell.

        Python also reads 1_000 and digits of other scripts, which are rejected here.
        """
        if "_" in cell or not cell.isascii():
            raise ValueError(cell)
        if self.separator == ";" and _DECIMAL_COMMA.fullmatch(cell):
            cell = cell.replace(",", ".")
        return float(cell)


def _next(reader: Iterator[list[str]]) -> list[str] | None:
    """Return the next row, None behind the last, whose cells may be as long as a file: Python's limit is 131,072 signs.

    That limit is one of the process, so other readers have theirs back after each row.
    """
    before = csv.field_size_limit(file_checks.LIMIT)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        marked = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
    fits = next((e for e in (("utf-16",) if marked else ("utf-8-sig", "cp1252")) if _decodes(path, e)), None)
    return fits or refuse(path, "the file must be UTF-8, UTF-16 or Windows-1252", "other bytes", "write it in UTF-8")


def _decodes(path: Path, encoding: str) -> bool:
    with suppress(UnicodeError), path.open(encoding=encoding) as file:
        while part := file.read(1 << 20):
            if "\0" in part:
                refuse(path, "the file must be a table as text", "a character 0", "write it as CSV in UTF-8")
        return True
    return False


def _header(path: Path, encoding: str, separator: str) -> tuple[str, ...]:
    try:
        with path.open(newline="", encoding=encoding) as file:
            return tuple(name.strip() for name in next(csv.reader(file, delimiter=separator, strict=True), []))
    except (csv.Error, UnicodeError):
        return ()


class Cells(Protocol):
    """Rows of text below a header, of one file or of several."""

    @property
    def header(self) -> tuple[str, ...]: ...

    def rows(self) -> Iterator[tuple[int, list[str]]]: ...

    def number(self, cell: str) -> float: ...


def read_columns(text: Cells, as_words: set[str], dropped: set[str]) -> Columns:
    """Read columns of numbers in one pass, without holding their text.

    Columns that turn out to be words are read in another pass.
    """
    others = as_words | dropped
    features = [i for i, name in enumerate(text.header) if name not in others]
    words: dict[str, list[str]] = {name: [] for name in text.header if name in as_words}
    place = {name: i for i, name in enumerate(text.header)}
    places = [(cells, place[name]) for name, cells in words.items()]
    values, lines, met = array("d"), array("q"), dict[int, list[Any]]()
    for line, row in text.rows():
        lines.append(line)
        try:
            values.extend([text.number(row[i]) for i in features])
        except ValueError:
            values.extend([_number_or_note(text, row[i], met.setdefault(i, [0, "", 0]), len(lines)) for i in features])
        for cells, i in places:
            cells.append(row[i])
    matrix = np.frombuffer(values).reshape(len(lines), len(features))
    read = Columns(words=words, lines=np.array(lines, np.int64))
    late: dict[str, list[str]] = {}
    for k, i in enumerate(features):
        name, (first, word, count) = text.header[i], met.get(i, (0, "", 0))
        if count and int((~np.isnan(matrix[:, k])).sum()) >= count:
            read.mixed[name] = (first - 1, word, count)
        if count and (name not in read.mixed or any(form.fullmatch(word) for form, *_ in _GROUPED)):
            late[name] = []
        if not count or name in read.mixed:
            read.numbers[name] = matrix[:, k]
    if late:
        again = [(cells, place[name], dict[str, str]()) for name, cells in late.items()]
        for _, row in text.rows():
            for cells, i, known in again:  # one text for equal cells
                cells.append(known.setdefault(row[i], row[i]))
    for name, cells in late.items():
        if (found := ungrouped(cells)) is not None:
            read.numbers[name], read.grouped[name] = found
            read.mixed.pop(name, None)
        elif name not in read.mixed:
            read.words[name] = cells
    read.numbers = {name: read.numbers[name] for name in text.header if name in read.numbers}
    return read


def ungrouped(cells: Sequence[str]) -> tuple[npt.NDArray[np.float64], str] | None:
    """Return the numbers in a column where marks part thousands, and a cell that shows it.

    It is None where no cell shows it, or not all cells fit.
    """
    filled = set(cells) - MISSING
    for form, mark, point in _GROUPED:
        shown = [cell for cell in filled if cell.count(mark) > 1 or (mark in cell and point in cell)]
        if shown and all(map(form.fullmatch, filled)):
            known = {cell: float(cell.replace(mark, "").replace(point, ".")) for cell in filled}
            return np.array([known.get(cell, np.nan) for cell in cells]), min(shown)
    return None


def _number_or_note(text: Cells, cell: str, met: list[Any], row: int) -> float:
    """Return the number in a cell, NaN where there is none.

    `met` holds the row of the first word, that word, and the number of words.
    """
    if cell in MISSING:
        return np.nan
    try:
        return text.number(cell)
    except ValueError:
        if not met[2]:
            met[:2] = row, cell
        met[2] += 1
        return np.nan


@takes_words(TableWords)
def read_csv(path: str | os.PathLike[str], words: TableWords) -> Dataset:
    """Return the rows of a table in a text file as feature vectors (N, D) float32, in file order.

    Its first line names the columns. The separator (comma, semicolon, tab or bar; behind semicolons 3,5 is a number)
    and the encoding (UTF-8, UTF-16 with its mark, else Windows-1252) are recognised, and so are thousands' marks in a
    column where some cell has both marks, 66.981,87 or 66,981.87, or one twice (1.234.567). Classes are the values of
    the label column in sorted order, numerically if all are integers.

    Columns that are not named are features. Without `prepare` they hold numbers, as they are. With it, columns of words
    and gaps (empty cells, NA, N/A, NaN, null and ?) are features too (the extra `tables`).

    Args:
        path: the file.
        words: those of `fedloom.tables.TableWords`, each by its name, as in `read_csv("people.csv", label="ill")`.

    Raises:
        ValueError: a column is missing, a row has another number of cells than the header, columns do not hold what
            they need to (all of them in one message), or there is no row to train on.
    """
    path = local_path(path)
    if not path.is_file():
        raise FormatError(f"there is no file {str(path)!r}; give the path of a .csv file with a header line")
    roles, how, dictionary = Roles.of(words), asked(words), Dictionary.read(words.dictionary)
    site = dictionary.site(path.stem, words.site)
    known = ((), ()) if dictionary.columns else (roles.others, roles.features)  # names are those of the site
    table = replace(TextTable.recognised(path, *known), gaps=Gaps.of(words.gaps))
    if dictionary.columns:
        table = replace(table, header=site.header(path, table.header))
        check_header(path, table.header, roles.others, roles.features)
        roles = dictionary.roles(roles, table.header)
    dropped = roles.dropped(table.header)
    read = read_columns(table, {*roles.words, *roles.categories}, set(dropped))
    site.bring(path, read)
    said: dict[str, Any] = {"separator": table.separator, "encoding": table.encoding, "dropped": list(dropped)}
    said |= dictionary.facts
    if table.gaps.words:
        said["gaps"] = sorted(table.gaps.words)
        table.gaps.warn_of_unmet(path, table.met)
    if read.grouped:
        said["thousands"] = read.grouped
    return dataset_of(path, read, roles, words, words.name or path.stem, how, said)
