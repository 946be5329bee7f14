"""Strict JSON for the files of a run: bounded, UTF-8, with finite numbers and unique names."""

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


def parse(data: bytes, max_bytes: int = MOST) -> Object:
    """Return the object in JSON of at most `max_bytes`, with finite numbers, unique names and bounded nesting.

    Raises:
        ValueError: a rule is broken; the message says which.
    """
    if len(data) > max_bytes:
        raise ValueError(f"at most {max_bytes:,} bytes of JSON are read, got more")
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
    """Return JSON for people: a line for each entry of a mapping, and one line for a list of plain values.

    It takes as much memory as its text; `json.dumps` with an indent takes 50 times as much for a list of numbers.
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
    """Return the bytes of a file with `pretty` text."""
    return (pretty(value) + "\n").encode()


def short(value: Any) -> str:
    """Return a value as messages show it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _unique(pairs: list[tuple[str, Any]]) -> Object:
    out = dict(pairs)
    if len(out) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"names must be unique, got {short(name)} twice")
    return out


def check_depth(value: Any, remaining: int, subject: str = "JSON") -> None:
    """Raise ValueError if lists and mappings are nested more than `remaining` deep."""
    if not remaining:
        raise ValueError(f"{subject} is nested too deeply")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(inner, (dict, list)):
            check_depth(inner, remaining - 1, subject)


def _refuse(text: str) -> float:
    raise ValueError(f"numbers must be finite, got {text[:20]}")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _integer(text: str) -> int:
    if len(text) > 20:  # beyond 64 bits
        raise ValueError(f"integers have at most 20 digits, got {text[:20]}...")
    return int(text)
