"""Benchmarks, which no test runs, read nothing of the package that is not there."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedloom

FILES = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.stem)
def test_what_is_read_of_modules_is_there(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    modules, names = {}, list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedloom"):
            home = importlib.import_module(str(node.module))
            for alias in node.names:
                found = getattr(home, alias.name, None) or importlib.import_module(f"{node.module}.{alias.name}")
                names.append(alias.name)
                if inspect.ismodule(found):
                    modules[alias.asname or alias.name] = found
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "fedloom":
                    modules[alias.asname or alias.name] = importlib.import_module(alias.name)
    assert names or modules or file.stem in ("rows", "start")  # which have nothing of it, or in the text of a program
    read = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    gone = [
        f"{n.value.id}.{n.attr}" for n in read if n.value.id in modules and not hasattr(modules[n.value.id], n.attr)
    ]  # type: ignore[attr-defined]
    assert gone == []


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FILES[0].parent))
    return importlib.import_module("rows")


PART = """
import json, sys, time
for case in ("a", "b", "c"):
    if case in json.loads(sys.argv[1]):
        continue
    if case == sys.argv[2]:
        {then}
    print("ROW " + json.dumps(dict(part="p", case=case, seconds=1.5)), flush=True)
"""


@pytest.mark.parametrize(
    ("then", "limit", "said"),
    [("sys.exit('no memory is left')", 60, "no memory is left"), ("time.sleep(60)", 1.0, "stopped after 1 s")],
)
def test_a_part_that_fails_keeps_its_rows_and_goes_on(
    rows: Any, tmp_path: Path, then: str, limit: float, said: str
) -> None:
    """Wrong edits: an error that ends all parts, and cases that are measured anew after a stop."""
    program = tmp_path / "part.py"
    program.write_text(PART.format(then=then))
    rows.measure("p", tmp_path, [str(program), "[]", "b"], limit)
    assert [(row["case"], row.get("error")) for row in rows.read(tmp_path)] == [("a", None), ("", said)]
    with open(tmp_path / "rows.jsonl", "a") as file:
        file.write('{"part": "p", "ca')  # as a killed call leaves it
    assert rows.done(tmp_path, "p") == ["a"]
    rows.measure("p", tmp_path, [str(program), json.dumps(["a"]), ""], 60)
    assert [row["case"] for row in rows.read(tmp_path)] == ["a", "b", "c"]
    assert rows.table(rows.read(tmp_path)).splitlines()[2:] == [f"| {case} | 1.5 |" for case in "abc"]


@pytest.mark.slow
def test_the_hour_on_a_gpu_in_small_on_the_cpu(tmp_path: Path) -> None:
    """All parts but the long ones: each has rows, and none an error."""
    parts = ("machine", "public", "memory", "adapters", "agreement")
    command = [sys.executable, str(FILES[0].parent / "gpu.py"), "--out", str(tmp_path), "--device", "cpu", "--small"]
    subprocess.run([*command, "--only", *parts], check=True, timeout=600)
    found = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {row["part"] for row in found} == set(parts)
    assert [row for row in found if "error" in row] == []
    assert {row["case"] for row in found if row["part"] == "agreement"} == set(fedloom.algorithms.ALGORITHMS)
    assert max(row["difference"] for row in found if row["part"] == "agreement") < 1e-12
