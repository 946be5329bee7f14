"""Settings that are one word of a few: their `Literal` annotation is the list, and this is the check."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedloom.core.errors import SettingError


def field_types(kind: type) -> dict[str, Any]:
    """The types of a class's fields, inherited ones too; `Any` where one names what only type checkers import."""
    out: dict[str, Any] = {}
    for owner in reversed(kind.__mro__):
        known = getattr(sys.modules.get(owner.__module__), "__dict__", {})
        for name, said in inspect.get_annotations(owner).items():
            try:  # one by one: what a class of somebody else's leaves open must not hide the others
                out |= get_type_hints(type(owner.__name__, (), {"__annotations__": {name: said}}), known)
            except NameError:
                out[name] = Any
    return out


def check_choices(settings: Any) -> None:
    """Check each field of a dataclass whose annotation is a `Literal`.

    Raises:
        SettingError: a value is not among those that the annotation lists.
    """
    hints = field_types(type(settings))
    for field in dataclasses.fields(settings):
        kind, value = hints[field.name], getattr(settings, field.name)
        if get_origin(kind) is Literal and value not in get_args(kind):
            known = ", ".join(map(str, get_args(kind)))
            raise SettingError(f"{field.name} must be one of {known}, got {value!r}")
