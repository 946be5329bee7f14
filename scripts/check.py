"""Check one file of the library by one command: `make check FILE=moon`.

Its lint and types, the tests that concern it wherever they are, the battery where it is an algorithm, and its wrong
edits: those of the group of its name, and those that change it. What concerns no single file is left to `make test`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/mutants"))

from mutants import chosen, source_of, test_of

ROOT = Path(__file__).resolve().parent.parent
SOURCES, TESTS = ("src", "papers/src"), ("tests", "papers/tests")
MANY = 12  # files of tests that import a file, above which they concern it no more than others do


def steps(name: str) -> list[list[str]]:
    """Return the commands that check the files of this name, without `.py`.

    Raises:
        LookupError: there is no such file in the library.
    """
    sources = sorted(str(p.relative_to(ROOT)) for p in below(SOURCES, f"{name}.py"))
    if not sources:
        raise LookupError(
            f"there is no {name}.py below src or papers/src: FILE is the name of a file without .py, such as moon"
        )
    tests = concerning(name, sources)
    python, both = sys.executable, [*sources, *tests]
    found = [
        [python, "-m", "ruff", "format", "--check", "-q", *both],
        [python, "-m", "ruff", "check", "-q", *both],
        [python, "-m", "mypy", "--no-error-summary", *sources],
    ]
    pytest = [python, "-m", "pytest", "-q", "-m", "slow or not slow"]
    if tests:
        found.append([*pytest, *tests])
    if any(source.startswith("src/fedloom/algorithms/") for source in sources):
        found.append([*pytest, "tests/test_battery.py", "-k", f"[{name}- or [{name}]"])
    if chosen([name]):
        found.append([python, "tests/mutants/mutants.py", name])
    return found


def concerning(name: str, sources: Sequence[str], *, users: bool = True) -> list[str]:
    """Return the files of tests that concern a file.

    Those of its name, those that its wrong edits name, and those that import it, unless many do; where there is none,
    those that concern its users, the files that import it, or else all of its room.
    """
    edits = [edit for edit in chosen([name]) if str(source_of(edit.file, ROOT).relative_to(ROOT)) in sources]
    named = {test_of(test.partition("::")[0]) for edit in edits for test in edit.tests}
    found = {*below(TESTS, f"test_{name}.py"), *named}
    importing = importers(sources, below(TESTS, "test_*.py"))
    if len(importing) <= MANY:
        found.update(importing)
    if not found and users:
        above = importers(sources, below(SOURCES, "*.py"))
        each = (concerning(p.stem, [str(p.relative_to(ROOT))], users=False) for p in above)
        places = (re.sub(r"^(papers/)?src/\w+", r"\1tests", source) for source in sources)
        rooms = ((ROOT / place).parent.glob("test_*.py") for place in places)  # of what a room loads by its name
        return sorted({t for ts in each for t in ts} or {str(p.relative_to(ROOT)) for room in rooms for p in room})
    return sorted(str(p.relative_to(ROOT)) for p in found)


def below(folders: Sequence[str], pattern: str) -> list[Path]:
    """Return the files below some folders whose names are like a pattern."""
    return [path for folder in folders for path in (ROOT / folder).rglob(pattern)]


def importers(sources: Sequence[str], files: Iterable[Path]) -> list[Path]:
    """Return which of some files import one of these sources, or name it as code does that is loaded when asked for."""
    modules = [
        re.sub(r"^(papers/)?src/", "", source).removesuffix(".py").removesuffix("/__init__") for source in sources
    ]
    dotted = [module.replace("/", ".") for module in modules]
    words = [re.escape(module) for module in dotted]
    words += [rf"{re.escape(m.rpartition('.')[0])} import [^\n]*\b{m.rpartition('.')[2]}" for m in dotted]
    words += [rf"(?<=[\"'.]){re.escape(m.partition('.')[2])}" for m in dotted]
    pattern = re.compile(rf"(?:{'|'.join(words)})\b")
    return [p for p in files if str(p.relative_to(ROOT)) not in sources and pattern.search(p.read_text("utf-8"))]


def main(name: str = "") -> int:
    try:
        commands = steps(name)
    except LookupError as error:
        print(error)
        return 2
    start, failed = time.monotonic(), 0
    for command in commands:
        print("$", " ".join(command[1:]), flush=True)
        failed += subprocess.run(command, cwd=ROOT).returncode not in (0, 5)  # 5: no test of this name
    print(f"{'all hold' if not failed else f'{failed} of {len(commands)} fail'} ({time.monotonic() - start:.0f} s)")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
