"""Accuracies over label skew and participation, of runs made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.core.errors import SettingError
from fedloom_papers.pfedsd.spread import spread
from published_runs import cell, made


def personal(folder: Path, column: str, row: str, accuracy: float) -> None:
    made(folder, cell("pfedsd-a", column, row), 0, accuracy, rounds=3)


def test_the_spread_of_a_method_is_over_the_columns_that_have_runs(tmp_path: Path) -> None:
    for column, accuracy in (("cifar10-s2-r0.6", 80.0), ("cifar10-s2-r1", 82.5), ("cifar10-dir1-r0.6", 60.0)):
        personal(tmp_path, column, "pfedsd", accuracy)
    personal(tmp_path, "cifar10-s2-r1", "fedavg", 30.0)
    personal(tmp_path, "fmnist14k-s2-r1", "fedavg", 50.0)
    found = spread("pfedsd-a", [tmp_path])
    assert found.summary.rows == [
        ["fmnist14k", "fedavg", 1, 50.0, 50.0, 0.0],
        ["cifar10", "pfedsd", 3, pytest.approx(60), pytest.approx(82.5), pytest.approx(22.5)],
        ["cifar10", "fedavg", 1, 30.0, 30.0, 0.0],
    ]
    assert [ax.get_title(loc="left") for ax in found.figure.axes] == [
        "fmnist14k, 3 of 100 rounds, 1 seed", "cifar10, 3 of 100 rounds, 1 seed",
    ]  # fmt: skip
    ticks = [label.get_text() for label in found.figure.axes[1].get_xticklabels()]
    assert ticks == ["s2-r0.6", "s2-r1", "dir1-r0.6"]
    (table,) = found.tables
    assert len(table.rows) == 5


def test_runs_that_are_no_like_of_the_others_are_left_out_and_named(tmp_path: Path) -> None:
    for column, accuracy in (("cifar10-s2-r0.6", 80.0), ("cifar10-s2-r1", 82.5)):
        personal(tmp_path, column, "pfedsd", accuracy)
    made(tmp_path, cell("pfedsd-a", "cifar10-dir1-r0.6", "pfedsd"), 0, 30.0, rounds=2, local__epochs=1)
    found = spread("pfedsd-a", [tmp_path])
    assert found.summary.rows == [["cifar10", "pfedsd", 2, pytest.approx(80), pytest.approx(82.5), pytest.approx(2.5)]]
    assert found.remarks == [
        "Left out, with other rounds or settings than the recipe's settings after 3 rounds: cifar10-dir1-r0.6 pfedsd "
        "(2 rounds, local.epochs = 1)."
    ]


def test_nothing_to_spread_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no runs of pfedsd-b; name what --out named"):
        spread("pfedsd-b", [tmp_path])
