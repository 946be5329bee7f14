"""Which slow tests CI leaves out."""

from __future__ import annotations

from conftest import out_of_turn

CASES = [*(f"a.py::test_table[{i}]" for i in range(200)), *(f"b.py::test_{i}" for i in range(200))]


def test_each_slow_test_has_its_turn_within_a_few_commits() -> None:
    """At a commit a quarter of 400 cases and tests run, at another one maybe others."""
    left = [out_of_turn(CASES, 4, f"commit {i}") for i in range(30)]
    assert all(270 < len(each) < 330 for each in left)
    assert set.intersection(*left) == set()
    assert out_of_turn(CASES, 4, "a") == out_of_turn(CASES, 4, "a")
