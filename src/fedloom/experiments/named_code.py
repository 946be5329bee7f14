"""The code that settings name, found without importing any of it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedloom.algorithms import ALGORITHMS
from fedloom.core.errors import FedloomError
from fedloom.core.naming import is_python_name, source_file
from fedloom.core.network_makers import packaged
from fedloom.core.optimiser import OPTIMISERS
from fedloom.experiments import catalogue
from fedloom.experiments.remote_source import is_remote, remote_source
from fedloom.experiments.settings_file import flat
from fedloom.experiments.settings_sections import SECTIONS, TOP
from fedloom.models import MODELS
from fedloom.models.torchvision_networks import PREFIX
from fedloom.storage import files


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
    elif key in ("parts", "schedule") or (key.endswith(("optimiser", "optimiser.kind")) and value not in OPTIMISERS):
        yield value
    elif key == "data.source" and is_remote(value):
        with suppress(FedloomError):  # of a registry that cannot be read, whoever needs it says so
            yield from _code_at(key, remote_source(value).test)
    elif key in ("data.source", "data.public_source"):
        if catalogue.is_own_data(value):
            yield value
        elif tokens := catalogue.own_tokeniser(value):
            yield tokens
    elif section not in (*SECTIONS, *TOP) and is_python_name(value) and not packaged(value):  # of an algorithm
        yield value


def digests(code: Iterable[str]) -> dict[str, str]:
    """Return the digests of the files of named code and of the files beside these that they import, by their paths.

    Paths begin where Python finds the modules, as in `own/network.py`. Nothing is imported.
    """
    out, waiting, seen = dict[str, str](), [name.partition(":")[0] for name in code], set[str]()
    while waiting:
        module = waiting.pop()
        if module in seen or (path := _file(module)) is None:
            continue
        seen.add(module)
        inside = path.name == "__init__.py"
        root = path.parents[module.count(".") + inside]
        out[path.relative_to(root).as_posix()] = files.digest_of(path)
        package = module if inside else module.rpartition(".")[0]
        for other in _imports(path, package):
            beside, first = _file(other), other.partition(".")[0]
            own = first == module.partition(".")[0]
            if beside is not None and beside.is_relative_to(root) and (own or not _is_installed(first, beside)):
                waiting.append(other)
    return dict(sorted(out.items()))


def _is_installed(module: str, path: Path) -> bool:
    """Return whether a module comes with Python, with fedloom, or was installed: it changes with its version."""
    here = {"site-packages", "dist-packages"} & set(path.parts)
    return module in sys.stdlib_module_names or module == "fedloom" or bool(here)


def _file(module: str) -> Path | None:
    found = source_file(f"{module}:NAME")
    return Path(found) if found is not None and found.endswith(".py") and Path(found).is_file() else None


def _imports(path: Path, package: str) -> Iterator[str]:
    """Yield the modules that a file may import; those of `from module import name` may be modules in a package."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError):  # whoever imports it is told
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: max(0, package.count(".") + 2 - node.level)] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (name for name in (module, *(f"{module}.{one.name}" for one in node.names)) if name)


def with_files(code: list[str]) -> tuple[str, ...]:
    return tuple(f"{name!r} ({source_file(name) or 'no such module here'})" for name in code)
