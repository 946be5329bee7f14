"""Screenshots: what is said where there is no browser, and runs that a report can be made of. Look at the pictures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedloom.coordinator import runs_below
from fedloom.report.grouping import read_methods

SCRIPT = Path(__file__).parents[2] / "scripts/screenshots.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("screenshots", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize(
    ("installed", "said"),
    [(False, "pip install playwright"), (True, "apt-get install chromium), or name one as BROWSER_PATH=")],
)
def test_what_is_missing_is_named(
    script: ModuleType, installed: bool, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = ModuleType("playwright.sync_api")
    fake.sync_playwright = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "playwright.sync_api", fake if installed else None)
    monkeypatch.setattr(sys, "argv", ["screenshots.py"])
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("BROWSER_PATH", raising=False)
    assert script.main() == 2
    assert said in capsys.readouterr().err


def test_runs_that_are_made_up_are_runs(script: ModuleType, tmp_path: Path) -> None:
    for seed in (0, 1):
        script.made_up(tmp_path / f"seed-{seed}", "fedavg", seed, 0.6, rounds=5)
    assert len(runs_below(tmp_path)) == 2
    (method,), remarks = read_methods([tmp_path])
    assert remarks == []
    for name in ("global_accuracy", "personal_accuracy", "forgetting", "out_local_accuracy"):
        assert method.has(name)
    assert method.first.rounds == 5
