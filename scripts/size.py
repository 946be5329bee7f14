"""Count the source by room: lines of statements, without imports and docstrings; files above 400 lines; circles.

The kernel computes a run and imports no neighbour. What of the library one must know who changes a round is the closure
of imports behind `fedloom.run`, and with all methods behind `fedloom.algorithms` too. fedloom-papers is one room here,
`papers`; `wheel` is what the wheel of fedloom itself holds.

python scripts/size.py [SRC ...]            SRC: another copy
python scripts/size.py --against COMMIT     before and after, as a table
python scripts/size.py --write              renew the column "now" of docs/design.md; a test allows it to be 3 % off
python scripts/size.py --words              words of the pages that are written by hand
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import networkx

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "design.md"
SOURCES = ("src", "papers/src")
LONG = 400
KERNEL = ("data", "core", "tasks", "models", "storage", "algorithms", "engines", "evaluate", "coordinator")
COMMON = ("display", "wording")  # below all rooms
RUN, METHODS = "fedloom.coordinator", "fedloom.algorithms"
MOST_WORDS = 50_000  # on pages that are written by hand, which a test allows
MADE_TABLES = (  # by scripts/make_index.py, which finds them by their heads
    "| key | flag | type | default | meaning |",
    "| measure | unit | range | better | meaning |",
    "| family | names |",
    "| name | what | files, below the folder | run on |",
    "| name | from | SHA-256 as published by |",
    "| on the command line | unless given | in Python | what | from |",
    "| name | what | parameters | for | settings |",
    "| name | loss |",
    "| word | behind the path | meaning |",
    "| `clients.sampler` | in Python, from `fedloom.coordinator` | selects |",
    "| name | what it measures |",
    "| name | study | what it measures |",
)
_LOADED = "import sys, fedloom; fedloom.run; print(*(m for m in sys.modules if m.split('.')[0] == 'fedloom'))"


def code(text: str) -> int:
    """Return how many lines have code; blank ones, comments, imports and docstrings have none."""
    written = enumerate(map(str.strip, text.splitlines()), 1)
    lines = {n for n, line in written if line and line[0] != "#"}
    strings, nothing = set[int](), set[int]()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(ast.Constant(str())) | ast.Import() | ast.ImportFrom():
                nothing.update(range(node.lineno, (node.end_lineno or 0) + 1))
            case ast.Constant() | ast.JoinedStr() if node.end_lineno != node.lineno:
                strings.update(range(node.lineno, (node.end_lineno or 0) + 1))  # whose lines may be blank
    return len((lines | strings) - nothing)


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


def closure(starts: Iterable[str], imports: networkx.DiGraph[str]) -> set[str]:
    """Return modules with all that they import, and what their packages do, again and again."""
    found, left = set[str](), [name for name in starts if name in imports]
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += [*imports[name], *(parent for parent in [name.rpartition(".")[0]] if parent in imports)]
    return found


def is_neighbour(module: str) -> bool:
    """Return whether a module of the library is in no room of the kernel, nor in one below all."""
    return "." in module and module.split(".")[1] not in (*KERNEL, *COMMON)


def neighbours(tree: ast.AST) -> list[str]:
    """Return the modules of neighbours that a file imports, within functions too, one for each import."""
    found = list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "fedloom":
            found += [f"fedloom.{alias.name}" for alias in node.names if not alias.name.startswith("_")]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return [name for name in found if name.split(".")[0] == "fedloom" and is_neighbour(name)]


def members(of: ast.ClassDef) -> set[str]:
    """Return the public names that a class defines in its body: fields, methods, properties."""
    named = {node.name for node in of.body if isinstance(node, ast.FunctionDef)}
    named |= {ast.unparse(node.target) for node in of.body if isinstance(node, ast.AnnAssign)}
    return {name for name in named if not name.startswith("_")}


def loaded(root: Path) -> list[str]:
    """Return the modules of the library below a folder that `fedloom.run` loads."""
    run = subprocess.run(
        [sys.executable, "-c", _LOADED], env={**os.environ, "PYTHONPATH": str(root)}, check=True, capture_output=True
    )
    return sorted(run.stdout.decode().split())


@dataclass
class Size:
    """Counts of a copy of the source."""

    statements: Counter[str] = field(default_factory=Counter)  # by room, and of the wheel
    lines: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)
    long: dict[str, int] = field(default_factory=dict)  # lines of each file above LONG
    circles: list[list[str]] = field(default_factory=list)
    closures: dict[str, int] = field(default_factory=dict)  # statements behind a run, and with all methods
    edges: list[str] = field(default_factory=list)  # imports of neighbours in the kernel, as "file imports module"
    loaded: list[str] = field(default_factory=list)
    members: int = 0  # public ones of `Algorithm`
    centre: int = 0  # statements of `Coordinator`

    @classmethod
    def of(cls, *roots: Path) -> Size:
        """Count the files below some folders."""
        out, graph, each = cls(), networkx.DiGraph(), dict[str, int]()
        files = {
            ".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): (p, p.relative_to(root))
            for root in roots
            for p in sorted(root.rglob("*.py"))
        }
        for name, (path, place) in files.items():
            text, (package, _, inside) = path.read_text(encoding="utf-8"), name.partition(".")
            room, tree = inside.partition(".")[0] or package, ast.parse(text)
            length = len(text.splitlines())
            each[name] = code(text)
            for counted in (room, "wheel") if package == "fedloom" else (package.removeprefix("fedloom_"),):
                out.statements[counted] += each[name]
                out.lines[counted] += length
                out.files[counted] += 1
            if length > LONG:
                out.long[str(place)] = length
            graph.add_node(name)
            graph.add_edges_from((name, other) for other in imported(tree, {*files}))
            for node in tree.body:
                match room, node:
                    case "core", ast.ClassDef("Algorithm"):
                        out.members = len(members(node))
                    case "coordinator", ast.ClassDef("Coordinator"):
                        out.centre = code(ast.get_source_segment(text, node) or "")
            if room in KERNEL:
                out.edges += [f"{place} imports {other}" for other in neighbours(tree)]
        found = networkx.strongly_connected_components(graph)
        for name, starts in (("fedloom.run", [RUN]), ("fedloom.run with all methods", [RUN, METHODS])):
            out.closures[name] = sum(each[module] for module in closure(starts, graph))
        out.circles = sorted(sorted(part) for part in found if len(part) > 1)
        return out

    def rows(self) -> dict[str, tuple[int, int, int]]:
        """Return files, lines and statements by room, the room with most statements first, of the wheel and of all."""
        rows = {room: (self.files[room], self.lines[room], n) for room, n in self.statements.most_common()}
        wheel = rows.pop("wheel", (0, 0, 0))
        files, lines, statements = map(sum, zip(*rows.values(), strict=True))
        return {**rows, "wheel": wheel, "all": (files, lines, statements)}

    def kernel(self) -> dict[str, int]:
        """Return the numbers of the kernel, by what is counted."""
        return {
            "modules that fedloom.run loads": len(self.loaded),
            "of these, of neighbours": sum(map(is_neighbour, self.loaded)),
            **{f"statements behind {name}": n for name, n in self.closures.items()},
            "statements of the wheel": self.statements["wheel"],
            "imports of neighbours in the kernel": len(self.edges),
            "members of Algorithm": self.members,
            "statements of Coordinator": self.centre,
        }


def counted(*roots: Path) -> Size:
    """Count the files below some folders, and the modules that a run loads of the first."""
    out = Size.of(*roots)
    out.loaded = loaded(roots[0])
    return out


def at(commit: str) -> Size:
    """Count the source as it was at a commit of this checkout."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, [one for one in files if one.name.startswith(SOURCES)], filter="data")
        return counted(*(Path(folder, source) for source in SOURCES))


def show(size: Size) -> None:
    """Print the rooms of one copy, its long files and its circles."""
    print(f"{'room':14} files   lines  statements")
    for room, (files, lines, statements) in size.rows().items():
        print(f"{room:14} {files:5} {lines:7} {statements:11}")
    print(
        f"files above {LONG} lines: {len(size.long)}", *(f"{n} {length}" for n, length in size.long.items()), sep="\n  "
    )
    print(f"circles: {len(size.circles)}", *(" ".join(part) for part in size.circles), sep="\n  ")
    print("the kernel and its neighbours:", *(f"{n:7,} {what}" for what, n in size.kernel().items()), sep="\n  ")


def compare(before: Size, after: Size) -> None:
    """Print a table in Markdown: what is counted of two copies, by room, and by how much statements differ."""
    print("| room | files | lines | statements | |", "|---|---|---|---|---|", sep="\n")
    old, new = before.rows(), after.rows()
    for room in [*(r for r in {**new, **old} if r not in ("wheel", "all")), "wheel", "all"]:
        pairs = list(zip(old.get(room, (0, 0, 0)), new.get(room, (0, 0, 0)), strict=True))
        cells = " | ".join(f"{a:,}" if a == b else f"{a:,} → {b:,}" for a, b in pairs)
        print(f"| {room} | {cells} | {pairs[2][1] - pairs[2][0]:+,} |")
    print(f"\nFiles above {LONG} lines: {len(before.long)} → {len(after.long)}; circles: "
          f"{len(before.circles)} → {len(after.circles)}.")  # fmt: skip
    print("\n| the kernel and its neighbours | |", "|---|---|", sep="\n")
    new_numbers = after.kernel()
    for what, n in before.kernel().items():
        print(f"| {what} | {n:,} → {new_numbers[what]:,} |")


def rows_of(page: str) -> dict[str, tuple[int, int, int]]:
    """Return the numbers of the kernel on a page, by what is counted: before, now, and the most that there may be."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()]
    whole = [cell for cell in cells if len(cell) == 4 and all(re.fullmatch(r"[\d,]+", n) for n in cell[1:])]
    return {what: (number(before), number(now), number(most)) for what, before, now, most in whole}


def number(cell: str) -> int:
    """Return the number of a cell: 1,234."""
    return int(cell.replace(",", ""))


def renewed(page: str, numbers: Mapping[str, int]) -> str:
    """Return a page with other numbers in the column "now"."""
    for what, n in numbers.items():
        page = re.sub(rf"(?m)^(\| {re.escape(what)} \| [\d,]+ \|) [\d,]+ \|", rf"\1 {n:,} |", page)
    return page


def words(page: str) -> int:
    """Return how many words of a page are written by hand: what has a letter, but code blocks and what scripts make."""
    page = re.sub(r"(?s)<!-- made by .*?(?:to here -->|\Z)|<!--.*?-->", "", page)
    page = re.sub(r"(?ms)^ *```.*?^ *```$", "", page)
    page = re.sub(r"(?m)(?:\A|(?<=\n\n))(?:    .*\n?(?:\n(?=    ))*)+", "", page)
    for head in MADE_TABLES:
        page = re.sub(rf"(?m)^{re.escape(head)}\n(?:\|.*\n?)+", "", page)
    page = re.sub(r"\]\([^)\s]*\)", "]", page)  # where a link leads
    return sum(bool(re.search("[A-Za-z]", word)) for word in page.split())


def pages() -> dict[str, int]:
    """Return the words of each page of which some are written by hand, the longest first."""
    docs, papers = ROOT / "docs", ROOT / "papers" / "docs"
    kept = {*docs.glob("results/*"), papers / "claims.md"}
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    found += [page for page in [*docs.rglob("*.md"), *papers.glob("*.md")] if page not in kept]
    counts = {str(page.relative_to(ROOT)): words(page.read_text(encoding="utf-8")) for page in found}
    return {page: n for page, n in sorted(counts.items(), key=lambda one: -one[1]) if n}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("src", nargs="*", type=Path, default=[ROOT / source for source in SOURCES])
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--words", action="store_true")
    args = parser.parse_args()
    if args.words:
        print(*(f"{n:7,} {page}" for page, n in [*pages().items(), ("all", sum(pages().values()))]), sep="\n")
    elif args.write:
        numbers = counted(*args.src).kernel()
        PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), numbers), encoding="utf-8")
    elif args.against is None:
        show(counted(*args.src))
    else:
        compare(at(args.against), counted(*args.src))


if __name__ == "__main__":
    main()
