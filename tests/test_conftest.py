"""Which tests CI leaves out."""

from __future__ import annotations

from conftest import out_of_turn

CASES = [f"a.py::test_table[{i}]" for i in range(200)]
FEW = [f"a.py::test_few[{i}]" for i in range(9)]


def test_each_case_of_a_long_table_has_its_turn_within_a_few_commits() -> None:
    """At a commit half of 200 cases run, at another one maybe the others; a test with nine slow cases runs whole."""
    left = [out_of_turn([*CASES, *FEW, "a.py::test_one"], 2, commit) for commit in "abcdefgh"]
    assert all(70 < len(each) < 130 for each in left)
    assert set.intersection(*left) == set()
    assert set.union(*left) == {*CASES}
    assert out_of_turn(CASES, 2, "a") == out_of_turn(CASES, 2, "a")
