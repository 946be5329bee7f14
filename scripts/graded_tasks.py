"""Twenty graded tasks, by which any reader of docs/reference.md can be measured, person or program.

    python scripts/graded_tasks.py list
    python scripts/graded_tasks.py show 3                     what to write, in which file, with which names
    python scripts/graded_tasks.py check 3 FOLDER             executes the solution in FOLDER: pass, or fail and why
    python scripts/graded_tasks.py check all FOLDER           FOLDER/01-proximal, ... or FOLDER/01, ...; prints a table
    python scripts/graded_tasks.py check all FOLDER --reader NAME     and keeps it in docs/results/graded.csv
    python scripts/graded_tasks.py table                      renews the table of docs/graded-tasks.md from that file

A task is a folder of tests/graded/tasks: `task.md`, `check.py` with a function `check`, a solution in `right` and a
plausible wrong one in `wrong`. A check runs in a process of its own, in a copy of the solution's folder.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GRADED = ROOT / "tests/graded"
KEPT, PAGE = ROOT / "docs/results/graded.csv", ROOT / "docs/graded-tasks.md"
COLUMNS = ("reader", "task", "passed", "reason")
SECONDS = 300  # of a check, beside other work
_MADE = re.compile(r"(<!-- made by scripts/graded_tasks.py: from here -->\n).*?(<!-- to here -->\n)", re.DOTALL)
_CHILD = """
import json, runpy, sys, traceback, warnings
graded, file, out = sys.argv[1:]
sys.path[:0] = [".", graded]
warnings.simplefilter("ignore")
try:
    runpy.run_path(file)["check"]()
    found = {"passed": True, "reason": ""}
except AssertionError as error:
    found = {"passed": False, "reason": str(error) or "an assertion of the check does not hold"}
except BaseException as error:
    traceback.print_exc()
    found = {"passed": False, "reason": f"{type(error).__name__}: {error}"}
with open(out, "w") as result:
    json.dump(found, result)
"""


@dataclass(frozen=True)
class Task:
    """A task, in a folder."""

    folder: Path

    @property
    def number(self) -> int:
        return int(self.folder.name.partition("-")[0])

    @property
    def text(self) -> str:
        return (self.folder / "task.md").read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        return self.text.partition("\n")[0].removeprefix("# ")


@dataclass(frozen=True)
class Grade:
    """Verdict on a solution: whether it passes, and why not."""

    task: Task
    passed: bool
    reason: str


def tasks() -> list[Task]:
    """Return all tasks in their order."""
    return [Task(folder) for folder in sorted((GRADED / "tasks").iterdir()) if (folder / "task.md").exists()]


def task(number: str) -> Task:
    """Return a task by its number or the name of its folder."""
    for one in tasks():
        if number in (str(one.number), f"{one.number:02}", one.folder.name):
            return one
    raise SystemExit(f"there are the tasks 1 to {len(tasks())}, got {number!r}: see `graded_tasks.py list`")


def grade(one: Task, solution: Path) -> Grade:
    """Execute a solution and its check in a process of its own."""
    with tempfile.TemporaryDirectory() as made:
        here, out = Path(made) / "solution", Path(made) / "result.json"
        for folder in (solution, one.folder / "given"):  # what the task says is there
            if folder.is_dir():
                shutil.copytree(folder, here, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        command = [sys.executable, "-c", _CHILD, str(GRADED), str(one.folder / "check.py"), str(out)]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # the command fedloom
        env = os.environ | {"COLUMNS": "110", "NO_COLOR": "1", "MPLBACKEND": "agg", "PATH": path}
        try:
            found = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return Grade(one, False, f"it takes longer than {SECONDS} s")
        if not out.exists():
            return Grade(one, False, f"the process ends with {found.returncode}: {found.stderr[-500:]}".strip())
        said = json.loads(out.read_text(encoding="utf-8"))
    return Grade(one, bool(said["passed"]), " ".join(str(said["reason"]).split())[:500])


def grade_all(folder: Path) -> list[Grade]:
    """Grade the solutions of a folder; a task without one fails."""
    grades = []
    for one in tasks():
        names = (one.folder.name, f"{one.number:02}", str(one.number))
        there = next((folder / name for name in names if (folder / name).is_dir()), None)
        grades.append(Grade(one, False, "there is no solution") if there is None else grade(one, there))
        print(line(grades[-1]), flush=True)
    return grades


def line(found: Grade) -> str:
    """Return a grade in a line."""
    return f"{found.task.folder.name}: " + ("pass" if found.passed else f"fail: {found.reason}")


def keep(reader: str, grades: Iterable[Grade], kept: Path = KEPT) -> None:
    """Write the grades of a reader into the file of all results, in the place of earlier ones."""
    rows = [row for row in results(kept) if row["reader"] != reader]
    rows += [
        {"reader": reader, "task": g.task.folder.name, "passed": "yes" if g.passed else "no", "reason": g.reason}
        for g in grades
    ]
    with kept.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def results(kept: Path = KEPT) -> list[dict[str, str]]:
    """Return the rows of all results."""
    with kept.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(rows: list[dict[str, str]]) -> str:
    """Return a table of tasks by readers, with how many each has solved."""
    readers = list(dict.fromkeys(row["reader"] for row in rows))
    passed = {(row["reader"], row["task"]): row["passed"] == "yes" for row in rows}
    lines = [f"| task | {' | '.join(readers)} |" if readers else "| task |", "|---" * (1 + len(readers)) + "|"]
    words = {True: "pass", False: "fail", None: "-"}
    for one in tasks():
        cells = [words[passed.get((reader, one.folder.name))] for reader in readers]
        lines.append(f"| {' | '.join([f'{one.number}. {one.title}', *cells])} |")
    if readers:
        sums = [sum(passed.get((reader, one.folder.name), False) for one in tasks()) for reader in readers]
        lines.append(f"| **of {len(tasks())}** | {' | '.join(f'**{count}**' for count in sums)} |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Return docs/graded-tasks.md with its table made anew."""
    return _MADE.sub(lambda found: f"{found[1]}\n{table(results())}\n{found[2]}", text)


def main(words: list[str]) -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    commands.add_parser("show").add_argument("number")
    check = commands.add_parser("check")
    check.add_argument("number", help="of the task, or all")
    check.add_argument("folder", type=Path)
    check.add_argument("--reader", help="who has written the solutions: keeps the grades of all tasks")
    commands.add_parser("table")
    args = parser.parse_args(words)
    if args.command == "list":
        for one in tasks():
            print(f"{one.number:>2}  {one.folder.name.partition('-')[2]:<16} {one.title}")
        return 0
    if args.command == "show":
        print(task(args.number).text, end="")
        return 0
    if args.command == "table":
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    if not args.folder.is_dir():
        parser.error(f"a solution is a folder, got {args.folder}")
    if args.number != "all":
        found = grade(task(args.number), args.folder)
        print(line(found))
        return int(not found.passed)
    grades = grade_all(args.folder)
    print(f"{sum(g.passed for g in grades)} of {len(grades)} pass")
    if args.reader:
        keep(args.reader, grades)
    return int(not all(g.passed for g in grades))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
