"""Count the library by room: lines of statements, without imports and docstrings; files above 400 lines; circles.

python scripts/size.py [SRC]     SRC: another copy, to compare with
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

import networkx

LONG = 400


def code(text: str) -> int:
    """Return how many lines have code; blank ones, comments, imports and docstrings have none."""
    nothing = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {n for t in tokens if t.type not in nothing for n in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        alone = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if alone or isinstance(node, ast.Import | ast.ImportFrom):
            lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(lines)


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


def main(source: str = "src") -> None:
    root = Path(source)
    files = {
        ".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): p
        for p in sorted(root.rglob("*.py"))
    }
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    statements, lines, number = Counter[str](), Counter[str](), Counter[str]()
    long = list[str]()
    graph = networkx.DiGraph()
    for name, text in texts.items():
        room, length = name.split(".")[1] if "." in name else "fedloom", len(text.splitlines())
        statements[room] += code(text)
        lines[room] += length
        number[room] += 1
        long += [f"{files[name].relative_to(root)} {length}"] * (length > LONG)
        graph.add_edges_from((name, other) for other in imported(ast.parse(text), {*files}))
    print(f"{'room':14} files   lines  statements")
    for room, count in statements.most_common():
        print(f"{room:14} {number[room]:5} {lines[room]:7} {count:11}")
    print(f"{'all':14} {number.total():5} {lines.total():7} {statements.total():11}")
    print(f"files above {LONG} lines: {len(long)}", *long, sep="\n  ")
    found = sorted(sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1)
    print(f"circles: {len(found)}", *(" ".join(part) for part in found), sep="\n  ")


if __name__ == "__main__":
    main(*sys.argv[1:])
