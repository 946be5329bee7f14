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
    """ " (did you mean 'x'?)", or nothing where no known word is close. PerAvg is close to per_fedavg."""
    bare = {plain(name): name for name in known}
    close = difflib.get_close_matches(plain(word), bare, n=1, cutoff=0.7)
    close = close or [name for name in bare if len(word) > 2 and name.startswith(plain(word))]
    return f" (did you mean {bare[close[0]]!r}?)" if close else ""


def plain(word: str) -> str:
    """The letters and digits of a name, in lower case."""
    return "".join(filter(str.isalnum, word)).lower()


def by_python_name(text: str, what: str) -> Any:
    """What `module:name` names; modules are looked for in the current folder too.

    Raises:
        SettingError: there is no such module or name.
    """
    module, _, name = text.partition(":")
    if module.endswith(".py"):
        raise SettingError(
            f"{what} is module:name, without .py and with dots for slashes, got {text!r}: write "
            f"{module[:-3].strip('./').replace('/', '.')}:{name}"
        )
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
