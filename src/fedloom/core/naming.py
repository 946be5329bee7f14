"""Names that people write: the one that was meant, and things by their Python names."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

from fedloom.core.errors import SettingError


def meant(word: str, known: Iterable[str]) -> str:
    """ " (did you mean 'x'?)", or nothing where no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


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
