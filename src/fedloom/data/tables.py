"""Tables with a header line, as text, and data frames: which columns are features, and what is wrong with them."""

from __future__ import annotations

import csv
import difflib
import os
import re
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fedloom.data import formats
from fedloom.data.examples import Dataset, Examples, from_arrays
from fedloom.data.formats import FormatError, refuse
from fedloom.data.groups import split_whole_groups
from fedloom.data.partition import pooled, split as hold_out
from fedloom.data.preparation import MISSING, Preparation, spelt
from fedloom.data.roles import Roles, first_repeated
from fedloom.data.targets import take_targets

if TYPE_CHECKING:
    import pandas as pd

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_WHOLE = re.compile(r"([+-]?[0-9]{1,18})\.0*")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+")
_GROUPED = [  # 66.981,87 and 66,981.87: what whole columns must look like, what tells it from a decimal mark, the marks
    (re.compile(rf"[+-]?[0-9]{{1,3}}(\{mark}[0-9]{{3}})*(\{point}[0-9]+)?|[+-]?[0-9]+(\{point}[0-9]+)?"), mark, point)
    for mark, point in ((".", ","), (",", "."))
]
_DATE = re.compile(r"[0-9]{1,4}([-./])[0-9]{1,2}\1[0-9]{1,4}([ T].*)?")
_SEPARATORS = ",;\t|"
_MOST_CATEGORIES = 1000  # of a column, and in at least two rows each on average: more are names of things
_FEW = 20  # which any column may have
_SHOWN = 12  # bad columns in a message


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
        label: column of class labels, integers or names; "label" where neither it nor `target` is given.
        target: column of numbers to predict in the place of classes, or several.
        client: column of natural clients.
        split: column that says `train` or `test` for every row. With `client`, the test rows stay in `train` too,
            marked in `held_out`, to judge their clients on.
        group: column of groups, such as patients; rows of one group never fall on both sides of a split, here and in
            `federate`.
        drop: columns that are left out.
        categories: columns of numbers that are names, such as postcodes; prepared as words.
        gaps: more words that mean a gap, such as "k.A.".
        prepare: "standard": numbers are standardised, gaps are the median, words become one column of 0 and 1 each; or
            a transformer of scikit-learn, which is given a data frame of the features.
        test_fraction: without `split`, the part of all rows that becomes the test set, in [0, 1): at random, stratified
            by class. At 0 there is no test set.
        seed: of this choice, 0 to 2**32 - 1.

    Raises:
        ValueError: a column is missing, a row has another number of cells than the header, columns do not hold what
            they need to (all of them in one message), or there is no row to train on.
    """
    path = Path(path)
    if not path.is_file():
        raise FormatError(f"there is no file {str(path)!r}; give the path of a .csv file with a header line")
    roles = Roles.of(label, target, client, split, group, drop, categories)
    text = _Text.recognised(path, [*roles.named, *roles.drop], roles.categories)
    text = replace(text, gaps=frozenset([gaps] if isinstance(gaps, str) else gaps))
    read = _read(text, {*roles.words, *roles.categories}, set(roles.drop))
    said: dict[str, Any] = {"separator": text.separator, "encoding": text.encoding, "dropped": list(roles.drop)}
    if text.gaps:
        said["gaps"] = sorted(text.gaps)
    if read.grouped:
        said["thousands"] = read.grouped
    return _dataset(path, read, roles, path.stem, prepare, said, test_fraction, seed)


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
    roles = Roles.of(label, target, client, split, group, drop, categories)
    read, bad = _read_frame(Path(name), frame, roles)
    said = {"dropped": list(roles.drop)}
    return _dataset(Path(name), read, roles, name, prepare, said, test_fraction, seed, bad)


def _read_frame(place: Path, frame: pd.DataFrame, roles: Roles) -> tuple[_Read, dict[str, str]]:
    """Return the columns of a data frame, and those that hold neither numbers nor words, with what they hold."""
    header = [str(column) for column in frame.columns]
    _check_header(place, header, [*roles.named, *roles.drop], roles.categories)
    read, bad = _Read(lines=np.arange(len(frame)), counted="row"), dict[str, str]()
    dropped, as_words = set(roles.drop), {*roles.words, *roles.categories}
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
    return read, bad


def number(values: Iterable[Hashable]) -> npt.NDArray[np.int64]:
    """Return a number for each value, from 0 in the order of their first appearance."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


@dataclass
class _Read:
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


def _dataset(
    path: Path,
    read: _Read,
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
    words = (None if n is None else read.words.pop(n, None) for n in (roles.label, roles.client, roles.split, roles.group))
    labels, users, parts, grouped = words
    targets = take_targets(path, read, roles.targets, unread) if roles.targets else None
    _check_columns(path, read, prepare is not None, unread)
    for column, cells in ((roles.label, labels), (roles.client, users), (roles.group, grouped)):
        if column is not None and cells is not None:
            _check_gaps(path, read, column, cells)
    y, classes = (targets, ()) if labels is None else _classes(path, roles.label or "", labels)
    assert y is not None
    groups = None if grouped is None else number(grouped)
    if parts is None:
        strata = np.zeros(len(y), np.int64) if labels is None else y
        whole = pooled(len(y))
        if groups is None:
            out = hold_out(whole, strata, test_fraction, seed)[1]
        else:
            out = split_whole_groups(whole, strata, groups, test_fraction, seed)[1]
        test = np.zeros(len(y), np.bool_)
        test[out.indices] = True
    else:
        test = _parts(path, roles.split or "", parts)
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
    if labels is None:
        whole_table = Examples(torch.from_numpy(x), torch.from_numpy(y), len(roles.targets), name=name)
    else:
        called = () if classes == tuple(map(str, range(len(classes)))) else classes
        whole_table = from_arrays(x, y, num_classes=len(classes), name=name, classes=called)
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


def _on_both_sides(groups: Sequence[str], test: npt.NDArray[np.bool_]) -> str | None:
    """Return the first group with rows to train on and rows to test on; None if there is none."""
    side: dict[str, bool] = {}
    return next((g for g, out in zip(groups, test.tolist(), strict=True) if side.setdefault(g, out) != out), None)


def _frame(read: _Read) -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise ValueError("to prepare a table takes pandas: pip install 'fedloom[tables]'") from None
    words = {
        name: pd.Series([np.nan if cell in MISSING else cell for cell in cells], dtype=object)
        for name, cells in read.words.items()
    }
    return pd.DataFrame({**{name: pd.Series(values) for name, values in read.numbers.items()}, **words})


# ---- what is wrong with columns


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
        unsaid = "label" in columns  # what `read_csv` takes where nobody says another
        remedy = "say which one is the label (label=NAME)" if unsaid else "name columns as the first line does"
        super().__init__(f"{self.rule}: {remedy}")


def _check_header(path: Path, header: Sequence[str], others: Sequence[str], features: Sequence[str]) -> None:
    if (twice := first_repeated(header)) is not None:
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


def _check_columns(path: Path, read: _Read, prepared: bool, bad: Mapping[str, str]) -> None:
    """Refuse columns that cannot be features, all in one message; `bad`: what is wrong with some of them already."""
    found = dict(bad)
    fills = dates = False  # whether to prepare them is a remedy, and to count days
    for name, (row, word, count) in read.mixed.items():
        found[name] = f"{name!r} with {word[:60]!r} in {read.at(row)}" + f" and {count - 1} more" * (count > 1)
    for name, values in read.numbers.items():
        gaps = np.isnan(values)
        with np.errstate(over="ignore"):
            endless = ~gaps & ~np.isfinite(values.astype(np.float32))
        if gaps.all():
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
        elif not kinds:
            found.setdefault(name, f"{name!r} with nothing")
            continue
        is_date = all(map(_DATE.fullmatch, kinds))
        if prepared and len(kinds) > (most := _FEW if is_date else min(_MOST_CATEGORIES, max(_FEW, len(cells) // 2))):
            dates |= is_date
            what = "dates" if is_date else "words"
            found.setdefault(
                name, f"{name!r} with {len(kinds):,} different {what} such as {min(kinds)[:60]!r}, more than {most:,}"
            )
    if not found:
        return
    listed = "; ".join([*found.values()][:_SHOWN]) + f"; and {len(found) - _SHOWN} more" * (len(found) > _SHOWN)
    rule = "columns of features must be numbers" + ", or a few different words" * prepared
    remedies = ["prepare them (prepare=standard makes numbers of words and fills gaps)"] * fills
    if prepared and read.mixed:
        word = next(iter(read.mixed.values()))[1]
        remedies += [
            f"name words that mean a gap (gaps={word[:60]})",
            "name those that hold categories (categories=NAME)",
        ]
    remedies += ["make numbers of dates, such as days since the first (pandas, then fedloom.from_frame)"] * dates
    refuse(path, rule, listed, ", ".join([*remedies, "mend them"]) + f", or leave them out: drop={','.join(found)}")


# ---- text


@dataclass(frozen=True)
class _Text:
    """A file of cells, and how it is written."""

    path: Path
    encoding: str
    separator: str
    header: tuple[str, ...]
    gaps: frozenset[str] = frozenset()  # words that mean one, beside those that always do

    @classmethod
    def recognised(cls, path: Path, others: Sequence[str], features: Sequence[str]) -> _Text:
        """Recognise the encoding that the bytes have, and the separator.

        It is the separator by which the header has these names, or most names.
        """
        if (size := path.stat().st_size) > formats.LIMIT:
            refuse(path, f"the file must be at most {formats.LIMIT} bytes", size, "use a .npz file")
        encoding = _encoding(path)
        headers = {separator: _header(path, encoding, separator) for separator in _SEPARATORS}
        wanted = {*others, *features}
        found = max(headers, key=lambda s: (wanted <= set(headers[s]), len(headers[s])))  # the first of equals
        _check_header(path, headers[found], others, features)
        return cls(path, encoding, found, headers[found])

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line numbers, and cells without the spaces around them."""
        try:
            with self.path.open(newline="", encoding=self.encoding) as file:
                reader = csv.reader(file, delimiter=self.separator, strict=True)
                next(reader)
                for row in reader:
                    if not row:  # an empty line
                        continue
                    if len(row) != len(self.header):
                        rule = f"line {reader.line_num} must have {len(self.header)} cells"
                        refuse(self.path, rule, len(row), f"quote cells that hold {self.separator!r}")
                    cells = [cell.strip() for cell in row]
                    yield reader.line_num, ["" if cell in self.gaps else cell for cell in cells]
        except csv.Error as error:
            refuse(self.path, "the file must be a table as text", error, "write it again as CSV in UTF-8")

    def number(self, cell: str) -> float:
        """Return the number in a cell.

        Python also reads 1_000 and digits of other scripts, which are rejected here.
        """
        if "_" in cell or not cell.isascii():
            raise ValueError(cell)
        if self.separator == ";" and _DECIMAL_COMMA.fullmatch(cell):
            cell = cell.replace(",", ".")
        return float(cell)


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


class _Cells(Protocol):
    """Rows of text below a header, of one file or of several."""

    @property
    def header(self) -> tuple[str, ...]: ...

    def rows(self) -> Iterator[tuple[int, list[str]]]: ...

    def number(self, cell: str) -> float: ...


def _read(text: _Cells, as_words: set[str], dropped: set[str]) -> _Read:
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
    read = _Read(words=words, lines=np.array(lines, np.int64))
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
        if (found := _ungrouped(cells)) is not None:
            read.numbers[name], read.grouped[name] = found
            read.mixed.pop(name, None)
        elif name not in read.mixed:
            read.words[name] = cells
    read.numbers = {name: read.numbers[name] for name in text.header if name in read.numbers}
    return read


def _ungrouped(cells: Sequence[str]) -> tuple[npt.NDArray[np.float64], str] | None:
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


def _number_or_note(text: _Cells, cell: str, met: list[Any], row: int) -> float:
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


# ---- labels and parts


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _check_gaps(path: Path, read: _Read, column: str, cells: Sequence[str]) -> None:
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


def _classes(path: Path, column: str, cells: Sequence[str]) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
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


def _parts(path: Path, column: str, cells: Sequence[str]) -> npt.NDArray[np.bool_]:
    if wrong := set(cells) - {"train", "test"}:
        refuse(path, f"{column!r} must say train or test", repr(min(wrong))[:60], "name the part of every row")
    if "train" not in cells:
        refuse(path, f"{column!r} must say train for some rows", "test for all", "choose rows to train on")
    return np.array([cell == "test" for cell in cells])
