"""The page of what composes is what happens, pair by pair."""

from __future__ import annotations

import re
import runpy
import string
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/make_composing.py"))
PAGE = (ROOT / "docs/composing.md").read_text(encoding="utf-8")
PARTS = {part.name: part for part in SCRIPT["PARTS"]}
METHODS = SCRIPT["METHODS"]
SENTENCES = dict(re.findall(r"^(\d+)\. (.*)$", PAGE, re.MULTILINE))


def on_the_page(row: str, column: str) -> str | None:
    """What the page says of a pair: a sentence; None where it works."""
    line = next(line for line in PAGE.splitlines() if re.match(rf"\| (`{row}`|[A-Z] {row}) \|", line))
    cell = line.strip("| ").split(" | ")[1 + list(PARTS).index(column)].strip()
    return None if cell == "yes" else SENTENCES[cell]


@pytest.mark.some(6)
@pytest.mark.parametrize("names", SCRIPT["cases"](), ids=" and ".join)
def test_it_is_as_on_the_page(names: tuple[str, str]) -> None:
    first, second = names
    why = SCRIPT["case"](names)
    assert on_the_page(first, second) == (why and SCRIPT["_plain"](why))
    assert first in METHODS or on_the_page(second, first) == on_the_page(first, second)


def test_each_feature_has_a_letter() -> None:
    assert len(PARTS) <= len(string.ascii_uppercase)


def test_a_feature_that_is_left_out_in_silence_is_noticed() -> None:
    """A pair of which one changes nothing, and should."""
    nothing = SCRIPT["Feature"]("nothing")
    with pytest.raises(SCRIPT["NotWholeError"], match="fedavg: spares and nothing: nothing changes nothing"):
        SCRIPT["tried"](PARTS["spares"], nothing)


def test_a_run_that_goes_on_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its history is another one than that of the run that nobody stopped."""
    monkeypatch.setitem(SCRIPT["tried"].__globals__, "_same", lambda a, b: False)
    with pytest.raises(SCRIPT["NotWholeError"], match="interrupted and resumed it is another run"):
        SCRIPT["tried"](PARTS["spares"])
