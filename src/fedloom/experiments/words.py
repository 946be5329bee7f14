"""Reading what people write: values of the right kind."""

from __future__ import annotations

from contextlib import suppress
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from fedloom.core.choices import check
from fedloom.core.errors import SettingError


def coerce(value: Any, kind: Any, key: str) -> Any:
    """A value of this type, from text (a flag) or from a value that a settings file has typed already.

    Raises:
        SettingError: it is of another type; names the key, the value and what would be right.
    """
    if not settable(kind):
        raise SettingError(f"{key} cannot be set by its name; set it in Python")
    if NoneType in get_args(kind):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        kind = next(k for k in get_args(kind) if k is not NoneType)
    out = value
    if get_origin(kind) is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)):
            raise SettingError(f"{key} must be a list, got {value!r}")
        kinds = get_args(kind)
        each = kinds[:1] * len(parts) if kinds[1:] == (...,) else kinds
        if len(each) != len(parts):
            raise SettingError(f"{key} must be a list of {len(each)}, with commas between them, got {value!r}")
        out = tuple(coerce(part, its, key) for part, its in zip(parts, each, strict=True))
    elif isinstance(value, str) and kind in (bool, int, float):
        with suppress(ValueError, KeyError):
            out = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
    check(out, kind, key)
    return float(out) if kind is float else out


def settable(kind: Any) -> bool:
    """Whether words can give a value of this type."""
    each = [k for k in get_args(kind) if k not in (NoneType, ...)]
    if get_origin(kind) is tuple:
        return all(map(settable, each))
    if NoneType in get_args(kind):
        return len(each) == 1 and settable(each[0])
    return get_origin(kind) is Literal or kind in (bool, int, float, str)
