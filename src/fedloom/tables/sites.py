"""Tables of several sites: a file and a natural client for each, columns by name, differences in one message."""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.data.examples import Dataset
from fedloom.data.schema import MEND, Schema, differences, mixed
from fedloom.tables.columns import Columns, same_word
from fedloom.tables.data_frames import columns_of_frame, dataset_of, refuse_gaps
from fedloom.tables.file_checks import FormatError, refuse
from fedloom.tables.gaps import MISSING, Gaps
from fedloom.tables.parquet import is_parquet, read_frame
from fedloom.tables.preparation import asked
from fedloom.tables.roles import Roles, first_repeated
from fedloom.tables.table_words import TableWords, takes_words
from fedloom.tables.text_table import TextTable, read_columns
from fedloom.wording import local_path, some_of

TABLES = (".csv", ".tsv", ".parquet")
_SHOWN = 20  # differences in a message
_NAMED = 4  # files in a difference
_CLASSES = 12  # in a difference
_FEWEST = 5  # numbers of a file that are compared with those of others
_TIMES = 5  # how many times as large another unit is


@takes_words(TableWords)
def read_sites(files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], words: TableWords) -> Dataset:
    """Return the rows of several tables, one for each natural client, which is named after its file.

    The result is that of `read_csv` of one table with the rows of all files, in order of the files' names, and a column
    that names their client. Columns are matched by name and stand as in the first file. Encoding and separator are
    recognised for each file.

    Args:
        files: a pattern such as "sites/*.csv", or a list of files; all text (.csv, .tsv) or all Parquet (.parquet).
        words: those of `fedloom.tables.TableWords`, each by its name, as in `read_sites("sites/*.csv", label="ill")`.

    Raises:
        ValueError: files differ in their columns, in what columns hold or in how classes are spelt (all differences
            stand in one message), there are fewer than two files, or what `read_csv` refuses.
    """
    paths = site_files(files)
    place = Path(str(files)) if isinstance(files, str | os.PathLike) else paths[0].parent
    if words.client is not None:
        raise FormatError(
            f"each file of {place} is a client, got 'client={words.client}': leave it out, or name one file alone"
        )
    names = site_names(paths)
    roles, how, means_gap = Roles.of(words), asked(words), Gaps.of(words.gaps)
    is_text = not is_parquet(paths[0])
    if not is_text:
        refuse_gaps(words, place)
    headers: dict[str, tuple[str, ...]] = {}
    texts, frames = dict[str, TextTable](), dict[str, Any]()
    for name, path in zip(names, paths, strict=True):
        if is_text:
            texts[name] = replace(TextTable.recognised(path, (), ()), gaps=means_gap)
            headers[name] = texts[name].header
        else:
            frames[name] = read_frame(path)
            headers[name] = tuple(map(str, frames[name].columns))
            if (twice := first_repeated(headers[name])) is not None:
                refuse(path, "columns must have distinct names", f"{twice!r} twice", "rename one")
    roles = replace(roles, drop=roles.dropped(list(dict.fromkeys(c for header in headers.values() for c in header))))
    differences = _Differences.between(headers, roles)
    shared = [name for name in headers[names[0]] if name in differences.shared]
    sites = dict[str, _Site]()
    for name in names:
        if is_text:
            read = read_columns(_Joined([texts[name]], shared), {*roles.words, *roles.categories} & {*shared}, set())
            bad = dict[str, str]()
        else:
            known = replace(roles, drop=tuple(c for c in headers[name] if c not in differences.shared))
            read, bad = columns_of_frame(Path(name), frames[name], _present(known, shared))
        sites[name] = _Site.of(read, bad, roles)
    differences.compare(sites, roles)
    if differences.found:
        refuse(place, "sites must have the same columns, written alike", differences.text(), differences.remedy())
    if differences.noted:
        warnings.warn(f"{place}: {'; '.join(differences.noted[:_SHOWN])}", stacklevel=2)
    said: dict[str, Any] = {"files": len(paths), "dropped": list(roles.drop)}
    said |= {"gaps": sorted(means_gap.words)} if means_gap.words else {}
    if is_text:
        joined = _Joined([texts[name] for name in names], shared)
        read = read_columns(joined, {*roles.words, *roles.categories}, set())
        lengths = joined.lengths
        means_gap.warn_of_unmet(place, {word for text in texts.values() for word in text.met})
        said |= {"thousands": read.grouped} if read.grouped else {}
        bad = {}
    else:
        import pandas as pd

        lengths = [len(frames[name]) for name in names]
        whole = pd.concat([frames[name].rename(columns=str)[shared] for name in names], ignore_index=True)
        read, bad = columns_of_frame(place, whole, replace(roles, drop=()))
        read.lines = np.concatenate([np.arange(length) for length in lengths])
    if without := [name for name, length in zip(names, lengths, strict=True) if not length]:
        told = f"a site must have rows to be a client, got a header alone in {_listed(without)}: leave such a file out"
        warnings.warn(f"{place}: {told}", stacklevel=2)
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    read.files = tuple(zip(starts, (path.name for path in paths), strict=True))
    client = _unused("client", read)
    read.words[client] = [name for name, length in zip(names, lengths, strict=True) for _ in range(length)]
    roles = replace(roles, client=client)
    return dataset_of(place, read, roles, words, words.name or _called(paths), how, said, bad)


def is_pattern(source: str) -> bool:
    """Return whether the path of a table names several files: a pattern, or a list with commas."""
    return not local_path(source).exists() and (
        any(mark in source for mark in "*[") or all(part.endswith(TABLES) for part in source.split(",")[:-1] or [""])
    )


def site_files(files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the files of a pattern or of a list, in order of their names.

    Raises:
        ValueError: there are fewer than two, one is missing or there twice, or they are of several kinds.
    """
    if isinstance(files, str | os.PathLike):
        text = str(local_path(files))
        if any(mark in text for mark in "*["):
            found = sorted({Path(one) for one in glob.glob(text, recursive=True) if Path(one).is_file()})
        else:
            found = sorted(local_path(part) for part in text.split(","))
    else:
        found = sorted(map(local_path, files))
    shown = str(files)[:200]
    if len(found) < 2:
        got = f"{found[0]} alone" if found else "none"
        raise FormatError(f"sites must be two files or more, got {got} for {shown!r}: name others, such as sites/*.csv")
    if missing := [path for path in found if not path.is_file()]:
        raise FormatError(f"each site must have a file, got none at {', '.join(map(str, missing))}: name files alone")
    if other := [path for path in found if not path.name.endswith(TABLES)]:
        raise FormatError(
            f"files of sites must end in {', '.join(TABLES)}, got {other[0]} for {shown!r}: name tables alone"
        )
    if (twice := first_repeated([str(path.resolve()) for path in found])) is not None:
        raise FormatError(f"sites must be different files, got {twice} twice for {shown!r}: name each file once")
    if len({is_parquet(path) for path in found}) > 1:
        raise FormatError(f"sites must be all text or all Parquet, got both for {shown!r}: convert one kind")
    return found


def site_names(paths: Sequence[Path]) -> list[str]:
    """Return a name for each file: its stem, or where stems repeat as much of its path as tells all of them apart."""
    full = [Path(os.path.abspath(path)) for path in paths]
    common = os.path.commonpath([path.parent for path in full])
    below = [path.relative_to(common) for path in full]
    forms = [[path.stem for path in paths]]
    if len(set(forms[0])) == 1:  # Kiel/visits.csv, Lübeck/visits.csv
        forms.append([path.parent.as_posix() if path.parent.name else path.stem for path in below])
    forms += [[path.with_suffix("").as_posix() for path in below], [path.as_posix() for path in below]]
    return next((names for names in forms if len(set(names)) == len(names)), list(map(str, paths)))


def _called(paths: Sequence[Path]) -> str:
    """Return what reports call the examples: the folder that holds all files."""
    return Path(os.path.commonpath([path.resolve().parent for path in paths])).name or "sites"


def _unused(name: str, read: Columns) -> str:
    while name in read.numbers or name in read.words:
        name += "_"
    return name


def _present(roles: Roles, columns: Sequence[str]) -> Roles:
    """Return the roles of those columns that a file has."""

    def kept(name: str | None) -> str | None:
        return name if name in columns else None

    return replace(
        roles,
        label=kept(roles.label),
        split=kept(roles.split),
        group=kept(roles.group),
        text=kept(roles.text),
        targets=tuple(name for name in roles.targets if name in columns),
        categories=tuple(name for name in roles.categories if name in columns),
    )


@dataclass
class _Joined:
    """Several files of cells as one table, whose columns stand in one order."""

    texts: Sequence[TextTable]
    columns: Sequence[str]
    lengths: list[int] = field(default_factory=list)  # rows of each file, once they were read

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        self.lengths = []
        for text in self.texts:
            self._text = text
            places = [text.header.index(name) for name in self.columns]
            self.lengths.append(0)
            for line, row in text.rows():
                self.lengths[-1] += 1
                yield line, [row[place] for place in places]

    def number(self, cell: str) -> float:
        """Return the number in a cell of the file that is being read, whose decimal mark may be its own."""
        return self._text.number(cell)


@dataclass(frozen=True)
class _Site:
    """Columns of one file by their kind."""

    kinds: dict[str, tuple[str, str]]  # "numbers" or "words", and an example; nothing of a column of gaps alone
    classes: frozenset[str]
    words: dict[str, frozenset[str]]
    numbers: dict[str, npt.NDArray[np.float64]]  # without gaps

    @classmethod
    def of(cls, read: Columns, bad: Mapping[str, str], roles: Roles) -> _Site:
        kinds: dict[str, tuple[str, str]] = dict.fromkeys(bad, ("dates", ""))
        numbers = {name: values[~np.isnan(values)] for name, values in read.numbers.items()}
        kinds |= {name: ("numbers", f"{there[0]:g}") for name, there in numbers.items() if len(there)}
        words = dict[str, frozenset[str]]()
        for name, cells in read.words.items():
            kept = frozenset(cells) - MISSING
            if kept and name not in roles.words:
                words[name] = kept
                if name not in roles.categories:
                    kinds[name] = "words", repr(next(cell for cell in cells if cell not in MISSING)[:40])
        labels = frozenset() if roles.label is None else frozenset(read.words.get(roles.label, ())) - MISSING
        return cls(kinds, labels, words, numbers)


@dataclass
class _Differences:
    """Differences between the files of several sites.

    `shared`: the columns that all have. `found` is refused; `noted` is warned of. `not_everywhere`: features that some
    files lack.
    """

    shared: frozenset[str]
    found: list[str] = field(default_factory=list)
    remedies: dict[str, None] = field(default_factory=dict)
    not_everywhere: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)

    @classmethod
    def between(cls, headers: Mapping[str, tuple[str, ...]], roles: Roles) -> _Differences:
        """Compare the names of columns."""
        everywhere = list(dict.fromkeys(name for header in headers.values() for name in header))
        has = {name: [site for site, header in headers.items() if name in header] for name in everywhere}
        dropped = set(roles.drop)
        out = cls(frozenset(n for n in everywhere if len(has[n]) == len(headers) and n not in dropped))
        for name in dict.fromkeys([*roles.named, *roles.categories, *roles.drop]):
            if name not in has:
                unsaid = name == "label"  # what is taken where nobody says another
                remedy = "say which one is the label (label=NAME)" if unsaid else "name columns as the first lines do"
                out._add(f"no site has {name!r}", remedy)
        mine = {site: tuple(name for name in header if name not in dropped) for site, header in headers.items()}
        most = [n for n in everywhere if n not in dropped and (n in roles.named or 2 * len(has[n]) > len(headers))]
        for told in differences([Schema(f"in {site}", names) for site, names in mine.items()], most):
            out._add(told, "name columns alike in all files")
        out.not_everywhere += [n for n in everywhere if n not in {*out.shared, *roles.named, *dropped}]
        if roles.text is None and not out.shared - {*roles.named}:
            out._add("no column of features is in all files", "name columns alike in all files")
        return out

    def compare(self, sites: Mapping[str, _Site], roles: Roles) -> None:
        """Compare what the shared columns hold."""
        names = sorted(self.shared - {*roles.targets})  # of targets, their own message says which rows
        for told in mixed([Schema(f"in {site}", holds=of.kinds) for site, of in sites.items()], names):
            self._add(told, MEND)
        self._compare_classes({site: of.classes for site, of in sites.items() if of.classes}, roles.label)
        for name in sorted(self.shared):
            self._compare_words(name, {site: of.words[name] for site, of in sites.items() if name in of.words})
            numbers = {site: of.numbers[name] for site, of in sites.items() if len(of.numbers.get(name, ())) >= _FEWEST}
            self._compare_units(name, numbers)

    def _compare_classes(self, classes: Mapping[str, frozenset[str]], label: str | None) -> None:
        """Refuse classes that one file spells otherwise than all others; note those that it has beside theirs."""
        for site, own in classes.items():
            together = frozenset[str]().union(*(kinds for other, kinds in classes.items() if other != site))
            alone = own - together
            if not alone or not together:
                continue
            spelt = {same_word(name) for name in together}
            counted = all(name.isdecimal() for name in own | together)
            if any(same_word(name) in spelt for name in alone) or (len(own) > 1 and own == alone and not counted):
                self._add(f"{label!r} is {_some(own)} in {site} and {_some(together)} elsewhere", "spell classes alike")
            else:
                self.noted.append(f"only {site} has the class {_some(alone)}")

    def _compare_words(self, name: str, words: Mapping[str, frozenset[str]]) -> None:
        """Note words of which no other file has any, such as m and f beside male and female."""
        for site, own in words.items():
            others = [kinds for other, kinds in words.items() if other != site]
            together = frozenset[str]().union(*others)
            if others and len(own) > 1 and not own & together and len(together) <= _SHOWN:
                self.noted.append(
                    f"{name!r} is {_some(own)} in {site} and {_some(together)} elsewhere: spell words alike"
                )

    def _compare_units(self, name: str, numbers: Mapping[str, npt.NDArray[np.float64]]) -> None:
        """Note numbers of one file that lie beyond all others and are many times as large or as small: another unit."""
        ends = np.array([(values.min(), values.max(), np.median(values)) for values in numbers.values()])  # [sites, 3]
        if len(ends) < 2 or ends[:, 0].min() <= 0:
            return
        for at, (site, (low, high, mine)) in enumerate(zip(numbers, ends, strict=True)):
            others = np.delete(ends, at, axis=0)
            theirs = float(np.median(others[:, 2]))
            apart = low > others[:, 1].max() or high < others[:, 0].min()
            if apart and max(mine / theirs, theirs / mine) >= _TIMES:
                self.noted.append(
                    f"{name!r} is about {mine:.3g} in {site} and {theirs:.3g} elsewhere, and no value of the one is "
                    "among the others: write it in one unit"
                )

    def _add(self, difference: str, remedy: str) -> None:
        self.found.append(difference)
        self.remedies[remedy] = None

    def text(self) -> str:
        everything = [*self.found, *self.noted]
        return some_of(everything, _SHOWN, "; ")

    def remedy(self) -> str:
        drop = f"leave out those that not all have (drop={','.join(self.not_everywhere)})"
        return ", or ".join([*self.remedies, *[drop] * bool(self.not_everywhere)])


def _some(words: frozenset[str]) -> str:
    return some_of(map(repr, sorted(words)), _CLASSES)


def _listed(sites: Sequence[str]) -> str:
    return some_of(sites, _NAMED)
