"""Tables of several sites: a file and a natural client for each, columns by name."""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.data.examples import Dataset
from fedloom.tables.columns import Columns
from fedloom.tables.data_frames import columns_of_frame, dataset_of, refuse_gaps
from fedloom.tables.dictionary import Dictionary
from fedloom.tables.file_checks import FormatError, refuse
from fedloom.tables.gaps import Gaps
from fedloom.tables.parquet import is_parquet, read_frame
from fedloom.tables.preparation import asked
from fedloom.tables.roles import Roles, first_repeated
from fedloom.tables.site_differences import Differences, Site
from fedloom.tables.table_words import TableWords, takes_words
from fedloom.tables.text_table import TextTable, read_columns
from fedloom.wording import local_path, some_of

TABLES = (".csv", ".tsv", ".parquet")
_NAMED = 4  # files in a difference


@takes_words(TableWords)
def read_sites(files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], words: TableWords) -> Dataset:
    """Return the rows of several tables, one for each natural client, which is named after its file.

    The result is that of `read_csv` of one table with the rows of all files, in order of the files' names, and a column
    that names their client. Columns are matched by name and stand as in the first file that has them. Encoding and
    separator are recognised for each file.

    Args:
        files: a pattern such as "sites/*.csv", or a list of files; all text (.csv, .tsv) or all Parquet (.parquet).
        words: those of `fedloom.tables.TableWords`, each by its name, as in `read_sites("sites/*.csv", label="ill")`.

    Raises:
        ValueError: files differ in their columns, in what columns hold or in how classes are spelt (all differences
            stand in one message), there are fewer than two files, or what `read_csv` refuses.
    """
    paths = site_files(files)
    place = Path(str(files)) if isinstance(files, str | os.PathLike) else paths[0].parent
    for noun in ("client", "site"):
        if (said_of_one := getattr(words, noun)) is not None:
            raise FormatError(
                f"each file of {place} is a client, got '{noun}={said_of_one}': leave it out, or name one file alone"
            )
    names = site_names(paths)
    roles, how, means_gap = Roles.of(words), asked(words, several=True), Gaps.of(words.gaps)
    dictionary = Dictionary.read(words.dictionary)
    dictionary.warn_of_unmet(names)
    written = {name: dictionary.site(name) for name in names}
    is_text = not is_parquet(paths[0])
    if not is_text:
        refuse_gaps(words, place)
    headers: dict[str, tuple[str, ...]] = {}
    texts, frames = dict[str, TextTable](), dict[str, Any]()
    for name, path in zip(names, paths, strict=True):
        if is_text:
            text = replace(TextTable.recognised(path, (), ()), gaps=means_gap)
            headers[name] = written[name].header(path, text.header)
            texts[name] = replace(text, header=headers[name])
        else:
            frame = read_frame(path)
            headers[name] = written[name].header(path, list(map(str, frame.columns)))
            if (twice := first_repeated(headers[name])) is not None:
                refuse(path, "columns must have distinct names", f"{twice!r} twice", "rename one")
            frames[name] = frame.set_axis([*headers[name]], axis=1)
    everywhere = list(dict.fromkeys(c for header in headers.values() for c in header))
    roles = replace(dictionary.roles(roles, everywhere), drop=roles.dropped(everywhere))
    differences = Differences.between(headers, roles, words.columns)
    columns = [name for name in everywhere if name in differences.columns]
    sites = dict[str, Site]()
    for name, path in zip(names, paths, strict=True):
        there = {*headers[name]}
        own = [column for column in columns if column in there]
        if is_text:
            read = read_columns(_Joined([texts[name]], own), {*roles.words, *roles.categories} & {*own}, set())
            bad = dict[str, str]()
        else:
            known = replace(roles, drop=tuple(c for c in headers[name] if c not in differences.columns))
            read, bad = columns_of_frame(Path(name), frames[name], _present(known, own))
        written[name].bring(path, read)
        sites[name] = Site.of(read, bad, roles)
    differences.compare(sites, roles)
    if differences.found:
        remedy = f"{differences.remedy()} [FL-TABLE-007]"
        refuse(place, "sites must have the same columns, written alike", differences.text(), remedy)
    if differences.noted:
        warnings.warn(f"{place}: {differences.warning()} [FL-TABLE-013]", stacklevel=2)
    said: dict[str, Any] = {"files": len(paths), "dropped": list(roles.drop)} | dictionary.facts
    if words.columns == "shared":
        said["dropped"] = [*roles.drop, *differences.lacking]
    elif words.columns == "union":
        said["lacking"] = {column: _listed(without) for column, without in differences.lacking.items()}
        how = replace(how, lacking=tuple(differences.lacking))
    said |= {"gaps": sorted(means_gap.words)} if means_gap.words else {}
    if is_text:
        joined = _Joined([texts[name] for name in names], columns)
        read = read_columns(joined, {*roles.words, *roles.categories}, set())
        lengths = joined.lengths
        means_gap.warn_of_unmet(place, {word for text in texts.values() for word in text.met})
        said |= {"thousands": read.grouped} if read.grouped else {}
        bad = {}
    else:
        import pandas as pd

        lengths = [len(frames[name]) for name in names]
        whole = pd.concat([_numbered(frames[name]).reindex(columns=columns) for name in names], ignore_index=True)
        read, bad = columns_of_frame(place, whole, replace(roles, drop=()))
        read.lines = np.concatenate([np.arange(length) for length in lengths])
    if without := [name for name, length in zip(names, lengths, strict=True) if not length]:
        told = f"a site must have rows to be a client, got a header alone in {_listed(without)}: leave such a file out"
        warnings.warn(f"{place}: {told}", stacklevel=2)
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    for name, path, start, length in zip(names, paths, starts, lengths, strict=True):
        written[name].bring(path, read, slice(start, start + length))
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


def _numbered(frame: Any) -> Any:
    """Return a data frame with 0 and 1 for true and false, which beside the gaps of another site would be words."""
    return frame.astype({name: float for name, values in frame.items() if values.dtype == bool})


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
            at = {name: place for place, name in enumerate(text.header)}
            places = [at.get(name) for name in self.columns]
            self.lengths.append(0)
            for line, row in text.rows():
                self.lengths[-1] += 1
                yield line, ["" if place is None else row[place] for place in places]

    def number(self, cell: str) -> float:
        """Return the number in a cell of the file that is being read, whose decimal mark may be its own."""
        return self._text.number(cell)


def _listed(sites: Sequence[str]) -> str:
    return some_of(sites, _NAMED)
