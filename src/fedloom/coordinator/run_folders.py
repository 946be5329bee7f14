"""Find the directories of runs, and check that one is free for a new run."""

from __future__ import annotations

import os
from pathlib import Path

from fedloom.coordinator import run_documents as reading
from fedloom.core.errors import SettingError
from fedloom.storage import files
from fedloom.wording import some_of


def runs_below(directory: str | os.PathLike[str], *, begun: bool = False) -> list[Path]:
    """Return all run directories (folders with a metrics.jsonl) in a folder, itself included, in order of their names.

    Numbers in names count as numbers: seed-2 comes before seed-10. Folders inside a run are not searched.
    `begun`: also those in which a run was killed before it could measure anything.

    Raises:
        SettingError: there is no such folder.
        StorageError: a folder below it cannot be listed.
    """
    directory = files.path_of(directory)
    if not directory.is_dir():
        raise SettingError(f"{directory} is no folder; name one that holds runs [FL-RUN-011]")
    folders = []
    for folder, below, here in files.walk(directory):
        if "metrics.jsonl" in here or (begun and {"manifest.json", "settings.json"} <= set(here)):
            folders.append(folder)
            below.clear()
    return sorted(folders, key=lambda path: reading.natural(str(path.relative_to(directory))))


def check_free(directory: str | os.PathLike[str], *, several: bool = False) -> None:
    """Raise SettingError if a directory holds a run, or several (unless they may), or a part of one, or is a file."""
    folder = files.path_of(directory)
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"{folder} is a file; name a directory, new or without a run")
    if any(files.exists(folder / name) for name in ("metrics.jsonl", "manifest.json")):
        raise SettingError(
            f"{folder} already holds a run; continue it (resume; a whole comparison: the same command with --resume), "
            "choose another directory, or move it away [FL-RUN-017]"
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
            f"{folder} holds several runs ({some_of(below, 3)}), and one beside them "
            "would be lost among these; choose another directory, or go on with one of them [FL-RUN-009]"
        )
