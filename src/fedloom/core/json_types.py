"""Types of entries of JSON that somebody else may have written, which pydantic checks, and their words in messages."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from types import GenericAlias
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError

_ROUNDED = 1e-9  # of a bound, relative: a weighted mean of ones may round up
_STRICT = ConfigDict(strict=True, allow_inf_nan=False)

Index = Annotated[int, Ge(0), Le((1 << 63) - 1)]


class JsonType:
    """The type of an entry, as an annotation says it, and the same in the words of a message.

    Numbers are finite, True is no number, and a whole number is one.
    """

    def __init__(self, annotation: Any, words: str) -> None:
        self.annotation, self.words = annotation, words

    @functools.cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.annotation, config=_STRICT)

    def fits(self, value: Any) -> bool:
        """Return whether a value is of this type."""
        try:
            self._adapter.validate_python(value)
        except ValidationError:
            return False
        return True


COUNT = JsonType(Index, "an integer >= 0")
POSITIVE = JsonType(Annotated[int, Ge(1), Le(1 << 40)], "an integer >= 1")
TEXT = JsonType(str, "a text")
TEXTS = JsonType(dict[str, str], "a mapping to texts")
NAMES = JsonType(list[str], "a list of names")
MAPPING = JsonType(dict[str, Any], "a mapping")


def one_of(words: Sequence[str]) -> JsonType:
    """Return the type of one of some words."""
    return JsonType(Literal[tuple(words)], f"one of {', '.join(words)}")


def matching(pattern: str) -> Any:
    """Return the annotation of a text all of which matches a pattern."""
    return Annotated[str, StringConstraints(pattern=f"^(?:{pattern})$")]


def mapped(each: Any, name: Any = str) -> Any:
    """Return the annotation of a mapping to entries of a type, by names of another."""
    return GenericAlias(dict, (name, each))


def listed(each: Any) -> Any:
    """Return the annotation of a list of entries of a type."""
    return GenericAlias(list, (each,))


def within(low: float | None, high: float | None) -> Any:
    """Return the annotation of a number from `low` to `high`, None: any; the ends may be rounded."""
    least = -math.inf if low is None else low - _ROUNDED * abs(low)
    return Annotated[float, Ge(least), Le(math.inf if high is None else high + _ROUNDED * abs(high))]


@functools.cache
def number(low: float | None = None, high: float | None = None) -> JsonType:
    """Return the type of a number of a record; null where it is undefined."""
    return JsonType(within(low, high) | None, f"a number{in_words(low, high)} or null")


def in_words(low: float | None, high: float | None) -> str:
    """Return a range as it follows "number" in a message."""
    if low is not None and high is not None:
        return f" in {low:g}..{high:g}"
    ends = [f" {sign} {end:g}" for sign, end in ((">=", low), ("<=", high)) if end is not None]
    return "".join(ends)


def whole(low: int, high: int, words: str = "") -> JsonType:
    """Return the type of a whole number from `low` to `high`."""
    return JsonType(Annotated[int, Ge(low), Le(high)], words or f"an integer in {low}..{high}")
