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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from fedloom.core.errors import RefusedError
from fedloom.core.json_types import NAMES, POSITIVE, one_of, whole
from fedloom.deploy.statistics_fields import (
    check_columns,
    described_totals,
    read_counts,
    read_number,
    read_numbers,
    read_object,
    read_spread,
    read_sums,
    read_text,
    read_totals,
    rounded_squares,
)
from fedloom.tables.columns import MOST_CATEGORIES
from fedloom.tables.statistics import CommonPreparation, Scale, Spread, Summary, Total, UnlikeColumns
from fedloom.tables.vocabulary import TextPreparation, TokenKind, Vocabulary, tokens_of

MAX_BYTES = 1 << 24  # of a message with statistics
MAX_TOKENS = 200_000  # different ones of a device, and of a vocabulary
MAX_LENGTH = 1 << 16  # tokens of a text


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
        return said | _described_least_clients(how.least_clients) | {"counts": dict(self.counts)}

    @classmethod
    def read(cls, fields: Any) -> TextCounts:
        """Return the counts in an object of JSON.

        Raises:
            RefusedError: no texts can have them.
        """
        fields = read_object(fields, "counts of tokens", (*_SAID, "counts"))
        how, counts = _read_text(fields), read_object(fields.get("counts"), "tokens", limit=MAX_TOKENS)
        for token, n in counts.items():
            _check_token(token, how)
            if type(n) is not int or not how.least <= n < 1 << 40:
                raise RefusedError(
                    f"tokens are counted in whole numbers from {how.least} (least) to 2**40, got {n!r:.40} of "
                    f"{token!r:.40}: count them"
                )
        return cls(how, dict(sorted(counts.items())))


_TYPES = {  # of single entries, and what to do about another
    "tokens": (one_of(get_args(TokenKind)), "name one of these"),
    "length": (whole(1, MAX_LENGTH, f"a whole number from 1 to {MAX_LENGTH:,}"), "name another"),
    "most": (whole(1, MAX_TOKENS, f"a whole number from 1 to {MAX_TOKENS:,}"), "name another"),
    "least": (POSITIVE, "write least=5"),
    "least_clients": (POSITIVE, "write least_clients=2"),
    "columns": (one_of(get_args(UnlikeColumns)), "name one of these"),
}
_SAID = ("column", "tokens", "length", "most", "least", "least_clients")


def _described_least_clients(least_clients: int) -> dict[str, int]:
    """Return the entry of a message; none where it says nothing, so that digests stay those of earlier versions."""
    return {"least_clients": least_clients} if least_clients > 1 else {}


def _entry_of_columns(fields: Mapping[str, Any]) -> UnlikeColumns | None:
    """Return which columns are taken where tables differ; None where nothing is said."""
    said: UnlikeColumns | None = _entry(fields, "columns") if "columns" in fields else None
    return said


def _entry(fields: Mapping[str, Any], name: str, default: int | None = None) -> Any:
    """Return an entry of its declared type."""
    (kind, remedy), value = _TYPES[name], fields.get(name, default)
    if not kind.fits(value):
        raise RefusedError(f"{name} is {kind.words}, got {value!r:.40}: {remedy}")
    return value


def _read_text(fields: Mapping[str, Any]) -> TextPreparation:
    """Return how token ids are made of texts, without a vocabulary."""
    column = read_text(fields.get("column"), "a column")
    tokens, length, most, least = (_entry(fields, name) for name in ("tokens", "length", "most", "least"))
    return TextPreparation(column, tokens, length, most, least, least_clients=_entry(fields, "least_clients", 1))


def _check_token(token: Any, how: TextPreparation) -> None:
    assert isinstance(how.tokens, str)
    if tokens_of(read_text(token, "a token"), how.tokens) != [token]:
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
        least_clients: how many devices must have a word of a table for it to become a column.
        columns: which columns are taken where tables of devices differ; None: tables that differ are refused.
    """

    rows: int
    summary: Summary | None = None
    least: int = 1
    targets: tuple[float, ...] | None = None
    text: TextCounts | None = None
    least_clients: int = 1
    columns: UnlikeColumns | None = None

    def described(self) -> dict[str, Any]:
        """Return the statistics as JSON has them."""
        out: dict[str, Any] = {"rows": self.rows}
        if self.summary is not None:
            out |= {"least": self.least, "numbers": described_totals(self.summary.numbers)}
            out |= _described_least_clients(self.least_clients)
            out |= {"columns": self.columns} if self.columns else {}
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
        names = ("rows", "least", "least_clients", "columns", "numbers", "words", "targets", "text")
        fields = read_object(fields, "statistics of a device", names)
        if type(fields.get("rows")) is not int or fields["rows"] != rows:
            raise RefusedError(
                f"statistics are over all {rows} training examples that a device registers, got "
                f"{fields.get('rows')!r:.40}: register the same examples"
            )
        if not fields.keys() & {"numbers", "text", "targets"}:
            raise RefusedError("statistics are of columns, of a text or of targets, got none: leave them out")
        sums = None if "targets" not in fields else read_sums(fields["targets"], rows, outputs)
        if "numbers" not in fields:
            return cls(rows, targets=sums, text=TextCounts.read(fields["text"]) if "text" in fields else None)
        if "text" in fields:
            raise RefusedError("a text is prepared alone, got columns beside it: name the text (text=NAME), or columns")
        least, numbers = _entry(fields, "least"), read_totals(fields["numbers"], rows)
        words = {
            name: read_counts(counts, name, rows, least)
            for name, counts in read_object(fields.get("words"), "words of columns").items()
        }
        check_columns([*numbers, *words])
        least_clients, columns = _entry(fields, "least_clients", 1), _entry_of_columns(fields)
        return cls(rows, Summary(rows, numbers, words), least, sums, least_clients=least_clients, columns=columns)


@dataclass(frozen=True)
class CommonTotals:
    """Statistics for the second exchange of devices: totals of the columns of numbers, and the mean of each target."""

    numbers: Mapping[str, Total]
    targets: tuple[float, ...]

    def described(self) -> dict[str, Any]:
        """Return the totals as JSON has them."""
        return {"numbers": described_totals(self.numbers), "targets": list(self.targets)}

    @classmethod
    def read(cls, fields: Any, own: FirstStatistics) -> CommonTotals:
        """Return the totals that a server says all devices have, of which one has its `own`.

        Raises:
            RefusedError: they are no totals, or those of this device cannot be among them.
        """
        fields = read_object(fields, "totals of a server", ("numbers", "targets"))
        numbers = read_totals(fields.get("numbers"), 1 << 62)
        ours: Mapping[str, Total] = {} if own.summary is None else own.summary.numbers
        words: Mapping[str, Any] = {} if own.summary is None else own.summary.words
        may_lack = own.columns == "union"
        if lacks := [name for name in numbers if name not in ours and name not in words and not may_lack]:
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
        return cls(numbers, tuple(read_numbers(fields.get("targets"), outputs, "means of targets")))


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
        fields = read_object(fields, "counts of a device", ("numbers", "targets"))
        given = read_object(fields.get("numbers"), "spreads of columns")
        if given.keys() != common.numbers.keys():
            other = min(given.keys() ^ common.numbers.keys())
            raise RefusedError(
                f"spreads are of the columns of numbers that were asked for, and {other!r:.80} is on one side alone: "
                "answer for these"
            )
        ours: Mapping[str, Total] = {} if first.summary is None else first.summary.numbers
        spreads = {
            name: read_spread(given[name], name, ours.get(name, Total(0, 0.0, math.inf, -math.inf)), total)
            for name, total in common.numbers.items()
        }
        sums = first.targets or ()
        squares = read_numbers(fields.get("targets"), len(sums), "squares of targets")
        for each, mean, value in zip(sums, common.targets, squares, strict=True):
            own = each / first.rows
            least = first.rows * (own - mean) ** 2
            if value < least - rounded_squares(first.rows, max(abs(own), abs(mean)), abs(own - mean)) - 1e-9 * least:
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
        return _read_vocabulary(read_object(fields, "a preparation", (*_SAID, "size", "vocabulary")))
    entries = ("least", "least_clients", "columns", "lacking", "numbers", "words")
    fields = read_object(fields, "a preparation", entries)
    numbers = dict[str, Scale]()
    for name, scale in read_object(fields.get("numbers"), "scales of columns").items():
        names = ("fill", "mean", "deviation", "gaps")
        scale = read_object(scale, f"the scale of {name!r:.80}", names)
        fill, mean, deviation = (read_number(scale.get(part), f"{part} of {name!r:.80}") for part in names[:3])
        if deviation <= 0 or type(scale.get("gaps")) is not int or scale["gaps"] < 0:
            raise RefusedError(
                f"a scale has a deviation above 0 and counts gaps, got {scale!r:.80} of {name!r:.80}: send another"
            )
        numbers[name] = Scale(fill, mean, deviation, scale["gaps"])
    words = dict[str, tuple[str, ...]]()
    for name, each in read_object(fields.get("words"), "words of columns").items():
        if not isinstance(each, list) or not len(set(map(str, each))) == len(each) <= MOST_CATEGORIES:
            raise RefusedError(
                f"words of a column are a list of at most {MOST_CATEGORIES:,} without repetition, got {each!r:.80} of "
                f"{name!r:.80}: send another preparation"
            )
        words[name] = tuple(read_text(word, "a word") for word in each)
    check_columns([*numbers, *words])
    lacking, columns = fields.get("lacking", []), _entry_of_columns(fields)
    if not NAMES.fits(lacking) or not {*lacking} <= {*numbers, *words} or (lacking and columns != "union"):
        raise RefusedError(
            f"columns that a table may lack are a list of those of a union, got {lacking!r:.80}: send another "
            "preparation"
        )
    least, least_clients = _entry(fields, "least"), _entry(fields, "least_clients", 1)
    return CommonPreparation(least, numbers, words, least_clients, columns, tuple(lacking))


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
    fields = read_object(fields, "moments of targets", ("mean", "deviation"))
    mean, deviation = (read_numbers(fields.get(name), outputs, f"{name} of targets") for name in ("mean", "deviation"))
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
