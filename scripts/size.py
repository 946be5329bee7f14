"""Count the library by room: statements without imports and docstrings, lines, files above 400 lines, circles of files.

python scripts/size.py [SRC]     SRC: another copy, to compare with
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

LONG = 400


def statements(tree: ast.AST) -> int:
    """Return how many statements there are, without imports and strings that stand alone, such as docstrings."""
    skipped = (ast.Import, ast.ImportFrom)
    return sum(
        isinstance(node, ast.stmt)
        and not isinstance(node, skipped)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in ast.walk(tree)
    )


def imported(tree: ast.AST, modules: set[str]) -> set[str]:
    """Return the modules of these that a file imports, within functions too."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & modules


def circles(uses: dict[str, set[str]]) -> list[list[str]]:
    """Return the sets of files that import one another, directly or not (Tarjan's strongly connected components)."""
    number, low, stack, found = dict[str, int](), dict[str, int](), list[str](), list[list[str]]()

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in sorted(uses[name]):
            if other not in number:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == number[name]:
            part = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(part) > 1:
                found.append(sorted(part))

    for name in sorted(uses):
        if name not in number:
            visit(name)
    return found


def main(source: str = "src") -> None:
    root = Path(source)
    files = {
        ".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): p
        for p in sorted(root.rglob("*.py"))
    }
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in files.items()}
    count, lines, number = Counter[str](), Counter[str](), Counter[str]()
    long = list[str]()
    for name, path in files.items():
        room = name.split(".")[1] if "." in name else "fedloom"
        length = len(path.read_text(encoding="utf-8").splitlines())
        count[room] += statements(trees[name])
        lines[room] += length
        number[room] += 1
        long += [f"{path.relative_to(root)} {length}"] * (length > LONG)
    print(f"{'room':14} files   lines  statements")
    for room, found in count.most_common():
        print(f"{room:14} {number[room]:5} {lines[room]:7} {found:11}")
    print(f"{'all':14} {number.total():5} {lines.total():7} {count.total():11}")
    print(f"files above {LONG} lines: {len(long)}", *long, sep="\n  ")
    modules = set(files)
    found = circles({name: imported(tree, modules) - {name} for name, tree in trees.items()})
    print(f"circles: {len(found)}", *(" ".join(part) for part in found), sep="\n  ")


if __name__ == "__main__":
    main(*sys.argv[1:])
