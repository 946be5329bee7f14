"""Modules move and words change by one script: imports, paths, strings, and nothing that only looks alike."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "scripts/move.py"))
TABLE = """
core/files.py -> storage/files.py       # a room of its own
core/__init__.py -> base/__init__.py
tests/core/test_files.py -> tests/storage/test_files.py
fedloom.report.analyse -> fedloom.analyses.analyse
epitaph => exit_reason
"""
MOVES, WORDS = SCRIPT["read_table"](TABLE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from fedloom.core.files import Aside", "from fedloom.storage.files import Aside"),
        ("from fedloom.core.filesystem import x", "from fedloom.core.filesystem import x"),
        ("import fedloom.core.files", "import fedloom.storage.files"),
        (
            "from fedloom.core import files, tree as t",
            "from fedloom.core import tree as t\nfrom fedloom.storage import files",
        ),
        (
            "def f():\n    from fedloom.core import files as g\n",
            "def f():\n    from fedloom.storage import files as g\n",
        ),
        (
            "from fedloom.report import Whole, analyse",
            "from fedloom.report import Whole\nfrom fedloom.analyses import analyse",
        ),
        (  # a stub exports what it imports as itself
            "from fedloom.report import Whole as Whole, analyse as analyse",
            "from fedloom.report import Whole as Whole\nfrom fedloom.analyses import analyse as analyse",
        ),
        ("x = 'fedloom.core.files:Aside'", "x = 'fedloom.storage.files:Aside'"),
        ("files = core.files", "files = core.files"),  # who knows what `core` is here
        ("def epitaph(): return my_epitaph", "def exit_reason(): return my_epitaph"),
    ],
)  # fmt: skip
def test_code(before: str, after: str) -> None:
    moves = {old: new for old, new in MOVES.items() if "__init__" not in old}
    assert SCRIPT["rewritten"](before, True, moves, WORDS).strip() == after.strip()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('file = "core/files.py"', 'file = "storage/files.py"'),
        ('["core/test_files.py::a", "score/test_files.py"]', '["storage/test_files.py::a", "score/test_files.py"]'),
        ("`src/fedloom/core/files.py`, `core/files.py`.", "`src/fedloom/storage/files.py`, `storage/files.py`."),
        ("`fedloom.core.files` is below `fedloom.core`", "`fedloom.storage.files` is below `fedloom.base`"),
    ],
)  # fmt: skip
def test_texts(before: str, after: str) -> None:
    assert SCRIPT["rewritten"](before, False, MOVES, WORDS) == after


def test_what_is_no_change_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a line is `a/b.py -> c/b.py`, .* got 'core/files.py'"):
        SCRIPT["read_table"]("core/files.py")
