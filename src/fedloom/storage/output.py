"""Files for people: written whole, never through a link; CSV without formulas."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fedloom.core.errors import SettingError
from fedloom.storage import files


def publish(folder: Path, name: str, data: bytes) -> Path:
    """Write folder/name once it is whole, with the folders in between, and return its path.

    `folder` is as the user named it. Nothing below it may be a link: the maker of the folder must not choose which
    files elsewhere are overwritten.

    Raises:
        SettingError: a link is in the way.
        StorageError: the disk does not take it; an older file is still as it was.
    """
    path = path_below(folder, name)
    files.make(path.parent)
    files.write(path.parent, path.name, data, sync=False)
    return path


def path_below(folder: Path, name: str) -> Path:
    """Return folder/name.

    Raises:
        SettingError: a part of `name` is a link.
    """
    path = folder
    for part in Path(name).parts:
        path /= part
        if path.is_symlink():
            raise SettingError(f"{path} is a link, and would be written through: remove it, or name another place")
    return path


def check_new(path: str | os.PathLike[str], overwrite: bool) -> None:
    """Raise SettingError where a file would be replaced that may not be, or its name is that of a folder."""
    if os.path.isdir(path):
        raise SettingError(f"{path} is a folder, and a file is written: name one, such as {Path(path) / 'NAME'}")
    if os.path.lexists(path) and not (overwrite and Path(path).is_file()):
        raise SettingError(f"{path} exists; choose another name, or replace a file with overwrite=True (--overwrite)")


def as_csv(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV. A text that a spreadsheet would take for a formula gets an apostrophe; numbers do not."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_escape_formula(cell) for cell in row] for row in rows)
    return text.getvalue()


def _escape_formula(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    with suppress(ValueError):
        float(cell)
        return cell
    text = cell.replace("\r", " ")  # the writer would not quote it
    return f"'{text}" if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text
