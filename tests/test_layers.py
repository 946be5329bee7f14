"""Imports point downwards only, so that every layer can be read without those above it.

fedloom-papers stands above all of them, and nothing in fedloom knows it.
"""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import fedloom
import fedloom_papers
from fedloom.cli.parser import ROOMS, _of_room

SOURCE, PAPERS = Path(fedloom.__file__).parent, Path(fedloom_papers.__file__).parent
SIZE: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[1] / "scripts/size.py"))
LAYERS = [  # top first; those on one line may not import each other
    {"cli"},
    {"testing"},
    {"analyses"},
    {"deploy"},
    {"report"},
    {"experiments"},
    {"virtual_time"},
    {"compression", "mirror", "privacy"},
    {"coordinator", "ranks"},
    {"engines"},
    {"algorithms"},
    {"storage"},
    {"evaluate"},
    {"tasks"},
    {"display", "sources"},
    {"tables"},
    {"core"},
    {"data", "models"},
    {"wording"},
]
OF_ANOTHER = re.compile(r"fedloom\.algorithms\.(?!shared\b)")
DEPTH = {name: depth for depth, names in enumerate(LAYERS) for name in names}


def layer_of(module: str) -> str | None:
    """fedloom.core.tree -> core; None for the package itself and for others."""
    parts = module.split(".")
    return parts[1] if parts[0] == "fedloom" and len(parts) > 1 else None


def imports(path: Path, source: str) -> list[tuple[int, str]]:
    """(line, module) of every import, at the top of the file or within functions.

    An algorithm may `import fedloom as fl`, as a user's does: `fl.Client` is an import of where it is defined.
    """
    root = PAPERS if path.is_relative_to(PAPERS) else SOURCE
    package = [root.name, *path.relative_to(root).parts[:-1]]
    found = []
    nodes = list(ast.walk(ast.parse(source)))
    for node in nodes:
        if isinstance(node, ast.Import):
            through = {a.asname for a in node.names if a.name == "fedloom" and package[1:2] == ["algorithms"]} - {None}
            found.extend((node.lineno, alias.name) for alias in node.names if alias.asname not in through)
            used = [n for n in nodes if isinstance(n, ast.Attribute) and getattr(n.value, "id", None) in through]
            found.extend((n.lineno, fedloom._MODULES.get(n.attr, f"fedloom.{n.attr}")) for n in used)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from fedloom import core` imports a layer by its name
            found.extend((node.lineno, f"{module}.{a.name}" if module == "fedloom" else module) for a in node.names)
    return found


def violations(path: Path, source: str) -> list[str]:
    """Imports of this file that do not point downwards."""
    mine = layer_of(".".join(["fedloom", *path.relative_to(SOURCE).with_suffix("").parts]))
    bad = list[str]()
    for line, module in imports(path, source):
        theirs = layer_of(module) if module != "fedloom" else "the package itself"
        if module.partition(".")[0] == PAPERS.name:
            bad.append(f"{path.relative_to(SOURCE.parent)}:{line}: imports {module}")
        if mine in (None, "__init__", "__main__") or theirs in (None, mine, "__version__"):
            continue
        if theirs not in DEPTH or DEPTH[theirs] <= DEPTH[mine]:
            bad.append(f"{path.relative_to(SOURCE.parent)}:{line}: {mine} imports {module}")
    return sorted(set(bad))


def test_every_layer_is_known() -> None:
    names = {p.stem for p in SOURCE.iterdir() if (p.suffix == ".py" or (p / "__init__.py").exists())}
    assert names - {"__init__", "__main__"} == set(DEPTH)


def test_imports_point_downwards() -> None:
    found = [v for path in sorted(SOURCE.rglob("*.py")) for v in violations(path, path.read_text(encoding="utf-8"))]
    assert not found, "imports that point up or sideways:\n" + "\n".join(found)


def test_the_kernel_imports_no_neighbour() -> None:
    """What computes a run is understood without devices, tables of results, papers and commands."""
    assert set(SIZE["KERNEL"]) <= set(DEPTH)
    found = [
        f"{path.relative_to(SOURCE)} imports {module}"
        for room in SIZE["KERNEL"]
        for path in sorted((SOURCE / room).rglob("*.py"))
        for module in SIZE["neighbours"](ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "a neighbour knows the kernel, and not the other way round:\n" + "\n".join(found)


@pytest.mark.slow
def test_a_run_loads_no_neighbour() -> None:
    found = [module for module in SIZE["loaded"](SOURCE.parent) if SIZE["is_neighbour"](module)]
    assert not found, f"fedloom.run loads {found}"


def offered() -> list[tuple[str, str]]:
    """(room, what it runs) of every command."""
    return [
        (room, one.do)
        for room in ROOMS
        for command in _of_room(room).values()
        for one in (command, *command.inner.values())
        if one.do
    ]


def test_every_room_with_commands_is_asked_and_runs_what_stands_in_it() -> None:
    assert {path.parent.name for path in SOURCE.glob("*/commands.py")} == set(ROOMS)
    assert len(offered()) > 25
    assert [do for room, do in offered() if layer_of(do.partition(":")[0]) != room] == []


def test_declarations_of_commands_import_what_is_light() -> None:
    for path in SOURCE.glob("*/commands.py"):
        found = {layer_of(module) for _, module in imports(path, path.read_text(encoding="utf-8"))} - {None}
        assert found <= {"display", "core", "wording", path.parent.name}, path


def test_server_and_device_know_no_transport_and_not_each_other() -> None:
    """A room of `deploy` takes what all of them share."""
    rooms = {p.name for p in (SOURCE / "deploy").iterdir() if (p / "__init__.py").exists()}
    assert rooms >= {"server", "device", "flower", "nats"}
    found = [
        f"{path.relative_to(SOURCE)}:{line} imports {module}"
        for path in sorted((SOURCE / "deploy").rglob("*.py"))
        for line, module in imports(path, path.read_text(encoding="utf-8"))
        if module.startswith("fedloom.deploy.") and module.split(".")[2] in rooms - {path.parent.name}
    ]
    assert not found, "what two rooms of deploy share stands beside them:\n" + "\n".join(found)


def test_studies_do_not_know_each_other() -> None:
    rooms = {*fedloom_papers.STUDIES}
    found = [
        f"{path.relative_to(PAPERS)}:{line} imports {module}"
        for path in sorted(PAPERS.rglob("*.py"))
        for line, module in imports(path, path.read_text(encoding="utf-8"))
        if module.startswith("fedloom_papers.") and module.split(".")[1] in rooms - {path.parent.name}
    ]
    assert {p.name for p in PAPERS.iterdir() if (p / "__init__.py").exists()} == {*rooms, "commands", "reproduction"}
    assert not found, "what two papers share belongs to the library:\n" + "\n".join(found)


def test_an_algorithm_takes_from_another_what_it_extends_alone() -> None:
    for path in sorted((SOURCE / "algorithms").glob("[a-z]*.py")):
        body = ast.parse(path.read_text(encoding="utf-8"))
        bases = {n.id for c in ast.walk(body) if isinstance(c, ast.ClassDef) for b in c.bases for n in ast.walk(b)
                 if isinstance(n, ast.Name)}  # fmt: skip
        taken = {alias.name for node in ast.walk(body) if isinstance(node, ast.ImportFrom)
                 and OF_ANOTHER.match(node.module or "") for alias in node.names}  # fmt: skip
        assert taken <= bases, f"{path.name}: what two algorithms share belongs to algorithms/shared"


def test_the_test_sees_what_it_should() -> None:
    path = SOURCE / "core" / "tree.py"
    for line in (
        "from fedloom.engines.loop import Loop",
        "from fedloom_papers.fedntd import STUDY",
        "import fedloom.engines",
        "from fedloom import engines",
        "from fedloom import run",
        "import fedloom",
        "from ..engines import loop",
        "def f():\n    from fedloom.algorithms import FedAvg",
    ):
        assert violations(path, line), line
    for line in (
        "from fedloom.core.types import Tree",
        "from . import types",
        "import torch",
        "from fedloom.data import x",
    ):
        assert not violations(path, line), line
    assert violations(SOURCE / "data" / "examples.py", "from fedloom.models import mlp")
    moon = SOURCE / "algorithms" / "moon.py"
    assert not violations(moon, "import fedloom as fl\nfl.Client, fl.Federation, fl.tree.leaves")
    for line in ("fl.run", "fl.Sweep", "fl.coordinator.Job"):
        assert violations(moon, f"import fedloom as fl\n{line}"), line
    assert violations(moon, "import fedloom")
    assert violations(SOURCE / "report" / "page.py", "from fedloom_papers import find")
    assert violations(SOURCE / "report" / "page.py", "from fedloom_papers.reproduction import Recipe")
    assert violations(SOURCE / "__main__.py", "import fedloom_papers")
