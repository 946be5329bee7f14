"""Words of messages: long lists, names nearly right, text from a file."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def printable(text: str, most: int = 120) -> str:
    """Return text from a file, fit for a page: no control characters, no half characters, not endless."""
    kept = "".join(c if c.isprintable() else "\ufffd" for c in text[: most + 1])
    return kept if len(kept) <= most else kept[: most - 1] + "…"


def some_of(words: Iterable[T], most: int, separator: str = ", ", say: Callable[[T], str] = str) -> str:
    """Return the first words of a list, and how many there are besides: "a, b and 3 more".

    `say` makes a word of a thing: of the first alone, since there may be a million.
    """
    listed = list(words)
    more = f"{separator.rstrip(', ')} and {len(listed) - most} more" if len(listed) > most else ""
    return separator.join(map(say, listed[:most])) + more


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)", or "" where no known word is close. PerAvg is close to per_fedavg."""
    bare = {plain(name): name for name in known}
    close = difflib.get_close_matches(plain(word), bare, n=1, cutoff=0.7)
    close = close or [name for name in bare if len(word) > 2 and name.startswith(plain(word))]
    return f" (did you mean {bare[close[0]]!r}?)" if close else ""


def plain(word: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return "".join(filter(str.isalnum, word)).lower()
