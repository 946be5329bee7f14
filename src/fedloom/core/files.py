"""Files that are whole or absent, and that are what was written."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedloom.core.errors import StorageError


class File(NamedTuple):
    """A file by its name in a folder, and what must be in it."""

    name: str
    digest: str  # 32 hexadecimal digits of BLAKE2b


def write(folder: Path, name: str, data: bytes, *, sync: bool = True) -> File:
    """Write a file under its name once it is whole. `sync`: only return when the disk has it.

    Raises:
        StorageError: the disk does not take it; what stood under that name is still there.
    """
    part = folder / f"{name}.part"
    try:
        part.unlink(missing_ok=True)
        with part.open("xb") as file:  # never through a link that somebody has put there
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(part, folder / name)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise StorageError(
            f"cannot write {folder / name} ({len(data):,} bytes): {error.strerror}; make room or name another folder"
        ) from error
    return File(name, _digest(data))


def read(folder: Path, file: File) -> bytes:
    """What was written.

    Raises:
        StorageError: the file is missing, unreadable, or not what was written.
    """
    path = folder / file.name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    if _digest(data) != file.digest:
        raise StorageError(f"{path} is not what was written there: {len(data):,} bytes, damaged or changed")
    return data


def sync(path: Path) -> None:
    """Return when the disk has a file or the names in a folder."""
    if os.name == "nt" and path.is_dir():  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
