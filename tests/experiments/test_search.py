"""What Optuna picks, and what it is told."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("optuna", reason="Optuna is not installed: pip install '<PATH>[search]'")

from fedloom.core.errors import SettingError
from fedloom.experiments.search import Search, ends, is_range

SPACE: dict[str, Any] = {"lr": "log:0.0001:1", "epochs": "int:1:9", "model": ["mlp", "lenet"]}


def picked(seed: int, count: int, maximise: bool = True) -> list[dict[str, Any]]:
    """Trials of which those with a low rate are best, and that of one network fail."""
    search, out = Search(SPACE, seed, maximise, first=[{"lr": 0.5, "epochs": 2, "model": "lenet"}]), []
    for _ in range(count):
        out.append(search.pick())
        good = -out[-1]["lr"] if maximise else out[-1]["lr"]
        search.learn(None if out[-1]["model"] == "lenet" else good)
    return out


def test_settings_are_of_their_kind_and_the_same_for_the_same_seed() -> None:
    found = picked(0, 12)
    assert found[0] == {"lr": 0.5, "epochs": 2, "model": "lenet"}
    assert all(type(one["epochs"]) is int and 1 <= one["epochs"] <= 9 for one in found)
    assert found == picked(0, 12)
    assert found[1:] != picked(1, 12)[1:]
    assert sum(one["lr"] < 0.1 for one in found) > 6  # three quarters of a logarithmic range, a tenth of a uniform one
    assert [ends("k", text) for text in ("int:1:9", "log:0.1:1")] == [(1, 9), (0.1, 1.0)]
    assert [is_range(value) for value in ("log:0.1:1", ["log:0.1:1"], "0.1,1")] == [True, False, False]
    with pytest.raises(SettingError, match="k needs a range log:LOW:HIGH, uniform:LOW:HIGH or int:LOW:HIGH, got"):
        ends("k", "int:1:2.5")


@pytest.mark.parametrize("maximise", [True, False])
def test_the_direction_and_failures_are_told(maximise: bool) -> None:
    search = Search({"lr": "uniform:0:1"}, 0, maximise)
    for score in (0.1, None, 0.9):
        search.pick()
        search.learn(score)
    assert search._study.best_value == (0.9 if maximise else 0.1)
    assert [trial.state.name for trial in search._study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
