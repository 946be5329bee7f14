"""Order of a comparison's methods, kept in its folder: others are compared with the first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fedloom.coordinator import reading
from fedloom.coordinator.history import runs_below
from fedloom.core.errors import SettingError
from fedloom.storage.output import publish

_FILE = "comparison.json"


def write_order(folder: str | os.PathLike[str], methods: Sequence[str]) -> None:
    """Write the order of a comparison's methods, which are folders in `folder`.

    Methods of earlier comparisons come behind them.
    """
    before = [name for name in _order(Path(folder)) if name not in methods]
    publish(Path(folder), _FILE, reading.sealed({"methods": [*methods, *before]}))


def ordered_runs(directory: str | os.PathLike[str], *, begun: bool = False) -> list[Path]:
    """Return the runs that `runs_below` finds, with those of a comparison in the order of its methods.

    Other runs come behind, by their names.

    Raises:
        SettingError: as of `runs_below`, or the file with the order is damaged.
    """
    top = Path(directory)
    runs = runs_below(top, begun=begun)
    orders = {folder: _order(folder) for run in runs for folder in run.parents if folder.is_relative_to(top)}

    def key(run: Path) -> list[tuple[int, list[tuple[int, int, str]]]]:
        places, folder = [], top
        for name in run.relative_to(top).parts:
            order = orders[folder]
            places.append((order.index(name) if name in order else len(order), reading.natural(name)))
            folder /= name
        return places

    return sorted(runs, key=key)


def _order(folder: Path) -> list[str]:
    """Return the methods that a folder names; none where it holds no comparison, or one that noted nothing."""
    path = folder / _FILE
    found = reading.proved(path)
    methods = found.get("methods", [])
    if not (isinstance(methods, list) and all(isinstance(name, str) for name in methods)):
        raise SettingError(f"{path}: methods must be a list of names, got {methods!r:.60}; remove the file")
    return methods
