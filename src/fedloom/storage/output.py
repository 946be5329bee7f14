"""What people read: files that are whole and go where they were asked to, tables that no spreadsheet runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fedloom.core.errors import SettingError
from fedloom.storage import files


def publish(folder: Path, name: str, data: bytes) -> Path:
    """Write folder/name once it is whole, with the folders in between, and return its path.

    `folder` is as a person has named it. Nothing below it may be a link: whoever made the folder must not choose what
    is written elsewhere.

    Raises:
        SettingError: a link is in the way.
        StorageError: the disk does not take it; what stood there is still there.
    """
    path = below(folder, name)
    files.make(path.parent)
    files.write(path.parent, path.name, data, sync=False)
    return path


def below(folder: Path, name: str) -> Path:
    """folder/name, if no part of `name` is a link.

    Raises:
        SettingError: one is.
    """
    path = folder
    for part in Path(name).parts:
        path /= part
        if path.is_symlink():
            raise SettingError(f"{path} is a link, and would be written through: remove it, or name another place")
    return path


def as_csv(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV. A text that a spreadsheet would take for a formula begins with an apostrophe; numbers do not."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_harmless(cell) for cell in row] for row in rows)
    return text.getvalue()


def _harmless(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    with suppress(ValueError):
        float(cell)
        return cell
    text = cell.replace("\r", " ")  # which the writer would leave without quotes
    return f"'{text}" if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text
