"""The words of a table: what its columns are, and how they are prepared.

    group: str | None = word(example="g")
    \"\"\"Column of groups, ...\"\"\"

A word is declared here alone. The readers take all of them by their names (`takes_words`), a source says them behind
its path (`FILE.csv?group=g`), and the table of docs/tables.md is made from them (`scripts/make_index.py`).
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from textwrap import fill, indent
from typing import Any, Concatenate, ParamSpec, TypeVar

from fedloom.core.setting import sentences
from fedloom.data import Dataset
from fedloom.tables.statistics import UnlikeColumns
from fedloom.tables.vocabulary import Tokeniser, TokenKind
from fedloom.wording import whole

P = ParamSpec("P")
Place = TypeVar("Place")


def word(default: Any = None, kind: Any = str, example: str = "") -> Any:
    """Declare a word.

    Args:
        default: what holds where it is not said.
        kind: what its text behind a path becomes; a list has commas. None: it is said in Python alone.
        example: its value in messages that show how a table is written; "" where they do not show it.
    """
    return field(default=default, metadata={"kind": kind, "example": example})


@dataclass(frozen=True, kw_only=True)
class TableWords:
    """Words that say of a table what its columns are and how they are prepared; other columns are features."""

    label: str | None = word(example="y")
    """Column of classes, integers or names, in sorted order; `label` where neither it nor `target` is said. `1` beside
    `01` or `+1` is refused, and so is a gap; a class called `NA` needs another name."""
    target: str | Sequence[str] = word((), list)
    """Column of numbers to predict in the place of classes, or several."""
    client: str | None = word(example="c")
    """Column of natural clients, without gaps; of several sites each file is one. The partition is `natural` then,
    unless another is named."""
    split: str | None = word(example="s")
    """Column that says `train` or `test` for every row. With `client`, the test rows stay in `train` too, marked in
    `held_out`, to evaluate their clients on. Without it, a stratified random fifth is the test set
    (`test_fraction`)."""
    group: str | None = word(example="g")
    """Column of groups, such as patients. Rows of one group never fall on both sides of a split, here and in
    `federate`; equal names are one group, also at several sites."""
    drop: Sequence[str] = word((), list, "a,b")
    """Columns that are left out, of the files that have them."""
    categories: Sequence[str] = word((), list, "d")
    """Columns of numbers that are names, such as postcodes; prepared as words."""
    gaps: Any = word((), list, "none")
    """More words or numbers that mean a gap in a text file, such as `k.A.` or -999, one or several. A number means one
    however a cell writes it, -999.0 too; a word that no cell has is warned of."""
    prepare: Any = word(example="standard")
    """`standard`: numbers are standardised, gaps are the median, words become one column of 0 and 1 each. `federated`:
    the same of what clients count and add up (`fedloom.tables.statistics`), the median to 1/1024 of the range. In
    Python also a transformer of scikit-learn, which is given a data frame of the features. It is fitted on the rows
    that train: here on all that are no test rows, and anew by `federate`."""
    least: int = word(1, whole)
    """Of `federated`, how many rows of a client must have a word for the client to name it; of a text, how often a
    client must have a token to name it."""
    least_clients: int = word(1, whole)
    """Of `federated`, how many clients must have a word for it to be a feature; of a text, how many must have a token
    for it to be in the vocabulary. What fewer clients claim is left out once `federate` knows them."""
    columns: UnlikeColumns | None = word()
    """Of sites whose tables differ in their columns, which are refused unless said: `shared` takes those that all have,
    `union`, with `prepare=federated`, those that any has. A gap in a column of numbers that some site lacks is 0 then,
    and 1 in a feature of its own (`dose_missing`)."""
    dictionary: str | os.PathLike[str] | None = word()
    """File that says how sites call columns, in which units and by which words they write them
    (`fedloom.tables.dictionary`); all other words name columns as the dictionary does."""
    site: str | None = word()
    """Of one file, the site of the dictionary that it is; as the file is called unless said."""
    text: str | None = word()
    """Column of texts, which become token ids (N, length), padded at their end with 0; the other columns without a role
    are left out. The vocabulary is what clients count (`fedloom.tables.vocabulary`)."""
    tokens: TokenKind | Tokeniser | None = word()
    """Of a text, `words` (unless said: lower case, each mark by itself) or `characters`; or a tokeniser of your own, a
    function of a text that returns ids, whose `size` says how many there are, as `module:name` behind a path."""
    length: int | None = word(None, whole)
    """Of a text, most tokens of it, 128 unless said; the others are left out."""
    most: int | None = word(None, whole)
    """Of a text, the largest vocabulary, the most frequent tokens of all clients together; 10,000 unless said."""
    test_fraction: float = word(0.2, None)
    """Without `split`, the part of all rows that becomes the test set, in [0, 1): at random, stratified by class. At 0
    there is no test set."""
    seed: int = word(0, None)
    """Of this choice, 0 to 2**32 - 1."""
    name: str | None = word(None, None)
    """Name of the examples in reports; that of the file, or of the folder of several, unless said."""


def kinds_of_words() -> dict[str, Any]:
    """Return what the text of each word behind a path becomes."""
    return {each.name: each.metadata["kind"] for each in fields(TableWords) if each.metadata["kind"] is not None}


def example(without: Sequence[str] = ()) -> str:
    """Return how words stand behind a path.

    Args:
        without: words that such a path does not take.
    """
    shown = {each.name: each.metadata["example"] for each in fields(TableWords) if each.name not in without}
    return "&".join(f"{name}={value}" for name, value in shown.items() if value)


def takes_words(
    declared: Callable[P, TableWords],
) -> Callable[[Callable[[Place, TableWords], Dataset]], Callable[Concatenate[Place, P], Dataset]]:
    """Return a decorator of a reader of `words`, which callers give by their names.

    Type checkers and editors see each word with its type and default, and so do `inspect.signature` and `help`.

    Args:
        declared: `TableWords`, whose arguments they are.
    """

    def of(read: Callable[[Place, TableWords], Dataset]) -> Callable[Concatenate[Place, P], Dataset]:
        seen = inspect.signature(read)
        place = next(iter(seen.parameters.values()))
        shown = seen.replace(parameters=[place, *inspect.signature(declared).parameters.values()])

        @functools.wraps(read)
        def reads(*args: Any, **said: Any) -> Dataset:
            given = shown.bind(*args, **said).arguments
            return read(given.pop(place.name), TableWords(**given))

        told = (indent(fill(f"{name}: {said[:1].lower()}{said[1:]}", 112, subsequent_indent="    "), " " * 8)
                for name, said in sentences(TableWords).items())  # fmt: skip
        lines = (read.__doc__ or "").splitlines()
        at = next((i for i, line in enumerate(lines) if line.startswith("        words: ")), len(lines))
        reads.__doc__ = "\n".join([*lines[:at], *told, *lines[at + 1 :]])
        reads.__signature__ = shown  # type: ignore[attr-defined]
        return reads

    return of
