"""The public names: there when they are asked for and not before, and the only ones that documentation uses."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

import fedloom

ROOT = Path(__file__).parents[1]
STUB = ast.parse(Path(fedloom.__file__).with_suffix(".pyi").read_bytes())


def test_every_name_is_what_the_stub_says() -> None:
    imports = [node for node in STUB.body if isinstance(node, ast.ImportFrom)]
    said = {alias.name: node.module for node in imports for alias in node.names if alias.name != "*"}
    assert {node.module for node in imports if node.names[0].name == "*"} == {"fedloom.algorithms"}
    said |= dict.fromkeys(import_module("fedloom.algorithms").__all__, "fedloom.algorithms")
    aliases = [alias for node in imports for alias in node.names if alias.name != "*"]
    assert all(alias.asname == alias.name for alias in aliases), "as X: or it is not public"
    assert sorted(said) == sorted(fedloom.__all__)
    for name, module in said.items():
        assert getattr(fedloom, name) is getattr(import_module(str(module)), name)
    assert {*said, "__version__"} <= set(dir(fedloom))


def test_star_imports_all_of_them() -> None:
    found: dict[str, object] = {}
    exec("from fedloom import *", found)
    assert set(fedloom.__all__) <= set(found)


@pytest.mark.slow
def test_nothing_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, fedloom as fl; assert 'torch' not in sys.modules; fl.data.Normalise; fl.FedAvg; "
        "assert 'torch' in sys.modules and 'fedloom.experiments' not in sys.modules; from fedloom import Sweep, run"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_readers_are_names_of_data_too() -> None:
    """As in 0.2.0, where they stood there; and all of them."""
    for room in ("fedloom.sources", "fedloom.tables"):
        readers = import_module(room)
        names = [name for name in readers.__all__ if name[0].islower()]
        assert all(getattr(fedloom.data, name) is getattr(readers, name) for name in names)
    with pytest.raises(AttributeError, match=r"module .fedloom.data. has no attribute 'read_excel'"):
        _ = fedloom.data.read_excel  # type: ignore[attr-defined]


def test_other_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="module 'fedloom' has no attribute 'FedAverage'"):
        _ = fedloom.FedAverage  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'FedAverage' from 'fedloom'"):
        from fedloom import FedAverage  # type: ignore[attr-defined]  # noqa: F401
    assert not hasattr(fedloom, "__main__")  # asking whether it is there must not run it


# ---- what documentation uses


def packages() -> list[str]:
    """The public packages, as docs/api.md lists them."""
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    return ["fedloom", *re.findall(r"^\| `(fedloom\.[\w.]+)` \|", page, re.MULTILINE)]


def private(code: str) -> list[str]:
    """Names of fedloom that some code imports, or reads from `fl`, without their being public."""
    public, found = {name: set(import_module(name).__all__) for name in packages()}, list[str]()
    public["fedloom"] |= {name.removeprefix("fedloom.") for name in public}
    for node in ast.walk(ast.parse(textwrap.dedent(code))):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "fedloom":
            known = public.get(str(node.module), set())
            found += [f"{node.module}.{a.name}" for a in node.names if a.name not in known]
        elif isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.partition(".")[0] == "fedloom" and a.name not in public]
        elif isinstance(node, ast.Attribute):
            written = ast.unparse(node.value)
            package = re.sub(r"^fl(?=\.|$)", "fedloom", written)
            if package in public and node.attr not in public[package]:
                found.append(f"{written}.{node.attr}")
    return found


def test_documentation_and_examples_use_public_names_only() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("papers/docs/*.md")]
    blocks = {
        f"{page.name}, block {number}": code
        for page in pages
        for number, code in enumerate(
            re.findall(r"^ *```python[^\n]*\n(.*?)^ *```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        )
    }
    assert len(blocks) >= 10
    scripts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")}
    found = {place: names for place, code in (blocks | scripts).items() if (names := private(code))}
    assert not found, f"make these names public (docs/api.md says how), or use others: {found}"


def test_a_private_name_is_noticed() -> None:
    assert len(packages()) > 5
    assert private("from fedloom.core.fold import fold") == ["fedloom.core.fold.fold"]
    assert private("from fedloom.data import Partition, IntArray") == ["fedloom.data.IntArray"]
    assert private("import fedloom as fl\nfl.engines.loop.Loop(fl.data.iid)") == ["fl.engines"]
    assert private("import fedloom.core.tree") == ["fedloom.core.tree"]
    assert private("import fedloom as fl\nfl.tree.add(fl.run, fl.data.Normalise())") == []


def test_every_public_package_says_what_it_is_for() -> None:
    for name in packages():
        module = import_module(name)
        assert len((module.__doc__ or "").strip()) > 20, f"{name} has no docstring"
        for public in module.__all__:
            assert hasattr(module, public), f"{name} has no {public}"


def test_names_are_listed_before_they_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(fedloom), "FedAvg", raising=False)
    assert "FedAvg" in dir(fedloom)
