"""Rows of measurements in a file that outlives a stop: each is kept when it is there, and what is there is not redone.

A part of a benchmark is computed in a process of its own, which prints `ROW {...}` for each case; what fails or takes
too long costs its own rows alone, and its error becomes a row of the case "".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def say(part: str, case: str, numbers: Row) -> None:
    """Print the row of a case, in the process that computes it."""
    print("ROW " + json.dumps({"part": part, "case": case, **numbers}), flush=True)


def read(out: Path) -> list[Row]:
    """Return the last row of each case, errors left out where the part went on later; half a line is passed over."""
    path, found = out / "rows.jsonl", dict[tuple[str, str], Row]()
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:  # of a call that was killed as it wrote
            continue
        found.pop((row["part"], ""), None)
        found[row["part"], row["case"]] = row
    return list(found.values())


def done(out: Path, part: str) -> list[str]:
    """Return the cases of a part that need not be computed again."""
    return [row["case"] for row in read(out) if row["part"] == part and "error" not in row]


def measure(part: str, out: Path, words: Sequence[str], limit: float) -> None:
    """Compute what is missing of a part by this command in another process, for `limit` seconds at most.

    Args:
        part: its name.
        out: folder of the rows.
        words: a Python file and its arguments.
        limit: seconds.
    """
    last, late = "", threading.Event()
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        ending = threading.Timer(limit, lambda: (late.set(), child.kill()))
        ending.start()
        assert child.stdout is not None
        try:
            for line in child.stdout:
                if line.startswith("ROW "):
                    keep(out, json.loads(line[4:]))
                last = line.strip() or last
        except BaseException:  # of this process, which is asked to stop
            child.kill()
            raise
        finally:
            ending.cancel()
    if child.returncode:
        keep(out, {"part": part, "case": "", "error": f"stopped after {limit:.0f} s" if late.is_set() else last})


def keep(out: Path, row: Row) -> None:
    """Add a row to the file; half a line of a killed call is ended first."""
    path = out / "rows.jsonl"
    half = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with open(path, "a") as file:
        file.write("\n" * half + json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())
    print(json.dumps(row), flush=True)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown, a column for each number that one of them has."""
    names = list(dict.fromkeys(name for row in rows for name in row if name not in ("part", "case")))
    lines = [f"| case | {' | '.join(names)} |", f"|{'---|' * (len(names) + 1)}"]
    lines += [f"| {row['case']} | {' | '.join(_shown(row.get(name)) for name in names)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
