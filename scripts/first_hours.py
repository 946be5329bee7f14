"""Run five first hours of people who are new to fedloom, with the commands as the pages print them, and time them.

    python scripts/first_hours.py               all of them: writes docs/results/first_hours.csv, then the table
    python scripts/first_hours.py method        this one alone, and prints its minutes
    python scripts/first_hours.py --table       the table of docs/get-started.md from that file

Each runs in a process of its own, in an empty folder, and must leave the files that its person wanted. The Python that
runs this needs fedloom with its extra `report`, and fedloom-papers. Blocks are those of scripts/run_pages.py.
"""

from __future__ import annotations

import csv
import datetime
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import run_pages

ROOT = Path(__file__).resolve().parents[1]
KEPT, PAGE = ROOT / "docs/results/first_hours.csv", ROOT / "docs/get-started.md"
OTHERS = ("fedavg", "fedprox", "scaffold", "fedntd", "ditto", "pfedsd")  # beside one's own method
COLUMNS = ("hour", "minutes", "cores", "date")
_MADE = re.compile(r"(<!-- made by scripts/first_hours.py: from here -->\n).*?(<!-- to here -->\n)", re.DOTALL)


def page(name: str, heading: str = "") -> str:
    """Return the text of a page, or of one of its sections."""
    text = (ROOT / name).read_text(encoding="utf-8")
    if not heading:
        return text
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError(f"{name} has no section {heading}")
    return found[1]


def line(name: str, pattern: str) -> str:
    """Return the first command of a page, in an indented block, that has some words."""
    found = re.search(rf"^    (.*{pattern}.*?)(?: +#.*)?$", page(name), re.MULTILINE)
    if found is None:
        raise LookupError(f"{name} shows no command with {pattern}")
    return found[1]


def blocks(text: str) -> Callable[[Path], None]:
    """Return what runs the blocks of a text in a folder: commands in a shell, Python in one namespace."""

    def in_shell(code: str) -> None:
        env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # has fedloom
        subprocess.run(["bash", "-ec", code], env=env, check=True)

    def run(folder: Path) -> None:
        for _, printed in run_pages.run(text, folder, in_shell):
            print(printed, end="")

    return run


def demo(folder: Path) -> None:
    """Run `make demo` in a copy of the repository, as after a clone: it makes its environment first."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "x"], cwd=folder, input=archive, check=True)
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run(shlex.split(line("README.md", "make demo")), cwd=folder, env=env, check=True)


def figure(folder: Path) -> None:
    """Draw figures of a paper from the kept runs of this repository."""
    (folder / "papers").symlink_to(ROOT / "papers")
    blocks(f"```bash\n{line('papers/docs/reproduce.md', 'fedloom figures .*--known papers/docs/results')}\n```\n")(
        folder
    )


@dataclass(frozen=True)
class Hour:
    """A task that somebody does first, the page that says how, and what is there afterwards."""

    what: str
    link: str  # from docs/
    run: Callable[[Path], None]
    leaves: tuple[str, ...] = ()  # patterns of files: `wait` of a shell does not say that a process failed


HOURS = {
    "demo": Hour("`make demo` after a clone: environment, four methods, checks", "../README.md", demo),
    "table": Hour(
        "tables of five sites, compared, to a prediction",
        "tutorials/your-data.md",
        lambda folder: blocks(page("docs/tutorials/your-data.md"))(folder),
        ("runs/sites/report/report.html", "predicted.csv"),
    ),
    "method": Hour(
        "a method of one's own beside six others",
        "paths.md#researcher",
        lambda folder: blocks(page("docs/paths.md", "Researcher"))(folder),
        tuple(f"runs/mine/{name}/metrics.jsonl" for name in (*OTHERS, "Mine")),
    ),
    "devices": Hour(
        "a server and two devices, each a process",
        "paths.md#engineer-of-devices",
        lambda folder: blocks(page("docs/paths.md", "Engineer of devices"))(folder),
        ("runs/devices/audit.jsonl", "a/results/*/global.safetensors", "b/results/*/global.safetensors"),
    ),
    "figure": Hour(
        "a paper's figures from kept runs",
        "../papers/docs/reproduce.md#claims-and-figures",
        figure,
        ("figures/apfl-figure-2.png", "figures/dense-curves.png"),
    ),
}


def ran(hour: Hour, folder: Path) -> None:
    """Run an hour in a folder, and refuse what leaves less than its person wanted."""
    hour.run(folder)
    missing = [pattern for pattern in hour.leaves if not list(folder.glob(pattern))]
    if missing:
        raise RuntimeError(f"{hour.what}: no {', '.join(missing)}")


def minutes(name: str) -> float:
    """Run an hour in a process of its own, in an empty folder, and return how many minutes it took."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        subprocess.run([sys.executable, __file__, name, folder], check=True, cwd=folder)
        return (time.perf_counter() - began) / 60


def table(kept: Path = KEPT) -> str:
    """Return the table of what was measured."""
    with kept.open(newline="", encoding="utf-8") as file:
        rows = {row["hour"]: row for row in csv.DictReader(file)}
    lines = ["| first hour | minutes |", "|---|---|"]
    lines += [f"| [{hour.what}]({hour.link}) | {float(rows[name]['minutes']):.1f} |" for name, hour in HOURS.items()]
    lines.append(f"| together | {sum(float(row['minutes']) for row in rows.values()):.1f} |")
    dates = sorted({f"{row['cores']} cores, {row['date']}" for row in rows.values()})
    return "\n".join(lines) + f"\n\nMeasured on {'; '.join(dates)}.\n"


def renewed(text: str) -> str:
    """Return docs/get-started.md with its table made anew."""
    return _MADE.sub(lambda found: f"{found[1]}\n{table()}\n{found[2]}", text)


def main(words: list[str]) -> None:
    """Run all hours, one, or make the table anew."""
    match words:
        case [name, folder]:
            ran(HOURS[name], Path(folder))
            return
        case [name] if name != "--table":
            print(f"{name}: {minutes(name):.2f} minutes")
            return
        case []:
            here = {"cores": os.cpu_count(), "date": datetime.date.today()}
            rows = [{"hour": name, "minutes": f"{minutes(name):.2f}"} | here for name in HOURS]
            with KEPT.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
