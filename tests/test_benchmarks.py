"""Benchmarks, which no test runs, read nothing of the package that is not there."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.stem)
def test_what_is_read_of_modules_is_there(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    modules, names = {}, list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedloom"):
            home = importlib.import_module(str(node.module))
            for alias in node.names:
                found = getattr(home, alias.name)
                names.append(alias.name)
                if inspect.ismodule(found):
                    modules[alias.asname or alias.name] = found
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "fedloom":
                    modules[alias.asname or alias.name] = importlib.import_module(alias.name)
    assert names or modules
    read = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    gone = [
        f"{n.value.id}.{n.attr}" for n in read if n.value.id in modules and not hasattr(modules[n.value.id], n.attr)
    ]  # type: ignore[attr-defined]
    assert gone == []
