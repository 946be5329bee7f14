"""Check that the directory of a sweep is free, or holds the sweep that goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.coordinator import run_documents as reading
from fedloom.coordinator.run_folders import check_free
from fedloom.core.errors import SettingError
from fedloom.experiments.settings_file import flat
from fedloom.wording import some_of


def check_sweep(folder: Path, asked: Mapping[str, Any], resume: bool) -> None:
    """Raise SettingError unless a sweep can begin in a directory, or go on with what it was asked for there.

    A search may have become longer.
    """
    check_free(folder, several=(folder / "sweep.json").exists())  # its own trials
    if not resume:
        if (folder / "sweep.json").exists():
            raise SettingError(f"{folder} already holds a sweep; continue it (--resume) or choose another directory")
        return
    if not (stored := reading.mapping(folder / "sweep.json")):
        return  # it was never begun
    old, new = flat(stored), flat(asked)
    if isinstance(old.get("search"), int) and asked["search"] is not None and old["search"] <= asked["search"]:
        new["search"] = old["search"]
    unfit = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if unfit:
        changes = (f"{k} was {json.dumps(old.get(k))} and is {json.dumps(new.get(k))}" for k in unfit)
        raise SettingError(
            f"{folder} holds another sweep: {some_of(changes, 5, '; ')}. Go on with what it was started with, or "
            "choose another directory for a new one"
        )
