"""Every golden file is read by a test, or listed with what it waits for (tests/golden/README.md)."""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, golden

from fedloom import ALGORITHMS
from reading import FILES, PAPERS, SHARED, TESTS, definitions, files, functions

THIS = Path(__file__)
INDEX = "ktpfl_dense/index.json"


@functools.cache
def read() -> dict[str, set[str]]:
    """Of each golden file the modules that read it, told from the sources of all tests (seconds)."""
    found = {INDEX: {"test_golden_files.py"}}
    for test in functions():
        for file in files(test):
            found.setdefault(file, set()).add(test.partition("::")[0])
    return found


def listed(heading: str) -> list[list[list[str]]]:
    """The table under a heading of the README: of each row and cell, what stands in backticks."""
    _, found, section = (GOLDEN / "README.md").read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    assert found, f"tests/golden/README.md has no section {heading!r}"
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    return [[cell.split("`")[1::2] for cell in line.strip("| ").split("|")] for line in lines]


WAITING = {row[0][0]: row[1] for row in listed("Files that no test reads")}
IN_MINIATURE = {row[0][0]: row[1] for row in listed("Files that only a miniature reads")}


@pytest.mark.slow
def test_every_file_is_read_or_waits() -> None:
    forgotten = sorted(FILES.keys() - read().keys() - WAITING.keys())
    assert not forgotten, f"no test reads {forgotten}: write one, or list them in tests/golden/README.md"


@pytest.mark.slow
def test_what_waits_exists_and_is_not_read() -> None:
    assert set(WAITING) <= set(FILES), "tests/golden/README.md lists files that are not there"
    struck = sorted(WAITING.keys() & read().keys())
    assert not struck, f"tests read {struck}: strike them from the list in tests/golden/README.md"


@pytest.mark.slow
def test_what_a_miniature_reads_is_told() -> None:
    assert set(IN_MINIATURE) == {file for file, modules in read().items() if modules == {"test_miniatures.py"}}


def test_nothing_waits_for_a_method_that_is_there() -> None:
    for file, methods in (WAITING | IN_MINIATURE).items():
        assert not set(methods) & set(ALGORITHMS), f"{file} waits for {methods}, which is there: read it"


@pytest.mark.slow
def test_arrays_that_are_left_out_exist() -> None:
    for (name,), patterns, _ in listed("Arrays that no test reads, of files that are read"):
        assert name in read()
        for pattern in patterns:
            assert any(fnmatchcase(key, pattern) for key in golden(name)), f"{name} has no array {pattern}"


def test_no_test_goes_around_the_function_that_reads_them() -> None:
    written = [*TESTS.rglob("*.py"), *PAPERS.rglob("*.py"), SHARED]
    around = [p for p in written if '/ "golden"' in p.read_text(encoding="utf-8") and p != THIS]
    assert around == [SHARED]


@pytest.mark.parametrize("folder", sorted(folder.name for folder in GOLDEN.iterdir() if folder.is_dir()))
def test_every_folder_says_how_it_was_made(folder: str) -> None:
    assert (GOLDEN / folder / "README.md").exists()


def test_files_are_found_by_what_a_test_spells_out() -> None:
    assert files("algorithms/test_fedcurv.py::test_the_mistake_matters") == {
        "fedntd/traj_fedcurv_fixed_plain",
        "fedntd/traj_fedcurv_official_plain",
    }
    assert files("data/test_partition.py::test_a_plain_dirichlet_divides_each_class_on_its_own") == set()
    assert files("data/test_skews.py::test_pathological_gives_the_official_rows") == {"pfedsd_apfl/partition_cgcl"}
    assert "read" in definitions(TESTS / "data" / "test_partition.py")


def test_arrays_are_those_of_the_index() -> None:
    """Names, types and shapes, of the files that are not held back."""
    index = golden(INDEX)["files"]
    there = [name for name in FILES if name.startswith("ktpfl_dense/") and not name.endswith(".json")]
    assert {f"{name.rpartition('/')[2]}.npz" for name in there} <= set(index)
    for name in there:
        want = index[f"{name.rpartition('/')[2]}.npz"]["keys"]
        assert {key: [str(a.dtype), list(np.shape(a))] for key, a in golden(name).items()} == want
