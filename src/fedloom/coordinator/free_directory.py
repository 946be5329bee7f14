"""Check that a directory is free for a new run."""

from __future__ import annotations

import os
from pathlib import Path

from fedloom.coordinator.history import runs_below
from fedloom.core.errors import SettingError
from fedloom.storage import files


def check_free(directory: str | os.PathLike[str], *, several: bool = False) -> None:
    """Raise SettingError if a directory holds a run, or several (unless they may), or a part of one, or is a file."""
    folder = Path(directory)
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"{folder} is a file; name a directory, new or without a run")
    if any(files.exists(folder / name) for name in ("metrics.jsonl", "manifest.json")):
        raise SettingError(
            f"{folder} already holds a run; continue it (resume; a whole comparison: the same command with --resume), "
            "choose another directory, or move it away"
        )
    checkpoints = folder / "checkpoints"
    if files.exists(checkpoints) and any(here for _, _, here in files.walk(checkpoints)):
        raise SettingError(
            f"{checkpoints} holds files of another run, among which those of a new one would be lost; "
            "choose another directory, or move it away"
        )
    for above in folder.absolute().parents:
        if files.exists(above / "metrics.jsonl"):
            raise SettingError(
                f"{folder} is inside of a run, {above}, where no command would find another one; "
                "choose another directory"
            )
    below = [str(path.relative_to(folder)) for path in runs_below(folder, begun=True)] if folder.is_dir() else []
    if below and not several:
        raise SettingError(
            f"{folder} holds several runs ({', '.join(below[:3])}{', ...' * (len(below) > 3)}), and one beside them "
            "would be lost among these; choose another directory, or go on with one of them"
        )
