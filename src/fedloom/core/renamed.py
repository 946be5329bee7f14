"""Names of 0.1 that are others now: they work with a warning, until 0.3."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from fedloom.core.errors import SettingError, warn

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
_BOUNDS = {"norm_bound": "refuse:sent:", "median_bound": "refuse:median:"}
"""What stands before the number of each setting of a run that is a `bound` now."""


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


def run_settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a run by today's names: norm_bound, median_bound and aggregator = clip are a `bound` now.

    Of several one stays: clip rather than median_bound rather than norm_bound. None is what older runs wrote where
    nobody set any, and is not warned of.

    Args:
        given: settings by name.

    Raises:
        SettingError: another bound is set under today's name, too.
    """
    out, found = dict(given), dict[str, str]()
    for name, form in _BOUNDS.items():
        if name in out:
            value = out.pop(name)
            found[name] = "none" if value is None or value == "none" else f"{form}{value}"
            if value is not None:
                _warn_of_value(f"{name} = {value}", found[name])
    rule = out.get("aggregator")
    if isinstance(rule, str) and rule.partition(":")[0] == "clip":
        out["aggregator"], found["aggregator"] = "mean", "clip:median:1" if rule == "clip" else rule
        _warn_of_value(f"aggregator = {rule}", found["aggregator"])
    if not found:
        return out
    name = max(found, key=lambda name: (found[name] != "none", [*_BOUNDS, "aggregator"].index(name)))
    if found[name] != "none" and out.get("bound", found[name]) != found[name]:
        raise SettingError(
            f"an upload has one bound, got bound = {out['bound']!r} and {name}, which is bound = {found[name]!r} now: "
            f"leave {name} out"
        )
    return {"bound": found[name], **out}


def _warn_of_value(old: str, new: str) -> None:
    warn(f"{old} is written bound = {new!r} now: rename it, the old name goes in 0.3", FutureWarning)


def _warn(owner: str, old: str, new: str) -> None:
    warn(f"{old} of {owner} is called {new}: rename it, the old name goes in 0.3", FutureWarning)
