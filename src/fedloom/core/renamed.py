"""Names of 0.1 that are others now: they work with a warning, until 0.3."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from fedloom.core.errors import warn

OF_ALGORITHM = {
    "asks_everyone": "full_participation",
    "fewest_logits": "min_logits",
    "judged_with": "evaluation_payload",
    "judging": "evaluation_training",
    "knowing": "with_context",
    "personal_trains": "trains_for_evaluation",
    "suited": "bind",
}
"""Today's name of each attribute of `Algorithm` that had another one."""
OF_COHORT = {"judge": "evaluate"}
OF_HISTORY = {"readings": "summaries"}


class _Old:
    """Attribute under its old name."""

    def __init__(self, old: str, new: str, value: Any) -> None:
        self.old, self.new, self.value = old, new, value

    def __get__(self, instance: object, owner: type) -> Any:
        _warn(owner.__name__, self.old, self.new)
        get = getattr(type(self.value), "__get__", None)  # of a function or a property
        return self.value if get is None else get(self.value, instance, owner)


def keep_old_names(kind: type, renamed: dict[str, str]) -> None:
    """Let a class define attributes by their old names, and give these of each that it defines.

    A class that defines `suited` has it as `bind`, and `super().suited` in it is the `bind` of the class above.
    """
    for old, new in renamed.items():
        own = vars(kind).get(old)
        if old in vars(kind) and not isinstance(own, _Old):  # which is there where a class is made again, with slots
            _warn(kind.__name__, old, new)
            if new not in vars(kind):  # as in a class for both versions
                setattr(kind, new, own)
        if new in vars(kind):
            setattr(kind, old, _Old(old, new, vars(kind)[new]))


def old_names_of(module: str, renamed: dict[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that has public names by their old names too."""

    def of_module(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _warn(module, name, renamed[name])
        return getattr(sys.modules[module], renamed[name])

    return of_module


def _warn(owner: str, old: str, new: str) -> None:
    warn(f"{old} of {owner} is called {new}: rename it, the old name goes in 0.3", FutureWarning)
