"""Text from files of a run, made safe for a page."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from fedloom.wording import printable

__all__ = ["class_names", "client_names", "flat_settings", "part", "printable"]

_DEEPEST = 20  # of settings in settings
_LONGEST = 120  # of a setting's value


def part(value: Any, *names: str) -> Any:
    """Return value[name][name]..., or None as soon as something is missing or no mapping."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def class_names(federation: Mapping[str, Any]) -> list[str]:
    """Return the names of the classes of a federation.json; numbers where they have no names."""
    names = federation.get("class_names") or range(federation.get("classes", 0))
    return [printable(str(name), 20) for name in names]


def client_names(federation: Mapping[str, Any]) -> dict[int, str]:
    """Return the names of the clients of a federation.json, by number, for those that have names."""
    names = federation.get("client_names") or ()
    return {k: printable(name, 20) for k, name in zip(federation.get("shown", ()), names, strict=False)}


def flat_settings(value: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield settings by their full names, `local.lr`, and their values as text."""
    for name, inner in value.items():
        name = printable(f"{prefix}{name}")
        if isinstance(inner, Mapping) and depth < _DEEPEST:
            yield from flat_settings(inner, f"{name}.", depth + 1)
        else:
            yield name, _text(inner)


def _text(value: Any, depth: int = 0) -> str:
    if value is None or isinstance(value, bool):
        return "none" if value is None else "yes" if value else "no"
    if isinstance(value, (list, Mapping)) and depth >= _DEEPEST:
        return "…"
    if isinstance(value, list):
        return _shorten(", ".join(_text(v, depth + 1) for v in value))
    return _shorten(value if isinstance(value, str) else repr(value))


def _shorten(text: str) -> str:
    """Return a text safe for a page; a long one is cut and ends with a digest, so that it stays unique."""
    if len(text) <= _LONGEST:
        return printable(text)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{printable(text, _LONGEST - 9)} {digest}"


def several_of(title: str) -> str:
    """Return the plural of a measure: accuracies, RMSE values."""
    return f"{title[:-1]}ies" if title.endswith("cy") else f"{title} values"


def with_article(title: str) -> str:
    """Return a measure with its article: an accuracy, an RMSE, a label accuracy."""
    return f"{'an' if title[:1] in 'aeioAEFHILMNORSX' else 'a'} {title}"
