"""Checks of numbers, words and totals that devices and servers send each other about their tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedloom.core.errors import RefusedError
from fedloom.tables.columns import MOST_CATEGORIES
from fedloom.tables.statistics import BINS, Spread, Total

MAX_COLUMNS = 1024  # of numbers, whose bins fit such a message; and of words
_LONGEST = 1000  # characters of a name or a word
_LARGEST = 3.5e38  # of a value; float32 ends before
_ROUNDING = 1e-14  # of a value, relative: what adding up in another way changes


def described_totals(totals: Mapping[str, Total]) -> dict[str, list[Any]]:
    """Return totals of columns, as JSON has them."""
    return {n: [t.count, t.sum, *((t.smallest, t.largest) if t.count else (None, None))] for n, t in totals.items()}


def read_totals(fields: Any, rows: int) -> dict[str, Total]:
    """Return totals of columns over at most so many rows, by name."""
    return {name: read_total(of, name, rows) for name, of in read_object(fields, "totals of columns").items()}


def read_total(fields: Any, name: str, rows: int) -> Total:
    """Return the total of a column over at most so many rows."""
    if not isinstance(fields, list) or len(fields) != 4 or type(fields[0]) is not int or not 0 <= fields[0] <= rows:
        raise RefusedError(
            f"a column has [count, sum, smallest, largest] with a count of 0 to {rows}, got {fields!r:.80} of "
            f"{name!r:.80}: count the training rows"
        )
    count = fields[0]
    if not count:
        if fields[1:] not in ([0, None, None], [0.0, None, None]):
            raise RefusedError(f"a column without numbers has the sum 0 and null for its ends, got {fields!r:.80}")
        return Total(0, 0.0, math.inf, -math.inf)
    total = Total(count, *(read_number(value, f"a total of {name!r:.80}", count) for value in fields[1:]))
    size = max(abs(total.smallest), abs(total.largest))
    slack = 1e-12 * count * size
    if size > _LARGEST:
        raise RefusedError(f"values are at most {_LARGEST:g}, got {size:g} in {name!r:.80}: use another unit")
    if not count * total.smallest - slack <= total.sum <= count * total.largest + slack:
        raise RefusedError(
            f"{count} numbers from {total.smallest:g} to {total.largest:g} add up to {count * total.smallest:g} to "
            f"{count * total.largest:g}, got the sum {total.sum:g} of {name!r:.80}: send that of the same rows"
        )
    return total


def read_counts(fields: Any, name: str, rows: int, least: int) -> dict[str, int]:
    """Return how many rows have each word of a column, sorted; each count is `least` or more."""
    counts = read_object(fields, f"words of {name!r:.80}")
    if len(counts) > MOST_CATEGORIES:
        raise RefusedError(
            f"a column has at most {MOST_CATEGORIES:,} different words, got {len(counts):,} in {name!r:.80}: leave it "
            f"out (drop={name:.80})"
        )
    if wrong := [n for n in counts.values() if type(n) is not int or n < least]:
        raise RefusedError(
            f"words are counted in whole numbers from {least} (least), got {wrong[0]!r:.40} in {name!r:.80}: count rows"
        )
    total = sum(counts.values())
    if total > rows or (least == 1 and total < rows):
        raise RefusedError(
            f"each of {rows} rows has one word or a gap, got {total} in {name!r:.80}: count each row once"
        )
    return dict(sorted(counts.items()))


def read_spread(fields: Any, name: str, own: Total, common: Total) -> Spread:
    """Return the spread of a column that has the total `own` on the device and `common` on all."""
    fields = read_object(fields, f"the spread of {name!r:.80}", ("squares", "bins"))
    bins = fields.get("bins")
    if not isinstance(bins, list) or len(bins) != BINS or not all(type(n) is int and n >= 0 for n in bins):
        raise RefusedError(f"numbers are counted in {BINS:,} bins from 0, got {bins!r:.80} of {name!r:.80}: send these")
    if sum(bins) != own.count:
        raise RefusedError(f"{own.count} numbers are counted once each, got {sum(bins)} in the bins of {name!r:.80}")
    squares = read_number(fields.get("squares"), f"the squares of {name!r:.80}", max(1, own.count), 2)
    if not own.count:
        if squares:
            raise RefusedError(f"no numbers have no squared distances, got {squares:g} of {name!r:.80}: send 0")
        return Spread(0.0, np.zeros(BINS, np.int64))
    counts = np.array(bins, np.int64)
    first, last = common.places(np.array([own.smallest, own.largest]))
    full = np.flatnonzero(counts)
    if (full[0], full[-1]) != (first, last):
        raise RefusedError(
            f"the smallest and the largest number are in bins {first} and {last}, got bins {full[0]} to {full[-1]} of "
            f"{name!r:.80}: count the same rows"
        )
    width = (common.largest - common.smallest) / BINS
    low = own.count * common.smallest + width * float((counts * np.arange(BINS)).sum())
    slack = own.count * (1e-9 * width + 1e-12 * max(abs(common.smallest), abs(common.largest)))
    if not low - slack <= own.sum <= low + own.count * width + slack:
        raise RefusedError(
            f"numbers in these bins add up to {low:.6g} to {low + own.count * width:.6g}, got {own.sum:.6g} of "
            f"{name!r:.80}: count the same rows"
        )
    mean = own.sum / own.count
    least = own.count * (mean - common.mean) ** 2
    most = least + own.count * max(0.0, own.largest - mean) * max(0.0, mean - own.smallest)
    far = max(abs(own.smallest - common.mean), abs(own.largest - common.mean))
    slack = 1e-9 * most + rounded_squares(own.count, max(abs(common.smallest), abs(common.largest)), far)
    if not least - slack <= squares <= most + slack:
        raise RefusedError(
            f"squared distances of these numbers from {common.mean:.6g} add up to {least:.6g} to {most:.6g}, got "
            f"{squares:.6g} of {name!r:.80}: send those of the same rows"
        )
    return Spread(squares, counts)


def rounded_squares(count: int, size: float, far: float) -> float:
    """Return how far rounding moves a sum of squares of values of a `size`, at most `far` from a mean."""
    off = _ROUNDING * size
    return count * (2 * far * off + off * off)


def read_sums(fields: Any, rows: int, outputs: int) -> tuple[float, ...]:
    """Return the sums of so many targets over the rows."""
    sums = read_numbers(fields, outputs, "sums of targets")
    if wrong := [n for n in sums if abs(n) > rows * _LARGEST]:
        raise RefusedError(f"targets are at most {_LARGEST:g}, got the sum {wrong[0]:g} of {rows}: use another unit")
    return sums


def read_numbers(fields: Any, count: int, whose: str) -> tuple[float, ...]:
    """Return a list of so many numbers."""
    if not isinstance(fields, list) or len(fields) != count:
        raise RefusedError(f"{whose} are a list of {count} numbers, got {fields!r:.80}: send one for each target")
    return tuple(read_number(value, whose, 1 << 40, 2) for value in fields)


def read_number(value: Any, what: str, count: int = 1, power: int = 1) -> float:
    """Return a number that is at most `count` times a power of the largest value (or of its double)."""
    if type(value) not in (int, float) or not abs(value) <= count * (2 * _LARGEST) ** power:
        raise RefusedError(f"{what} must be a number of at most {_LARGEST:g} a value, got {value!r:.40}: send another")
    return float(value)


def read_object(fields: Any, what: str, names: Sequence[str] | None = None, limit: int | None = None) -> dict[str, Any]:
    """Return an object of JSON, whose entries have some of these names, and are at most so many."""
    if not isinstance(fields, dict):
        raise RefusedError(f"{what} are an object of JSON, got {fields!r:.80}: send one")
    if limit is not None and len(fields) > limit:
        raise RefusedError(f"{what} are at most {limit:,}, got {len(fields):,}: leave some out")
    for name in fields:
        read_text(name, f"a name in {what}")
        if names is not None and name not in names:
            raise RefusedError(f"{what} have the entries {', '.join(names)}, got {name!r:.80}: leave it out")
    return fields


def read_text(text: Any, what: str) -> str:
    """Return a name or a word of bounded length."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise RefusedError(f"{what} is a text of at most {_LONGEST} characters, got {text!r:.80}: shorten it")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise RefusedError(f"{what} is a text, got half a character in {text!r:.80}: write it in UTF-8")
    return text


def check_columns(names: Sequence[str]) -> None:
    """Refuse too many columns, and two of one name."""
    if len(names) > MAX_COLUMNS or len(set(names)) < len(names):
        raise RefusedError(
            f"a table has at most {MAX_COLUMNS:,} columns with different names, got {len(names):,}: leave some out "
            "(drop=)"
        )
