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
PAIRS = [(a.name, b.name) for a, b in SCRIPT["pairs"]()]
METHODS = [(method, name) for method in SCRIPT["METHODS"] for name in PARTS]
SENTENCES = dict(re.findall(r"^(\d+)\. (.*)$", PAGE, re.MULTILINE))


def on_the_page(row: str, column: str) -> str | None:
    """What the page says of a pair: a sentence; None where it works."""
    line = next(line for line in PAGE.splitlines() if re.match(rf"\| (`{row}`|[A-Z] {row}) \|", line))
    cell = line.strip("| ").split(" | ")[1 + list(PARTS).index(column)].strip()
    return None if cell == "yes" else SENTENCES[cell]


@pytest.mark.some(6)
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_two_features(a: str, b: str) -> None:
    why = SCRIPT["tried"](PARTS[a], PARTS[b])
    assert on_the_page(a, b) == on_the_page(b, a) == (why and SCRIPT["_plain"](why))


@pytest.mark.some(6)
@pytest.mark.parametrize(("method", "name"), METHODS)
def test_a_method_and_a_feature(method: str, name: str) -> None:
    why = SCRIPT["tried"](PARTS[name], method=method)
    assert on_the_page(method, name) == (why and SCRIPT["_plain"](why))


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
