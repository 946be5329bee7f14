"""Files: written whole or not at all, checked by digest when read, never lost."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedloom.core.errors import DamageError, SettingError, StorageError, StorageWarning, warn
from fedloom.wording import local_path


class File(NamedTuple):
    """File in a folder, by its name and the digest of its bytes."""

    name: str
    digest: str  # 32 hexadecimal digits of BLAKE2b


class RunningDigest:
    """Digest of bytes that are added piece by piece."""

    def __init__(self, data: bytes = b"") -> None:
        self._hash = hashlib.blake2b(data, digest_size=16)

    def add(self, data: bytes | memoryview) -> None:
        self._hash.update(data)

    @property
    def digest(self) -> str:
        """Digest of all bytes so far."""
        return self._hash.hexdigest()


def digest(data: bytes) -> str:
    return RunningDigest(data).digest


def digest_of(path: Path) -> str:
    """Return the digest of a file's bytes, without reading them all at once.

    Raises:
        DamageError: it is missing, or no file.
        StorageError: it cannot be read.
    """
    if not path.is_file():  # a pipe or a device would never end
        raise DamageError(f"{path} is missing: no such file")
    running = RunningDigest()
    try:
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                running.add(data)
    except OSError as error:
        raise unreadable(path, error) from error
    return running.digest


def path_of(place: str | os.PathLike[str]) -> Path:
    """Return the path of a folder or file as a person writes it, ~ for the home folder.

    Raises:
        SettingError: it is an address of another machine, or begins with what a shell would have replaced.
    """
    try:
        return local_path(place)
    except ValueError as error:
        raise SettingError(str(error)) from None


def make(folder: Path, *, private: bool = False) -> None:
    """Make a folder, and those above it, unless they are there. `private`: its user alone may open it from now on.

    Raises:
        SettingError: its path is an address of another machine.
        StorageError: the system refuses.
    """
    path_of(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if private:
            folder.chmod(0o700)
    except OSError as error:
        raise StorageError(f"cannot write in {folder}: {error.strerror}; name another folder") from error


def write(folder: Path, name: str, data: bytes | Sequence[bytes | memoryview], *, sync: bool = True) -> File:
    """Write a file, from its bytes or pieces of them, under another name, then rename it.

    `sync`: return once the disk has it.

    Raises:
        StorageError: the disk does not take it; a file of that name is still as it was.
    """
    part, pieces, running = folder / f"{name}.part", [data] if isinstance(data, bytes) else data, RunningDigest()
    try:
        part.unlink(missing_ok=True)
        with part.open("xb") as file:  # never through a link that somebody has put there
            for piece in pieces:
                file.write(piece)
                running.add(piece)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(part, folder / name)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise StorageError(
            f"cannot write {folder / name} ({sum(map(len, pieces)):,} bytes): {error.strerror}; make room or name "
            "another folder"
        ) from error
    return File(name, running.digest)


def link(path: Path, folder: Path, name: str) -> None:
    """Give a file that never changes a second name, by a hard link, or by a copy where the file system has no links.

    Raises:
        StorageError: the disk does not take it.
    """
    part = folder / f"{name}.part"
    try:
        part.unlink(missing_ok=True)
        _link(path, part)
        sync(part)
        os.replace(part, folder / name)
    except OSError as error:
        raise StorageError(
            f"cannot write {folder / name}: {error.strerror}; make room or name another folder"
        ) from error


def read(folder: Path, file: File) -> bytes:
    """Return what was written to a file.

    Raises:
        DamageError: the file is missing, or not what was written.
        StorageError: it cannot be read.
    """
    path = folder / file.name
    data = load(path)
    if digest(data) != file.digest:
        raise DamageError(f"{path} is not what was written there: {len(data):,} bytes, damaged or changed")
    return data


def load(path: Path) -> bytes:
    """Return what is in a file.

    Raises:
        DamageError: it is missing.
        StorageError: it cannot be read, which says nothing about its content.
    """
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise DamageError(f"{path} is missing: {error.strerror}") from None
    except OSError as error:
        raise unreadable(path, error) from error


def exists(path: Path) -> bool:
    """Return whether a path exists; a link counts, whatever its target.

    Raises:
        StorageError: the system refuses to say.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(path, error) from error
    return True


def names(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; none where there is no such folder.

    Raises:
        StorageError: it cannot be listed. `Path.glob` would say that it is empty.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(folder, error) from error


def walk(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """`os.walk`, but a folder that cannot be listed is an error.

    Raises:
        StorageError: names the folder.
    """

    def refuse(error: OSError) -> None:
        raise unreadable(Path(error.filename), error) from error

    for place, folders, names_here in os.walk(folder, onerror=refuse):
        yield Path(place), folders, names_here


def unreadable(path: Path, error: OSError) -> StorageError:
    """Return the error for a file that the system does not let us read."""
    return StorageError(f"cannot read {path}: {error.strerror}; make it readable; it need not be damaged")


def rename(path: Path, to: Path) -> None:
    """Give a file another name.

    Raises:
        StorageError: the system refuses.
    """
    try:
        os.replace(path, to)
    except OSError as error:
        raise StorageError(f"cannot rename {path}: {error.strerror}") from error


def remove(path: Path) -> None:
    """Delete a file that is superfluous.

    Raises:
        StorageError: the system refuses.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot delete {path}: {error.strerror}") from error


def remove_or_move(path: Path, aside: Quarantine) -> None:
    """Delete a superfluous file; a folder of its name is moved aside, since a user may have made it."""
    if path.is_dir() and not path.is_symlink():
        aside.move(path)
    else:
        remove(path)


class Quarantine:
    """Folder for files that may still be of use: `FOLDER/set-aside/NUMBER`, made for the first of them."""

    def __init__(self, folder: Path) -> None:
        self.root, self.folder, self.count = folder, folder / "set-aside", 0

    def move(self, path: Path) -> None:
        """Move a file below the root, keeping its path there.

        Raises:
            StorageError: it cannot be moved.
        """
        self._do(shutil.move, path)

    def copy(self, path: Path) -> None:
        """Copy a file below the root, keeping its path there."""
        self._do(shutil.copy2, path)

    def share(self, path: Path) -> None:
        """Copy a file that never changes by a hard link, or in full where the file system has no links."""
        self._do(_link, path)

    def say(self, reason: str) -> None:
        """Warn of the files that were set aside, if there are any."""
        if self.count:
            warn(
                f"{self.count} file(s) that {reason} are now in {self.folder}; delete them if you need none of them",
                StorageWarning,
            )

    def _do(self, operation: Callable[[Path, Path], object], path: Path) -> None:
        try:
            if not self.count:
                self._begin()
            target = self.folder / path.relative_to(self.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            operation(path, target)
        except OSError as error:
            raise StorageError(f"cannot set {path} aside in {self.folder}: {error.strerror}") from error
        self.count += 1

    def _begin(self) -> None:
        """Make a new folder, numbered after those that exist."""
        self.folder.mkdir(exist_ok=True)
        numbers = [int(name) for name in names(self.folder) if name.isdecimal()]
        self.folder /= str(max(numbers, default=0) + 1)
        self.folder.mkdir()


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:
        shutil.copy2(path, target)


def sync(path: Path) -> None:
    """Return when the disk has a file or the names in a folder."""
    if os.name == "nt" and path.is_dir():  # folders cannot be opened there
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
