"""Words that mean a gap in a table."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.wording import some_of

MISSING = {"", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"}  # words that mean a gap


def spelt(value: Any) -> str:
    """Return a value of a data frame as a table would have it: 3.0, which pandas makes of 3 beside a gap, is 3."""
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if whole or isinstance(value, bool | np.bool_) else value).strip()


@dataclass(frozen=True)
class Gaps:
    """Words that mean a gap in a table, beside those that always do. A number means one however it is written.

    Args:
        words: the words, stripped.
    """

    words: frozenset[str] = frozenset()

    @classmethod
    def of(cls, given: Any) -> Gaps:
        """Make gaps of what a caller of `read_csv` names: one or several words or numbers."""
        several = () if given is None else [given] if isinstance(given, str | Number) else given
        return cls(frozenset(map(spelt, several)))

    def word(self, cell: str, number: Callable[[str], float] = float) -> str | None:
        """Return which of the words a cell is; None where it is none.

        Args:
            cell: stripped.
            number: reads the number in a cell, of which there may be none.
        """
        if cell in self.words:
            return cell
        if not self._numbers:
            return None
        try:
            return self._numbers.get(number(cell))
        except ValueError:
            return None

    @cached_property
    def _numbers(self) -> dict[float, str]:
        out = {}
        for word in sorted(self.words):
            with suppress(ValueError):
                out[float(word)] = word
        return {number: word for number, word in out.items() if number == number}  # NaN is a gap in any case

    def warn_of_unmet(self, place: Path, met: Collection[str]) -> None:
        """Warn of words that no cell is: they may be spelt otherwise there.

        Args:
            place: the table, or that of all sites.
            met: the words that were met.
        """
        if unmet := sorted(self.words - {*met} - MISSING):
            warnings.warn(
                f"{place}: words of gaps stand in cells, got {some_of(map(repr, unmet), 8)} in none: spell them as the "
                "table does, or leave them out",
                stacklevel=3,
            )
