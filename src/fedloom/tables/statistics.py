"""Statistics of clients' columns, and the preparation that follows from their sum; no row leaves a client.

There are two exchanges. In the first a client counts its rows, numbers and words, and adds up its numbers. With the
mean, the smallest and the largest number of all clients it adds up squared distances from the mean in the second, and
counts its numbers in 1,024 bins. Counts add up exactly. Sums are rounded once at each client and once over all, so that
neither the order of rows nor that of clients moves a bit.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedloom.data.schema import Schema
from fedloom.tables.client_counts import add_counts, check_least_clients

BINS = 1024
GAP = "missing"  # the word that a gap among words is
UnlikeColumns = Literal["shared", "union"]  # which columns tables have in common, where these differ

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Total:
    """Numbers of a column: how many, their sum, the smallest and the largest; gaps count nowhere."""

    count: int
    sum: float
    smallest: float
    largest: float

    @classmethod
    def of(cls, values: Numbers) -> Total:
        there = values[~np.isnan(values)]
        if not len(there):
            return cls(0, 0.0, math.inf, -math.inf)
        return cls(len(there), math.fsum(there), float(there.min()), float(there.max()))

    @classmethod
    def added(cls, parts: Sequence[Total]) -> Total:
        smallest, largest = min(part.smallest for part in parts), max(part.largest for part in parts)
        return cls(sum(part.count for part in parts), math.fsum(part.sum for part in parts), smallest, largest)

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    def places(self, values: Numbers) -> npt.NDArray[np.int64]:
        """Return the bin of each value between the smallest and the largest number."""
        if not (width := self.largest - self.smallest) > 0:
            return np.zeros(len(values), np.int64)
        return np.minimum(((values - self.smallest) / width * BINS).astype(np.int64), BINS - 1)


@dataclass(frozen=True)
class Summary:
    """Statistics of the first exchange.

    Attributes:
        rows: how many there are.
        numbers: by column.
        words: how often each word of a column occurs; a gap is the word "missing". Words that occur less often than
            `least` times at a client are not among them.
    """

    rows: int
    numbers: Mapping[str, Total]
    words: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(cls, frame: Any, least: int = 1) -> Summary:
        """Return the statistics of a client's rows, a pandas DataFrame of float64 numbers and of words."""
        numbers = {name: Total.of(values) for name, values in _numbers(frame).items()}
        words = {name: Counter(cells) for name, cells in _words(frame).items()}
        told = {name: {word: n for word, n in sorted(counts.items()) if n >= least} for name, counts in words.items()}
        return cls(len(frame), numbers, told)

    @classmethod
    def added(cls, parts: Sequence[Summary], least_clients: int = 1) -> Summary:
        """Return the statistics of all clients; `parts` have the same columns.

        Words of fewer than `least_clients` clients are left out.
        """
        first = parts[0]
        words = {
            name: dict(sorted(add_counts([part.words[name] for part in parts], least_clients).items()))
            for name in first.words
        }
        numbers = {name: Total.added([part.numbers[name] for part in parts]) for name in first.numbers}
        return cls(sum(part.rows for part in parts), numbers, words)


@dataclass(frozen=True, eq=False)
class Spread:
    """Statistics of the second exchange, of a column: squared distances from the common mean, and counts in bins."""

    squares: float
    bins: npt.NDArray[np.int64]  # (1024,), from the smallest number of all clients to the largest

    @classmethod
    def of(cls, values: Numbers, common: Total) -> Spread:
        there = values[~np.isnan(values)]
        bins = np.bincount(common.places(there), minlength=BINS).astype(np.int64)
        return cls(math.fsum(np.square(there - common.mean)), bins)

    @classmethod
    def of_columns(cls, frame: Any, common: Summary) -> dict[str, Spread]:
        """Return that of each column of numbers of a client's rows."""
        return {name: cls.of(values, common.numbers[name]) for name, values in _numbers(frame).items()}

    @classmethod
    def added(cls, parts: Sequence[Spread]) -> Spread:
        return cls(math.fsum(part.squares for part in parts), np.sum([part.bins for part in parts], axis=0))

    def quantile(self, q: float, common: Total) -> float:
        """Return the number below which a share `q` of all lies, off by at most the width of a bin.

        Numbers are taken to lie evenly within their bin.
        """
        if not common.count:
            return 0.0
        if common.smallest == common.largest:
            return common.smallest
        before = np.cumsum(self.bins)

        def at(rank: int) -> float:
            bin = int(np.searchsorted(before, rank, side="right"))
            inside = (rank - (before[bin] - self.bins[bin]) + 0.5) / self.bins[bin]
            return common.smallest + (common.largest - common.smallest) * float(bin + inside) / BINS

        rank = q * (common.count - 1)
        low, high = at(math.floor(rank)), at(math.ceil(rank))
        return low + (high - low) * (rank - math.floor(rank))


@dataclass(frozen=True)
class Scale:
    """Preparation of a column of numbers: a gap is `fill`; then `mean` is subtracted, and divided by `deviation`."""

    fill: float
    mean: float
    deviation: float
    gaps: int = 0  # that were filled

    @classmethod
    def of(cls, rows: int, common: Total, spread: Spread, masked: bool = False) -> Scale:
        """Return the scale of `rows` rows whose gaps are filled with the median.

        `masked`: a feature of its own says where gaps are; they become 0 then, and move neither mean nor deviation.
        """
        varies = common.count > 0 and common.smallest < common.largest  # rounding alone makes no deviation
        gaps = rows - common.count
        if masked:
            deviation = math.sqrt(spread.squares / common.count) or 1.0 if varies else 1.0
            return cls(common.mean, common.mean, deviation, gaps)
        fill = spread.quantile(0.5, common)
        mean = (common.sum + gaps * fill) / rows if rows else 0.0
        squares = spread.squares + common.count * (common.mean - mean) ** 2 + gaps * (fill - mean) ** 2
        return cls(fill, mean, math.sqrt(squares / rows) or 1.0 if varies else 1.0, gaps)


@dataclass(frozen=True)
class CommonPreparation:
    """Preparation of columns by the statistics of all clients, for rows of any of them, of new ones and of a server.

    Attributes:
        least: how often a client must have a word to name it.
        numbers: by column; none before `fit`.
        words: those that become a column each, by column and in order; others are 0 in all of them.
        least_clients: how many clients must have a word for it to become a column.
        columns: which columns are prepared where tables differ in them; None: tables that differ are refused.
        lacking: of "union", the columns that some tables lack. A table may come without them, and a gap in one of
            numbers is 1 in a feature of its own, its mask; among words that is the word "missing".

    Raises:
        ValueError: `least_clients` is no count.
    """

    least: int = 1
    numbers: Mapping[str, Scale] = field(default_factory=dict)
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    least_clients: int = 1
    columns: UnlikeColumns | None = None
    lacking: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_least_clients(self.least_clients)

    def fit(self, clients: Sequence[Any]) -> CommonPreparation:
        """Return the preparation of some clients' rows, a data frame of each; what devices do in two exchanges."""
        common = Summary.added([Summary.of(frame, self.least) for frame in clients], self.least_clients)
        spreads = [Spread.of_columns(frame, common) for frame in clients]
        added = {name: Spread.added([spread[name] for spread in spreads]) for name in common.numbers}
        return self.of(common, added)

    def of(self, common: Summary, spreads: Mapping[str, Spread]) -> CommonPreparation:
        """Return the preparation that follows from the statistics of all clients."""
        numbers = {
            name: Scale.of(common.rows, total, spreads[name], name in self.lacking)
            for name, total in common.numbers.items()
        }
        words = {name: tuple(counts) for name, counts in common.words.items()}
        lacking = tuple(name for name in (*numbers, *words) if name in self.lacking)  # in one order, for the digest
        return replace(self, numbers=numbers, words=words, lacking=lacking)

    @property
    def masks(self) -> tuple[str, ...]:
        """The columns of numbers whose gaps have a feature of their own."""
        return tuple(name for name in self.numbers if name in self.lacking)

    def differs_from(self, table: Schema, where: str) -> str | None:
        """Return what a table lacks, has besides or holds of another kind; None if it fits.

        Args:
            table: its columns.
            where: whose columns these are, in words.
        """
        kinds = dict.fromkeys(self.numbers, ("numbers", "")) | dict.fromkeys(self.words, ("words", ""))
        known = Schema(where, expected([*kinds], table.columns, self.lacking), holds=kinds)
        return table.lacks_of(known, may_have_more=self.columns == "shared")

    def conform(self, frame: Any) -> Any:
        """Return a data frame with the columns of this preparation; a column of gaps alone is of either kind.

        Columns that may be lacking are gaps then.

        Raises:
            ValueError: it has other columns, or words where these are numbers.
        """
        given = {
            str(name): ("numbers" if values.dtype.kind == "f" else "words", "")
            for name, values in frame.items()
            if not values.isna().all()
        }
        table = Schema("in this table", tuple(map(str, frame.columns)), holds=given)
        if (told := self.differs_from(table, "at all clients together")) is not None:
            raise ValueError(told)
        kinds = dict.fromkeys(self.numbers, float) | dict.fromkeys(self.words, object)
        return frame.reindex(columns=[*kinds]).astype(kinds)

    def transform(self, frame: Any) -> npt.NDArray[np.float32]:
        """Return features (N, D) of the rows of a data frame."""
        x = np.zeros((len(frame), len(self.get_feature_names_out())), np.float32)
        for i, (name, scale) in enumerate(self.numbers.items()):
            values = frame[name].to_numpy(np.float64)
            x[:, i] = (np.where(np.isnan(values), scale.fill, values) - scale.mean) / scale.deviation
        for i, name in enumerate(self.masks, len(self.numbers)):
            x[:, i] = frame[name].isna()
        start, cells = len(self.numbers) + len(self.masks), _words(frame)
        for name, words in self.words.items():
            place = {word: start + i for i, word in enumerate(words)}
            known = [(row, place[word]) for row, word in enumerate(cells[name]) if word in place]
            if known:
                x[tuple(zip(*known, strict=True))] = 1
            start += len(words)
        return x

    def get_feature_names_out(self) -> list[str]:
        """Return the names of the features, as scikit-learn has them."""
        masks = (f"{name}_{GAP}" for name in self.masks)
        return [*self.numbers, *masks, *(f"{name}_{word}" for name, words in self.words.items() for word in words)]

    def described(self) -> dict[str, Any]:
        """Return the preparation as JSON has it; `read` makes it again, with the same bits."""
        words = {name: list(words) for name, words in self.words.items()}
        out = {"least": self.least, "numbers": {n: asdict(scale) for n, scale in self.numbers.items()}, "words": words}
        out |= {"least_clients": self.least_clients} if self.least_clients > 1 else {}
        out |= {"columns": self.columns} if self.columns else {}
        return out | ({"lacking": list(self.lacking)} if self.lacking else {})

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> CommonPreparation:
        """Return the preparation that `described` has described."""
        numbers = {name: Scale(**scale) for name, scale in said["numbers"].items()}
        words = {name: tuple(words) for name, words in said["words"].items()}
        lacking = tuple(said.get("lacking", ()))
        return cls(said["least"], numbers, words, said.get("least_clients", 1), said.get("columns"), lacking)

    def digest(self) -> str:
        """Return 16 hexadecimal digits of a SHA-256 over all of it."""
        return hashlib.sha256(json.dumps(self.described()).encode()).hexdigest()[:16]


def expected(names: Sequence[str], there: Collection[str], lacking: Collection[str]) -> tuple[str, ...]:
    """Return the columns that a table is to have: it may lack some.

    Args:
        names: of the columns of all tables.
        there: those of the table.
        lacking: those that it may lack.
    """
    known = {*there}
    return tuple(name for name in names if name in known or name not in lacking)


def _numbers(frame: Any) -> dict[str, Numbers]:
    return {str(n): frame[n].to_numpy(np.float64) for n in frame.columns if frame[n].dtype.kind == "f"}


def _words(frame: Any) -> dict[str, list[str]]:
    columns = {str(n): frame[n] for n in frame.columns if frame[n].dtype.kind != "f"}
    return {n: [GAP if cell != cell else str(cell) for cell in column] for n, column in columns.items()}
