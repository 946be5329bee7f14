"""Count the library by room: lines of statements, without imports and docstrings; files above 400 lines; circles.

python scripts/size.py [SRC]                SRC: another copy
python scripts/size.py --against COMMIT     before and after, as a table
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tempfile
import tokenize
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import networkx

ROOT = Path(__file__).resolve().parent.parent
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


@dataclass
class Size:
    """What is counted of a copy of the source."""

    statements: Counter[str] = field(default_factory=Counter)  # by room
    lines: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)
    long: dict[str, int] = field(default_factory=dict)  # lines of each file above LONG
    circles: list[list[str]] = field(default_factory=list)

    @classmethod
    def of(cls, root: Path) -> Size:
        """Count the files below a folder."""
        out, graph = cls(), networkx.DiGraph()
        files = {
            ".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): p
            for p in sorted(root.rglob("*.py"))
        }
        for name, path in files.items():
            text = path.read_text(encoding="utf-8")
            room, length = name.split(".")[1] if "." in name else "fedloom", len(text.splitlines())
            out.statements[room] += code(text)
            out.lines[room] += length
            out.files[room] += 1
            if length > LONG:
                out.long[str(path.relative_to(root))] = length
            graph.add_edges_from((name, other) for other in imported(ast.parse(text), {*files}))
        found = networkx.strongly_connected_components(graph)
        out.circles = sorted(sorted(part) for part in found if len(part) > 1)
        return out

    def rows(self) -> dict[str, tuple[int, int, int]]:
        """Return files, lines and statements by room, the room with most statements first, and of all."""
        rows = {room: (self.files[room], self.lines[room], n) for room, n in self.statements.most_common()}
        return {**rows, "all": (self.files.total(), self.lines.total(), self.statements.total())}


def at(commit: str) -> Size:
    """Count the source as it was at a commit of this checkout."""
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
        return Size.of(Path(folder) / "src")


def show(size: Size) -> None:
    """Print the rooms of one copy, its long files and its circles."""
    print(f"{'room':14} files   lines  statements")
    for room, (files, lines, statements) in size.rows().items():
        print(f"{room:14} {files:5} {lines:7} {statements:11}")
    print(
        f"files above {LONG} lines: {len(size.long)}", *(f"{n} {length}" for n, length in size.long.items()), sep="\n  "
    )
    print(f"circles: {len(size.circles)}", *(" ".join(part) for part in size.circles), sep="\n  ")


def compare(before: Size, after: Size) -> None:
    """Print a table in Markdown: what is counted of two copies, by room, and by how much statements differ."""
    print("| room | files | lines | statements | |", "|---|---|---|---|---|", sep="\n")
    old, new = before.rows(), after.rows()
    for room in [*(r for r in {**new, **old} if r != "all"), "all"]:
        pairs = list(zip(old.get(room, (0, 0, 0)), new.get(room, (0, 0, 0)), strict=True))
        cells = " | ".join(f"{a:,}" if a == b else f"{a:,} → {b:,}" for a, b in pairs)
        print(f"| {room} | {cells} | {pairs[2][1] - pairs[2][0]:+,} |")
    print(f"\nFiles above {LONG} lines: {len(before.long)} → {len(after.long)}; circles: "
          f"{len(before.circles)} → {len(after.circles)}.")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("src", nargs="?", type=Path, default=ROOT / "src")
    parser.add_argument("--against", metavar="COMMIT")
    args = parser.parse_args()
    if args.against is None:
        show(Size.of(args.src))
    else:
        compare(at(args.against), Size.of(args.src))


if __name__ == "__main__":
    main()
