"""The index of algorithms and settings says what the classes say."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_index.py"


def test_the_index_is_what_the_classes_say() -> None:
    make = runpy.run_path(str(SCRIPT))
    said = make["TARGET"].read_text(encoding="utf-8")
    assert said == make["written"](make["index"]()), "algorithms or settings have changed: python scripts/make_index.py"
