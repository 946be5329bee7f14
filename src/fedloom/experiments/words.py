"""Reading what people write: values of the right kind, names that were meant, things by their Python names."""

from __future__ import annotations

import difflib
import importlib
import math
import os
import sys
from collections.abc import Iterable
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from fedloom.core.errors import SettingError


def meant(word: str, known: Iterable[str]) -> str:
    """ " (did you mean 'x'?)", or nothing where no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def coerce(value: Any, kind: Any, key: str) -> Any:
    """A value of this type, from text (a flag) or from a value that a settings file has typed already.

    Raises:
        SettingError: it is of another type; names the key, the value and what would be right.
    """
    if NoneType in get_args(kind):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        kind = next(k for k in get_args(kind) if k is not NoneType)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise SettingError(f"{key} must be one of {', '.join(map(str, get_args(kind)))}, got {value!r}")
        return value
    if get_origin(kind) is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)):
            raise SettingError(f"{key} must be a list, got {value!r}")
        return tuple(coerce(part, get_args(kind)[0], key) for part in parts)
    fits: Any = {bool: bool, int: int, float: (int, float), str: str}.get(kind)
    if fits is None:
        raise SettingError(f"{key} cannot be set by its name; set it in Python")
    out = value
    if isinstance(value, str) and kind is not str:
        try:
            out = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
        except (ValueError, KeyError):
            out = None
    if not isinstance(out, fits) or (isinstance(out, bool) and kind is not bool):
        raise SettingError(f"{key} must be of type {kind.__name__}, got {value!r}")
    if kind is float:
        out = float(out)
        if not math.isfinite(out):
            raise SettingError(f"{key} must be finite, got {value!r}")
    return out


def by_python_name(text: str, what: str) -> Any:
    """What `module:name` names; modules are looked for in the current folder too.

    Raises:
        SettingError: there is no such module or name.
    """
    module, _, name = text.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise SettingError(
            f"{what} {text!r}: cannot import {module!r}: {error}; modules are looked for in the current folder "
            f"({here}) and among installed packages"
        ) from None
    try:
        return getattr(found, name)
    except AttributeError:
        known = [n for n in vars(found) if not n.startswith("_")]
        raise SettingError(f"{what} {text!r}: {module} has no {name!r}{meant(name, known)}") from None
