"""docs/papers.md says of each agreement what its tests verify, and forgets no golden file that is read."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

from reading import FILES, files, functions, on_both_engines, tolerances

PAGE = (Path(__file__).parents[1] / "docs" / "papers.md").read_text(encoding="utf-8")


class Row(NamedTuple):
    to: str
    by: str
    files: list[str]
    tests: list[str]


def table() -> list[Row]:
    """The page's first table."""
    lines = PAGE.partition("\n|---|---|---|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [Row(c[2], c[3], c[4].split("`")[1::2], c[5].split("`")[1::2]) for c in cells]


ROWS = [pytest.param(row, id=f"{number}-{row.tests[0].rpartition(':')[2]}") for number, row in enumerate(table())]


def test_the_page_has_its_table() -> None:
    assert len(ROWS) > 40


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_its_tests_exist(row: Row) -> None:
    assert row.tests
    assert set(row.tests) <= set(functions())


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_its_files_are_read_by_its_tests(row: Row) -> None:
    read = set().union(*map(files, row.tests))
    for pattern in row.files:
        named = {name for name in FILES if fnmatchcase(name, pattern)}
        assert named, f"no golden file is {pattern}"
        assert named <= read, f"{sorted(named - read)} are not read by {row.tests}"
    for test in row.tests:  # and none of them has nothing to do with the files of the row
        assert not row.files or any(fnmatchcase(name, pattern) for name in files(test) for pattern in row.files), test


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_its_tolerance_is_that_of_its_tests(row: Row) -> None:
    found = set().union(*map(tolerances, row.tests))
    told = {float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", row.to.replace("float32", ""))}
    assert told <= found, f"the page says {sorted(told)}, the tests {sorted(found)}"
    assert max(told, default=0.0) == max(found, default=0.0), f"the page says {row.to}, the tests {sorted(found)}"
    assert told or row.to == "exactly"


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_it_says_engines_where_all_its_tests_run_on_both(row: Row) -> None:
    assert row.by == ("engines" if all(map(on_both_engines, row.tests)) else "functions")


@pytest.mark.slow
def test_every_golden_file_that_is_read_is_on_the_page() -> None:
    read = set().union(*map(files, functions()))
    told = {name for name in FILES for row in table() for pattern in row.files if fnmatchcase(name, pattern)}
    assert sorted(read - told - {"ktpfl_dense/index.json"}) == []


def test_the_sources_of_tests_tell_their_tolerances(tmp_path: Path) -> None:
    """What the comparison above relies on, defaults and helpers included."""
    source = """
import numpy as np, pytest
from small import assert_params
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
def helper(x): assert x <= 1e-8
def test_dict(): np.testing.assert_allclose(1, 1, **CLOSE)
def test_default(): np.testing.assert_allclose(1, 1, atol=1e-12)
def test_approx(): assert 1 == pytest.approx(1, abs=1e-11)
def test_bare(): assert 1 == pytest.approx(1)
def test_helper(): helper(1)
def test_of_small(): assert_params(1, 1)
def test_told_small(): assert_params(1, 1, rtol=1e-3, atol=0)
def test_denied(): assert not np.allclose(1, 2, atol=1e-2)
def test_exact(): np.testing.assert_array_equal(1, 1)
"""
    path = tmp_path / "test_made.py"
    path.write_text(source, encoding="utf-8")
    found = {name: tolerances(f"{path}::test_{name}") for name in re.findall(r"def test_(\w+)", source)}
    assert found == {
        "dict": {1e-5},
        "default": {1e-7, 1e-12},
        "approx": {1e-11},
        "bare": {1e-6},
        "helper": {1e-8},
        "of_small": {1e-9},
        "told_small": {1e-3},
        "denied": set(),
        "exact": set(),
    }
