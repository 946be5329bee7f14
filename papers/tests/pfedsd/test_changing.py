"""Recipes for data that change."""

from __future__ import annotations

from fedloom_papers.pfedsd import changing


def test_examples_arrive_and_the_past_model_is_to_be_above_stored_predictions() -> None:
    found = list(changing.recipes())
    assert {(r.column, r.experiment.data.arrives) for r in found} == {
        ("fmnist14k-dir0.1-growing", "growing:0.1:40"), ("fmnist14k-dir0.1-window", "window:0.1:40"),
    }  # fmt: skip
    assert {r.row: r.above for r in found if r.above} == {"pfedsd": ("pfedsd_predictions",)}
    assert {(r.measure, r.accuracy, r.target) for r in found} == {("personal_accuracy", None, False)}
    assert len(found) == 8
