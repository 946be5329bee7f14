"""Pages of errors are made of the codes in the source and of the entries beside the tests."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "scripts/make_errors.py")
MADE: dict[str, Any] = runpy.run_path(SCRIPT)


def test_pages_and_what_ships_are_up_to_date() -> None:
    """And each code in the source has an entry, each entry a code: else `made` raises."""
    for path, text in MADE["made"]().items():
        assert path.read_text(encoding="utf-8") == text, f"codes have changed: python scripts/make_errors.py ({path})"


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Any]:
    """The script, for a source of one file and two entries."""
    found: dict[str, Any] = runpy.run_path(SCRIPT)["made"].__globals__
    found |= {"ROOT": tmp_path, "ENTRIES": tmp_path, "AREAS": {"DATA": "Data"}, "GONE": frozenset()}
    (tmp_path / "src").mkdir()
    write(tmp_path, 'raise ValueError("a [FL-DATA-001]")\nraise ValueError("b [FL-DATA-002]")\n', 1, 2)
    return found


def write(folder: Path, source: str, *numbers: int) -> None:
    (folder / "src/one.py").write_text(source, encoding="utf-8")
    entry = 'title = ""\nwhy = ""\nmend = ""\nexamples = []\n'
    (folder / "data.toml").write_text("".join(f"[FL-DATA-{n:03}]\n{entry}" for n in numbers), encoding="utf-8")


def test_a_code_and_its_entry_are_both_there(made: dict[str, Any], tmp_path: Path) -> None:
    source = (tmp_path / "src/one.py").read_text(encoding="utf-8")
    write(tmp_path, source, 1)
    with pytest.raises(LookupError, match="codes in the source without an entry in tests/mistakes: FL-DATA-002"):
        made["made"]()
    write(tmp_path, source.splitlines()[0], 1, 2)
    with pytest.raises(LookupError, match="that no message has: FL-DATA-002; list them in GONE"):
        made["made"]()


def test_two_messages_have_two_codes(made: dict[str, Any], tmp_path: Path) -> None:
    text = 'def first():\n    raise ValueError("a [FL-DATA-001]")\n\n\ndef second():\n    warn("b [FL-DATA-001]")\n'
    write(tmp_path, text, 1)
    with pytest.raises(LookupError, match=r"FL-DATA-001 stands in src/one.py \(first\) and src/one.py \(second\)"):
        made["said"]()


def test_a_number_that_went_is_not_given_again(made: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, 'raise ValueError("b [FL-DATA-002]")\n', 2)
    with pytest.raises(LookupError, match="count from FL-DATA-001 on, and those that went are in GONE"):
        made["entries"]()
    made["GONE"] = frozenset({"FL-DATA-001"})
    assert [*made["entries"]()] == ["FL-DATA-002"]
    made["GONE"] = frozenset({"FL-DATA-002"})
    with pytest.raises(LookupError, match="count from"):
        made["entries"]()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('raise E(f"a {b} " f"{c.d!r}, got {e} [FL-DATA-001]")', "a … …, got … [FL-DATA-001]"),
        ('m = "m" + x\nraise E(f"{m} and {n} [FL-DATA-001]")', "m… and … [FL-DATA-001]"),
        ('m = "m"\nm = "n"\nraise E(f"{m} [FL-DATA-001]")', "… [FL-DATA-001]"),
        ('raise E("a" + b * c + " [FL-DATA-001]")', "a… [FL-DATA-001]"),
        ('refuse(p, "r", f"v {v}", f"{x} y [FL-DATA-001]")', "…: r, got v …: … y [FL-DATA-001]"),
        ('how = f"{x} [FL-DATA-001]"\nrefuse(p, "r", v, how)', "…: r, got …: … [FL-DATA-001]"),
    ],
)
def test_a_message_is_shown_with_its_gaps(source: str, message: str) -> None:
    lines = "\n".join(f"    {line}" for line in source.split("\n"))
    ((code, one),) = MADE["messages"](f"def f():\n{lines}\n", "one.py")
    assert (code, one.message, one.function) == ("FL-DATA-001", message, "f")


def test_examples_begin_with_what_they_use() -> None:
    entry = {"examples": [{"fails": "fl.federate(train, None)", "passes": "fedloom demo"}]}
    names = ["import numpy as np", "import fedloom as fl", "", "x = ", "y = ", "train = "]
    lines = MADE["beginning"](entry).split("\n")
    assert [line.startswith(name) for line, name in zip(lines, names, strict=True)] == [True] * 6


def test_commands_need_the_files_that_they_name() -> None:
    needed = MADE["needed"]
    assert needed("fedloom run fedavg --settings small.toml") == ["people.csv", "small.toml"]
    assert needed("fedloom run half:Mine") == ["half.py"]
    assert needed("fedloom report several") == ["people.csv", "small.toml", "several"]
    assert needed("fedloom report several-more --halftime") == []
