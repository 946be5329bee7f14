"""Chance of a measure, and the warnings of runs that end no better, or whose loss exploded."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom import SGD, Adam, Binary, Classification, Examples, FedAvg, History, LocalOnly, RunSettings, federate, run
from fedloom.coordinator import Job
from fedloom.coordinator.chance_level import Chance, chance_of, of_federation
from fedloom.core.errors import SettingWarning
from fedloom.core.task_measures import measures_of
from fedloom.data import by_lists
from fedloom.tasks import NextToken, Regression
from tiny import LOCAL, federation, linear

SETTINGS = RunSettings(rounds=3, cohort_size=3, engine="loop", threads=1)


def _chances(task: Any, y: list[Any], lists: list[list[int]], test: list[Any] | None = None) -> dict[str, Any]:
    def examples(targets: list[Any]) -> Examples:
        return Examples(torch.zeros(len(targets), 2), torch.tensor(targets), 3)

    parts = federate(
        examples(y), by_lists(lists), test=None if test is None else examples(test), test_fraction=0.5, seed=0
    )
    return of_federation(parts, list(measures_of(task).values()))


def test_chance_of_the_global_model_is_the_largest_class_of_the_test_set() -> None:
    found = _chances(Classification(), [0, 1, 2, 0, 1, 2], [[0, 1, 2, 3, 4, 5]], test=[0, 0, 0, 1, 0])
    assert found["global_accuracy"] == {"value": 0.8, "examples": 5}
    assert found["global_balanced_accuracy"]["value"] == 0.5  # of the two classes that occur
    assert found["global_auc"]["value"] == 0.5
    assert not {"global_macro_f1", "global_log_loss"} & found.keys()


def test_a_client_answers_what_is_most_frequent_among_its_training_examples() -> None:
    """What is most frequent among its few held-out ones is known to nobody."""
    parts = federation(clients=6)
    y, expected = parts.train.y.numpy(), list[float]()
    assert parts.local_test is not None
    for k in range(6):
        most = np.bincount(y[parts.partition.rows(k)]).argmax()
        expected.append(float((y[parts.local_test.rows(k)] == most).mean()))
    found = of_federation(parts, [measures_of(Classification())["accuracy"]])["personal_accuracy"]
    assert found == {"value": pytest.approx(np.mean(expected)), "examples": 18}


def test_other_tasks_declare_their_own() -> None:
    assert measures_of(Regression())["r2"].chance == 0.0
    assert measures_of(Regression())["rmse"].chance is None
    assert measures_of(NextToken())["token_accuracy"].chance == "majority"
    assert measures_of(Binary())["accuracy"].chance == "majority"


def test_two_standard_errors_of_the_test_set_are_no_merit() -> None:
    assert Chance(0.1, 10_000).limit == pytest.approx(0.106)
    assert Chance(0.1, 0).limit == 0.1
    assert Chance(0.0, 50).limit == pytest.approx(0.0, abs=1e-6)


def test_what_untrained_weights_reach_is_no_merit_either() -> None:
    """Their answers are not all the same, so they may be further from chance than luck has it."""
    assert Chance(0.1, 10_000, start=0.16).limit == pytest.approx(0.16)
    assert Chance(0.1, 10_000, start=0.8).limit == pytest.approx(0.106)  # weights that were trained before
    history = History("FedAvg", federation={"classes": 10}, metrics=[{"round": 0, "global_accuracy": 0.16}])
    assert chance_of(history, "global_accuracy") == Chance(0.1, 0, 0.16)


@pytest.mark.slow
def test_a_run_records_chance_and_goes_on_with_or_without_it(tmp_path: Path) -> None:
    job = Job(algorithm=FedAvg(local=LOCAL), federation=federation(), model=linear, settings=SETTINGS)
    job.run(tmp_path)
    chance = json.loads((tmp_path / "manifest.json").read_text())["chance"]
    assert chance["global_accuracy"] == {"value": 20 / 60, "examples": 60}
    found = chance_of(History.read(tmp_path), "global_accuracy")
    assert found is not None
    assert found[:2] == (20 / 60, 60)
    assert chance_of(job.run(), "global_accuracy") == found  # without a directory too
    dataclasses.replace(job, settings=dataclasses.replace(SETTINGS, rounds=4)).run(tmp_path, resume=True)
    assert json.loads((tmp_path / "manifest.json").read_text())["chance"] == chance


def test_a_run_of_an_earlier_version_has_at_least_one_of_its_classes() -> None:
    history = History("FedAvg", federation={"classes": 4})
    assert chance_of(history, "global_accuracy") == Chance(0.25, 0)
    assert chance_of(history, "global_auc") is None
    assert chance_of(History("FedAvg"), "global_accuracy") is None


def _warnings(algorithm: Any, rounds: int, **more: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run(algorithm, federation(**more), linear, dataclasses.replace(SETTINGS, rounds=rounds), progress=False)
    assert all(one.category is SettingWarning for one in said)
    return [str(one.message) for one in said]


def test_a_loss_that_explodes_is_named_with_the_rate() -> None:
    fast = dataclasses.replace(LOCAL, optimiser=SGD(lr=1e6))
    (said,) = _warnings(FedAvg(local=fast), 2)
    assert said.startswith("FedAvg: the global_loss of round 2 is ")
    assert said.endswith(
        ", more than 1,000 times what training begins with: it diverged; lower local.lr (--lr), got 1e+06, or clip "
        "gradients (local.clip)"
    )
    (said,) = _warnings(LocalOnly(local=fast), 1)  # whose first loss is large already
    assert said.startswith("LocalOnly: the train_loss of round 1 is ")


@pytest.mark.slow
def test_a_run_that_stays_at_chance_is_named_after_ten_rounds() -> None:
    slow = dataclasses.replace(LOCAL, optimiser=Adam(lr=1e-12))
    assert _warnings(FedAvg(local=slow), 9) == []
    (said,) = _warnings(FedAvg(local=slow), 10)
    assert "FedAvg: no model was above chance in 10 rounds: global_accuracy ended at 0.2" in said
    assert "a model that looks at no input has 0.3333; change local.lr (--lr), got 1e-12, train longer" in said
    assert _warnings(FedAvg(local=LOCAL), 10) == []
