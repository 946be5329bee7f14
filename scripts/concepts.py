"""Count what a reader of an algorithm's file must know that the file itself does not say.

    python scripts/concepts.py [FILE ...]    without files: those of src/fedloom/algorithms

Counted are distinct names: those that are imported (`from __future__` and fedloom itself apart), and attributes that
are read. Not counted are names that the file itself defines (classes, fields, functions, methods; an attribute of that
name included), names with double underscores, and an attribute whose name is imported too (it is counted once). So a
method that is inherited counts, a parameter does not, and what is said in a docstring is free. `from x import *` is
refused: it would hide names.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ALGORITHMS = Path(__file__).parents[1] / "src/fedloom/algorithms"


def concepts(text: str) -> tuple[set[str], set[str]]:
    """(imported names, attributes that are read and not defined here) of a file's source."""
    nodes = list(ast.walk(ast.parse(text)))
    imports = [n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)]
    aliases = [alias for n in imports if getattr(n, "module", "") != "__future__" for alias in n.names]
    aliases = [alias for alias in aliases if alias.name != "fedloom"]
    imported = {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
    if "*" in imported:
        raise ValueError("a star import hides names: import each")
    defined = {n.name for n in nodes if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    for line in (line for n in nodes if isinstance(n, ast.ClassDef) for line in n.body):
        fields = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
        defined |= {field.id for field in fields if isinstance(field, ast.Name)}
    read = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
    return imported, {name for name in read - defined - imported if not name.startswith("__")}


def main(paths: list[Path]) -> None:
    """Print a line for each file, the most demanding first."""
    found = {path.stem: concepts(path.read_text(encoding="utf-8")) for path in paths}
    for name, (imported, read) in sorted(found.items(), key=lambda item: -sum(map(len, item[1]))):
        print(f"{name:12s} {len(imported) + len(read):3d} = {len(imported)} imported + {len(read)} read")


if __name__ == "__main__":
    main([Path(p) for p in sys.argv[1:]] or [p for p in sorted(ALGORITHMS.glob("*.py")) if p.stem != "__init__"])
