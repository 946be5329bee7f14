"""The table of tuning: its columns, what moved, and methods that tuning left as given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_several_seeds import history

from fedloom.report import summary
from fedloom.report.number_table import Interval
from fedloom.report.tuned_methods import describe_tuning, tuning_table

TUNING: dict[str, Any] = {
    "tries": 8, "by": "val_accuracy", "with": "grid",
    "methods": {
        "fedavg": {
            "moved": True, "chosen": {"local.lr": 0.05}, "given_score": 0.61, "score": 0.7, "folder": "fedavg-tuned",
            "tried": {"local.lr": [0.1, 0.05]},
        },
        "fedprox": {"moved": False, "chosen": {"local.lr": 0.1}, "given_score": 0.65, "score": 0.65},
        "elsewhere": {"moved": True, "chosen": {}, "given_score": 0.1, "score": 0.2, "folder": "elsewhere-tuned"},
    },
}  # fmt: skip


def methods(**ends: tuple[float, ...]) -> list[Any]:
    """Methods in folders of these names, whose runs end at these global accuracies, a seed each."""
    runs = {
        name: [history(name, s, [0.1, end], personal_accuracy=end + 0.1) for s, end in enumerate(values)]
        for name, values in ends.items()
    }
    found = summary(runs).methods
    return [
        replace(m, runs=tuple(replace(run, folder=f"{m.label}/seed-{s}") for s, run in enumerate(m.runs)))
        for m in found
    ]


def test_a_row_has_the_scores_before_and_after_and_what_moved() -> None:
    given, tuned = (0.5, 0.6), (0.7, 0.9)
    of = methods(fedavg=given, fedprox=(0.4, 0.5), **{"fedavg-tuned": tuned})
    table = tuning_table(of, TUNING)
    assert table is not None
    assert [c.name for c in table.columns] == [
        "method", "chosen", "given_score", "score",
        "global_accuracy_given", "global_accuracy_tuned", "global_accuracy_moved",
        "personal_accuracy_given", "personal_accuracy_tuned", "personal_accuracy_moved",
    ]  # fmt: skip
    assert [c.best for c in table.columns] == [None] * 5 + ["high", None, None, "high", None]
    first, second = table.rows
    assert first[:4] == ["fedavg", "lr=0.05", 0.61, 0.7]
    assert (first[4].mean, first[5].mean) == (pytest.approx(0.55), pytest.approx(0.8))
    assert isinstance(first[6], Interval)
    assert (first[6].mean, first[6].count) == (pytest.approx(0.25), 2)
    assert (first[7].mean, first[8].mean) == (pytest.approx(0.65), pytest.approx(0.9))
    assert second[:4] == ["fedprox", "as given", 0.65, 0.65]
    assert second[4] == second[5]
    assert second[6] == 0.0
    assert table.numbers == [of[0].number, of[1].number]


def test_one_seed_moves_without_an_interval() -> None:
    table = tuning_table(methods(fedavg=(0.5,), **{"fedavg-tuned": (0.7,)}), TUNING)
    assert table is not None
    assert table.rows[0][6] == pytest.approx(0.2)


def test_methods_that_were_not_tuned_have_no_table() -> None:
    assert tuning_table(methods(fednova=(0.5,)), TUNING) is None


def test_the_caption_says_what_was_tried() -> None:
    assert describe_tuning(TUNING) == (
        "Each method had 8 tries of a grid, the first with the settings given, all with one seed; the best by val "
        "accuracy was run with every seed, as were the settings given. Moved: tuned minus as given. Varied: local.lr "
        "in 0.1, 0.05."
    )
