"""The paper's numbers are those of kept results, and it has at most four pages."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made() -> Any:
    spec = importlib.util.spec_from_file_location("make_paper", ROOT / "scripts" / "make_paper.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_numbers_are_those_of_kept_results(made: Any) -> None:
    """A kept result that changes without `python scripts/make_paper.py` fails here.

    Counts of source and of tables are those of the day when the paper was made: each commit moves them.
    """
    written, now = json.loads(made.NUMBERS.read_text(encoding="utf-8")), json.loads(made.text())
    assert written.keys() == now.keys()
    for part in ("equality", "claims", "speed", "costs"):
        assert written[part] == now[part], f"{part}: run python scripts/make_paper.py"


def test_every_method_was_compared(made: Any) -> None:
    with made.EQUALITY.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == made.seam()["methods"]
    assert all(float(row["messages"]) == 0 for row in rows)
    assert all(float(row["stacked"]) < 1e-9 for row in rows)


@pytest.mark.slow
def test_it_has_at_most_four_pages(made: Any, tmp_path: Path) -> None:
    """Text that runs over onto a fifth page, or a key that numbers.json lacks."""
    typst = pytest.importorskip("typst", reason="make paper installs typst")
    typst.compile(made.PAPER / "fedloom.typ", output=tmp_path / "{p}.png", format="png", ppi=40)
    assert 1 < len(list(tmp_path.glob("*.png"))) <= 4
