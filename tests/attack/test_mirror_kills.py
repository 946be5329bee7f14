"""Machines that are lost, in short; `mirror_kills.py` is the long form."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import mirror_kills


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fedloom.core.errors.SettingWarning")
def test_a_run_whose_machines_are_lost_ends_as_others_do(tmp_path: Path) -> None:
    lost, wrong = mirror_kills.attack("pfedsd", "loop", 3, 0, tmp_path, rounds=4)
    assert wrong == []
    assert lost >= 3
