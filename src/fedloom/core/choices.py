"""Settings that are one word of a few: their `Literal` annotation is the list, and this is the check."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedloom.core.errors import SettingError


def check_choices(settings: Any) -> None:
    """Check each field of a dataclass whose annotation is a `Literal`.

    Raises:
        SettingError: a value is not among those that the annotation lists.
    """
    try:
        hints = get_type_hints(type(settings))
    except NameError:  # a class of somebody else's, annotated with a name that only type checkers import
        return
    for field in dataclasses.fields(settings):
        kind, value = hints[field.name], getattr(settings, field.name)
        if get_origin(kind) is Literal and value not in get_args(kind):
            known = ", ".join(map(str, get_args(kind)))
            raise SettingError(f"{field.name} must be one of {known}, got {value!r}")
