"""Rounds of devices that have begun, in whichever process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedloom.privacy.begun_rounds import write_down, written


def test_every_round_stays_written(tmp_path: Path) -> None:
    one, other = (_run(SimpleNamespace(path=tmp_path)) for _ in range(2))
    assert written(one, "begun.txt") == []
    write_down(one, "begun.txt", 1, 4, 2)
    write_down(other, "begun.txt", 1, 4, 2)
    write_down(other, "begun.txt", 2)
    assert written(one, "begun.txt") == [[1, 4, 2], [1, 4, 2], [2]]


def test_a_run_without_files_has_none() -> None:
    write_down(_run(None), "begun.txt", 1)
    assert written(_run(None), "begun.txt") == []


def _run(files: Any) -> Any:
    return SimpleNamespace(files=files)
