"""Words of messages, and of people: long lists, names nearly right, text from a file, places on this machine."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_STORES = "abfss?|adl|az|dbfs|file|ftp|gcs|gs|hdfs|hf|https?|memory|oss|r2|s3[an]?|sftp|smb|ssh|wasbs?|webdav"
# `Path` makes s3:/bucket of s3://bucket. C:/ is a drive.
_ADDRESS = re.compile(rf"[a-z][a-z0-9+.-]+://|({_STORES}):/|[\w.-]+@[\w.-]+:", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})(?=[/\\]|$)")


def local_path(place: str | os.PathLike[str]) -> Path:
    """Return the path of a folder or file as a person writes it, ~ for the home folder, which a shell leaves in quotes.

    Args:
        place: such as `runs/a` or `~/runs/a`; s3://bucket/a is none.

    Raises:
        ValueError: the place is an address of another machine, begins with a variable of a shell, or with the home
            folder of somebody who is not here.
    """
    text = os.fspath(place)
    if _ADDRESS.match(text.lstrip()):
        raise ValueError(
            f"a folder or a file is a path on this machine, got the address {text!r}: name a local one, and copy it "
            "from or to there with the tools of that store"
        )
    if (found := _VARIABLE.match(text)) and not os.path.lexists(found[0]):
        raise ValueError(
            f"variables are a shell's, and in simple quotes it leaves them as they are, got {text!r}: write ~ for the "
            "home folder, or the whole path"
        )
    try:
        return Path(text).expanduser()
    except RuntimeError:
        home = Path(text).parts[0]
        raise ValueError(
            f"{home} is the home folder of somebody who is not known here, got {text!r}: write the whole path, or "
            f"./{text} for a folder of that name"
        ) from None


def install(extra: str) -> str:
    """Return the command that installs an extra. No index has fedloom, so a name alone would install another's package.

    Args:
        extra: of pyproject.toml, such as "tables".
    """
    return f"pip install '.[{extra}]' in fedloom's folder"


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
