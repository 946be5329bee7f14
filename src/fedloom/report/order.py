"""Order and tuning of a comparison's methods, kept in its folder: others are compared with the first."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.coordinator import run_documents as reading
from fedloom.coordinator.run_folders import runs_below
from fedloom.core.errors import SettingError
from fedloom.experiments.tuning import FOLDER
from fedloom.storage.files import path_of
from fedloom.storage.output import publish

_FILE = "comparison.json"


def write_order(
    folder: str | os.PathLike[str], methods: Sequence[str], tuning: Mapping[str, Any] | None = None
) -> None:
    """Write the order of a comparison's methods, which are folders in `folder`, and how they were tuned.

    Methods of earlier comparisons come behind them. `tuning`: as `tuning_of` returns it; none: that of earlier ones.
    """
    before = [name for name in _order(path_of(folder)) if name not in methods]
    known = tuning_of(folder) if tuning is None else tuning
    said = {"methods": [*methods, *before]} | ({"tuning": known} if known else {})
    publish(path_of(folder), _FILE, reading.sealed(said))


def tuning_of(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return how the methods of a comparison were tuned; empty where they were not.

    Raises:
        SettingError: the file says it in no form that `fedloom compare --tuned` writes.
    """
    path = path_of(folder) / _FILE
    found: dict[str, Any] = reading.proved(path).get("tuning", {})
    if found and not (isinstance(found, dict) and isinstance(found.get("methods"), dict)):
        raise SettingError(f"{path}: tuning must name methods, got {found!r:.60}; remove the file")
    return found


def ordered_runs(directory: str | os.PathLike[str], *, begun: bool = False) -> list[Path]:
    """Return the runs that `runs_below` finds, with those of a comparison in the order of its methods.

    Other runs come behind, by their names. The tries by which a comparison was tuned are left out.

    Raises:
        SettingError: as of `runs_below`, or the file with the order is damaged.
    """
    top = path_of(directory)
    runs = runs_below(top, begun=begun)
    orders = {folder: _order(folder) for run in runs for folder in run.parents if folder.is_relative_to(top)}
    tries = [folder / FOLDER for folder in orders if tuning_of(folder)]
    runs = [run for run in runs if not any(run.is_relative_to(folder) for folder in tries)]

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
