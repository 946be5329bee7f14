"""The code that settings name, found without importing any of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from fedloom.algorithms import ALGORITHMS
from fedloom.core.errors import FedloomError
from fedloom.core.naming import is_python_name, source_file
from fedloom.core.network_makers import packaged
from fedloom.experiments import catalogue
from fedloom.experiments.sections import SECTIONS, TOP
from fedloom.experiments.settings_file import flat
from fedloom.models import MODELS
from fedloom.models.torchvision_networks import PREFIX
from fedloom.storage.files import path_of
from fedloom.wire.device_registry import Registry


def named_code(described: Any) -> list[str]:
    """Return what nested settings name that no registry has: code, which a run imports as module:name.

    Nothing is imported to find out. What only looks like such a name is in the list too.
    """
    if not isinstance(described, Mapping):
        return []
    return list(dict.fromkeys(code for key, value in flat(described).items() for code in _code_at(key, value)))


_REGISTRIES: dict[str, Mapping[str, Any]] = {"algorithm": ALGORITHMS, "model": MODELS, "task": catalogue.TASKS}


def _code_at(key: str, value: Any) -> Iterator[str]:
    """Yield the code that one setting names, by its key in a settings file."""
    section = key.partition(".")[0]
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _code_at(key, one)
    elif not isinstance(value, str):
        return
    elif key in _REGISTRIES:
        for name in value.split(",") if key == "model" else [value]:
            if ":" in name and name not in _REGISTRIES[key] and not (key == "model" and name.startswith(PREFIX)):
                yield name
    elif key == "data.source" and value.startswith("devices:"):
        with suppress(FedloomError):  # of a registry that cannot be read, whoever needs it says so
            yield from _code_at(key, Registry.read(path_of(value.removeprefix("devices:"))).test)
    elif key in ("data.source", "data.public_source"):
        if catalogue.is_own_data(value):
            yield value
        elif tokens := catalogue.own_tokeniser(value):
            yield tokens
    elif section not in (*SECTIONS, *TOP) and is_python_name(value) and not packaged(value):  # of an algorithm
        yield value


def with_files(code: list[str]) -> tuple[str, ...]:
    return tuple(f"{name!r} ({source_file(name) or 'no such module here'})" for name in code)
