"""Where a sweep may begin, and where it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import SettingError
from fedloom.experiments.sweep_directory import check_sweep

ASKED: dict[str, Any] = {"space": {"local.lr": [0.1, 0.2]}, "search": 5, "seed": 0}


def test_a_sweep_goes_on_as_it_was_asked_for_and_a_search_may_become_longer(tmp_path: Path) -> None:
    check_sweep(tmp_path, ASKED, resume=False)
    check_sweep(tmp_path, ASKED, resume=True)  # it was never begun
    (tmp_path / "sweep.json").write_text(json.dumps(ASKED), encoding="utf-8")
    for search in (5, 8):
        check_sweep(tmp_path, ASKED | {"search": search}, resume=True)
    for change, said in (
        ({"search": 4}, "search was 5 and is 4"), ({"seed": 1}, "seed was 0 and is 1"),
        ({"by": "x"}, 'by was null and is "x"'),
    ):  # fmt: skip
        with pytest.raises(SettingError, match=f"holds another sweep: {said}"):
            check_sweep(tmp_path, ASKED | change, resume=True)
    with pytest.raises(SettingError, match=r"already holds a sweep; continue it \(--resume\)"):
        check_sweep(tmp_path, ASKED, resume=False)
