"""The global model is evaluated in some rounds alone: nothing else changes, and nothing is said of the others."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom import FedAvg, Federation, History, RunSettings, run
from fedloom.analyses import AnalysedRun, consistency
from fedloom.coordinator import Job
from fedloom.core import tree
from fedloom.core.errors import SettingError, SettingWarning, StorageWarning
from fedloom.evaluate import forgetting
from tiny import LOCAL, federation, mlp

SETTINGS = RunSettings(rounds=7, cohort_size=3, engine="loop", threads=1)
OF_GLOBAL = ("global_", "class_accuracy", "forgetting", "in_local_", "out_local_")


def measured(history: History, name: str = "global_accuracy") -> list[int]:
    return [m["round"] for m in history if name in m]


def of(**settings: Any) -> Job:
    return Job(algorithm=FedAvg(local=LOCAL), federation=federation(), model=mlp, settings=asked(**settings))


def asked(**settings: Any) -> RunSettings:
    return dataclasses.replace(SETTINGS, **settings)


def test_rounds_without_an_evaluation_say_nothing_and_the_others_the_same() -> None:
    each, some = of().run(), of(global_every=3).run()
    assert measured(some) == measured(some, "class_accuracy") == [0, 3, 6, 7]
    for a, b in zip(each, some, strict=True):
        kept = {name: a[name] for name in a if name in b and name != "forgetting"}
        assert kept == {name: value for name, value in b.items() if name != "forgetting"}
        assert all(name.startswith(OF_GLOBAL) for name in a if name not in b)
    assert all(map(torch.equal, tree.leaves(each.server), tree.leaves(some.server)))
    rows = np.array([[np.nan if a is None else a for a in m["class_accuracy"]] for m in some if "class_accuracy" in m])
    assert some.metrics[3]["forgetting"] is None
    assert some.metrics[6]["forgetting"] == pytest.approx(np.nanmean(forgetting(rows[1:3])))
    assert some.metrics[7]["forgetting"] == pytest.approx(np.nanmean(forgetting(rows[1:])))


def test_numbers_over_rounds_have_gaps() -> None:
    history = of(global_every=3).run()
    frame = history.frame()
    assert list(frame["round"][frame["global_accuracy"].notna()]) == [0, 3, 6, 7]
    level = history.metrics[6]["global_accuracy"]
    reached = history.to_target("global_accuracy", level)
    assert reached is not None
    assert reached.rounds in (0, 3, 6)
    assert reached.bytes == sum(
        m.get("bytes_up", 0) + m.get("bytes_down", 0) for m in history.metrics[: reached.rounds + 1]
    )
    assert history.last("global_accuracy") == history.metrics[7]["global_accuracy"]
    assert history.last("global_accuracy", 3) == np.mean([history.metrics[t]["global_accuracy"] for t in (6, 7)])


def test_a_round_that_ends_a_run_is_evaluated() -> None:
    stopped = of(global_every=5, monitor="personal_accuracy", target=0.0).run()
    assert measured(stopped) == [0, 1]
    assert measured(of(global_every=2, target=0.0).run()) == [0, 2]  # a number that was not measured ends no run


def test_a_run_that_goes_on_further_forgets_as_one_that_was_never_shorter(tmp_path: Path) -> None:
    of(global_every=3, rounds=4).run(tmp_path)
    longer, whole = of(global_every=3).run(tmp_path, resume=True), of(global_every=3).run()
    assert measured(longer) == [0, 3, 4, 6, 7]
    assert longer.metrics[5:] == whole.metrics[5:]
    assert fl.verify(tmp_path).whole


def test_a_round_that_is_the_last_one_only_now_is_evaluated(tmp_path: Path) -> None:
    def stop(history: History) -> None:
        if history.metrics[-1]["round"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        of(global_every=3).run(tmp_path, on_round=stop)
    with pytest.warns(SettingWarning, match="models were not evaluated after it"), pytest.warns(StorageWarning):
        again = of(global_every=3, rounds=5).run(tmp_path, resume=True)
    assert again.metrics == of(global_every=3, rounds=5).run().metrics


def test_the_rhythm_is_the_same_when_a_run_goes_on(tmp_path: Path) -> None:
    of(global_every=3, rounds=2).run(tmp_path)
    with pytest.raises(SettingError, match="global_every"):
        of(global_every=2).run(tmp_path, resume=True)


def test_a_number_that_is_measured_at_the_end_alone_stops_no_run() -> None:
    with pytest.raises(SettingError, match=r"got global_every = 9 of 7 rounds.*set a smaller global_every"):
        of(global_every=9, target=0.9)
    of(global_every=9, monitor="train_loss", target=0.1)
    of(rounds=1, target=0.9)


def test_analyses_over_rounds_know_of_gaps(tmp_path: Path) -> None:
    of(global_every=3).run(tmp_path)
    seen = AnalysedRun(tmp_path)
    assert seen.logged_accuracy().rounds == [3, 6, 7]
    assert any("evaluated in 3 of 7 rounds" in remark for remark in seen.logged_accuracy().remarks)
    with pytest.raises(SettingError, match=r"in rounds 3, 6, \.\.\. only: take a run with global_every = 1"):
        consistency.measure(seen)


@pytest.mark.parametrize(("eval_every", "chosen"), [(1, [0, 1, 2, 3, 4, 5]), (4, [0, 3, 4, 5])])
def test_a_threshold_is_chosen_where_something_is_evaluated(eval_every: int, chosen: list[int]) -> None:
    task, data = fl.Binary(threshold="validation"), halves()
    each, some = (
        run(FedAvg(local=LOCAL), data, linear_of_one, asked(rounds=5, measures=("recall",), **rhythms), task=task)
        for rhythms in ({}, {"global_every": 3, "eval_every": eval_every})
    )
    assert measured(some, "threshold") == chosen
    for a, b in zip(each, some, strict=True):
        assert {name: a[name] for name in b} | {"forgetting": None} == b | {"forgetting": None}


def linear_of_one() -> torch.nn.Module:
    return torch.nn.Linear(4, 1)


def halves() -> Federation:
    data = federation(val_fraction=0.2)
    train, test = (
        dataclasses.replace(part, y=(part.y > 0).long(), num_classes=2) for part in (data.train, data.test) if part
    )
    return dataclasses.replace(data, train=train, test=test)
