"""Token ids of text: vocabularies of characters and words, counted by clients, and tokenisers of one's own.

A vocabulary follows from counts: each client counts the tokens of its training texts, and the counts are added up
(`fedloom.tables.client_counts`). No text leaves a client. The id 0 is padding, 1 stands for every token that is not in
the vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fedloom.data.schema import Schema
from fedloom.tables.client_counts import add_counts, check_least_clients

PADDING, UNKNOWN = 0, 1
_WORD = re.compile(r"\w+|[^\w\s]")
_SHOWN = 12  # tokens that facts name

TokenKind = Literal["words", "characters"]
Tokeniser = Callable[[str], Sequence[int]]
Ids = npt.NDArray[np.integer]


def tokens_of(text: str, kind: TokenKind) -> list[str]:
    """Return the tokens of a text: its characters; or its words in lower case, each mark a word of its own."""
    return list(text) if kind == "characters" else _WORD.findall(text.lower())


def narrow(ids: Ids, size: int) -> Ids:
    """Return ids below `size` in the smallest type that holds them all and that PyTorch computes with."""
    return ids.astype(np.uint8 if size <= 2**8 else np.int16 if size <= 2**15 else np.int32)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that have an id of their own: the first has the id 2.

    Args:
        kind: "words" or "characters".
        tokens: distinct, in the order of their ids.

    Raises:
        ValueError: the kind is unknown, or a token is there twice.
    """

    kind: TokenKind
    tokens: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.kind not in get_args(TokenKind):
            raise ValueError(
                f"tokens are 'words' or 'characters', or a tokeniser as module:name, got {self.kind!r}: choose one"
            )
        if len(places := {token: UNKNOWN + 1 + i for i, token in enumerate(self.tokens)}) < len(self.tokens):
            twice = next(token for token, n in Counter(self.tokens).items() if n > 1)
            raise ValueError(f"a vocabulary has each token once, got {twice!r} twice: leave one out")
        object.__setattr__(self, "_places", places)

    @property
    def size(self) -> int:
        """Number of ids, padding and the unknown token among them."""
        return len(self.tokens) + UNKNOWN + 1

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of tokens."""
        places: dict[str, int] = vars(self)["_places"]
        return [places.get(token, UNKNOWN) for token in tokens]

    def read(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self.ids(tokens_of(text, self.kind))

    def written(self, ids: Iterable[int]) -> str:
        """Return a text of ids: characters or words between spaces; padding is left out, unknown ones are �."""
        shown = ["�" if i == UNKNOWN else self.tokens[i - UNKNOWN - 1] for i in ids if i != PADDING]
        return ("" if self.kind == "characters" else " ").join(shown)


def padded(rows: Sequence[Sequence[int]], length: int, padding: int = PADDING) -> npt.NDArray[np.int64]:
    """Return ids (N, length): longer rows are cut at their end, shorter ones filled there with padding."""
    out = np.full((len(rows), length), padding, np.int64)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids[:length]
    return out


def counted(texts: Iterable[Sequence[str]], least: int) -> dict[str, int]:
    """Return how often a client's texts have each token, those alone that occur at least `least` times."""
    counts = Counter[str]()
    for tokens in texts:
        counts.update(tokens)
    return {token: n for token, n in sorted(counts.items()) if n >= least}


def agreed(kind: TokenKind, clients: Sequence[dict[str, int]], most: int, least_clients: int = 1) -> Vocabulary:
    """Return the vocabulary of the `most` tokens that all clients together count most often, the first of equals.

    Tokens of fewer than `least_clients` clients are left out, and counts are added up as `add_counts` does. Tokens with
    equal counts stand in the order of their characters, so that nothing depends on who answers first.
    """
    total = add_counts(clients, least_clients)
    return Vocabulary(kind, tuple(sorted(total, key=lambda token: (-total[token], token))[:most]))


@dataclass(frozen=True)
class TextPreparation:
    """Make token ids of a column of texts, by a vocabulary that clients count or by a tokeniser of one's own.

    Args:
        column: the column.
        tokens: "words" or "characters", or a tokeniser: a function of a text that returns ids, whose `size` (or
            length) says how many there are, and `padding` (or `pad_token_id`) which fills shorter texts; 0 unless said.
        length: most tokens of a text; longer ones are cut at their end.
        most: the largest vocabulary, the most frequent tokens.
        least: how often a client must have a token to name it.
        vocabulary: what clients have agreed on; None before `fit`, and with a tokeniser.
        least_clients: how many clients must have a token for it to be in the vocabulary.

    Raises:
        ValueError: a number is out of range, or a tokeniser does not say how many ids it has.
    """

    column: str
    tokens: TokenKind | Tokeniser = "words"
    length: int = 128
    most: int = 10_000
    least: int = 1
    vocabulary: Vocabulary | None = None
    least_clients: int = 1

    def __post_init__(self) -> None:
        for name, value in (("length", self.length), ("most", self.most), ("least", self.least)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} of a text is a whole number from 1, got {value!r}: {name}={_USUAL[name]}")
        check_least_clients(self.least_clients)
        if isinstance(self.tokens, str):
            Vocabulary(self.tokens, ())  # refuses another word
        elif not callable(self.tokens) and not hasattr(self.tokens, "encode"):
            raise ValueError(
                f"a tokeniser is a function of a text that returns ids, got {type(self.tokens).__name__}: give one, "
                "or 'words' or 'characters'"
            )
        elif rule := next((name for name in ("least", "least_clients") if getattr(self, name) > 1), None):
            raise ValueError(
                f"a tokeniser has its ids already, got {rule}={getattr(self, rule)} beside it: leave {rule} out"
            )
        else:
            self._own_size()

    def _own_size(self) -> int:
        found = getattr(self.tokens, "size", None)
        found = len(self.tokens) if found is None and hasattr(self.tokens, "__len__") else found
        if type(found) is not int or found < 2:
            name = getattr(self.tokens, "__name__", type(self.tokens).__name__)
            raise ValueError(
                f"a tokeniser says how many ids it has, padding among them, got none of {name}: set its attribute "
                "size, as in tokenise.size = 30_000"
            )
        return found

    @property
    def size(self) -> int:
        """Number of ids, padding among them."""
        if isinstance(self.tokens, str):
            return UNKNOWN + 1 if self.vocabulary is None else self.vocabulary.size
        return self._own_size()

    @property
    def padding(self) -> int:
        """The id that fills shorter texts."""
        if isinstance(self.tokens, str):
            return PADDING
        found = getattr(self.tokens, "padding", getattr(self.tokens, "pad_token_id", PADDING))
        return PADDING if found is None else int(found)

    def fit(self, clients: Sequence[Any]) -> TextPreparation:
        """Return the same with the vocabulary that some clients' rows have, a data frame of each."""
        return self if self.is_own else self.agree([self.counts(frame) for frame in clients])

    @property
    def is_own(self) -> bool:
        """True if a tokeniser of somebody's own makes the ids: nothing is counted."""
        return not isinstance(self.tokens, str)

    def counts(self, frame: Any) -> dict[str, int]:
        """Return how often a client's rows, a data frame, have each token, those below `least` left out."""
        assert isinstance(self.tokens, str)
        kind = self.tokens
        return counted((_own(cell, kind) for cell in frame[self.column]), self.least)

    def agree(self, clients: Sequence[dict[str, int]]) -> TextPreparation:
        """Return the same with the vocabulary that follows from the counts of clients, in their order."""
        assert isinstance(self.tokens, str)
        made = agreed(self.tokens, clients, self.most, self.least_clients)
        if not made.tokens:
            rules = {
                "least": f"occur at least {self.least} times at a client",
                "least_clients": f"at least {self.least_clients} clients have",
            }
            broken = [name for name in rules if getattr(self, name) > 1]
            told = f" that {' and that '.join(rules[name] for name in broken)}" if broken else ""
            raise ValueError(
                f"a vocabulary needs tokens{told}, got none in the training texts of {self.column!r}: name another "
                f"column (text=NAME){''.join(f' or a smaller {name}' for name in broken)}"
            )
        return replace(self, vocabulary=made)

    def transform(self, frame: Any) -> Ids:
        """Return token ids (N, length) of the rows of a data frame.

        Raises:
            ValueError: a tokeniser gives something else than ids below its size.
        """
        rows: list[Sequence[int]] = []
        for cell in frame[self.column]:
            if self.vocabulary is not None:
                rows.append(self.vocabulary.ids(_split(cell, self.vocabulary.kind)) or [UNKNOWN])
            else:
                assert not isinstance(self.tokens, str)
                rows.append(self._by_tokeniser(_whole(cell), self.tokens))
        return narrow(padded(rows, self.length, self.padding), self.size)

    def conform(self, frame: Any) -> Any:
        """Return a data frame with the column of texts alone.

        Raises:
            ValueError: it has none of that name.
        """
        all_clients = Schema("at all clients together", (self.column,))
        table = Schema("in this table", tuple(map(str, frame.columns)))
        if (told := table.lacks_of(all_clients, may_have_more=True)) is not None:
            raise ValueError(told)
        return frame[[self.column]]

    def _by_tokeniser(self, text: str, tokeniser: Tokeniser) -> list[int]:
        found: Any = tokeniser.encode(text) if hasattr(tokeniser, "encode") else tokeniser(text)
        try:
            ids = [int(i) for i in found]
        except (TypeError, ValueError):
            raise ValueError(
                f"a tokeniser returns a list of ids, got {type(found).__name__} for {text[:40]!r}: return whole numbers"
            ) from None
        if not ids:
            raise ValueError(
                f"a tokeniser returns an id at least, got none for {text[:40]!r}: leave such rows out, or return one "
                "that stands for no token"
            )
        if wrong := [i for i in ids if not 0 <= i < self.size]:
            raise ValueError(
                f"a tokeniser's ids are 0 to {self.size - 1} by its size, got {wrong[0]} for {text[:40]!r}: give the "
                "right size"
            )
        return ids

    def get_feature_names_out(self) -> list[str]:
        """Return no names: what stands in a place of a text has none."""
        return []

    def described(self) -> dict[str, Any]:
        """Return the preparation as JSON has it."""
        kind = self.tokens if isinstance(self.tokens, str) else "own"
        out = {"column": self.column, "tokens": kind, "length": self.length, "size": self.size}
        if self.vocabulary is not None:
            out |= {"most": self.most, "least": self.least, "vocabulary": list(self.vocabulary.tokens)}
            out |= {"least_clients": self.least_clients} if self.least_clients > 1 else {}
        return out

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> TextPreparation:
        """Return the preparation that `described` has described, by which other texts become the same ids.

        Raises:
            ValueError: a tokeniser of somebody's own was described, which no description holds.
        """
        if said["tokens"] == "own":
            raise ValueError(
                "a description holds a vocabulary, and this one is of a tokeniser of somebody's own: make the "
                "TextPreparation with that tokeniser"
            )
        made = cls(said["column"], said["tokens"], said["length"], said["most"], said["least"])
        vocabulary = Vocabulary(said["tokens"], tuple(said["vocabulary"]))
        return replace(made, vocabulary=vocabulary, least_clients=said.get("least_clients", 1))

    def digest(self) -> str:
        """Return 16 hexadecimal digits of a SHA-256 over all of it."""
        return hashlib.sha256(json.dumps(self.described()).encode()).hexdigest()[:16]

    def told(self) -> str:
        """Describe what became of the column, for somebody who reads the manifest."""
        if self.vocabulary is None:
            return f"up to {self.length} of {self.size:,} token ids of a tokeniser"
        tokens = self.vocabulary.tokens
        more = f" and {len(tokens) - _SHOWN:,} more" if len(tokens) > _SHOWN else ""
        shown = ", ".join(map(repr, tokens[:_SHOWN]))
        return f"up to {self.length} {self.vocabulary.kind}, {len(tokens):,} with ids of their own: {shown}{more}"


_USUAL = {"length": 128, "most": 10_000, "least": 1}


def _split(cell: Any, kind: TokenKind) -> Sequence[str]:
    """Return the tokens of a cell, which may hold tokens already; none of a gap, which becomes an unknown token."""
    if isinstance(cell, tuple):
        return cell
    return tokens_of(_whole(cell), kind)


def _own(cell: Any, kind: TokenKind) -> Sequence[str]:
    """Return the tokens of a cell that count: of windows of a text the last token is the first of the next window."""
    return cell[:-1] if isinstance(cell, tuple) else _split(cell, kind)


def _whole(cell: Any) -> str:
    return "" if cell != cell or cell is None else str(cell)
