"""What the package imports is declared: that another package brings it along today is no promise of that package."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import distributions, packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedloom
import fedloom_papers
from fedloom.deploy.nats.nats_server import program

ROOT = Path(__file__).parents[1]
PACKAGES = {"pyproject.toml": fedloom, "papers/pyproject.toml": fedloom_papers}  # what each declares
OURS = {"fedloom", "fedloom_papers"}


def declared(file: str) -> dict[str, Any]:
    """What a pyproject.toml says of its project."""
    project: dict[str, Any] = tomllib.loads((ROOT / file).read_text(encoding="utf-8"))["project"]
    return project


PROJECT = declared("pyproject.toml")
WHERE_IT_IS = {"IPython"}  # imported in a notebook alone, which brings it


def names(requirements: list[str]) -> set[str]:
    """The distributions of requirements, as `mpi4py>=4`."""
    return {re.split(r"[^\w.-]", r)[0].lower().replace("_", "-") for r in requirements}


def imported(package: ModuleType) -> dict[str, set[str]]:
    """Of each top-level module from elsewhere, the files of a package that import it."""
    found: dict[str, set[str]] = {}
    source = Path(str(package.__file__)).parent
    for path in sorted(p for p in source.rglob("*.py*") if p.suffix in (".py", ".pyi")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            for root in {m.partition(".")[0] for m in modules} - sys.stdlib_module_names - OURS:
                found.setdefault(root, set()).add(str(path.relative_to(source)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("file", PACKAGES)
def test_what_is_imported_is_declared(file: str) -> None:
    extras = declared(file)["optional-dependencies"]
    wanted = names(declared(file)["dependencies"]).union(*(names(r) for extra, r in extras.items() if extra != "dev"))
    brings = packages_distributions()
    missing = {
        module: sorted(files)
        for module, files in imported(PACKAGES[file]).items()
        if module not in WHERE_IT_IS and not wanted & names(brings.get(module, [module]))
    }
    assert not missing, f"declare these in {file}"


def test_what_needs_no_extra_is_pinned() -> None:
    pinned = names((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    assert names(PROJECT["dependencies"]) <= pinned


@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="this is not the environment that `make` installs")
def test_no_test_is_left_out_for_want_of_a_package() -> None:
    extras = PROJECT["optional-dependencies"]
    (tested,) = (re.findall(r"[\w-]+", r.partition("[")[2]) for r in extras["tested"])
    wanted = names([r for extra in (*tested, "dev") for r in extras[extra]]) - {"fedloom"}
    assert wanted <= names([d.name for d in distributions()])
    assert program() is not None, "tests of NATS skip"
