"""Move modules and rename words, everywhere at once: imports, paths in docs and tables, wrong edits, strings.

    python scripts/move.py TABLE

A line of TABLE is one change; `#` begins a comment:

    core/files.py -> storage/files.py            a file of src/fedloom, or below tests/ or papers/
    fedloom.report.analyse -> fedloom.analyses.analyse    a name that another package exports: where it is imported
    epitaph => exit_reason                       a word, wherever it stands whole in code, tests, edits and docs

Files are moved by `git mv`, so that their history stays. Kept results and the golden files are never written on.
Afterwards: `ruff check --fix` sorts the imports.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "src/fedloom/"
TEXTS = {".py", ".pyi", ".md", ".toml", ".txt", ".html", ".js", ".css", ".cfg", ".yml", ""}
NEVER = ("tests/golden/", "LICENSE", "src/fedloom/sources/embedded/", "tests/scripts/test_move.py")

Table = dict[str, str]


def read_table(text: str) -> tuple[Table, Table]:
    """Return the moves of files, by their paths from the root, and of names; and the new words by the old ones.

    Raises:
        ValueError: a line is neither.
    """
    moves, words = Table(), Table()
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        if found := re.fullmatch(r"(\S+\.py) -> (\S+\.py)", line):
            old, new = (p if p.startswith(("tests/", "papers/")) else PACKAGE + p for p in found.groups())
            moves[old] = new
        elif found := re.fullmatch(r"(fedloom[\w.]+) -> (fedloom[\w.]+)", line):
            moves[found[1]] = found[2]
        elif found := re.fullmatch(r"(\w+) => (\w+)", line):
            words[found[1]] = found[2]
        else:
            raise ValueError(
                f"a line is `a/b.py -> c/b.py`, `fedloom.a.x -> fedloom.b.x` or `old => new`, got {line!r}"
            )
    return moves, words


def module(path: str) -> str:
    """src/fedloom/core/files.py -> fedloom.core.files; a name of the package stays as it is."""
    if path.startswith("fedloom."):
        return path
    return ".".join(Path(path).with_suffix("").parts[1:]).removesuffix(".__init__")


def rewritten(text: str, python: bool, moves: Table, words: Table) -> str:
    """Return a file's text after the moves and with the new words."""
    modules = {module(a): module(b) for a, b in moves.items() if a.startswith((PACKAGE, "fedloom."))}
    if python:
        text = _imports_apart(text, modules)
    changes = dict(modules)
    for old, new in moves.items():  # src/fedloom/core/files.py, core/files.py; tests/core/test_files.py, core/test_...
        for start in {"", "src/", PACKAGE, "tests/"}:
            if old.startswith(start) and "/" in old.removeprefix(start):
                changes[old.removeprefix(start)] = new.removeprefix(start)
    if changes:
        text = re.sub(rf"(?<![\w./]){_any(changes)}(?!\w)(?!/\w)", lambda m: changes[m[0]], text)
    if words:
        text = re.sub(rf"\b{_any(words)}\b", lambda m: words[m[0]], text)
    return text


def _any(table: Table) -> str:
    """Return a pattern of what a table changes, the longest first."""
    return f"(?:{'|'.join(map(re.escape, sorted(table, key=len, reverse=True)))})"


def _imports_apart(text: str, modules: Table) -> str:
    """`from fedloom.core import files, tree` as two imports, where `files` moves to another package."""
    lines = text.splitlines(keepends=True)
    found = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom) and n.module and not n.level]
    for node in sorted(found, key=lambda n: n.lineno, reverse=True):
        leaving = [a for a in node.names if f"{node.module}.{a.name}" in modules]
        if not leaving:
            continue
        staying = [a for a in node.names if a not in leaving]
        parts = [f"from {node.module} import {', '.join(map(ast.unparse, staying))}"] if staying else []
        for alias in leaving:
            home, _, name = modules[f"{node.module}.{alias.name}"].rpartition(".")
            called = alias.asname or alias.name
            parts.append(f"from {home} import {name}" + (f" as {called}" if alias.asname or called != name else ""))
        assert node.end_lineno is not None
        indent = " " * node.col_offset
        lines[node.lineno - 1 : node.end_lineno] = [f"{indent}{part}\n" for part in parts]
    return "".join(lines)


def main(table: str) -> None:
    moves, words = read_table(Path(table).read_text(encoding="utf-8"))
    for old, new in moves.items():
        if "/" not in old:
            continue
        (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", old, new], cwd=ROOT, check=True)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        path = ROOT / name
        kept = "docs/results/" in name and path.suffix != ".md"  # what runs have written
        if path.suffix not in TEXTS or kept or name.startswith(NEVER) or path == Path(__file__).resolve():
            continue
        before = path.read_text(encoding="utf-8")
        if (after := rewritten(before, path.suffix in (".py", ".pyi"), moves, words)) != before:
            path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
