"""An address of fsspec as a place of named bytes: what a mirror asks of a store, and no more.

A store need neither rename nor replace in one step: a mirror writes no name twice, but for what a kill left half.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from fedloom.core.errors import DamageError, FedloomError, SettingError, StorageError
from fedloom.wording import install

T = TypeVar("T")
_FORM = re.compile(r"(?P<kind>[a-z][a-z0-9+.-]*)://(?P<rest>.+)", re.IGNORECASE)
_TRIAL, _AT_ONCE = "trial", 1000  # files that are sent in one call


def check_address(address: str) -> None:
    """Raise SettingError unless a text is the address of one folder, and holds no password; nothing is connected."""
    form, rule = _FORM.fullmatch(address), ""
    if form is None:
        rule = "begins with the kind of its store"
    elif re.search(r"[*?\[\]#]|::", address):
        rule = "names one folder of one store, without any of * ? [ ] # ::"
    elif re.match(r"[^/]*:[^/@]*@", form["rest"]):
        rule = "holds no password, since a run writes its settings down: the store's own files or variables have it"
    elif form["kind"].lower() == "file" and not re.match(r"/|[a-z]:[/\\]", form["rest"], re.IGNORECASE):
        rule = "is the same wherever the run goes on, and so an absolute path"
    if rule:
        shown = "one with a password" if "password" in rule else repr(address)
        raise SettingError(
            f"the address of a mirror {rule}, got {shown}: write s3://bucket/folder, sftp://host/folder or "
            "file:///mnt/other/folder"
        )


def below(address: str, place: str) -> str:
    """Return the address of a folder below another one; `.`: of itself."""
    return address if place == "." else f"{address.rstrip('/')}/{place}"


class ObjectStore:
    """The folder behind an address. Names in it have one folder at most: `files/NAME`.

    Every method raises StorageError, or DamageError of what is missing, with the reason of the store.

    Args:
        address: such as `s3://bucket/run`.

    Raises:
        SettingError: the address is none, or a package is missing that speaks with such a store.
    """

    def __init__(self, address: str) -> None:
        check_address(address)
        self.address = address
        try:
            core = importlib.import_module("fsspec.core")
        except ImportError as error:
            raise SettingError(f"a mirror needs fsspec ({error}): {install('mirror')}") from error
        try:
            self._system, self._root = core.url_to_fs(address)
        except ImportError as error:
            raise SettingError(f"{address} needs another package: {error}. Install it here") from error
        except Exception as error:
            raise SettingError(
                f"{address} is no address that fsspec knows: {_line(error)}; name another one"
            ) from error

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of each file in a folder, by name; none where there is no such folder."""
        return {name: size for name, size in self._entries(folder) if size is not None}

    def folders(self, folder: str = "") -> list[str]:
        """Return the names of the folders in a folder, in order."""
        return sorted(name for name, size in self._entries(folder) if size is None)

    def _entries(self, folder: str) -> list[tuple[str, int | None]]:
        with self._said("list", folder):
            self._system.invalidate_cache()  # what another process has written counts
            try:
                found = self._system.ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return []
            names = ((str(one["name"]).rstrip("/").rpartition("/")[2], one) for one in found)
            return [(name, int(one["size"] or 0) if one["type"] == "file" else None) for name, one in names]

    def read(self, name: str, most: int) -> bytes:
        """Return what a file holds. One of more than `most` bytes is damaged, and not read to its end."""
        with self._said("read", name):
            data: bytes = self._system.cat_file(self._path(name), start=0, end=most + 1)
        if len(data) > most:
            raise DamageError(f"{self._named(name)} is not what was written there: it has more than {most:,} bytes")
        return data

    def write(self, contents: Mapping[str, bytes]) -> None:
        """Write files."""
        for name, data in contents.items():
            with self._said("write", name):
                self._make_folder_of(name)
                self._system.pipe_file(self._path(name), data)

    def upload(self, paths: Mapping[str, Path]) -> None:
        """Copy files of this machine to there, by their names there."""
        self._copied(
            "write", "put", [(str(path), self._path(name)) for name, path in paths.items()], next(iter(paths), "")
        )

    def download(self, paths: Mapping[Path, str]) -> None:
        """Copy files from there, by their paths here."""
        self._copied("read", "get", [(self._path(name), str(path)) for path, name in paths.items()], "")

    def _copied(self, doing: str, verb: str, pairs: Sequence[tuple[str, str]], first: str) -> None:
        with self._said(doing, first):
            if pairs and verb == "put":
                self._make_folder_of(first)
            if not self._system.async_impl:
                for source, target in pairs:
                    getattr(self._system, f"{verb}_file")(source, target)
                return
            for some in _parts(pairs):
                getattr(self._system, verb)([source for source, _ in some], [target for _, target in some])

    def remove(self, names: Sequence[str]) -> None:
        """Delete files."""
        with self._said("delete", ""):
            if not self._system.async_impl:
                for name in names:
                    with suppress(FileNotFoundError):  # deleted by a call that then failed
                        self._system.rm_file(self._path(name))
                return
            for some in _parts(names):
                self._system.rm([self._path(name) for name in some])

    def try_out(self) -> None:
        """Write, read and delete a small file."""
        self.write({_TRIAL: b"fedloom"})
        if self.read(_TRIAL, 7) != b"fedloom":
            raise StorageError(f"{self.address} does not return what was written there: name another address")
        self.remove([_TRIAL])

    def _make_folder_of(self, name: str) -> None:
        self._system.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}".rstrip("/") or "/"

    def _named(self, name: str) -> str:
        return below(self.address, name or ".")

    @contextmanager
    def _said(self, doing: str, name: str) -> Iterator[None]:
        """Name the address where the store fails, of whatever kind its errors are."""
        try:
            yield
        except FedloomError:
            raise
        except FileNotFoundError as error:
            raise DamageError(f"{self._named(name)} is missing: {_line(error)}") from error
        except Exception as error:
            raise StorageError(f"cannot {doing} {self._named(name)}: {_line(error)}") from error


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[i : i + _AT_ONCE] for i in range(0, len(items), _AT_ONCE))
