"""The page on speed beside other simulators has the numbers that are kept, and its programs do the same work."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "peers"


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("run_peers")


def test_the_page_has_the_numbers_that_are_kept(harness: ModuleType) -> None:
    """Notices a page that was not written again, and a number that was changed by hand."""
    assert harness.PAGE.read_text(encoding="utf-8") == harness.page(harness.kept()), "run_peers.py --page"


def test_ranges_winners_and_ratios_are_those_of_the_rows(harness: ModuleType) -> None:
    """Notices a median in the place of a range, and a winner by the first repetition instead of the median."""
    common = dict.fromkeys(harness.COLUMNS, "0") | {"rounds": "3", "form": "f", "versions": "v 1", "machine": "m"}
    later = {"fedloom": (0.006, 0.03, 0.012), "by_hand": (0.024, 0.006, 0.018)}
    rows = [
        common | {"case": "logistic10", "program": name, "repetition": str(i), "later": str(s), "loss": "1.5"}
        for name, seconds in later.items()
        for i, s in enumerate(seconds)
    ]
    rows += [common | {"case": "blazefl", "program": "fedloom", "first": "10", "later": "8", "loss": "1"}]
    text = harness.tables(rows)
    assert "| **10.0 to 50.0** | 10.0 to 40.0 |" in text  # us of 600 client-steps: medians 20 and 30
    assert "fedloom is first. Times of the others as multiples of fedloom's: by hand 1.50." in text
    assert "(s, all five rounds) | **42.0** | - |" in text


@pytest.mark.parametrize("name", ["by_hand", "fedloom", "fedjax", "pfl", "flower", "blazefl"])
def test_a_program_reads_the_work_and_answers(harness: ModuleType, name: str) -> None:
    """Notices a program that does not parse, or measures other work; environments are pinned, torch as fedloom's."""
    tree = ast.parse((FOLDER / f"peer_{name}.py").read_text(encoding="utf-8"))
    read = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert {"called", "Clock"} <= read
    assert any(isinstance(node, ast.Attribute) and node.attr == "answer" for node in ast.walk(tree))
    assert name in harness.PEERS
    if name not in harness.OWN:
        lines = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()[1:]
        assert all(line.count("==") == 1 for line in lines)
        own = (FOLDER.parents[1] / "constraints.txt").read_text(encoding="utf-8").splitlines()
        assert {line for line in lines if line.startswith("torch==")} <= set(own)


@pytest.mark.parametrize("network", ["logistic", *(pytest.param(n, marks=pytest.mark.slow) for n in ("lenet", "cnn"))])
def test_by_hand_and_fedloom_end_with_the_same_loss(harness: ModuleType, network: str, tmp_path: Path) -> None:
    """Of one batch a client, so in the same order. Notices another rate or number of epochs on one side."""
    case, found = harness.SAME[network], {}
    harness.make(case, tmp_path)
    np.savez(tmp_path / "end.npz", **{f"{i:02d}": p for i, p in enumerate(harness.Work(tmp_path).start())})
    untrained = harness.loss(tmp_path)
    for name in harness.OWN:
        harness.run(name, tmp_path, case.rounds, 300)
        found[name] = harness.loss(tmp_path)
    assert found["by_hand"] == pytest.approx(found["fedloom"], abs=2e-6)
    assert found["fedloom"] < untrained - 0.01
