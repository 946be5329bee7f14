"""JSON that a run has written, read with distrust: bounded, UTF-8, with finite numbers and unique names."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]

MOST = 1 << 26  # bytes of a line or of a JSON file
SETTINGS = 1 << 22  # of what a person writes: a settings file
LARGEST = 1 << 30  # of what has an entry for each client: the index of a checkpoint, 90 bytes a client
_DEPTH = 64  # of nested lists and mappings


def parse(data: bytes, most: int = MOST) -> Object:
    """JSON of at most so many bytes: an object, with finite numbers, unique names and little nesting.

    Raises:
        ValueError: says what it is not.
    """
    if len(data) > most:
        raise ValueError(f"at most {most:,} bytes of JSON are read, got more")
    try:
        value = json.loads(
            data.decode("utf-8"),
            parse_constant=_refuse,
            parse_float=_finite,
            parse_int=_integer,
            object_pairs_hook=_unique,
        )
        check_depth(value, _DEPTH)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("text must be UTF-8") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is needed, got {short(value)}")
    return value


def pretty(value: Any, indent: str = "") -> str:
    """Return JSON for people: each entry of a mapping on a line, and a list of plain values on one.

    Its memory is that of its text, where `json.dumps` with an indent takes 50 times that of a list of numbers.
    """
    inner = indent + "  "
    if isinstance(value, Mapping) and value:
        lines, ends = [f"{json.dumps(key)}: {pretty(its, inner)}" for key, its in value.items()], "{}"
    elif isinstance(value, list | tuple) and any(isinstance(its, Mapping | list | tuple) for its in value):
        lines, ends = [pretty(its, inner) for its in value], "[]"
    else:
        return json.dumps(value, allow_nan=False)
    return f",\n{inner}".join(lines).join((f"{ends[0]}\n{inner}", f"\n{indent}{ends[1]}"))


def document(value: Any) -> bytes:
    """Return the bytes of a file that `pretty` text makes."""
    return (pretty(value) + "\n").encode()


def short(value: Any) -> str:
    """Return a value as messages show it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _unique(pairs: list[tuple[str, Any]]) -> Object:
    out = dict(pairs)
    if len(out) < len(pairs):
        often = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"names must be unique, got {short(often)} twice")
    return out


def check_depth(value: Any, left: int, what: str = "JSON") -> None:
    """Raise ValueError if lists and mappings are nested more than `left` deep."""
    if not left:
        raise ValueError(f"{what} is nested too deeply")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(inner, (dict, list)):
            check_depth(inner, left - 1, what)


def _refuse(text: str) -> float:
    raise ValueError(f"numbers must be finite, got {text[:20]}")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _integer(text: str) -> int:
    if len(text) > 20:  # beyond 64 bits
        raise ValueError(f"integers have at most 20 digits, got {text[:20]}...")
    return int(text)
