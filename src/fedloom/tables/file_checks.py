"""Rules of files that are read: what is refused of them, what lies beside them, how large they may be."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from fedloom.wording import some_of

# The largest published file, the images of EMNIST by class, is 0.55 GB.
LIMIT = 2**30
_LARGEST = 2**34
AGAIN = "fetch the file again"


class FormatError(ValueError):
    """A file that breaks a rule of its format; the message names the file, the rule, the value and a remedy."""


def refuse(path: Path, rule: str, value: object, remedy: str = AGAIN) -> NoReturn:
    """Raise `FormatError` for the file `path`."""
    raise FormatError(f"{path}: {rule}, got {value}: {remedy}")


_KINDS = {  # how files begin that people take for text
    b"\x1f\x8b": ("compressed by gzip", "gunzip {}"),
    b"BZh": ("compressed by bzip2", "bunzip2 {}"),
    b"\xfd7zXZ\x00": ("compressed by xz", "unxz {}"),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", "unzstd {}"),
    b"\x04\x22\x4d\x18": ("compressed by lz4", "unlz4 {}"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "7z x {}"),
    b"PK\x03\x04": ("a zip archive, which an Excel workbook is too", "unzip {}, or save the workbook as CSV"),
    b"\xd0\xcf\x11\xe0": ("an Excel workbook", "save it as CSV"),
    b"PAR1": ("Parquet", "name it {}.parquet"),
    b"SQLite format 3": ("a SQLite database", "export a table as CSV"),
    b"%PDF": ("a PDF", "take the table itself"),
}


def refuse_other_kinds(path: Path, rule: str) -> None:
    """Refuse a file that begins as one that is compressed, or of another kind, and is taken for text."""
    with path.open("rb") as file:
        head = file.read(16)
    for begins, (kind, remedy) in _KINDS.items():
        if head.startswith(begins):
            pandas = f"read it with pandas and fedloom.from_frame, and {remedy.format(path.name)} for the command line"
            refuse(path, rule, f"a file that is {kind}", pandas)


def visible(paths: Iterable[Path]) -> list[Path]:
    """Return paths in their order, without those whose names begin with a dot, which systems and editors write."""
    return sorted(path for path in paths if not path.name.startswith("."))


def warn_of_unread(place: Path, read: str, unread: Sequence[str], remedy: str) -> None:
    """Warn of what lies beside data that are read and could be meant to be read too, such as a third split.

    `read`: what is read of `place`, in words. `unread`: names of what is not.
    """
    if unread:
        told = f"{place}: {read} are read, and {some_of(sorted(unread), 8)} not: {remedy}"
        warnings.warn(told, stacklevel=3)


def warn_of_folders(folder: Path, read: Sequence[str] = ("train", "test")) -> None:
    """Warn of folders that lie beside those that are read; names that begin with . or _ are those of programs."""
    others = [p.name for p in folder.iterdir() if p.is_dir() and p.name not in read and p.name[0] not in "._"]
    listed = " and ".join(f"{name}/" for name in read) or "files in the folder itself"
    remedy = "rename the one to test on test/, or move them away" if read else "move their files up, or them away"
    warn_of_unread(folder, listed, [f"{name}/" for name in others], remedy)


def check_link(path: Path, root: Path) -> None:
    """Refuse a link that leads out of the folder `root`, or nowhere."""
    if not path.is_symlink():
        return
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):  # the latter for a link to itself, in Python 3.11 and 3.12
        refuse(path, "links must lead to something", path.readlink(), "copy what it should point to")
    if not target.is_relative_to(root.resolve()):
        refuse(path, f"links must stay inside {root}", path.readlink(), "copy what it points to")


def read_whole(path: Path) -> bytes:
    """Return the bytes of a file of at most `LIMIT`."""
    size = path.stat().st_size
    if size > LIMIT:
        refuse(path, f"the file must be at most {LIMIT} bytes", size)
    return path.read_bytes()


def memory() -> int:
    """Return the bytes of memory that data may take: half of the machine's or of its container's, at most 16 GiB."""
    sizes = [2 * _LARGEST]
    with suppress(AttributeError, OSError, ValueError):  # Windows has no sysconf
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):  # "max": no limit
        sizes.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(sizes) // 2
