"""Words of messages, and of people: long lists, names nearly right, text from a file, places, KEY=VALUE behind `?`."""

from __future__ import annotations

import difflib
import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

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
    """Return the command that installs an extra. On PyPI the name is not ours: it would install a stranger's package.

    It works of a checkout and of a wheel file, and installs nothing where it is copied as it stands.

    Args:
        extra: of pyproject.toml, such as "tables".
    """
    return f"pip install '<PATH>[{extra}]', where <PATH> is fedloom's folder or wheel file"


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
    """Return the letters and digits of a name, in lower case and of one width."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", word))).lower()


# ---- KEY=VALUE&KEY=VALUE


def pairs(text: str) -> list[tuple[str, str]]:
    """Return the keys and values in KEY=VALUE&KEY=VALUE, whatever they are."""
    return [(key, value) for key, _, value in (pair.partition("=") for pair in text.split("&") if pair)]


def arguments(noun: str, written: str, kinds: Mapping[str, Any], form: str, remedy: str = "") -> dict[str, Any]:
    """Return the values in KEY=VALUE&KEY=VALUE, each said once.

    Args:
        noun: of what they are said, such as "a table".
        written: what follows the question mark.
        kinds: kinds of the values by key, as of `value_of`; none if nothing may be said.
        form: how such a text is written.
        remedy: what else helps.

    Raises:
        ValueError: a key is unknown, or there twice, or a value is missing or of another kind.
    """
    out = dict[str, Any]()
    for pair in written.split("&"):
        key, _, value = pair.partition("=")
        if not kinds:
            raise ValueError(f"of {noun} one says nothing, got {pair!r}: leave out what follows its name")
        if not value or key not in kinds or key in out:
            close = did_you_mean(key, kinds.keys() - {key})
            raise ValueError(
                f"of {noun} one says, each once, some of {form}, got {pair!r}{close}"
                f"{remedy and f': {remedy}'} [FL-RUN-007]"
            )
        try:
            out[key] = value_of(value, kinds[key])
        except ValueError:
            rule = f"{key} of {noun} is {kind_of(kinds[key]) or 'of another kind'}"
            raise ValueError(f"{rule}, got {pair!r}: write it as in {form}") from None
    return out


def whole(text: str) -> int:
    """Return the count that a text has.

    Raises:
        ValueError: it is none.
    """
    if not text.isdecimal():
        raise ValueError
    return int(text)


_KINDS: dict[Any, str] = {
    int: "a whole number", whole: "a whole number, 0 or more", float: "a number", bool: "true or false", list: "a list",
}  # fmt: skip


def value_of(text: str, kind: Any) -> Any:
    """Return a value as a text has it.

    Args:
        text: of one value.
        kind: a type: text, a number, true or false, a list with commas, one of some words (`Literal`); or a function of
            the text.

    Raises:
        ValueError: it is of another kind.
    """
    if kind is list:
        return text.split(",")
    if get_origin(kind) is Literal or kind is bool:
        values = {str(word).lower() if kind is bool else word: word for word in get_args(kind) or (True, False)}
        if text not in values:
            raise ValueError
        return values[text]
    if kind not in (int, float):
        return kind(text)
    number = float(text)
    if not math.isfinite(number) or (kind is int and not number.is_integer()):
        raise ValueError
    return kind(number)


def kind_of(kind: Any) -> str:
    """Return what values of a kind are, in words; "" of text, and of what another function reads."""
    return " or ".join(get_args(kind)) if get_origin(kind) is Literal else _KINDS.get(kind, "")
