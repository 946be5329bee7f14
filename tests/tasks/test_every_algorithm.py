"""Algorithms that need only a loss learn numbers and several labels; those that compare classes say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedloom as fl
from fedloom.algorithms import ALGORITHMS
from fedloom.core.errors import SettingError
from fedloom.testing.small_networks import MLP
from targets_made import LOCAL, TASKS, federation

BY_CLASS = {
    "dense", "fed_adi", "fed_dafl", "fedbe", "feddf", "fedgkd", "fedlc", "fedmd_kt", "fedntd", "fedntd_mse", "fedproto",
    "fedrod", "fml", "kd_ntd", "kt_pfl", "pfeddf", "pfedsd", "sim_pfl", "topk_pfl",
}  # fmt: skip
BY_LABEL = {"pfedsd"}  # of those, which take several labels too


@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_needs_classes(name: str) -> None:
    targets = ALGORITHMS[name]().requires.targets
    assert ("classes" in targets) == (name in BY_CLASS)
    assert ("labels" in targets) == (name in BY_LABEL)


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("name", sorted(BY_CLASS))
def test_those_that_compare_classes_are_refused_before_the_run(name: str, kind: Any) -> None:
    if name in BY_LABEL and kind == "labels":
        pytest.skip("it compares label by label")
    algorithm, task = ALGORITHMS[name](), type(TASKS[kind]).__name__
    with pytest.raises(
        SettingError, match=f"{type(algorithm).__name__} compares .* targets of the task {task} are {kind}"
    ):
        fl.Job(algorithm=algorithm, federation=federation(kind), model=MLP, task=TASKS[kind])


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("name", "kind"),
    [(n, k) for k in TASKS for n in ALGORITHMS if n not in BY_CLASS or (n in BY_LABEL and k == "labels")],
)
def test_all_others_learn(name: str, kind: Any) -> None:
    """A round leaves a model, global or personal, that is better than the initial one."""
    algorithm = ALGORITHMS[name](local=LOCAL)
    settings = fl.RunSettings(rounds=2, cohort_size=5)
    history = fl.run(algorithm, federation(kind), MLP, settings, task=TASKS[kind])
    main = history.headline
    series = [history.series(f"{whose}_{main.name}") for whose in ("global", "personal")]
    (first, *_, last), *_ = [values for values in series if len(values)]
    assert np.isfinite([*series[0], *series[1]]).all()
    assert last < first if main.better == "low" else last > first
    assert "forgetting" not in history.metrics[-1]
