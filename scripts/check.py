"""Check one file of the library by one command: `make check FILE=moon`.

Its lint and types, its tests (`test_moon.py`), the battery where it is an algorithm, and its wrong edits: those of the
group of its name, and those that change it. What concerns no single file is left to `make test`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/mutants"))

from mutants import chosen

ROOT = Path(__file__).resolve().parent.parent


def steps(name: str) -> list[list[str]]:
    """Return the commands that check the files of this name, without `.py`.

    Raises:
        LookupError: there is no such file in the library.
    """
    sources = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "src").rglob(f"{name}.py"))
    if not sources:
        raise LookupError(f"there is no {name}.py below src: FILE is the name of a file without .py, such as moon")
    tests = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob(f"test_{name}.py"))
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
