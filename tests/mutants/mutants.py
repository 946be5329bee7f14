"""Which small wrong edits the tests notice: `make mutants`, or this file with names of groups or files.

`edits/GROUP.toml` has those of an algorithm or of a part of the library, such as a tired person makes:

    [[edits]]
    name = ""      # what is wrong; S1 to S12 once survived all tests
    file = ""      # below src/fedloom, or papers/... of fedloom-papers
    old = ""       # stands in the file exactly once; short, so that it outlives other changes
    new = ""
    tests = [""]   # below tests, as pytest names them: few and fast, each passes without the edit

An edit changes what is computed. One that no test can notice, since both texts mean the same, is none.

Each edit is made on a copy of the source, alone, and the tests it names are run against that copy. It is killed where
one of them fails. Exit status 1 if an edit survives, does not apply, or breaks the code instead of changing what it
computes. `--without` lists the source files that have logic and no edit.
"""

from __future__ import annotations

import ast
import compileall
import difflib
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).with_name("edits")
PROCESSES, SECONDS = 2, 600  # side by side; for the tests of one edit
LOGIC = (
    *(ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.match_case, ast.comprehension),
    *(ast.Compare, ast.BoolOp, ast.BinOp, ast.AugAssign),
)
BROKEN = re.compile(r"\b(NameError|UnboundLocalError|ImportError|ModuleNotFoundError|SyntaxError|IndentationError)\b")
# The copy is what is tested: any other fedloom is an error of this tool, whose status no test gives.
ELSEWHERE = 90
RUN = (
    "import sys, pathlib, fedloom, pytest\n"
    "here = pathlib.Path(sys.argv[1]) in pathlib.Path(fedloom.__file__).parents\n"
    f"sys.exit(pytest.main(sys.argv[2:]) if here else {ELSEWHERE})"
)


def source_of(file: str, root: Path) -> Path:
    """Return the path of a file that an edit names: below src/fedloom, or papers/... of fedloom-papers."""
    inside = file.removeprefix("papers/")
    return root / "src/fedloom" / file if inside == file else root / "papers/src/fedloom_papers" / inside


def test_of(file: str) -> Path:
    """Return the path of a file of tests that an edit names: below tests, or papers/... of fedloom-papers."""
    inside = file.removeprefix("papers/")
    return ROOT / "tests" / file if inside == file else ROOT / "papers/tests" / inside


@dataclass(frozen=True)
class Edit:
    """One wrong edit, and the group whose file has it."""

    group: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.group}: {self.name}"

    def on(self, text: str) -> str:
        """The text of the file with the edit.

        Raises:
            LookupError: `old` does not stand there exactly once.
        """
        count = text.count(self.old)
        if count != 1:
            raise LookupError(f"{self.label}: {self.file} has this {count} times, not once:\n{self._where(text)}")
        return text.replace(self.old, self.new)

    def _where(self, text: str) -> str:
        """What is looked for, and the lines that resemble it."""
        lines = [
            f"    {self.old!r}",
            f"  tests/mutants/edits/{self.group}.toml is to name what stands in {self.file} now, maybe in",
        ]
        numbered = list(enumerate(text.splitlines(), 1))
        first = self.old.strip().splitlines()[0].strip()
        exact = [(n, line) for n, line in numbered if first in line]
        near = difflib.get_close_matches(first, [line.strip() for _, line in numbered], n=3, cutoff=0.4)
        found = exact or [(n, line) for n, line in numbered if line.strip() in near]
        return "\n".join([*lines, *(f"    {n}: {line.strip()}" for n, line in found[:6])])


def read() -> list[Edit]:
    """The edits of all groups."""
    return [
        Edit(group=file.stem, **{**entry, "tests": tuple(entry["tests"])})
        for file in sorted(LISTS.glob("*.toml"))
        for entry in tomllib.loads(file.read_text(encoding="utf-8"))["edits"]
    ]


def chosen(names: Sequence[str]) -> list[Edit]:
    """Return the edits of the groups or files of these names; all of them where none is named."""
    return [e for e in read() if not names or e.group in names or Path(e.file).stem in names]


def has_logic(file: Path) -> bool:
    """Return whether a function of a file branches, loops, compares or computes; imports and constants do not."""
    functions = (n for n in ast.walk(ast.parse(file.read_bytes())) if isinstance(n, ast.FunctionDef))
    return any(isinstance(node, LOGIC) for each in functions for line in each.body for node in ast.walk(line))


def without() -> list[Path]:
    """Return the source files that have logic and no wrong edit."""
    edited = {source_of(edit.file, ROOT) for edit in read()}
    files = sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("papers/src/**/*.py")])
    return [file for file in files if file not in edited and has_logic(file)]


class Copy:
    """A copy of the source of one's own, in a folder that is not the working tree."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.sources = [folder / name for name in ("src", "papers/src") if (ROOT / name).is_dir()]
        for source in self.sources:
            there = ROOT / source.relative_to(folder)
            shutil.copytree(there, source, ignore=shutil.ignore_patterns("__pycache__"))
            # Byte code that is told by a digest of its source: by second and size, an edit might be taken for the
            # original.
            compileall.compile_dir(source, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)

    def verdict(self, edit: Edit) -> tuple[str, str]:
        """(killed, survived, broken or no longer applies; why) of one edit."""
        file = source_of(edit.file, self.root)
        before = file.read_text(encoding="utf-8")
        try:
            wrong = edit.on(before)
        except LookupError as error:
            return "no longer applies", str(error)
        file.write_text(wrong, encoding="utf-8")
        try:
            status, out = self.run(edit.tests, "-x")
        finally:
            file.write_text(before, encoding="utf-8")
        if status == 0:
            return "survived", f"{' '.join(edit.tests)} pass with {edit.old!r} -> {edit.new!r} in {edit.file}"
        if status == 1 and "FAILED " in out and not BROKEN.search(out):
            return "killed", next(line for line in out.splitlines() if line.startswith("FAILED "))
        return "broken", f"status {status} is not that of a test that fails:\n{out[-2000:]}"

    def run(self, tests: Iterable[str], *options: str) -> tuple[int, str]:
        """Exit status and output of pytest on these tests with this copy."""
        path = os.pathsep.join(map(str, self.sources))
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # which takes longer to import than most tests to run
        command = [sys.executable, "-c", RUN, str(self.root), "-q", "--tb=short"]
        command += ["-p", "no:cacheprovider", "-m", "slow or not slow", *options]
        command += [str(test_of(t)) for t in tests]
        try:
            done = subprocess.run(
                command, cwd=self.root, env=env, timeout=SECONDS, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return -1, f"more than {SECONDS} seconds"
        return done.returncode, done.stdout


def main(groups: Sequence[str]) -> int:
    if groups == ["--without"]:
        print("\n".join(str(file.relative_to(ROOT)) for file in without()))
        return 0
    start = time.monotonic()
    edits = chosen(groups)
    if not edits:
        print(f"no wrong edit is of {' '.join(groups)}; there are {' '.join(dict.fromkeys(e.group for e in read()))}")
        return 1
    tests = sorted({t for e in edits for t in e.tests})
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(PROCESSES) as pool:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for i in range(PROCESSES):
            copies.put(Copy(Path(folder, str(i))))

        def alone(edit: Edit) -> tuple[str, str]:
            copy = copies.get()
            try:
                return copy.verdict(edit)
            finally:
                copies.put(copy)

        def unedited(tests: Sequence[str]) -> tuple[int, str]:
            copy = copies.get()
            try:
                return copy.run(tests)
            finally:
                copies.put(copy)

        print(f"without an edit: {len(tests)} tests or files of tests", flush=True)
        for status, out in pool.map(unedited, [tests[i::PROCESSES] for i in range(PROCESSES) if tests[i::PROCESSES]]):
            if status != 0:
                print(f"the tests must pass without an edit, status {status}:\n{out[-4000:]}")
                return 1
        counts = dict.fromkeys(("killed", "survived", "broken", "no longer applies"), 0)
        for edit, (verdict, why) in zip(edits, pool.map(alone, edits), strict=True):
            counts[verdict] += 1
            print(f"{verdict:9} {edit.label}" + ("" if verdict == "killed" else f"\n  {why}"), flush=True)
    print(f"edits {len(edits)}, killed {counts['killed']}, survived {counts['survived']}", end="")
    print("".join(f", {v} {counts[v]}" for v in ("broken", "no longer applies") if counts[v]), end="")
    print(f" ({time.monotonic() - start:.0f} s)")
    return int(counts["killed"] < len(edits))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
