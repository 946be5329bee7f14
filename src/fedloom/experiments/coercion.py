"""Reading what people write: values of the right kind."""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args, get_origin

from fedloom.core.choices import part_types, read, settable, without_none
from fedloom.core.errors import SettingError


def coerce(value: Any, kind: Any, key: str) -> Any:
    """Return a value of this type, from text (a flag) or from a value that a settings file has typed already.

    Raises:
        SettingError: it is of another type; names the key, the value and what would be right.
    """
    if not settable(kind):
        raise SettingError(f"{key} cannot be set by its name; set it in Python")
    if NoneType in get_args(kind):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        kind = without_none(kind)
    if get_origin(kind) is not tuple:
        return read(value, kind, key, text=isinstance(value, str))
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        raise SettingError(f"{key} must be a list, got {value!r}")
    if len(each := part_types(kind, len(parts))) != len(parts):
        raise SettingError(f"{key} must be a list of {len(each)}, with commas between them, got {value!r}")
    return tuple(coerce(part, its, key) for part, its in zip(parts, each, strict=True))
