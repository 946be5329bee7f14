"""What files say is made fit for a page."""

from __future__ import annotations

from typing import Any

import pytest

from fedloom.report.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\x00b\n", "a�b�"), ("\ud800", "�"), ("x" * 200, "x" * 119 + "…"), ("日本", "日本")],
)
def test_text_from_files_is_made_printable(text: str, shown: Any) -> None:
    assert printable(text) == shown
