"""Values that mean something else than their writer thought are refused before a run."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, get_args

import pytest
import torch
from torch import nn

from fedloom import Classification, Examples, FedAvg, Job, RunSettings, Uniform, Unreliable, federate, iid, run
from fedloom.coordinator.record_entries import measures_for
from fedloom.coordinator.sampler import Arriving, Available, BySize, FixedList
from fedloom.core.errors import SettingError
from fedloom.core.setting import Where, may_differ
from fedloom.experiments.settings_sections import ClientSettings, DataSettings

MEASURES = measures_for(Classification().measures[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": float("nan")}, "target must be finite, got nan"),
        ({"target": "0.9"}, "target must be of type float, got '0.9'"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"seed": 0.5}, "seed must be of type int, got 0.5"),
        ({"rounds": True}, "rounds must be of type int, got True"),
        ({"rounds": "3"}, "rounds must be of type int, got '3'"),
        ({"cohort_size": 0.5}, "cohort_size must be of type int, got 0.5"),
        ({"eval_every": 2.0}, "eval_every must be of type int, got 2.0"),
        ({"state_memory_mib": float("inf")}, "state_memory_mib must be finite, got inf"),
        ({"bf16": 1}, "bf16 must be of type bool, got 1"),
        ({"device": 0}, "device must be of type str, got 0"),
        ({"device": torch.device("cpu")}, "device must be of type str, got device(type='cpu')"),
        ({"dtype": torch.float32}, "dtype must be one of float32, float64, got torch.float32"),
    ],
)
def test_settings_of_a_run(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as error:
        RunSettings(**settings)
    assert str(error.value).endswith(f"{message} [FL-RUN-008]")


@pytest.mark.parametrize(
    "settings", [{"target": 1}, {"target": 90, "monitor": "global_loss"}, {"target": -0.5, "monitor": "forgetting"}]
)
def test_targets_that_can_be_meant_are_accepted(settings: dict[str, Any]) -> None:
    assert _job(**settings).settings.target == settings["target"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": 90}, "target of global_accuracy is a share in [0, 1], got 90: write 0.9 for 90 %"),
        ({"target": 62.5, "monitor": "val_accuracy"}, "a share in [0, 1], got 62.5: write 0.625 for 62.5 %"),
        ({"target": -0.1}, "target of global_accuracy is a share in [0, 1], got -0.1"),
        ({"target": 5, "monitor": "forgetting"}, "target of forgetting is a difference of shares in [-1, 1], got 5"),
    ],
)
def test_targets_that_cannot_be_meant_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as error:
        _job(**settings)
    assert str(error.value).endswith(f"{message} [FL-RUN-003]")


def _job(**settings: Any) -> Job:
    train = Examples(torch.randn(20, 3), torch.arange(20) % 2, 2)
    federation = federate(train, iid(train.y, 4, seed=0), test=train, val_fraction=0.2)
    made = RunSettings(cohort_size=2, **settings)
    return Job(algorithm=FedAvg(), federation=federation, model=lambda: nn.Linear(3, 2), settings=made)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(seed=0.5), "seed must be of type int, got 0.5"),  # type: ignore[arg-type]
        (lambda: BySize(seed="1"), "seed must be of type int, got '1'"),  # type: ignore[arg-type]
        (lambda: FixedList(((0, True),)), "the clients of a round must be of type int, got True"),
        (lambda: FixedList([[0, 1]]), r"the clients of a round must be a tuple of values, got [0, 1]"),  # type: ignore
        (lambda: Available(True, 3), "share must be of type float, got True"),
        (lambda: Available(0.5, 2.5), "period must be of type int, got 2.5"),  # type: ignore[arg-type]
        (lambda: Arriving(Uniform(), 3, 0.5), "per_round must be of type int, got 0.5"),  # type: ignore[arg-type]
        (lambda: Unreliable(lost=float("nan")), "lost must be finite, got nan"),
        (lambda: Unreliable(late=True), "late must be of type float, got True"),
        (lambda: Unreliable(seed=None), "seed must be of type int, got None"),  # type: ignore[arg-type]
        (lambda: ClientSettings(lost="0.1"), "lost must be of type float, got '0.1'"),  # type: ignore[arg-type]
        (lambda: DataSettings(clients=2.0), "clients must be of type int, got 2.0"),  # type: ignore[arg-type]
        (lambda: DataSettings(clients=0), "clients must be >= 1, got 0"),
        (lambda: DataSettings(test_fraction=20), "test_fraction must be >= 0 and < 1, got 20"),
        (lambda: DataSettings(val_fraction=-0.1), "val_fraction must be >= 0 and < 1, got -0.1"),
        (lambda: DataSettings(public=-5), "public must be >= 0, got -5"),
        (lambda: DataSettings(examples=-1), "examples must be >= 0, got -1"),
        (lambda: DataSettings(merge=1), "merge must be of type bool, got 1"),  # type: ignore[arg-type]
        (lambda: DataSettings(public=True), "public must be of type int, got True"),
        (lambda: DataSettings(partition_seed=-1), "partition_seed must be >= 0, got -1"),
    ],
)
def test_settings_of_data_samplers_and_faults(make: Any, message: str) -> None:
    with pytest.raises(SettingError) as error:
        make()
    assert str(error.value) == f"{message} [FL-RUN-008]"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"task": nn.CrossEntropyLoss()}, "got CrossEntropyLoss(), which lacks loss and correct"),
        ({"task": nn.CrossEntropyLoss}, "which lacks loss and correct"),
        ({"task": nn.functional.cross_entropy}, "which lacks loss and correct"),
        ({"task": Classification}, "got <class 'fedloom.tasks.classification.Classification'>: write Classification()"),
        ({"sampler": "uniform"}, "sampler must be an object that can be called, such as fedloom.Uniform(seed=0), got"),
        ({"sampler": Uniform}, "sampler must be an object that can be called, such as fedloom.Uniform(seed=0), got"),
        ({"faults": 0.1}, "faults must be an object that can be called, such as fedloom.Unreliable(lost=0.1), got 0.1"),
    ],
)
def test_arguments_of_a_run(given: dict[str, Any], message: str) -> None:
    train = Examples(torch.randn(20, 3), torch.arange(20) % 2, 2)
    federation = federate(train, iid(train.y, 4, seed=0))
    with pytest.raises(SettingError) as error:
        run(FedAvg(), federation, lambda: nn.Linear(3, 2), RunSettings(rounds=1, cohort_size=2), **given)
    assert message in str(error.value)
    if "task" in given:
        assert "such as fedloom.Classification() for cross-entropy" in str(error.value)


def test_a_run_that_is_debugged_is_a_loop_without_graphs() -> None:
    asked = RunSettings(rounds=1, cohort_size=2, workers=3, chunk=2, compilation="trace", deadline=5.0)
    debugged = asked.for_debugging()
    assert debugged == RunSettings(rounds=1, cohort_size=2, engine="loop", compilation="none")
    assert dataclasses.replace(asked, engine="loop").for_debugging() == debugged
    for engine in ("stacked", "workers", "gloo", "devices"):
        with pytest.raises(SettingError, match=f"one by one on the engine loop, got engine = '{engine}': leave one of"):
            dataclasses.replace(asked, engine=engine).for_debugging()
    train = Examples(torch.randn(20, 3), torch.arange(20) % 2, 2)
    federation = federate(train, iid(train.y, 4, seed=0))
    given = FedAvg(), federation, lambda: nn.Linear(3, 2), RunSettings(rounds=1, cohort_size=4)
    found = run(*given, debug=True)
    assert (found.engine, found.engine_reason) == ("loop", "asked for")
    assert run(*given).engine == "stacked"


def test_where_runs_may_differ() -> None:
    """Those on which no number depends, those by which a run goes on, its seed, and what is measured beside others."""
    free = {where: may_differ(RunSettings, where) for where in get_args(Where)}
    assert free["method"] == {
        "seed", "checkpoint_every", "keep_every", "keep_best", "state_memory_mib", "workers", "chunk", "threads",
        "front", "mirror",
    }  # fmt: skip
    assert free["resumed"] - free["method"] == {
        "rounds", "monitor", "target", "patience", "deadline", "evaluate_training",
    }  # fmt: skip
    assert free["recipe"] - free["method"] == {
        "rounds", "engine", "compilation", "device", "evaluate_training", "per_client",
    }  # fmt: skip
    assert free["method"] <= free["recipe"]
    assert {"seed", "chunk", "threads"} == free["method"] - free["resumed"]


def test_a_value_that_is_as_good_as_the_best_is_no_improvement() -> None:
    settings, (accuracy, loss) = RunSettings(patience=2), (MEASURES[f"global_{name}"] for name in ("accuracy", "loss"))
    assert settings.reason_to_stop([0.5, 0.7, 0.7], accuracy) is None
    stopped = settings.reason_to_stop([0.5, 0.7, 0.7, 0.7], accuracy)
    assert stopped == "global accuracy did not improve on 0.7 in 2 measurements"
    assert settings.reason_to_stop([3.0, 1.0, 1.0, 1.0], loss) == "global loss did not improve on 1 in 2 measurements"


def test_a_target_is_reached_by_its_exact_value() -> None:
    settings, (rising, falling) = RunSettings(target=0.7), (MEASURES[f"global_{name}"] for name in ("accuracy", "loss"))
    below, above = math.nextafter(0.7, 0.0), math.nextafter(0.7, 1.0)
    assert settings.reason_to_stop([0.5, below], rising) is settings.reason_to_stop([above], falling) is None
    for measure in (rising, falling):
        assert str(settings.reason_to_stop([0.7], measure)).endswith("reached 0.7 (target 0.7)")


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("global_accuracy", (0.0, 1.0), (math.nextafter(0.0, -1.0), math.nextafter(1.0, 2.0))),
        ("forgetting", (-1.0, 1.0), (math.nextafter(-1.0, -2.0), math.nextafter(1.0, 2.0))),
        ("global_loss", (-5.0, 90.0), ()),
    ],
)
def test_a_target_may_be_the_first_and_the_last_value_of_its_measure(
    name: str, allowed: tuple[float, ...], refused: tuple[float, ...]
) -> None:
    for target in allowed:
        RunSettings(target=target).check_target(MEASURES[name])
    for target in refused:
        with pytest.raises(SettingError, match="target of"):
            RunSettings(target=target).check_target(MEASURES[name])


@pytest.mark.parametrize(
    ("given", "said", "written"),
    [
        ({"norm_bound": 2.0}, "norm_bound = 2.0", "refuse:sent:2"),
        ({"median_bound": 2.0}, "median_bound = 2.0", "refuse:median:2"),
        ({"aggregator": "clip"}, "aggregator = 'clip'", "clip:median:1"),
        ({"aggregator": "clip:3"}, "aggregator = 'clip:3'", "clip:3"),
    ],
)
def test_bounds_of_the_last_release_are_a_bound(given: Any, said: str, written: str) -> None:
    with pytest.warns(FutureWarning, match=f"{said} is written bound = '{written}' now: rename it"):
        settings = RunSettings(**given)
    assert (settings.bound, settings.aggregator) == (written, "mean")
    with pytest.raises(SettingError, match=f"got bound = 'clip:1' and {said}: leave one out"):
        RunSettings(bound="clip:1", **given)


def test_of_several_bounds_of_the_last_release_clipping_counts() -> None:
    with pytest.warns(FutureWarning):
        assert RunSettings(median_bound=5.0, norm_bound=2.0, aggregator="clip").bound == "clip:median:1"
