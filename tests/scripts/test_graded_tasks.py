"""Graded tasks: a right solution passes, a wrong one fails with a reason, and results stand in a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import graded_tasks as graded  # noqa: E402 : a script, whose dataclasses need a module

sys.path.pop(0)
TASKS = graded.tasks()


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.folder.name)
def test_a_right_solution_passes(task: Any) -> None:
    found = graded.grade(task, task.folder / "right")
    assert found.passed, found.reason


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.folder.name)
def test_a_plausible_wrong_solution_fails(task: Any) -> None:
    """By what it computes: neither is a file missing, nor a name."""
    found = graded.grade(task, task.folder / "wrong")
    assert not found.passed
    assert found.reason
    assert "Error:" not in found.reason


def test_tasks_are_whole() -> None:
    assert [task.number for task in TASKS] == list(range(1, 21))
    for task in TASKS:
        right, wrong = (sorted(p.name for p in (task.folder / kind).glob("*.*")) for kind in ("right", "wrong"))
        assert right == wrong != []
        assert all(f"`{name}`" in task.text for name in right), f"{task.folder.name} does not name the files {right}"
        same = all((task.folder / "right" / n).read_bytes() == (task.folder / "wrong" / n).read_bytes() for n in right)
        assert not same
        assert "\ndef check() -> None:\n" in (task.folder / "check.py").read_text(encoding="utf-8")


def made_task(folder: Path, check: str) -> Any:
    (folder / "21-made").mkdir()
    (folder / "21-made/task.md").write_text("# Made\n\nWrite `answer.py`.\n")
    (folder / "21-made/check.py").write_text(check)
    (folder / "mine").mkdir()
    (folder / "mine/answer.py").write_text("answer = 41\n")
    return graded.Task(folder / "21-made")


def test_a_check_runs_in_a_copy_and_its_reason_is_told(tmp_path: Path) -> None:
    text = "import answer, pathlib\ndef check():\n    pathlib.Path('left').touch()\n"
    text += "    assert answer.answer == 42, 'it is 41'\n"
    task = made_task(tmp_path, text)
    found = graded.grade(task, tmp_path / "mine")
    assert (found.passed, found.reason) == (False, "it is 41")
    assert graded.line(found) == "21-made: fail: it is 41"
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["answer.py"]
    (tmp_path / "mine/answer.py").write_text("answer = 42\n")
    assert graded.grade(task, tmp_path / "mine").passed


def test_a_solution_that_raises_ends_or_hangs_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = made_task(tmp_path, "def check():\n    import answer\n")
    for code, reason in (
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("import os; os._exit(3)", "the process ends with 3:"),
    ):
        (tmp_path / "mine/answer.py").write_text(code)
        assert graded.grade(task, tmp_path / "mine").reason == reason
    monkeypatch.setattr(graded, "SECONDS", 0.2)
    (tmp_path / "mine/answer.py").write_text("import time; time.sleep(9)")
    assert graded.grade(task, tmp_path / "mine").reason == "it takes longer than 0.2 s"


def test_results_of_a_reader_are_kept_and_replaced(tmp_path: Path) -> None:
    kept = tmp_path / "graded.csv"
    kept.write_text("reader,task,passed,reason\n")
    first, second = TASKS[:2]
    graded.keep("a", [graded.Grade(first, False, "no"), graded.Grade(second, True, "")], kept)
    graded.keep("b", [graded.Grade(first, True, "")], kept)
    graded.keep("a", [graded.Grade(first, True, ""), graded.Grade(second, False, "why, so")], kept)
    rows = graded.results(kept)
    assert [(r["reader"], r["task"], r["passed"], r["reason"]) for r in rows] == [
        ("b", first.folder.name, "yes", ""), ("a", first.folder.name, "yes", ""),
        ("a", second.folder.name, "no", "why, so"),
    ]  # fmt: skip
    lines = graded.table(rows).splitlines()
    assert lines[0] == "| task | b | a |"
    assert lines[2:4] == [f"| 1. {first.title} | pass | pass |", f"| 2. {second.title} | - | fail |"]
    assert lines[-1] == f"| **of {len(TASKS)}** | **1** | **1** |"


def test_the_page_has_the_table_of_what_is_kept() -> None:
    text = graded.PAGE.read_text(encoding="utf-8")
    assert graded.page(text) == text, "python scripts/graded_tasks.py table"


def test_commands_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert graded.main(["list"]) == 0
    assert " 1  proximal" in capsys.readouterr().out
    assert graded.main(["show", "16"]) == 0
    assert capsys.readouterr().out.startswith("# A sampler\n")
    with pytest.raises(SystemExit, match="there are the tasks 1 to"):
        graded.main(["show", "77"])
