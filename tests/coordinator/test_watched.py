"""What ends a run and what its best round is follow the headline of its task."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom as fl
from fedloom.coordinator.history import History
from fedloom.core.errors import SettingError
from targets_made import LOCAL, TASKS, federation, linear

SETTINGS = fl.RunSettings(rounds=6, cohort_size=5)


def job(kind: str = "numbers", **settings: Any) -> fl.Job:
    run = dataclasses.replace(SETTINGS, **settings)
    local = dataclasses.replace(LOCAL, epochs=1)
    return fl.Job(
        algorithm=fl.FedAvg(local=local), federation=federation(kind), model=linear, task=TASKS[kind], settings=run
    )


def test_the_default_watches_the_headline_and_an_error_reaches_a_target_from_above() -> None:
    whole = job().run()
    target = float(whole.series("global_rmse")[3]) + 1e-9
    history = job(target=target).run()
    assert history.metrics[-1]["round"] == 3
    assert history.stopped == f"global rmse reached {history.last('global_rmse'):.4g} (target {target:g})"


def test_patience_waits_for_a_lower_error() -> None:
    """Of rates so large that the error only rises, the first measurement stays the best."""
    run = job(patience=2)
    local = dataclasses.replace(LOCAL, optimiser=fl.SGD(lr=2.0), epochs=1)
    rising = dataclasses.replace(run, algorithm=fl.FedAvg(local=local)).run()
    values = rising.series("global_rmse")[1:]
    best = int(np.argmin(values))
    assert rising.stopped == f"global rmse did not improve on {values[best]:.4g} in 2 measurements"
    assert len(values) - 1 - best == 2
    falling = job(patience=2).run()
    assert falling.stopped is None
    assert (np.diff(falling.series("global_rmse")[1:]) < 0).all()


@pytest.mark.parametrize("monitor", ["personal_rmse", "val_rmse", "global_r2", "global_loss", "train_loss"])
def test_any_measure_of_the_task_can_be_watched(monitor: str) -> None:
    history = job(monitor=monitor, target=-1e9 if monitor == "global_r2" else 1e9, measures=("r2",)).run()
    assert history.stopped is not None
    assert history.stopped.startswith(monitor.replace("_", " "))
    assert history.metrics[-1]["round"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"monitor": "luck"}, "monitor must be one of the measures of this task, val_rmse, .*got 'luck'"),
        ({"monitor": "personal_accuracy"}, "got 'personal_accuracy'"),
        ({"monitor": "forgetting"}, "got 'forgetting'"),
        ({"monitor": "global_r2"}, "got 'global_r2'.*: choose one of them, or compute it too"),
        ({"kind": "labels", "target": 90}, "target of global_label_accuracy is a share .* write 0.9 for 90 %"),
    ],
)
def test_what_is_not_measured_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        job(**settings)


@pytest.mark.slow
def test_a_round_is_kept_by_the_lowest_validation_error_and_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    whole = job(keep_best=True, measures=("r2", "mae")).run(tmp_path / "whole")
    best = int(np.argmin(whole.series("val_rmse")))
    assert whole.validated_round == best
    job(keep_best=True, measures=("r2", "mae"), rounds=3).run(tmp_path / "cut")
    job(keep_best=True, measures=("r2", "mae")).run(tmp_path / "cut", resume=True)
    files = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]
    assert not fl.verify(tmp_path / "cut").problems
    restored = job(keep_best=True, measures=("r2", "mae")).restore(tmp_path / "cut", best)
    assert restored is not None
    assert History.read(tmp_path / "cut").headline.title == "RMSE"


def test_a_best_round_without_validation_examples_names_the_measure() -> None:
    with pytest.raises(SettingError, match="keep_best chooses a round by val_rmse"):
        dataclasses.replace(job(), federation=federation("numbers", val_fraction=0.0), settings=dataclasses.replace(
            SETTINGS, keep_best=True
        ))  # fmt: skip
