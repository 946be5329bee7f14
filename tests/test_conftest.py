"""Which slow tests CI leaves out, and that all processes collect the same ones."""

from __future__ import annotations

import ast
from pathlib import Path

from conftest import out_of_turn

ROOT = Path(__file__).parent

CASES = [*(f"a.py::test_table[{i}]" for i in range(200)), *(f"b.py::test_{i}" for i in range(200))]


def test_each_slow_test_has_its_turn_within_a_few_commits() -> None:
    """At a commit a quarter of 400 cases and tests run, at another one maybe others."""
    left = [out_of_turn(CASES, 4, f"commit {i}") for i in range(30)]
    assert all(270 < len(each) < 330 for each in left)
    assert set.intersection(*left) == set()
    assert out_of_turn(CASES, 4, "a") == out_of_turn(CASES, 4, "a")


def test_cases_stand_in_an_order() -> None:
    """Of a set the order is another one in each process, and processes that share the tests must collect the same."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(ROOT.rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("parametrize") and _is_set(node.args[1])
    ]
    assert not found, f"cases of a set: {found}"
    assert _is_set(ast.parse("ALGORITHMS.keys() - {'fedavg'}", mode="eval").body)
    assert not _is_set(ast.parse("[*ALGORITHMS]", mode="eval").body)


def _is_set(cases: ast.expr) -> bool:
    match cases:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.BinOp(left=left, op=ast.Sub() | ast.BitOr() | ast.BitAnd(), right=right):
            return any(isinstance(side, ast.Set) or ".keys()" in ast.unparse(side) for side in (left, right))
    return False
