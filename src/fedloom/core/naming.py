"""Things by the Python names that people write."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any

from fedloom.core.errors import SettingError
from fedloom.wording import did_you_mean

_FORBIDDEN: ContextVar[str | None] = ContextVar("forbidden", default=None)  # why nothing may be imported


@contextmanager
def forbid_imports(reason: str | None) -> Iterator[None]:
    """Let names come from registries alone in here: `by_python_name` imports nothing and says why. None: it may."""
    token = _FORBIDDEN.set(reason)
    try:
        yield
    finally:
        _FORBIDDEN.reset(token)


def is_python_name(text: str) -> bool:
    """Return whether a text is module:name, the one form that `by_python_name` imports."""
    module, colon, name = text.partition(":")
    return bool(colon) and name.isidentifier() and all(map(str.isidentifier, module.split(".")))


def by_python_name(text: str, what: str) -> Any:
    """Return what `module:name` names; modules are looked for in the current folder too.

    The only place that imports what settings name, and the only one that `forbid_imports` has to close.

    Raises:
        SettingError: there is no such module or name, the text is no such name, imports are forbidden, or this process
            has imported a module of the same name from another folder.
    """
    module, _, name = text.partition(":")
    if module.endswith(".py"):
        raise SettingError(
            f"{what} is module:name, without .py and with dots for slashes, got {text!r}: write "
            f"{module[:-3].strip('./').replace('/', '.')}:{name} [FL-METHOD-010]"
        )
    if not is_python_name(text):
        raise SettingError(f"{what} is module:name, one name of one module, got {text!r}: write as in own:Method")
    if (reason := _FORBIDDEN.get()) is not None:
        raise SettingError(f"{what} {text!r} is code, and {reason}")
    here = os.getcwd()
    _refuse_of_another_folder(module.partition(".")[0], here, f"{what} {text!r}")
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise SettingError(
            f"{what} {text!r}: cannot import {module!r}: {error}; modules are looked for in the current folder "
            f"({here}) and among installed packages [FL-METHOD-014]"
        ) from None
    try:
        return getattr(found, name)
    except AttributeError:
        close = did_you_mean(name, [n for n in vars(found) if not n.startswith("_")])
        raise SettingError(f"{what} {text!r}: {module} has no {name!r}{close} [FL-METHOD-015]") from None


def _refuse_of_another_folder(module: str, here: str, what: str) -> None:
    """Refuse a module of the current folder where Python would hand out another one, imported before from elsewhere."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    found = PathFinder.find_spec(module, [here]) if loaded else None
    if loaded and found and found.origin and os.path.realpath(found.origin) != os.path.realpath(loaded):
        raise SettingError(
            f"{what}: this process has imported {module!r} from {loaded}, and the current folder has another "
            f"({found.origin}): start a new process, or rename one of the two"
        )


def source_file(text: str) -> str | None:
    """Return the file of the module in `module:name`, as `by_python_name` would find it; None if there is none.

    Nothing is imported, neither the module nor the packages around it.
    """
    if not is_python_name(text):
        return None
    here = os.getcwd()
    first, *inner = text.partition(":")[0].split(".")
    found = PathFinder.find_spec(first, [here]) if here not in sys.path else None
    with suppress(ImportError, ValueError):
        found = found or find_spec(first)
    for i in range(len(inner)):
        if found is None or found.submodule_search_locations is None:
            return None
        found = PathFinder.find_spec(".".join([first, *inner[: i + 1]]), list(found.submodule_search_locations))
    return None if found is None else found.origin
