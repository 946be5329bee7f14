"""A table with a target through the commands: run, replay, sweep, and what is refused."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.cli.main import main
from fedloom.coordinator.history import History


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    x = np.random.default_rng(0).normal(size=(150, 2))
    lines = [f"{a:.4f},{b:.4f},{3 * a - b:.4f}" for a, b in x]
    (tmp_path / "stays.csv").write_text("\n".join(["a,b,days", *lines]))
    data = ["--data", f"{tmp_path / 'stays.csv'}?target=days", "--task", "regression", "--model", "logistic"]
    return [*data, "--partition", "iid", "--clients", "3", "--cohort", "2", "--rounds", "3", "--val-fraction", "0.2"]


def test_a_run_says_its_best_round_by_the_error_and_is_computed_again(given: Any, tmp_path: Path, capsys: Any) -> None:
    assert main(["run", "fedavg", *given, "--keep-best", "--out", str(tmp_path / "run")]) == 0
    said, history = capsys.readouterr().out, History.read(tmp_path / "run")
    best = next(m for m in history.metrics if m["round"] == history.validated_round)
    assert f"validation RMSE {best['val_rmse']:.4f}; on test data global {best['global_rmse']:.4f}" in said
    assert "RMSE after the last round" in said
    assert main(["replay", str(tmp_path / "run"), "2"]) == 0
    said = capsys.readouterr().out
    assert "RMSE on" in said
    assert "the test set" in said


def test_a_sweep_shows_the_error_of_the_best_trial(given: Any, tmp_path: Path, capsys: Any) -> None:
    assert main(["sweep", "fedavg", *given, "--over", "local.lr=0.0001,0.05", "--out", str(tmp_path / "s")]) == 0
    said = capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "s" / "sweep.csv").read_text().splitlines()))
    assert "chosen by val_rmse" in said
    assert "best: trial-001" in said
    assert f"global rmse {float(rows[1]['global_rmse']):.4f}" in said


def test_a_best_round_that_no_round_has_is_named_by_the_error(given: Any, tmp_path: Path, capsys: Any) -> None:
    assert main(["run", "fedavg", *given, "--val-fraction", "0", "--out", str(tmp_path / "run")]) == 0
    assert main(["replay", str(tmp_path / "run"), "best"]) == 2
    assert "the best round is that with the lowest val_rmse" in capsys.readouterr().err
