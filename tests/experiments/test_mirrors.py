"""Mirrors of several runs."""

from __future__ import annotations

from fedloom.experiments.experiment import Experiment
from fedloom.experiments.mirrors import mirrored_below
from fedloom.experiments.trials import Sweep

GIVEN = {"algorithm": "fedavg", "run": {"mirror": "s3://bucket/two", "seed": 3}, "data": {"val_fraction": 0.2}}


def test_each_run_has_a_folder_of_its_own() -> None:
    experiment = Experiment.of(GIVEN)
    assert mirrored_below(experiment, "fedavg/seed-0").run.mirror == "s3://bucket/two/fedavg/seed-0"
    assert mirrored_below(experiment, ".").run.mirror == "s3://bucket/two"
    alone = Experiment.of({"algorithm": "fedavg"})
    assert mirrored_below(alone, "fedavg") is alone
    (trial, _) = Sweep(experiment, {"local.lr": (0.1, 0.2)}).trials
    (run,) = Sweep(experiment, {"local.lr": (0.1, 0.2)})._runs(trial).values()
    assert run.run.mirror == "s3://bucket/two/trial-000/seed-3"
