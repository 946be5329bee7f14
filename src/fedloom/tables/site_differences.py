"""Differences between the tables of several sites: columns, kinds, classes, words and units, in one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedloom.data.schema import MEND, Schema, differences, mixed
from fedloom.tables.columns import Columns, same_word
from fedloom.tables.gaps import MISSING
from fedloom.tables.roles import Roles
from fedloom.tables.statistics import UnlikeColumns
from fedloom.wording import some_of

_SHOWN = 20  # differences in a message
_CLASSES = 12  # in a difference
_FEWEST = 5  # numbers of a file that are compared with those of others
_TIMES = 5  # how many times as large another unit is


@dataclass(frozen=True)
class Site:
    """Columns of one file by their kind."""

    kinds: dict[str, tuple[str, str]]  # "numbers" or "words", and an example; nothing of a column of gaps alone
    classes: frozenset[str]
    words: dict[str, frozenset[str]]
    numbers: dict[str, npt.NDArray[np.float64]]  # without gaps

    @classmethod
    def of(cls, read: Columns, bad: Mapping[str, str], roles: Roles) -> Site:
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
class Differences:
    """Differences between the files of several sites.

    `columns`: those that are read. `unlike`: which these are where files differ; None: nobody has said. `found` is
    refused; `noted` is warned of. `lacking`: features that some files lack, and which files these are.
    """

    columns: frozenset[str]
    unlike: UnlikeColumns | None
    found: list[str] = field(default_factory=list)
    remedies: dict[str, None] = field(default_factory=dict)
    lacking: dict[str, list[str]] = field(default_factory=dict)
    noted: list[str] = field(default_factory=list)

    @classmethod
    def between(cls, headers: Mapping[str, tuple[str, ...]], roles: Roles, unlike: UnlikeColumns | None) -> Differences:
        """Compare the names of columns.

        `unlike`: which are read where they differ; None: those that are no features, and all others, must be alike.
        """
        everywhere = list(dict.fromkeys(name for header in headers.values() for name in header))
        there = {site: {*header} for site, header in headers.items()}
        has = {name: [site for site, names in there.items() if name in names] for name in everywhere}
        dropped = set(roles.drop)
        least = 1 if unlike == "union" else len(headers)
        out = cls(frozenset(n for n in everywhere if len(has[n]) >= least and n not in dropped), unlike)
        for name in dict.fromkeys([*roles.named, *roles.categories, *roles.drop]):
            if name not in has:
                unsaid = name == "label"  # what is taken where nobody says another
                remedy = "say which one is the label (label=NAME)" if unsaid else "name columns as the first lines do"
                out._add(f"no site has {name!r}", remedy)
        compared = [n for n in everywhere if n not in dropped and (unlike is None or n in roles.named)]
        wanted = {*compared}
        mine = {site: tuple(name for name in header if name in wanted) for site, header in headers.items()}
        most = [n for n in compared if n in roles.named or 2 * len(has[n]) > len(headers)]
        for told in differences([Schema(f"in {site}", names) for site, names in mine.items()], most):
            out._add(told, "name columns alike in all files")
        for name in everywhere:
            if len(has[name]) < len(headers) and name not in dropped and name not in roles.named:
                out.lacking[name] = [site for site, names in there.items() if name not in names]
        if roles.text is None and not out.columns - {*roles.named}:
            out._add("no column of features is in all files", "name columns alike in all files")
        if unlike is not None:
            out._note_spellings([n for n in everywhere if n not in dropped])
        return out

    def _note_spellings(self, names: Sequence[str]) -> None:
        """Note columns that look like one in several spellings, of which some files lack one."""
        spellings: dict[str, list[str]] = {}
        for name in names:
            spellings.setdefault(same_word(name), []).append(name)
        for alike in spellings.values():
            if len(alike) > 1 and any(name in self.lacking for name in alike):
                told = " and ".join(map(repr, alike))
                self.noted.append(f"{told} look like one column, and are several: name it alike, or dictionary=FILE")

    def compare(self, sites: Mapping[str, Site], roles: Roles) -> None:
        """Compare what the columns hold, at the sites that have them."""
        names = sorted(self.columns - {*roles.targets})  # of targets, their own message says which rows
        for told in mixed([Schema(f"in {site}", holds=of.kinds) for site, of in sites.items()], names):
            self._add(told, MEND)
        self._compare_classes({site: of.classes for site, of in sites.items() if of.classes}, roles.label)
        for name in sorted(self.columns):
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

    def warning(self) -> str:
        """Return what is warned of."""
        return "; ".join(self.noted[:_SHOWN])

    def text(self) -> str:
        """Return all differences, where some are refused."""
        everything = [*self.found, *self.noted]
        return some_of(everything, _SHOWN, "; ")

    def remedy(self) -> str:
        """Return what to do about those that are refused."""
        drop = (
            f"leave out those that not all have (drop={','.join(self.lacking)}), or say which to take "
            "(columns=shared, columns=union)"
        )
        return ", or ".join([*self.remedies, *[drop] * bool(self.lacking and self.unlike is None)])


def _some(words: frozenset[str]) -> str:
    return some_of(map(repr, sorted(words)), _CLASSES)
