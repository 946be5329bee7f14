"""Dictionary of sites: one file that says how each of them calls columns, in which units and by which words.

    [columns.weight]
    unit = "kg"                       # of the shared column
    units = { lb = 0.45359237 }       # kg in one lb
    [columns.temperature]
    unit = "C"
    units = { F = [0.5555555555555556, -17.77777777777778] }  # C = factor * F + offset
    [columns.sex]
    also = ["gender", "Geschlecht"]   # other names of the column, at any site
    categories = { female = ["f", "w", "2"], male = ["m", "1"] }

    [sites.Kiel]
    weight = { column = "Gewicht", unit = "lb" }
    sex = { categories = { female = ["1"], male = ["2"] } }  # in place of those above
    [sites.Bremen]                    # all as above

A site that names no unit has the shared one. A word that no category has is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fedloom.core.json_types import NAMES, TEXT, JsonType, listed, mapped
from fedloom.core.toml_text import read_toml
from fedloom.tables.columns import Columns
from fedloom.tables.file_checks import FormatError, refuse
from fedloom.tables.gaps import MISSING
from fedloom.tables.roles import Roles, first_repeated
from fedloom.wording import did_you_mean, local_path, some_of

_LARGEST = 1 << 20  # bytes of a dictionary
_SHOWN = 8  # names in a message
_SCALE = float | listed(float)
_KINDS = {
    "also": NAMES,
    "column": TEXT,
    "unit": TEXT,
    "units": JsonType(mapped(_SCALE), "a factor, or [factor, offset], by unit"),
    "categories": JsonType(mapped(listed(str)), "a list of words by category"),
}
_ENTRIES = {"columns": ("also", "unit", "units", "categories"), "sites": ("column", "unit", "categories")}
_SECTION = JsonType(mapped(dict[str, Any]), "a table of tables")


@dataclass(frozen=True)
class _Column:
    """Names, unit and words of a column, at all sites or at one.

    `units`: factor and offset to the shared unit, by unit. `categories`: the shared word of each word.
    """

    also: tuple[str, ...] = ()
    unit: str = ""
    units: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    categories: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Dictionary:
    """Names, units and words that sites share, and theirs.

    Attributes:
        path: of its file.
        columns: by the names that all tables have once they are read.
        sites: by site and column; a site's name of a column is the only one of `also`.
        digest: 16 hexadecimal digits of what it says.
    """

    path: Path = Path()
    columns: Mapping[str, _Column] = field(default_factory=dict)
    sites: Mapping[str, Mapping[str, _Column]] = field(default_factory=dict)
    digest: str = ""

    @classmethod
    def read(cls, place: str | os.PathLike[str] | None) -> Dictionary:
        """Return the dictionary in a TOML file; None is one that changes nothing.

        Raises:
            ValueError: there is no such file, or it breaks a rule; the message names the entry.
        """
        if place is None:
            return cls()
        path = local_path(place)
        if not path.is_file():
            raise FormatError(f"there is no file {str(path)!r}; give the path of a dictionary of columns (.toml)")
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST + 1)
            if len(data) > _LARGEST:
                raise ValueError(f"it has at most {_LARGEST:,} bytes, got more")
            said = read_toml(data)
        except (ValueError, RecursionError) as error:
            refuse(path, "a dictionary of columns must be TOML", str(error)[:200], "mend it")
        _check_keys(path, "a dictionary", said, [*_ENTRIES])
        parts = {name: said.get(name, {}) for name in _ENTRIES}
        for name, part in parts.items():
            _check(path, name, part, _SECTION)
        columns = {name: _column(path, f"columns.{name}", of, "columns") for name, of in parts["columns"].items()}
        sites = {site: _of_site(path, site, of, columns) for site, of in parts["sites"].items()}
        known = [*columns, *(other for of in columns.values() for other in of.also)]
        if (twice := first_repeated(known)) is not None:
            refuse(path, "a name is of one column", f"{twice!r} of two", "leave one of them out")
        text = json.dumps(said, sort_keys=True)
        return cls(path, columns, sites, hashlib.sha256(text.encode()).hexdigest()[:16])

    @property
    def facts(self) -> dict[str, str]:
        """Digest for the manifest, by which a resumed run is compared; nothing of one that changes nothing."""
        return {"dictionary": self.digest} if self.digest else {}

    def warn_of_unmet(self, names: Sequence[str]) -> None:
        """Warn of sites of the dictionary that are not there; they may be spelt otherwise."""
        if unmet := [site for site in self.sites if site not in names]:
            warnings.warn(
                f"{self.path}: sites of a dictionary are files, got no file of {some_of(unmet, _SHOWN)} among "
                f"{some_of(names, _SHOWN)}: spell sites as the files are called",
                stacklevel=4,
            )

    def roles(self, roles: Roles, header: Sequence[str]) -> Roles:
        """Return roles in which columns with categories are read as words."""
        if roles.text is not None:
            return roles
        others = {*roles.others, *roles.categories}
        words = [name for name, of in self.columns.items() if of.categories and name in header and name not in others]
        return replace(roles, categories=(*roles.categories, *words))

    def site(self, name: str, said: str | None = None) -> SiteDictionary:
        """Return what is said of the site that a file is, which is warned of where the dictionary names others alone.

        Args:
            name: of the file.
            said: the site that somebody says it is.

        Raises:
            ValueError: somebody says one that the dictionary does not name.
        """
        if said is not None and said not in self.sites:
            known = some_of(self.sites, _SHOWN) or "which are none"
            raise FormatError(
                f"site says which site of the dictionary a file is, {known}, got site={said}"
                f"{did_you_mean(said, self.sites)}: name another, or add [sites.{said}] to the file (dictionary=FILE)"
            )
        site = name if said is None else said
        if self.sites and site not in self.sites:
            warnings.warn(
                f"{self.path} names the sites {some_of(self.sites, _SHOWN)}, got {site!r}"
                f"{did_you_mean(site, self.sites)}, whose columns are taken as shared: say which site it is "
                f"(site=NAME, or the file's name), or add [sites.{site}], which may be empty",
                stacklevel=4,
            )
        return SiteDictionary(self, site)


@dataclass(frozen=True)
class SiteDictionary:
    """The part of a dictionary that one site's files are read by.

    Attributes:
        shared: the dictionary.
        name: of the site, which it may not name.
    """

    shared: Dictionary
    name: str

    def header(self, path: Path, header: Sequence[str], whole: bool = True) -> tuple[str, ...]:
        """Return the shared names of a file's columns, in their order.

        `whole`: whether the file must have each column that the site is said to have.

        Raises:
            ValueError: such a column is not there, or two would have one name.
        """
        names = {other: name for name, of in self.shared.columns.items() for other in of.also}
        own = {other: name for name, of in self.shared.sites.get(self.name, {}).items() for other in of.also}
        if whole and (lacks := [other for other in own if other not in header]):
            got = f"{lacks[0]!r}{did_you_mean(lacks[0], header)}, which {path} has not"
            rule = f"columns of sites.{self.name} must be in its file"
            refuse(self.shared.path, rule, got, "spell it as the file does, or leave it out")
        out = tuple((names | own).get(name, name) for name in header)
        if (twice := first_repeated(out)) is not None and first_repeated(header) is None:
            both = " and ".join(repr(name) for name, new in zip(header, out, strict=True) if new == twice)
            got = f"{both}, which are {twice!r} by {self.shared.path}"
            refuse(path, "columns must have distinct names", got, "rename one")
        return out

    def bring(self, path: Path, read: Columns, rows: slice = slice(None)) -> None:
        """Bring the columns of its file into shared units and words, in place.

        Raises:
            ValueError: a word is of no category, or a column with a unit holds words.
        """
        own = self.shared.sites.get(self.name, {})
        for name, of in self.shared.columns.items():
            here = own.get(name, of)
            if of.unit and name in read.words:
                row = next((i for i, cell in enumerate(read.words[name]) if cell not in MISSING), 0)
                rule = f"{name!r} must hold numbers, since it has a unit in {self.shared.path}"
                refuse(path, rule, f"{read.words[name][row][:60]!r} in {read.at(row)}", "mend the column")
            if here.unit != of.unit and name in read.numbers:
                factor, offset = of.units[here.unit]
                values = np.array(read.numbers[name])
                values[rows] = values[rows] * factor + offset
                read.numbers[name] = values
            known = here.categories or of.categories
            if known and name in read.words:
                cells = read.words[name]
                for row in range(len(cells))[rows]:
                    if (cell := cells[row]) not in MISSING:
                        cells[row] = known.get(cell) or self._refuse_word(path, name, cell, read.at(row), known)

    def _refuse_word(self, path: Path, name: str, cell: str, where: str, known: Mapping[str, str]) -> NoReturn:
        refuse(
            path, f"words of {name!r} must be in {self.shared.path}, {some_of(map(repr, known), _SHOWN)}",
            f"{cell[:60]!r}{did_you_mean(cell, known)} in {where}", "add it to a category, or mend the cell",
        )  # fmt: skip


AS_SHARED = SiteDictionary(Dictionary(), "")  # changes nothing


def _column(path: Path, where: str, said: Mapping[str, Any], section: str) -> _Column:
    """Return what is said of a column by a table of the file."""
    _check_keys(path, where, said, _ENTRIES[section])
    for key, value in said.items():
        _check(path, f"{where}.{key}", value, _KINDS[key])
    scales = {
        unit: (of, 0.0) if isinstance(of, float | int) else tuple(of) for unit, of in said.get("units", {}).items()
    }
    for unit, scale in scales.items():
        if len(scale) != 2 or not scale[0] or not all(map(math.isfinite, scale)):
            got = f"{list(scale)!r:.80} of {unit!r}"
            refuse(path, f"{where}.units must have a factor but 0, or [factor, offset]", got, "write what one is")
    unit, categories = said.get("unit", ""), dict[str, str]()
    if scales and (not unit or unit in scales):
        got = f"{unit!r}, which is converted" if unit else "none"
        refuse(path, f"{where}.unit must name the shared unit", got, "name the one that the others are converted to")
    for word, spelt in said.get("categories", {}).items():
        if word in MISSING:
            refuse(path, f"{where}.categories must be words", f"{word!r}, which means a gap", "call it otherwise")
        for each in dict.fromkeys([word, *spelt]):
            if categories.setdefault(each, word) != word:
                got = f"{each!r} of {categories[each]!r} and {word!r}"
                refuse(path, f"a word of {where}.categories is of one category", got, "leave it out of one")
    if unit and categories:
        refuse(path, f"{where} must have a unit or categories", "both", "leave one out")
    also = said.get("also", [said["column"]] if "column" in said else [])
    return _Column(tuple(also), unit, {name: (scale[0], scale[1]) for name, scale in scales.items()}, categories)


def _of_site(path: Path, site: str, said: Mapping[str, Any], columns: Mapping[str, _Column]) -> dict[str, _Column]:
    """Return what is said of the columns of a site."""
    _check(path, f"sites.{site}", said, _SECTION)
    out = {}
    for name, entries in said.items():
        where = f"sites.{site}.{name}"
        if name not in columns:
            got = f"{name!r}{did_you_mean(name, columns)} of sites.{site}"
            refuse(path, "a column of a site must be among the columns", got, f"add [columns.{name}]")
        made, of = _column(path, where, entries, "sites"), columns[name]
        if made.unit and made.unit not in (of.unit, *of.units):
            known = some_of([of.unit, *of.units], _SHOWN) if of.unit else "which has none"
            got = f"{made.unit!r}{did_you_mean(made.unit, of.units)}"
            refuse(path, f"{where}.unit must be a unit of columns.{name}, {known}", got, "add it to its units")
        if other := {*made.categories.values()} - {*of.categories.values()}:
            got = f"{min(other)!r}{did_you_mean(min(other), of.categories.values())}"
            refuse(path, f"{where}.categories must be those of columns.{name}", got, "name one of these, or add it")
        out[name] = replace(made, unit=made.unit or of.unit)
    return out


def _check(path: Path, where: str, value: Any, kind: JsonType) -> None:
    if not kind.fits(value):
        refuse(path, f"{where} must be {kind.words}", f"{value!r:.80}", "write it so")


def _check_keys(path: Path, where: str, said: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in said:
        if key not in known:
            refuse(path, f"{where} has {', '.join(known)}", f"{key!r:.80}{did_you_mean(key, known)}", "leave it out")
