"""The numbers of analyses, of a log and of rounds that are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedloom.analyses import class_accuracy, consistency, forgetting, local_accuracy
from fedloom.analyses.analysed_run import LoggedAccuracy
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, ratio
from fedloom.report.number_table import Table

PER_CLASS = np.array([[0.8, 0.0], [0.6, 0.8], [0.0, 0.5], [0.3, 0.4]])  # after rounds 2, 4, 6 and 8


def run(*shown: bool, rounds: tuple[int, ...] = (2, 4, 6, 8)) -> Any:
    """A run as these analyses see it."""
    log = LoggedAccuracy([*rounds], PER_CLASS, np.array(shown or (True,) * 4), 4, ["Unproved: all of it."])
    return SimpleNamespace(logged_accuracy=lambda: log)


def table(result: AnalysisResult, name: str) -> Table:
    return next(t for t in result.tables if t.name == name)


def test_accuracy_by_class_is_that_of_the_rounds_asked_for_the_best_that_of_all() -> None:
    found = class_accuracy.measure(run(False, True, False, True))
    assert table(found, "class-accuracy").rows == [
        [4, 0.6, 0.8, 0.6 / 1.4, 0.8 / 1.4],
        [8, 0.3, 0.4, 0.3 / 0.7, 0.4 / 0.7],
    ]
    assert found.summary.rows == [[0, 0.3, 0.8, 0.3 / 0.7], [1, 0.4, 0.8, 0.4 / 0.7]]
    assert [column.heading for column in found.summary.columns][1:3] == ["round 8, %", "best, %"]
    assert found.remarks == ["Unproved: all of it."]


def test_consistency_stands_at_the_later_of_two_rounds() -> None:
    found = consistency.measure(run(rounds=(5, 6, 7, 8)))
    rows = table(found, "consistency").rows
    assert [row[0] for row in rows] == [6, 7, 8]
    assert [row[1] for row in rows] == pytest.approx([0.6, 0.8, 0.8])
    assert found.summary.rows[0] == pytest.approx([2.2 / 3, 0.6, 0.8])  # mean, lowest, highest


def test_forgetting_is_told_in_both_conventions_and_of_the_mean_peak() -> None:
    found = forgetting.measure(run(False, True, False, True))
    rows = table(found, "forgetting").rows
    assert [row[0] for row in rows] == [4, 8]
    assert rows[0][1:] == pytest.approx([(0.2 - 0.8) / 2, (0.2 + 0) / 2, (0.2 - 0.8) / 2 / 0.4, 0.7])
    lost = (0.5 + 0.4) / 2
    assert rows[1][1:] == pytest.approx([lost, lost, lost / 0.8, 0.35])
    assert found.summary.rows[0] == pytest.approx([lost, lost, 0.35, 0.8, lost / 0.8])
    assert table(found, "forgetting-by-class").rows == [
        pytest.approx([0, 0.5, 0.8, 0.3]),
        pytest.approx([1, 0.4, 0.8, 0.4]),
    ]


def test_a_table_holds_finite_numbers_and_zero_has_no_sign() -> None:
    assert csv_table("t", ["a"], [[np.float64(v)] for v in (np.inf, np.nan, 1)]).rows == [[None], [None], [1.0]]
    assert [ratio(-0.0), ratio(0.125)] == ["0.000", "0.125"]


def test_local_accuracy_is_told_before_after_and_of_the_aggregated_model() -> None:
    """Two clients of one class each, and one example of the third class."""
    made: Any = SimpleNamespace(
        number=3, clients=[4, 7], counts=np.array([[2, 0, 0], [0, 1, 1]]), start_accuracy=np.array([0.2, 0.4, 0.0]),
        trained_accuracy=np.array([[1.0, 0.0, 0.0], [0.1, 0.6, 0.8]]), after_accuracy=np.array([0.8, 0.4, 0.4]),
    )  # fmt: skip
    run: Any = SimpleNamespace(replayed_rounds=lambda: iter([made]), left_out=lambda rounds: [f"seen {list(rounds)}"])
    found = local_accuracy.measure(run)
    rows = table(found, "local-accuracy").rows
    assert rows[0] == pytest.approx([3, 4, 2, 0.2, 1.0, 0.2, 0.0])
    assert rows[1] == pytest.approx([3, 7, 2, 0.2, 0.7, 0.2, 0.4])
    means = dict(zip([c.name for c in table(found, "local-accuracy-rounds").columns],
                     table(found, "local-accuracy-rounds").rows[0], strict=True))  # fmt: skip
    assert (means["in_before_mean"], means["in_after_mean"], means["out_after_mean"]) == pytest.approx((0.2, 0.85, 0.2))
    assert means["in_aggregated"] == pytest.approx(0.5 * 0.8 + 0.25 * 0.4 + 0.25 * 0.4)
    assert means["out_aggregated"] == pytest.approx((0.5 * 0.8 + 0.75 * 0.4 + 0.75 * 0.4) / 2)
    assert found.remarks[-1] == "seen [3]"
