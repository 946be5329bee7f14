"""The size of the source: lines of statements by room, long files, and circles of imports."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import fedloom

SCRIPT: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "scripts/size.py"))
FILES = {
    "fedloom/__init__.py": '"""Nothing."""\n',
    "fedloom/low/__init__.py": "",
    "fedloom/low/a.py": "import sys\n\n\ndef f():  # a comment\n    return [\n        1,\n    ]\n",
    "fedloom/low/b.py": "def g():\n    from fedloom.low import c\n",
    "fedloom/low/c.py": "from fedloom.low.b import g\n",
    "fedloom/high/d.py": "from fedloom.low import a\n" + "x = 1\n" * 400,
}


def test_counts(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    size = SCRIPT["Size"].of(tmp_path)
    assert size.rows() == {"high": (1, 401, 400), "low": (4, 10, 5), "fedloom": (1, 1, 0), "all": (6, 412, 405)}
    assert size.long == {"fedloom/high/d.py": 401}
    assert size.circles == [["fedloom.low.b", "fedloom.low.c"]]


def test_a_table_of_before_and_after(capsys: Any) -> None:
    before, after = SCRIPT["Size"](), SCRIPT["Size"]()
    for size, counts in ((before, {"core": 1200, "old": 7}), (after, {"core": 1100, "new": 9})):
        for room, n in counts.items():
            size.statements[room], size.lines[room], size.files[room] = n, 2 * n, 1
    before.circles = [["a", "b"]]
    SCRIPT["compare"](before, after)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| core | 1 | 2,400 → 2,200 | 1,200 → 1,100 | -100 |",
        "| new | 0 → 1 | 0 → 18 | 0 → 9 | +9 |",
        "| old | 1 → 0 | 14 → 0 | 7 → 0 | -7 |",
        "| all | 2 | 2,414 → 2,218 | 1,207 → 1,109 | -98 |",
        "",
        "Files above 400 lines: 0 → 0; circles: 1 → 0.",
    ]


def test_no_modules_import_each_other() -> None:
    circles = SCRIPT["Size"].of(Path(fedloom.__file__).parents[1]).circles
    assert not circles, f"these import each other, within functions or for types too: {circles}"
