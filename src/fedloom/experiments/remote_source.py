"""Sources whose examples are elsewhere: the file that names who holds them, read by the room that knows these."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from fedloom.data import Examples, Federation
from fedloom.storage.files import path_of

_READERS = {"devices": "fedloom.deploy.server.device_registry:Registry"}  # by the word before the file


class RemoteSource(Protocol):
    """Devices that hold the examples, as they registered.

    `test`: the source of the server's own test examples; "" for none. `class_names`: as all of them have them.
    """

    @property
    def test(self) -> str: ...

    @property
    def class_names(self) -> tuple[str, ...]: ...

    def federation(self, test: Examples | None = None) -> Federation:
        """Return the federation of all their examples, of which none is here."""

    def prepared(self, test: Examples) -> Examples:
        """Return test examples as those who hold the others have prepared theirs."""


def is_remote(source: str) -> bool:
    """Return whether the examples of a source are elsewhere."""
    return source.partition(":")[0] in _READERS and ":" in source


def remote_source(source: str) -> RemoteSource:
    """Return who holds the examples of a source that `is_remote`.

    Raises:
        FedloomError: the file cannot be read.
    """
    word, _, path = source.partition(":")
    module, _, kind = _READERS[word].partition(":")
    return cast("RemoteSource", getattr(import_module(module), kind).read(path_of(path)))
