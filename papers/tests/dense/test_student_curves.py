"""DENSE's student beside its models, of runs made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedloom.core.errors import SettingError
from fedloom_papers.dense.student_curves import curves
from published_runs import cell, made


@pytest.mark.slow
def test_the_student_is_drawn_by_epoch_beside_every_model(tmp_path: Path) -> None:
    place = made(tmp_path, cell("dense-table1", "fmnist-a0.1-m5-cnn", "dense"), 0, 50.0, rounds=3)
    lines = [
        {"round": 0, "global_accuracy": 0.1},
        {
            "round": 1, "global_accuracy": 0.1, "upload_accuracy": {"0": 0.2, "1": 0.3}, "ensemble_accuracy": 0.6,
            "mean_accuracy": 0.4,
        },
        {"round": 2, "global_accuracy": 0.25},
        {"round": 3, "global_accuracy": 0.5},
    ]  # fmt: skip
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = curves([tmp_path])
    assert found.summary.rows == [["fmnist-a0.1-m5-cnn, seed 0", 0.2, 0.3, 0.6, 0.4, 0.5]]
    (axes,) = found.figure.axes
    assert axes.get_title(loc="left") == "fmnist-a0.1-m5-cnn, seed 0\n2 of 200 epochs"
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert drawn["student"] == [25.0, 50.0]
    assert [row[2:] for row in found.tables[0].rows if row[1] == "student"] == [[1, 0.25], [2, 0.5]]
    assert drawn["ensemble"] == [60.0, 60.0]
    assert drawn["mean of weights"] == [40.0, 40.0]
    assert [line.get_ydata()[0] for line in axes.lines if line.get_linewidth() == 0.8] == pytest.approx([20.0, 30.0])


@pytest.mark.slow
def test_runs_without_an_upload_are_nothing_to_draw(tmp_path: Path) -> None:
    made(tmp_path, cell("dense-table1", "fmnist-a0.1-m5-cnn", "dense"), 0, 50.0, rounds=3)
    with pytest.raises(SettingError, match="holds no runs of dense; name what --out named"):
        curves([tmp_path])
