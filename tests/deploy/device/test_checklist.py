"""The checklist of devices names a test for every box of the checklist, and the tests are there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
PAGE = (TESTS / "deploy" / "device" / "CHECKLIST.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| ([GSD]\d+) \|.*\| (.+) \|$", PAGE, re.MULTILINE))


def test_every_box_is_there() -> None:
    assert list(ROWS) == [
        *(f"G{i}" for i in range(1, 5)),
        *(f"S{i}" for i in range(1, 12)),
        *(f"D{i}" for i in range(1, 11)),
    ]


def test_every_test_is_there() -> None:
    for box, tests in ROWS.items():
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", tests)
        assert named, f"{box} names no test"
        for file, name in named:
            assert f"def {name}(" in (TESTS / file).read_text(encoding="utf-8"), f"{box}: {file} has no {name}"
