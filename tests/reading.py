"""Which golden files a test reads and how closely it compares, told from its source and what that refers to."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from conftest import GOLDEN

TESTS = Path(__file__).parent
PAPERS = TESTS.parent / "papers/tests"
SHARED = TESTS.parent / "conftest.py"
FILES = {
    str(path.relative_to(GOLDEN)).removesuffix(".npz"): path
    for path in sorted(GOLDEN.glob("*/*"))
    if path.name != "README.md" and path.suffix != ".py"  # how they were made
}  # by the name that `conftest.golden` takes
TOLERANCES = ("rtol", "atol", "rel", "abs")
DEFAULTS = {"assert_allclose": ("rtol", 1e-7), "approx": ("rel", 1e-6), "assert_close": ("rtol", 1.3e-6)}


@functools.cache
def definitions(path: Path) -> dict[str, ast.stmt | tuple[Path, str]]:
    """What each name at the top of a module is: a statement, or a name of another module of the tests."""
    found: dict[str, ast.stmt | tuple[Path, str]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {n.id: node for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and node.module:
            homes = [folder / f"{node.module}.py" for folder in (path.parent, TESTS, PAPERS, SHARED.parent)]
            home = next((h for h in homes if h.exists()), None)
            found |= {a.asname or a.name: (home, a.name) for a in node.names if home}
    return found


def functions() -> list[str]:
    """All test functions, as `algorithms/test_golden.py::test_ntd_loss`; of fedloom-papers `papers/...`."""
    return [
        f"{start}{path.relative_to(folder)}::{name}"
        for start, folder in (("", TESTS), ("papers/", PAPERS))
        for path in sorted(folder.rglob("test_*.py"))
        for name, node in definitions(path).items()
        if isinstance(node, ast.FunctionDef) and name.startswith("test_")
    ]


@functools.cache
def _nodes(test: str) -> tuple[list[ast.AST], bool]:
    """All nodes of a test, of what its module and the helpers beside it define for it; whether it calls `golden`."""
    file, _, function = test.partition("::")
    inside = file.removeprefix("papers/")
    path = TESTS / file if inside == file else PAPERS / inside
    waiting, seen, reads, nodes = [(path, function)], set(), False, list[ast.AST]()
    while waiting:
        path, name = waiting.pop()
        if (path, name) in seen:
            continue
        seen.add((path, name))
        what = definitions(path).get(name)
        if isinstance(what, tuple):
            reads |= what == (SHARED, "golden")
            waiting += [what] if what[0] != SHARED else []
        elif what is not None:
            inside, names = _inside(path, name)
            nodes += inside
            waiting += [(path, n) for n in names]
    return nodes, reads


@functools.cache
def _inside(path: Path, name: str) -> tuple[list[ast.AST], list[str]]:
    """All nodes of what a module defines by this name, and the names that they mention; many tests share it."""
    inside = list(ast.walk(definitions(path)[name]))  # type: ignore[arg-type]
    names = {n.id if isinstance(n, ast.Name) else n.arg for n in inside if isinstance(n, ast.Name | ast.arg)}
    return inside, sorted(names)


def files(test: str) -> set[str]:
    """The golden files whose names it spells out, f-strings filled with its own strings."""
    nodes, reads = _nodes(test)
    if not reads:
        return set()
    strings = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    patterns = [
        "".join(re.escape(str(v.value)) if isinstance(v, ast.Constant) else "(.+)" for v in n.values)
        for n in nodes
        if isinstance(n, ast.JoinedStr)
    ]
    filled = [m for f in FILES for p in patterns if (m := re.fullmatch(p, f)) and set(m.groups()) <= strings]
    return (strings & FILES.keys()) | {m.string for m in filled}


def tolerances(test: str) -> set[float]:
    """What its comparisons allow, the larger of relative and absolute; none where all are exact."""
    nodes, _ = _nodes(test)
    denied = {id(n) for node in nodes if isinstance(node, ast.UnaryOp) for n in ast.walk(node)}  # assert not ...
    nodes = [n for n in nodes if id(n) not in denied]
    helpers = {n.name: n for n in nodes if isinstance(n, ast.FunctionDef)}
    return {t for node in nodes for t in _allowed(node, helpers) if t}


def on_both_engines(test: str) -> bool:
    """Whether it runs on the loop and on the stack."""
    nodes, _ = _nodes(test)
    names = {n.id for n in nodes if isinstance(n, ast.Name)}
    return any(n.endswith("Loop") for n in names) and any(n.endswith("Stacked") for n in names)


def _allowed(node: ast.AST, helpers: dict[str, ast.FunctionDef]) -> Iterator[float]:
    if isinstance(node, ast.Dict):
        named = [(k.value, v) for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)]
        yield max((_number(v) for name, v in named if name in TOLERANCES), default=0.0)
    if isinstance(node, ast.Compare) and all(isinstance(op, ast.Lt | ast.LtE) for op in node.ops):
        bound = _number(node.comparators[-1])
        yield bound if isinstance(bound, float) and bound <= 1e-3 else 0.0
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {k.arg: _number(k.value) for k in node.keywords}
        yield max((value for key, value in given.items() if key in TOLERANCES), default=0.0)
        if name == "close" and len(node.args) == 4:  # of fedloom.testing
            yield _number(node.args[3])
        if None not in given:  # no ** that might name it
            if name in DEFAULTS and not (DEFAULTS[name][0] in given or (name == "approx" and "abs" in given)):
                yield DEFAULTS[name][1]
            if name in helpers:
                inner = helpers[name].args
                pairs = zip(inner.kwonlyargs, inner.kw_defaults, strict=True)
                yield max((_number(d) for a, d in pairs if a.arg in TOLERANCES and a.arg not in given), default=0.0)


def _number(node: ast.AST | None) -> float:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, float | int) else 0.0
