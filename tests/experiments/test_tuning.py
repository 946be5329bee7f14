"""Tuning: as many tries for each method, spread evenly over the grids that its file declares."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fedloom.algorithms import ALGORITHMS
from fedloom.core.choices import check, field_types, grids
from fedloom.core.errors import SettingError
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.trials import Sweep, Trial
from fedloom.experiments.tuning import TRIES, Tuned, spread, sweep_of


def experiment(algorithm: str, **changes: Any) -> Experiment:
    return Experiment.of({"algorithm": algorithm, "data": {"val_fraction": 0.2}, "local": {"lr": 0.1}, **changes})


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_method_has_as_many_tries_the_first_as_given(name: str) -> None:
    given = experiment(name)
    sweep = sweep_of(given)
    assert len(sweep.trials) == TRIES == len({trial.what for trial in sweep.trials})
    assert sweep.trials[0].experiment.described() == given.described()
    assert ("local.lr" in sweep.space) is (name not in ("pfedme", "per_fedavg", "fedmeta"))


def test_declared_values_are_within_the_bounds_of_their_settings() -> None:
    declared = {(name, key): values for name, kind in ALGORITHMS.items() for key, values in grids(kind).items()}
    assert declared["fedprox", "mu"] == (0.001, 0.01, 0.1, 1.0)
    for (name, key), values in declared.items():
        for value in values:
            check(value, field_types(ALGORITHMS[name], bounds=True)[key], key)
        assert len(set(values)) == len(values) > 2


def test_each_value_is_tried_about_equally_often() -> None:
    tried = [trial.settings for trial in sweep_of(experiment("fedprox")).trials]
    assert set(Counter(point["fedprox.mu"] for point in tried).values()) == {2}  # four values, eight tries
    rates = sorted({point["local.lr"] for point in tried})
    assert len(rates) == 8
    assert (rates[0], rates[-1]) in {(0.01, 1.0), (0.01, 0.562), (0.0178, 1.0)}  # a tenth to ten times
    assert [t.settings for t in sweep_of(experiment("fedprox"), seed=1).trials] != tried


def test_more_tries_have_more_rates_and_a_value_of_ones_own_is_tried() -> None:
    assert len(sweep_of(experiment("fedavg"), 12).trials) == 12
    own = sweep_of(experiment("fedprox", fedprox={"mu": 0.5}))
    assert list(own.space["fedprox.mu"]) == [0.001, 0.01, 0.1, 0.5, 1.0]
    assert own.trials[0].settings["fedprox.mu"] == 0.5


def test_what_an_algorithm_refuses_is_no_try() -> None:
    """KT-pFL's pull must stay below 1 / eta3, here 2: of its grid 2, 2.5 and 3 are not tried."""
    tried = {t.settings["kt_pfl.rho"] for t in sweep_of(experiment("kt_pfl", kt_pfl={"eta3": 0.5})).trials}
    assert tried == {0.1, 0.3, 0.5, 0.7, 1.0, 1.5}


def test_too_few_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="at least 2 tries, the first with the settings given, got 1: write 8"):
        sweep_of(experiment("fedavg"), 1)
    space = {"local.lr": [0.1, 0.2]}
    with pytest.raises(SettingError, match="fedavg has 2 settings to try, got 3 tries"):
        spread(experiment("fedavg"), space, {"local.lr": 0.1}, 3, 0)


def test_the_best_trial_is_chosen_and_equals_go_to_the_first() -> None:
    sweep = sweep_of(experiment("fedavg"), 3)

    def made(*scores: float | None) -> list[Trial]:
        status = ["failed" if score is None else "done" for score in scores]
        return [
            Trial(t.number, t.settings, t.experiment, state, score)
            for t, state, score in zip(sweep.trials, status, scores, strict=True)
        ]

    better = Tuned.of(sweep, made(0.5, 0.4, 0.7))
    assert (better.moved, better.given_score, better.score) == (True, 0.5, 0.7)
    assert better.chosen == sweep.trials[2].settings
    assert better.experiment == sweep.trials[2].experiment
    equal = Tuned.of(sweep, made(0.7, 0.7, None))
    assert (equal.moved, equal.chosen) == (False, {"local.lr": 0.1})
    assert Tuned.of(sweep, made(None, 0.2, None)).given_score is None
    with pytest.raises(SettingError, match="no try of fedavg has a score"):
        Tuned.of(sweep, made(None, None, None))


def test_optuna_tries_the_settings_given_first_and_stays_within_the_grids() -> None:
    pytest.importorskip("optuna")
    sweep = sweep_of(experiment("fedprox"), 4, by="optuna")
    assert sweep.space == {"fedprox.mu": "log:0.001:1.0", "local.lr": "log:0.01:1.0"}
    search = sweep._search()
    assert search is not None
    picked = [search.pick()]
    for score in (0.1, 0.9, 0.2):
        search.learn(score)
        picked.append(search.pick())
    assert picked[0] == {"fedprox.mu": 0.1, "local.lr": 0.1}
    assert all(0.001 <= point["fedprox.mu"] <= 1 and 0.01 <= point["local.lr"] <= 1 for point in picked)
    assert isinstance(sweep, Sweep)
