"""Sources whose examples are elsewhere: the file that names who holds them, read by the room that knows these."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import Any, Protocol, cast

from fedloom.coordinator.part import Part
from fedloom.data import Examples, Federation

_READERS = {  # by the word before what each reads
    "devices": "fedloom.deploy.server.device_registry:registry_in",
    "trained-elsewhere": "fedloom.experiments.bought_models:BoughtModels.of",
}


class RemoteSource(Protocol):
    """Holders of the examples: devices, as they registered, or whoever has trained the models of a run.

    `test`: the source of the server's own test examples; "" for none. `class_names`: as all of them have them.
    `assignment`: the architecture of each client; empty where they have them in turn. `parts`: those that the run has.
    """

    @property
    def test(self) -> str: ...

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def assignment(self) -> tuple[str, ...]: ...

    @property
    def parts(self) -> tuple[Part, ...]: ...

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
    word, _, said = source.partition(":")
    module, _, name = _READERS[word].partition(":")
    return cast("RemoteSource", attrgetter(name)(import_module(module))(said))


def beside(source: str) -> dict[str, Any]:
    """Return what a job of a source has of it beside the federation: `assignment` and `parts`."""
    if not is_remote(source):
        return {"assignment": (), "parts": ()}
    found = remote_source(source)
    return {"assignment": found.assignment, "parts": found.parts}
