"""One file of the library is checked by all tests that concern it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_one_file", ROOT / "scripts" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("algorithms/moon", {"tests/algorithms/test_moon.py"}),  # of its name
        ("deploy/server/joining", {"tests/deploy/device/test_membership.py"}),  # its wrong edits name it
        ("engines/argument_checks", {"tests/engines/test_messages.py"}),
        ("report/over_seeds", {"tests/report/test_standings.py"}),
        ("coordinator/thread_count", {"tests/coordinator/test_thread_count.py"}),
        ("analyses/forgetting", {"tests/analyses/test_analyses_of_logs.py"}),  # a room loads it by its name
        ("papers/pfedsd/spread", {"papers/tests/pfedsd/test_spread.py"}),
    ],
)
def test_tests_are_found_wherever_they_are(file: str, tests: set[str], check: ModuleType) -> None:
    source = check.source_of(f"{file}.py", ROOT).relative_to(ROOT)
    found = check.concerning(source.stem, [str(source)])
    assert tests <= set(found)
    assert len(found) < 40


def test_a_file_that_many_tests_import_has_those_of_its_edits(check: ModuleType) -> None:
    found = check.concerning("types", ["src/fedloom/core/types.py"])
    assert "tests/core/test_tree.py" in found
    assert len(found) <= 12


def test_a_file_that_is_not_there(check: ModuleType) -> None:
    with pytest.raises(LookupError, match=r"there is no gone\.py below src or papers"):
        check.steps("gone")
