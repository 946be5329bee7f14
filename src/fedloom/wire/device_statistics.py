"""Statistics of devices' training rows, as messages in JSON; every value of a message is checked before it counts.

    device --- first:  rows; of each column count, sum, smallest, largest, or its words, or the tokens of a column of
                       texts; sums of targets --------------------------------------------------------------> server
    device <-- common: the same of all devices together; means of targets ----------------------------------- server
    device --- second: squared distances from the means, numbers counted in bins -----------------------------> server

A column without a number has null for its smallest and largest. Statistics that no rows can have are refused. Those
that rows could have are believed, as trained models are.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

import numpy as np

from fedloom.core.errors import RefusedError
from fedloom.data.columns import MOST_CATEGORIES
from fedloom.data.statistics import BINS, CommonPreparation, Scale, Spread, Summary, Total
from fedloom.data.vocabulary import TextPreparation, TokenKind, Vocabulary, tokens_of

MAX_BYTES = 1 << 24  # of a message with statistics
MAX_COLUMNS = 1024  # of numbers, whose bins fit such a message; and of words
MAX_TOKENS = 200_000  # different ones of a device, and of a vocabulary
MAX_LENGTH = 1 << 16  # tokens of a text
_LONGEST = 1000  # characters of a name or a word
_LARGEST = 3.5e38  # of a value; float32 ends before
_ROUNDING = 1e-14  # of a value, relative: what adding up in another way changes


@dataclass(frozen=True)
class TextCounts:
    """Tokens of a column of texts: how they are made, without a vocabulary, and how often there is each."""

    how: TextPreparation
    counts: Mapping[str, int]

    def described(self) -> dict[str, Any]:
        """Return the counts as JSON has them.

        Raises:
            RefusedError: there are more tokens than a message may have.
        """
        if len(self.counts) > MAX_TOKENS:
            raise RefusedError(
                f"a device counts at most {MAX_TOKENS:,} different tokens, got {len(self.counts):,} in "
                f"{self.how.column!r:.80}: leave rare ones out (least=2), or count characters (tokens=characters)"
            )
        how = self.how
        said = {"column": how.column, "tokens": how.tokens, "length": how.length, "most": how.most, "least": how.least}
        return said | {"counts": dict(self.counts)}

    @classmethod
    def read(cls, fields: Any) -> TextCounts:
        """Return the counts in an object of JSON.

        Raises:
            RefusedError: no texts can have them.
        """
        fields = _object(fields, "counts of tokens", (*_SAID, "counts"))
        how, counts = _read_text(fields), _object(fields.get("counts"), "tokens", limit=MAX_TOKENS)
        for token, n in counts.items():
            _check_token(token, how)
            if type(n) is not int or not how.least <= n < 1 << 40:
                raise RefusedError(
                    f"tokens are counted in whole numbers from {how.least} (least) to 2**40, got {n!r:.40} of "
                    f"{token!r:.40}: count them"
                )
        return cls(how, dict(sorted(counts.items())))


_SAID = ("column", "tokens", "length", "most", "least")


def _read_text(fields: Mapping[str, Any]) -> TextPreparation:
    """Return how token ids are made of texts, without a vocabulary."""
    column = _text(fields.get("column"), "a column")
    tokens = fields.get("tokens")
    if not isinstance(tokens, str) or tokens not in get_args(TokenKind):
        raise RefusedError(f"tokens that are counted are words or characters, got {tokens!r:.40}: name one of these")
    for name, most in (("length", MAX_LENGTH), ("most", MAX_TOKENS), ("least", 1 << 40)):
        if type(fields.get(name)) is not int or not 1 <= fields[name] <= most:
            raise RefusedError(
                f"{name} of a text is a whole number from 1 to {most:,}, got {fields.get(name)!r:.40}: name another"
            )
    return TextPreparation(column, cast(TokenKind, tokens), fields["length"], fields["most"], fields["least"])


def _check_token(token: Any, how: TextPreparation) -> None:
    assert isinstance(how.tokens, str)
    if tokens_of(_text(token, "a token"), how.tokens) != [token]:
        raise RefusedError(f"a token is one of the {how.tokens} of a text, got {token!r:.80}: send what texts have")


@dataclass(frozen=True)
class FirstStatistics:
    """Statistics of the first exchange.

    Attributes:
        rows: training rows, over which they are.
        summary: of the columns of a table that is prepared by the statistics of all devices; None: there is none.
        least: how often a device must have a word to name it.
        targets: sum of each target; None where no task asks for it.
        text: how often a column of texts has each token; None: there is none whose tokens are counted.
    """

    rows: int
    summary: Summary | None = None
    least: int = 1
    targets: tuple[float, ...] | None = None
    text: TextCounts | None = None

    def described(self) -> dict[str, Any]:
        """Return the statistics as JSON has them."""
        out: dict[str, Any] = {"rows": self.rows}
        if self.summary is not None:
            out |= {"least": self.least, "numbers": _described_totals(self.summary.numbers)}
            out["words"] = {name: dict(counts) for name, counts in self.summary.words.items()}
        if self.text is not None:
            out["text"] = self.text.described()
        return out | ({} if self.targets is None else {"targets": list(self.targets)})

    def digest(self) -> str:
        """Return the digest by which a device that comes back is known to have the same rows."""
        text = json.dumps(self.described(), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @classmethod
    def read(cls, fields: Any, rows: int, outputs: int) -> FirstStatistics:
        """Return the statistics of a device with this number of training rows and of targets.

        Raises:
            RefusedError: no such rows can have them.
        """
        fields = _object(fields, "statistics of a device", ("rows", "least", "numbers", "words", "targets", "text"))
        if type(fields.get("rows")) is not int or fields["rows"] != rows:
            raise RefusedError(
                f"statistics are over all {rows} training examples that a device registers, got "
                f"{fields.get('rows')!r:.40}: register the same examples"
            )
        sums = None if "targets" not in fields else _sums(fields["targets"], rows, outputs)
        if "numbers" not in fields:
            return cls(rows, targets=sums, text=TextCounts.read(fields["text"]) if "text" in fields else None)
        if "text" in fields:
            raise RefusedError("a text is prepared alone, got columns beside it: name the text (text=NAME), or columns")
        least = fields.get("least")
        if type(least) is not int or least < 1:
            raise RefusedError(f"least is a whole number from 1, got {least!r:.40}: write least=5")
        numbers = _read_totals(fields["numbers"], rows)
        words = {
            name: _counts(counts, name, rows, least)
            for name, counts in _object(fields.get("words"), "words of columns").items()
        }
        _check_columns([*numbers, *words])
        return cls(rows, Summary(rows, numbers, words), least, sums)


@dataclass(frozen=True)
class CommonTotals:
    """Hold what devices need for the second exchange: totals of the columns of numbers, and the mean of each target."""

    numbers: Mapping[str, Total]
    targets: tuple[float, ...]

    def described(self) -> dict[str, Any]:
        """Return the totals as JSON has them."""
        return {"numbers": _described_totals(self.numbers), "targets": list(self.targets)}

    @classmethod
    def read(cls, fields: Any, own: FirstStatistics) -> CommonTotals:
        """Return the totals that a server says all devices have, of which one has its `own`.

        Raises:
            RefusedError: they are no totals, or those of this device cannot be among them.
        """
        fields = _object(fields, "totals of a server", ("numbers", "targets"))
        numbers = _read_totals(fields.get("numbers"), 1 << 62)
        ours: Mapping[str, Total] = {} if own.summary is None else own.summary.numbers
        words: Mapping[str, Any] = {} if own.summary is None else own.summary.words
        if lacks := [name for name in numbers if name not in ours and name not in words]:
            raise RefusedError(f"totals are of columns that this device has, got {lacks[0]!r:.80}: leave others out")
        for name, total in numbers.items():
            mine = ours.get(name)
            if mine is None or not mine.count:
                continue
            if total.count < mine.count or total.smallest > mine.smallest or total.largest < mine.largest:
                raise RefusedError(
                    f"totals of a column hold those of each device, and {name!r:.80} has fewer numbers or a smaller "
                    "range than on this one: it answers no range that leaves rows out"
                )
        outputs = 0 if own.targets is None else len(own.targets)
        return cls(numbers, tuple(_numbers(fields.get("targets"), outputs, "means of targets")))


@dataclass(frozen=True)
class SecondStatistics:
    """Statistics of the second exchange: the spread of each column of numbers, and of each target its squares."""

    numbers: Mapping[str, Spread]
    targets: tuple[float, ...]

    def described(self) -> dict[str, Any]:
        """Return the statistics as JSON has them."""
        spreads = {n: {"squares": of.squares, "bins": of.bins.tolist()} for n, of in self.numbers.items()}
        return {"numbers": spreads, "targets": list(self.targets)}

    @classmethod
    def read(cls, fields: Any, first: FirstStatistics, common: CommonTotals) -> SecondStatistics:
        """Return the statistics of a device that has sent its `first` ones; columns are those of `common`.

        Raises:
            RefusedError: no rows with the first statistics can have them.
        """
        fields = _object(fields, "counts of a device", ("numbers", "targets"))
        given = _object(fields.get("numbers"), "spreads of columns")
        if given.keys() != common.numbers.keys():
            other = min(given.keys() ^ common.numbers.keys())
            raise RefusedError(
                f"spreads are of the columns of numbers that were asked for, and {other!r:.80} is on one side alone: "
                "answer for these"
            )
        ours: Mapping[str, Total] = {} if first.summary is None else first.summary.numbers
        spreads = {
            name: _spread(given[name], name, ours.get(name, Total(0, 0.0, math.inf, -math.inf)), total)
            for name, total in common.numbers.items()
        }
        sums = first.targets or ()
        squares = _numbers(fields.get("targets"), len(sums), "squares of targets")
        for each, mean, value in zip(sums, common.targets, squares, strict=True):
            own = each / first.rows
            least = first.rows * (own - mean) ** 2
            if value < least - _slack(first.rows, max(abs(own), abs(mean)), abs(own - mean)) - 1e-9 * least:
                raise RefusedError(
                    f"squared distances of {first.rows} targets with the mean {own:.6g} from {mean:.6g} add up to at "
                    f"least {least:.6g}, got {value:.6g}: send those of the same rows"
                )
        return cls(spreads, squares)


def read_preparation(fields: Any) -> CommonPreparation | TextPreparation:
    """Return the preparation in an object of JSON.

    Raises:
        RefusedError: it is none.
    """
    if isinstance(fields, dict) and "vocabulary" in fields:
        return _read_vocabulary(_object(fields, "a preparation", (*_SAID, "size", "vocabulary")))
    fields = _object(fields, "a preparation", ("least", "numbers", "words"))
    numbers, least = dict[str, Scale](), fields.get("least")
    for name, scale in _object(fields.get("numbers"), "scales of columns").items():
        names = ("fill", "mean", "deviation", "gaps")
        scale = _object(scale, f"the scale of {name!r:.80}", names)
        fill, mean, deviation = (_number(scale.get(part), f"{part} of {name!r:.80}") for part in names[:3])
        if deviation <= 0 or type(scale.get("gaps")) is not int or scale["gaps"] < 0:
            raise RefusedError(
                f"a scale has a deviation above 0 and counts gaps, got {scale!r:.80} of {name!r:.80}: send another"
            )
        numbers[name] = Scale(fill, mean, deviation, scale["gaps"])
    words = dict[str, tuple[str, ...]]()
    for name, each in _object(fields.get("words"), "words of columns").items():
        if not isinstance(each, list) or not len(set(map(str, each))) == len(each) <= MOST_CATEGORIES:
            raise RefusedError(
                f"words of a column are a list of at most {MOST_CATEGORIES:,} without repetition, got {each!r:.80} of "
                f"{name!r:.80}: send another preparation"
            )
        words[name] = tuple(_text(word, "a word") for word in each)
    _check_columns([*numbers, *words])
    if type(least) is not int or least < 1:
        raise RefusedError(f"least is a whole number from 1, got {least!r:.40}: send another preparation")
    return CommonPreparation(least, numbers, words)


def _read_vocabulary(fields: Mapping[str, Any]) -> TextPreparation:
    how, tokens = _read_text(fields), fields["vocabulary"]
    if not isinstance(tokens, list) or not 1 <= len(tokens) <= how.most:
        raise RefusedError(f"a vocabulary is a list of 1 to {how.most:,} tokens, got {tokens!r:.80}: send another")
    for token in tokens:
        _check_token(token, how)
    try:
        assert isinstance(how.tokens, str)
        return replace(how, vocabulary=Vocabulary(how.tokens, tuple(tokens)))
    except ValueError as error:
        raise RefusedError(str(error)) from None


def read_moments(fields: Any, outputs: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation of each of so many targets from an object of JSON.

    Raises:
        RefusedError: they are none.
    """
    fields = _object(fields, "moments of targets", ("mean", "deviation"))
    mean, deviation = (_numbers(fields.get(name), outputs, f"{name} of targets") for name in ("mean", "deviation"))
    if min(deviation, default=0.0) < 0:
        raise RefusedError(f"deviations are at least 0, got {min(deviation):g}: send others")
    return mean, deviation


def to_bytes(message: Mapping[str, Any]) -> bytes:
    """Return a message with statistics as bytes.

    Raises:
        RefusedError: it is longer than the other end reads.
    """
    data = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    if len(data) > MAX_BYTES:
        raise RefusedError(
            f"statistics of a table take at most {MAX_BYTES:,} bytes, got {len(data):,}: leave columns out (drop=)"
        )
    return data


# ---- parts of messages


def _described_totals(totals: Mapping[str, Total]) -> dict[str, list[Any]]:
    return {n: [t.count, t.sum, *((t.smallest, t.largest) if t.count else (None, None))] for n, t in totals.items()}


def _read_totals(fields: Any, rows: int) -> dict[str, Total]:
    return {name: _total(of, name, rows) for name, of in _object(fields, "totals of columns").items()}


def _total(fields: Any, name: str, rows: int) -> Total:
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
    total = Total(count, *(_number(value, f"a total of {name!r:.80}", count) for value in fields[1:]))
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


def _counts(fields: Any, name: str, rows: int, least: int) -> dict[str, int]:
    counts = _object(fields, f"words of {name!r:.80}")
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


def _spread(fields: Any, name: str, own: Total, common: Total) -> Spread:
    fields = _object(fields, f"the spread of {name!r:.80}", ("squares", "bins"))
    bins = fields.get("bins")
    if not isinstance(bins, list) or len(bins) != BINS or not all(type(n) is int and n >= 0 for n in bins):
        raise RefusedError(f"numbers are counted in {BINS:,} bins from 0, got {bins!r:.80} of {name!r:.80}: send these")
    if sum(bins) != own.count:
        raise RefusedError(f"{own.count} numbers are counted once each, got {sum(bins)} in the bins of {name!r:.80}")
    squares = _number(fields.get("squares"), f"the squares of {name!r:.80}", max(1, own.count), 2)
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
    slack = 1e-9 * most + _slack(own.count, max(abs(common.smallest), abs(common.largest)), far)
    if not least - slack <= squares <= most + slack:
        raise RefusedError(
            f"squared distances of these numbers from {common.mean:.6g} add up to {least:.6g} to {most:.6g}, got "
            f"{squares:.6g} of {name!r:.80}: send those of the same rows"
        )
    return Spread(squares, counts)


def _slack(count: int, size: float, far: float) -> float:
    """Return how far rounding moves a sum of squares of values of a `size`, at most `far` from a mean."""
    off = _ROUNDING * size
    return count * (2 * far * off + off * off)


def _sums(fields: Any, rows: int, outputs: int) -> tuple[float, ...]:
    sums = _numbers(fields, outputs, "sums of targets")
    if wrong := [n for n in sums if abs(n) > rows * _LARGEST]:
        raise RefusedError(f"targets are at most {_LARGEST:g}, got the sum {wrong[0]:g} of {rows}: use another unit")
    return sums


def _numbers(fields: Any, count: int, whose: str) -> tuple[float, ...]:
    if not isinstance(fields, list) or len(fields) != count:
        raise RefusedError(f"{whose} are a list of {count} numbers, got {fields!r:.80}: send one for each target")
    return tuple(_number(value, whose, 1 << 40, 2) for value in fields)


def _number(value: Any, what: str, count: int = 1, power: int = 1) -> float:
    """Return a number that is at most `count` times a power of the largest value (or of its double)."""
    if type(value) not in (int, float) or not abs(value) <= count * (2 * _LARGEST) ** power:
        raise RefusedError(f"{what} must be a number of at most {_LARGEST:g} a value, got {value!r:.40}: send another")
    return float(value)


def _object(fields: Any, what: str, names: Sequence[str] | None = None, limit: int | None = None) -> dict[str, Any]:
    """Return an object of JSON, whose entries have some of these names, and are at most so many."""
    if not isinstance(fields, dict):
        raise RefusedError(f"{what} are an object of JSON, got {fields!r:.80}: send one")
    if limit is not None and len(fields) > limit:
        raise RefusedError(f"{what} are at most {limit:,}, got {len(fields):,}: leave some out")
    for name in fields:
        _text(name, f"a name in {what}")
        if names is not None and name not in names:
            raise RefusedError(f"{what} have the entries {', '.join(names)}, got {name!r:.80}: leave it out")
    return fields


def _text(text: Any, what: str) -> str:
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise RefusedError(f"{what} is a text of at most {_LONGEST} characters, got {text!r:.80}: shorten it")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise RefusedError(f"{what} is a text, got half a character in {text!r:.80}: write it in UTF-8")
    return text


def _check_columns(names: Sequence[str]) -> None:
    if len(names) > MAX_COLUMNS or len(set(names)) < len(names):
        raise RefusedError(
            f"a table has at most {MAX_COLUMNS:,} columns with different names, got {len(names):,}: leave some out "
            "(drop=)"
        )
