"""Local models and the global one by round, of runs made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedloom.core.errors import SettingError
from fedloom_papers.pfedsd.initialisation import figure_2
from published_runs import cell, made

COLUMN = "cifar10-s2-r0.6"


def run(folder: Path, row: str, seed: int, **series: list[float | None]) -> None:
    """A run whose records of rounds 1, 2, ... have these numbers."""
    count = len(next(iter(series.values())))
    place = made(folder, cell("pfedsd-a", COLUMN, row), seed, 50.0, rounds=count)
    lines = [{"round": 0, "personal_accuracy": 0.1}]
    lines += [
        {"round": t + 1, "personal_accuracy": 0.5} | {name: values[t] for name, values in series.items()}
        for t in range(count)
    ]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_fedavg_with_stored_models_beside_fedavg_with_the_global_one(tmp_path: Path) -> None:
    for seed, local, received in ((0, [0.5, 0.8, 0.9], [0.2, 0.4, 0.6]), (1, [0.7, 0.8, None], [0.4, 0.4, None])):
        run(tmp_path, "fedavg_stored", seed, personal_accuracy=local, train_loss=[2.0, 1.5, 1.0])
        run(tmp_path, "fedavg", seed, personal_accuracy=received, train_loss=[2.0, 1.5, 1.0])
    run(tmp_path, "fedavg_stored", 2, personal_accuracy=[0.1, 0.1, 0.1], train_loss=[2.0, 1.5, 1.0])
    run(tmp_path, "fedavg", 2, personal_accuracy=[0.1, 0.1, 0.1], train_loss=[2.0, 1.5, 1.1])  # other models
    found = figure_2([tmp_path])
    (row,) = found.summary.rows
    assert row[:5] == [COLUMN, "fedavg", "all clients", 2, 2]
    assert row[5:] == pytest.approx([0.7, 0.35, 0.35])
    assert found.figure.axes[0].get_title(loc="left") == f"{COLUMN}\n2 of 100 rounds, 2 seeds"
    local, received = found.figure.axes[0].lines
    assert list(local.get_ydata()) == pytest.approx([60, 80])
    assert list(received.get_ydata()) == pytest.approx([30, 40])
    assert [line[4:] for line in found.tables[0].rows] == [
        [1, pytest.approx(0.6), pytest.approx(0.3)], [2, pytest.approx(0.8), pytest.approx(0.4)],
    ]  # fmt: skip


def test_runs_that_measured_clients_around_local_training(tmp_path: Path) -> None:
    run(tmp_path, "pfedsd", 0, trained_accuracy=[0.6, 0.8], received_accuracy=[0.1, 0.5])
    found = figure_2([tmp_path])
    (row,) = found.summary.rows
    assert row[:5] == [COLUMN, "pfedsd", "a round's clients", 1, 2]
    assert row[5:] == pytest.approx([0.7, 0.3, 0.4])


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    run(tmp_path, "fedavg", 0, train_loss=[1.0])
    with pytest.raises(SettingError, match="holds neither runs of fedavg and fedavg_stored of the same column and"):
        figure_2([tmp_path])
