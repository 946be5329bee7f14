"""The attacks on run directories in short; `kills.py` and `damages.py` are the long form."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import damages
import kills


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "engine"), [("kt_pfl", "loop"), ("dense", "loop"), ("pfedsd", "workers"), ("fedbuff", "stacked")]
)
@pytest.mark.filterwarnings("ignore::fedloom.core.errors.SettingWarning")
def test_killed_runs_end_as_others_do(name: str, engine: str, tmp_path: Path) -> None:
    killed, wrong = kills.attack(name, engine, 3, 0, tmp_path, rounds=8)
    assert wrong == []
    assert killed >= 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_noticed_and_nothing_is_lost(tmp_path: Path) -> None:
    subject, rng = damages.Subject("pfedsd", "loop", tmp_path), random.Random(7)
    for case, kind in enumerate([*damages.KINDS]):
        assert subject.try_case(rng, kind, tmp_path / f"case-{case}") == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_other_weights_to_start_from_are_noticed(tmp_path: Path) -> None:
    subject, rng = damages.Commanded(tmp_path / "commanded"), random.Random(8)
    for case in range(3):
        assert subject.try_case(rng, "start", tmp_path / f"case-{case}") == []
        assert subject.outcome == "refused"
