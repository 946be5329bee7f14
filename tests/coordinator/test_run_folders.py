"""Where runs are, and where a new one may go."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.coordinator.run_folders import check_free, runs_below
from fedloom.core.errors import SettingError


def holds(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("")
    return folder


def test_runs_are_found_by_number_and_not_inside_of_others(tmp_path: Path) -> None:
    for name in ("seed-10", "seed-2", "seed-2/inner"):
        holds(tmp_path / name, "metrics.jsonl")
    holds(tmp_path / "begun", "manifest.json", "settings.json", "note.txt")
    holds(tmp_path / "other", "settings.json")

    def found(**more: bool) -> list[str]:
        return [path.name for path in runs_below(tmp_path, **more)]

    assert found() == ["seed-2", "seed-10"]
    assert found(begun=True) == ["begun", "seed-2", "seed-10"]
    with pytest.raises(SettingError, match="is no folder; name one that holds runs"):
        runs_below(tmp_path / "nowhere")


def test_a_new_run_goes_neither_into_nor_above_nor_inside_of_one(tmp_path: Path) -> None:
    run = holds(tmp_path / "runs/a", "metrics.jsonl")
    for folder, why in (
        (run, "already holds a run"), (run / "sub", "is inside of a run"),
        (tmp_path / "runs", r"holds several runs \(a\)"),
        (run / "metrics.jsonl", "is a file"), (holds(tmp_path / "b/checkpoints", "x").parent, "holds files of another"),
    ):  # fmt: skip
        with pytest.raises(SettingError, match=why):
            check_free(folder)
    check_free(tmp_path / "runs", several=True)
    check_free(tmp_path / "new")
    check_free(holds(tmp_path / "c/checkpoints").parent)
