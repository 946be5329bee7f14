"""Sweeps: which trials there are, which of them is chosen, and that an interrupted one goes on bit for bit."""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom import FedAvg
from fedloom.coordinator import History, Job
from fedloom.coordinator.part import Part, Running
from fedloom.coordinator.record_entries import measures_for
from fedloom.coordinator.rounds import OnHistory
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.core.optimiser import OPTIMISERS
from fedloom.evaluate.measure import VALIDATION, Measure
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_file import flat, read_settings
from fedloom.experiments.trials import LAST, Sweep, Trial
from fedloom.experiments.tuning import sweep_of
from fedloom.tasks import Classification

TUNABLE = [name for name, of in measures_for(Classification().measures[0]).items() if of.tunable]
LR = {"local.lr": [0.01, 0.1, 0.5]}


@pytest.fixture
def base(tmp_path: Path) -> Experiment:
    """Six clients with three classes of small grey images; a round takes milliseconds."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, n in (("train", 120), ("test", 30)):
        arrays[f"y_{part}"] = np.arange(n) % 3
        arrays[f"x_{part}"] = (100 * np.eye(3)[np.arange(n) % 3][:, :, None] + rng.integers(0, 99, (n, 3, 3))).astype(
            "u1"
        )
    np.savez(tmp_path / "own.npz", **arrays)
    return experiment(data={"source": str(tmp_path / "own.npz")})


def experiment(**changes: Any) -> Experiment:
    described: dict[str, Any] = {
        "algorithm": "fedavg",
        "model": "logistic",
        "data": {"partition": "iid", "clients": 6, "val_fraction": 0.25},
        "local": {"epochs": 1, "batch_size": 8},
        "run": {"rounds": 4, "cohort_size": 3, "engine": "loop", "threads": 1},
    }
    for key, value in changes.items():
        described[key] = {**described[key], **value} if isinstance(value, dict) and key in described else value
    return Experiment.of(described)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def contents(folder: Path) -> dict[str, bytes]:
    """What a sweep determines: all but seconds and what is left of locks."""
    names = ("metrics.jsonl", "settings.json", "manifest.json", "sweep.json", "sweep.csv", "best.json")
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.name in names}


class Made:
    """Runs nothing: gives histories with these values of each measure, one list over the rounds from 0 for each run."""

    def __init__(self, **measures: Sequence[Sequence[float | None]]) -> None:
        self.measures, self.count = measures, 0

    def __call__(self, name: str, job: Job, directory: Path, *, resume: bool, on_round: OnHistory) -> History:
        series = {measure: runs[self.count] for measure, runs in self.measures.items()}
        self.count += 1
        rounds = range(max(map(len, series.values())))
        metrics = [{"round": t, **{n: v[t] for n, v in series.items() if t < len(v)}} for t in rounds]
        return History(algorithm="FedAvg", metrics=metrics)


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("key", "values", "other"),
    [
        ("optimiser", [*OPTIMISERS], 5),
        ("schedule", ["constant", "cosine:9", "step:1?by=step", "exponential:0.5?warmup=1"], 4),
        ("clip_value", [None, 0.1, 0.01], 3),
        ("micro_batch", [None, 3], 1),  # which changes no step
        ("keep_optimiser", [False, True], 2),
    ],
)
def test_how_clients_train_is_varied_as_any_setting(
    key: str, values: list[Any], other: int, base: Experiment, tmp_path: Path
) -> None:
    given = base.with_all({"run.rounds": 2, "local.lr": 0.05, "local.weight_decay": 0.1})
    trials = Sweep(given, {f"local.{key}": values}).run(tmp_path)
    losses = [trial.measures["train_loss"] for trial in trials]
    assert len({round(loss, 5) for loss in losses if loss is not None}) == other
    tuned = sweep_of(given.with_all({f"local.{key}": values[-1]}), 3).trials
    assert [flat(trial.experiment.described())[f"local.{key}"] for trial in tuned] == [values[-1]] * 3


def interrupting(place: str, round: int) -> Any:
    """Trains, until one run is at this round."""

    def train(name: str, job: Job, directory: Path, *, resume: bool, on_round: OnHistory) -> History:
        def watch(history: History) -> None:
            on_round(history)
            if name == place and history.metrics[-1]["round"] == round:
                raise KeyboardInterrupt

        return job.run(directory, resume=resume, on_round=watch)

    return train


# ---- which trials


class Steps(Part):
    """How many rounds there were so far; the more the better, and one that is not watched."""

    columns = (
        Measure("rounds_so_far", "Rounds", "rounds", "How many.", unit="", better="high", tunable="partition"),
        Measure("watched_by_nobody", "Rounds", "rounds too", "How many.", unit="", better="low"),
    )

    def after(self, run: Running) -> dict[str, float | None]:
        return {column.name: float(run.done) for column in self.columns} if run.done else {}


@pytest.mark.slow
def test_a_measure_from_outside_is_chosen_by(base: Experiment, tmp_path: Path) -> None:
    own = base.with_all({"parts": f"{__name__}:Steps"})
    sweep = Sweep(own, {"run.rounds": [1, 3, 2]}, by="rounds_so_far")
    assert list(sweep.measures)[-1] == "rounds_so_far"
    trials = sweep.run(tmp_path / "s")
    assert [trial.score for trial in trials] == [1.0, 2.0, 1.5]
    assert sweep.ranked(trials)[0] is trials[1]
    with pytest.raises(SettingError, match="rounds_so_far, got 'watched_by_nobody'"):
        Sweep(own, LR, by="watched_by_nobody")


def test_a_grid_is_the_product_of_its_lists(base: Experiment) -> None:
    sweep = Sweep(base, {"local.lr": ["0.1", 0.01], "model": ["mlp", "logistic"], "aggregation": ["uniform"]})
    assert [dict(t.settings) for t in sweep.trials] == [
        {"local.lr": lr, "model": model, "fedavg.aggregation": "uniform"}
        for lr in (0.1, 0.01)
        for model in ("mlp", "logistic")
    ]
    assert [t.name for t in sweep.trials] == ["trial-000", "trial-001", "trial-002", "trial-003"]
    assert sweep.trials[0].experiment.local.optimiser.lr == 0.1
    assert sweep.trials[0].experiment.model == "mlp"
    assert sweep.trials[0].experiment.settings == {"fedavg": {"aggregation": "uniform"}}
    assert {t.status for t in sweep.trials} == {"waiting"}


SPACE = {"local.lr": "log:0.001:1", "local.epochs": "int:1:3", "model": ["mlp", "logistic"]}


class Evaluated:
    """Runs nothing: the nearer a trial's rate is to 0.1, the better."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, name: str, job: Job, directory: Path, *, resume: bool, on_round: OnHistory) -> History:
        self.count += 1
        score = -abs(np.log10(job.described["local"]["lr"]) + 1)  # type: ignore[index]
        return History(algorithm="FedAvg", metrics=[{"round": 1, "val_accuracy": score}])


def searched(base: Experiment, folder: Path, space: Any = SPACE, **more: Any) -> list[dict[str, Any]]:
    return [dict(t.settings) for t in Sweep(base, space, **more).run(folder, train=Evaluated())]


@pytest.mark.slow
def test_a_search_follows_its_seed_and_scores_alone(base: Experiment, tmp_path: Path) -> None:
    twenty = searched(base, tmp_path / "a", search=20)
    assert twenty == searched(base, tmp_path / "b", search=20)
    assert twenty != searched(base, tmp_path / "c", search=20, seed=1)
    assert searched(base, tmp_path / "d", search=7) == twenty[:7]
    assert all(1e-3 <= t["local.lr"] <= 1 for t in twenty)
    assert {t["local.epochs"] for t in twenty} == {1, 2, 3}
    assert {t["model"] for t in twenty} == {"mlp", "logistic"}


@pytest.mark.slow
def test_a_search_goes_where_good_trials_were(base: Experiment, tmp_path: Path) -> None:
    rates = [t["local.lr"] for t in searched(base, tmp_path / "s", {"local.lr": "log:1e-6:1e4"}, search=40)]
    far = [abs(np.log10(rate) + 1) for rate in rates]
    assert np.mean(far[10:]) < np.mean(far[:10])  # the first ten are picked at random


def test_settings_that_come_again_are_not_run_again(base: Experiment, tmp_path: Path) -> None:
    evaluated = Evaluated()
    trials = Sweep(base, {"local.epochs": [1, 2]}, search=6).run(tmp_path / "s", train=evaluated)
    assert evaluated.count == 2
    assert [t.status for t in trials].count("done") == 2
    again = next(t for t in trials if t.status != "done")
    assert again.status == f"as {next(t.name for t in trials if t.settings == again.settings)}"
    assert [row["status"] for row in rows(tmp_path / "s")] == [t.status for t in trials]


@pytest.mark.slow
def test_a_trial_that_fails_does_not_end_a_search(base: Experiment, tmp_path: Path) -> None:
    trials = Sweep(base, {"local.lr": [1e38, 0.1]}, search=4).run(tmp_path / "s")
    assert {t.settings["local.lr"]: t.score is None for t in trials} == {1e38: True, 0.1: False}


@pytest.mark.slow
def test_values_that_do_not_fit_together_cost_a_search_one_trial(base: Experiment, tmp_path: Path) -> None:
    """Each of them fits alone, and that is what can be known before the first trial."""
    space = {"run.cohort_size": [2, 5], "data.clients": [3, 6]}
    evaluated = Evaluated()
    trials = Sweep(base, space, search=12).run(tmp_path / "s", train=evaluated)
    wrong = {"run.cohort_size": 5, "data.clients": 3}
    assert len(trials) == 12
    assert any(t.settings == wrong for t in trials)
    assert all((t.score is None) == (t.settings == wrong) for t in trials if t.status == "done" or t.score is None)
    failed = next(t for t in trials if t.settings == wrong)
    assert failed.status.startswith("failed: cohort_size = 5 is larger than the federation of 3 clients")
    assert [row["status"] for row in rows(tmp_path / "s")] == [t.status for t in trials]
    assert not (tmp_path / "s/best.json").exists()  # trials of several federations are not ranked


def test_without_optuna(base: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        SettingError, match=r"a search needs Optuna .*: pip install '<PATH>\[search\]', where <PATH> is fedloom's"
    ):
        Sweep(base, SPACE, search=2)


# ---- the score and the choice


def test_the_choice_is_by_validation_and_not_by_test(base: Experiment, tmp_path: Path) -> None:
    made = Made(
        val_accuracy=[[0.1, 0.5, 0.5, 0.5], [0.1, 0.7, 0.7, 0.7], [0.1, 0.6, 0.6, 0.6]],
        global_accuracy=[[0.1, 0.9, 0.9, 0.9], [0.1, 0.2, 0.3, 0.4], [0.1, 0.8, 0.8, 0.8]],
    )
    sweep = Sweep(base, LR)
    trials = sweep.run(tmp_path / "s", train=made)
    assert [t.name for t in sweep.ranked(trials)] == ["trial-001", "trial-002", "trial-000"]
    best = sweep.ranked(trials)[0]
    assert best.measures["global_accuracy"] == pytest.approx(0.3)
    assert json.loads((tmp_path / "s/best.json").read_text())["local"]["lr"] == 0.1


def test_the_score_is_the_mean_over_seeds_of_the_last_measurements(base: Experiment, tmp_path: Path) -> None:
    assert LAST == 3
    made = Made(
        val_accuracy=[[0.9, 0.99, 0.2, 0.3, 0.4], [0.9, 0.99, 0.4, 0.5, 0.6]],
        train_loss=[[None, 9.0, 2.0, 3.0, 4.0], [None, 9.0, 4.0, 5.0, 6.0]],
        global_accuracy=[[0.0, 0.0, 0.1, 0.2, 0.3], [0.0, 0.0, 0.1]],
    )
    (trial,) = Sweep(base, {"local.lr": [0.1]}, seeds=[3, 5]).run(tmp_path / "s", train=made)
    assert trial.score == pytest.approx(statistics.mean([0.3, 0.5]))  # neither the best, nor round 1
    assert trial.std == pytest.approx(statistics.stdev([0.3, 0.5]))
    assert trial.measures["val_accuracy"] == trial.score
    assert trial.measures["train_loss"] == pytest.approx(4.0)
    assert trial.measures["global_accuracy"] == pytest.approx((0.2 + 0.1) / 2)
    short = Made(val_accuracy=[[0.9, 0.2], [0.9, 0.4]])  # what was measured before training does not count
    (trial,) = Sweep(base, {"local.lr": [0.1]}, seeds=[3, 5]).run(tmp_path / "t", train=short)
    assert trial.score == pytest.approx(0.3)
    assert "personal_accuracy" not in trial.measures


def test_test_measures_are_of_the_rounds_with_validation(base: Experiment, tmp_path: Path) -> None:
    class Sparse(Made):
        def __call__(self, *args: Any, **more: Any) -> History:
            history = super().__call__(*args, **more)
            del history.metrics[2]["val_accuracy"], history.metrics[4]["val_accuracy"]
            return history

    made = Sparse(val_accuracy=[[0, 0.1, 9, 0.3, 9, 0.5]], global_accuracy=[[0, 1.0, 9, 2.0, 9, 6.0]])
    (trial,) = Sweep(base, {"local.lr": [0.1]}).run(tmp_path / "s", train=made)
    assert (trial.score, trial.std) == (pytest.approx(0.3), None)
    assert trial.measures["global_accuracy"] == pytest.approx(3.0)


def test_losses_are_best_when_low_and_equals_go_to_the_first(base: Experiment, tmp_path: Path) -> None:
    sweep = Sweep(base, LR, by="train_loss")
    trials = sweep.run(tmp_path / "s", train=Made(train_loss=[[None, 2.0], [None, 1.0], [None, 1.0]]))
    assert [t.number for t in sweep.ranked(trials)] == [1, 2, 0]


def test_a_sweep_over_a_regression_takes_the_lowest_validation_error(tmp_path: Path) -> None:
    """The default follows the task; classes and their forgetting are no columns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2))
    lines = [f"{a:.4f},{b:.4f},{3 * a - b:.4f}" for a, b in x]
    (tmp_path / "stays.csv").write_text("\n".join(["a,b,days", *lines]))
    data = {"source": f"{tmp_path / 'stays.csv'}?target=days", "test_fraction": 0.2}
    sweep = Sweep(
        experiment(task="regression", data=data, run={"measures": ["r2"]}), {"local.lr": [0.0001, 0.05, 0.001]}
    )
    assert (sweep.by, sweep.measure.better) == ("val_rmse", "low")
    trials = sweep.run(tmp_path / "s")
    best, *_, worst = sweep.ranked(trials)
    assert (best.number, worst.number) == (1, 0)
    assert best.score is not None
    assert worst.score is not None
    assert best.score < worst.score
    columns = rows(tmp_path / "s")[0]
    assert {"val_rmse", "personal_rmse", "val_r2", "personal_worst_tenth"} <= columns.keys()
    assert not {"forgetting", "val_accuracy"} & columns.keys()
    with pytest.raises(SettingError, match=r"a sweep chooses by one of val_rmse, .*got 'val_accurac'"):
        Sweep(experiment(task="regression", data=data), LR, by="val_accurac")


@pytest.mark.parametrize("by", sorted({*TUNABLE} - {VALIDATION, "train_loss"}))
def test_a_choice_by_test_data_is_warned_of(by: str, base: Experiment) -> None:
    with pytest.warns(
        SettingWarning, match=f"{by} is measured on test data: selecting by it reports too good a number"
    ):
        Sweep(base, LR, by=by)


@pytest.mark.slow
def test_a_real_sweep_writes_runs_a_table_and_the_best_settings(base: Experiment, tmp_path: Path) -> None:
    told: list[Trial] = []
    sweep = Sweep(base, {"local.lr": [1e-6, 0.1]}, seeds=[0, 1])
    trials = sweep.run(tmp_path / "s", on_trial=told.append)
    assert trials == told
    assert [t.status for t in trials] == ["done", "done"]
    assert sweep.ranked(trials)[0].settings == {"local.lr": 0.1}
    for trial, row in zip(trials, rows(tmp_path / "s"), strict=True):
        tails = []
        for s in (0, 1):
            history = History.read(tmp_path / "s" / trial.name / f"seed-{s}")
            assert len(history.metrics) == 5
            assert history.settings["run"]["seed"] == s
            assert history.settings["local"]["lr"] == trial.settings["local.lr"] == float(row["local.lr"])
            tails.append(history.last("val_accuracy", 3))
        assert trial.score == pytest.approx(statistics.mean(tails)) == float(row["score"])
        assert float(row["score_std"]) == trial.std == pytest.approx(statistics.stdev(tails))
        assert (row["trial"], row["status"]) == (trial.name, "done")
        assert {name for name in TUNABLE if row[name]} == set(trial.measures) == set(TUNABLE)
    best = read_settings(tmp_path / "s/best.json")
    assert Experiment.of(best) == Experiment.of(sweep.ranked(trials)[0].experiment.described())
    assert Experiment.of(best).job().run().metrics == History.read(tmp_path / "s/trial-001/seed-0").metrics


def test_trials_share_their_data(base: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, federations = [], []
    data = catalogue.data
    monkeypatch.setattr(catalogue, "data", lambda source: loaded.append(source) or data(source))

    def train(name: str, job: Job, *_: Any, **__: Any) -> History:
        federations.append(job.federation)
        return History(algorithm="FedAvg", metrics=[{"round": 1, "val_accuracy": 0.5}])

    Sweep(base, LR, seeds=[0, 1]).run(tmp_path / "s", train=train)
    assert len(loaded) == 1
    assert federations == federations[:2] * 3
    assert federations[0] is not federations[1]  # another partition
    assert federations[0].train is federations[1].train


# ---- going on


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "round"), [("trial-000/seed-0", 1), ("trial-001/seed-1", 3), ("trial-002/seed-1", 4)]
)
def test_an_interrupted_sweep_goes_on_bit_for_bit(place: str, round: int, base: Experiment, tmp_path: Path) -> None:
    base = base.changed("run.checkpoint_every", 2)  # rounds between checkpoints are computed again

    def sweep() -> Sweep:
        return Sweep(base, {"local.lr": "log:0.001:1"}, seeds=[0, 1], search=3)

    whole = sweep().run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        sweep().run(tmp_path / "cut", train=interrupting(place, round))
    assert not (tmp_path / "cut/best.json").exists()
    if number := int(place[6:9]):
        assert [r["status"] for r in rows(tmp_path / "cut")] == ["done"] * number
    rounds: list[tuple[str, int]] = []

    def counting(name: str, job: Job, directory: Path, *, resume: bool, on_round: OnHistory) -> History:
        return job.run(directory, resume=resume, on_round=lambda h: rounds.append((name, h.metrics[-1]["round"])))

    assert sweep().run(tmp_path / "cut", resume=True, train=counting) == whole
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    assert min(rounds, default=(place, 0))[0] >= place  # what was finished is not computed again


@pytest.mark.slow
def test_a_finished_search_may_become_longer(base: Experiment, tmp_path: Path) -> None:
    space = {"local.lr": "log:0.001:1"}
    few = Sweep(base, space, search=2).run(tmp_path / "s")
    computed = []

    def train(name: str, job: Job, directory: Path, *, resume: bool, on_round: OnHistory) -> History:
        return job.run(directory, resume=resume, on_round=lambda h: computed.append(name))

    more = Sweep(base, space, search=3).run(tmp_path / "s", resume=True, train=train)
    assert more[:2] == few
    assert set(computed) == {"trial-002/seed-0"}
    assert json.loads((tmp_path / "s/sweep.json").read_text())["search"] == 3
    with pytest.raises(SettingError, match=re.escape("search was 3 and is 2")):
        Sweep(base, space, search=2).run(tmp_path / "s", resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base": {"local": {"batch_size": 9}}}, "base.local.batch_size was 8 and is 9"),
        (
            {"space": {"local.lr": [0.1, 0.3]}},
            "space.local.lr was [0.1, 0.2] and is [0.1, 0.3]; trials.trial-001.local",
        ),
        ({"seeds": [1]}, "seeds was [0] and is [1]"),
        ({"by": "train_loss"}, 'by was "val_accuracy" and is "train_loss"'),
    ],
)
def test_another_sweep_in_the_directory_is_refused(
    change: dict[str, Any], message: str, base: Experiment, tmp_path: Path
) -> None:
    first = {"space": {"local.lr": [0.1, 0.2]}, "by": "val_accuracy"}
    made = Made(val_accuracy=[[0, 0.5]] * 2, train_loss=[[1, 1]] * 2)
    Sweep(base, **first).run(tmp_path / "s", train=made)  # type: ignore[arg-type]
    kept = contents(tmp_path / "s")
    other = experiment(data={"source": base.data.source}, **change.pop("base", {}))
    with pytest.raises(SettingError) as error:
        Sweep(other, **{**first, **change}).run(tmp_path / "s", resume=True, train=made)
    assert str(error.value).startswith(f"{tmp_path / 's'} holds another sweep: {message}")
    assert str(error.value).endswith("or choose another directory for a new one")
    assert contents(tmp_path / "s") == kept


@pytest.mark.slow
def test_a_directory_that_is_taken(base: Experiment, tmp_path: Path) -> None:
    made = Made(val_accuracy=[[0, 0.5]] * 3)
    Sweep(base, LR).run(tmp_path / "s", train=made)
    with pytest.raises(SettingError, match="already holds a sweep; continue it"):
        Sweep(base, LR).run(tmp_path / "s", train=made)
    base.job().run(tmp_path / "t/trial-002/seed-0")
    for taken, why in (("t", "holds several runs"), ("t/trial-002/seed-0", "already holds a run")):
        with pytest.raises(SettingError, match=why):
            Sweep(base, LR).run(tmp_path / taken, train=made)
    assert not (tmp_path / "t/sweep.json").exists()
    (tmp_path / "s/sweep.json").write_text("{")
    with pytest.raises(SettingError, match=r"sweep\.json: .*; restore the file or remove it"):
        Sweep(base, LR).run(tmp_path / "s", resume=True)


# ---- trials that fail


def test_code_that_fails_with_one_trial_shows_before_the_first_run(
    base: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, tried = FedAvg.init_client, list[float]()

    def fails(self: FedAvg, *given: Any) -> Any:
        tried.append(self.local.optimiser.lr)
        if self.local.optimiser.lr == 0.5:
            raise ValueError("no such rate")
        return whole(self, *given)

    monkeypatch.setattr(FedAvg, "init_client", fails)
    made = Made(val_accuracy=[[0, 0.5]] * 6)
    with pytest.raises(SettingError) as error:
        Sweep(base, LR, seeds=[0, 1]).run(tmp_path / "s", train=made)
    assert str(error.value) == (
        "every trial of a sweep is tried on one batch before the first run begins, and that with local.lr = 0.5 fails: "
        "ValueError: no such rate; mend it, or leave it out"
    )
    assert (made.count, (tmp_path / "s").exists(), list(dict.fromkeys(tried))) == (0, False, LR["local.lr"])
    tried.clear()
    small = {"local.lr": LR["local.lr"][:2]}
    Sweep(base, small).run(tmp_path / "s", train=made)
    before = len(tried)
    Sweep(base, small).run(tmp_path / "s", train=made, resume=True)
    assert (before > 0, len(tried)) == (True, before)  # one that goes on has been tried


@pytest.mark.slow
def test_a_trial_that_fails_costs_no_other(base: Experiment, tmp_path: Path) -> None:
    sweep = Sweep(base, {"local.lr": [1e38, 0.1]}, seeds=[0, 1])
    trials = sweep.run(tmp_path / "s")
    assert re.match(r"failed: seed 0: client \d, round \d", trials[0].status)
    assert (trials[0].score, trials[1].status) == (None, "done")
    assert sweep.ranked(trials) == [trials[1]]
    row = rows(tmp_path / "s")[0]
    assert row["status"] == trials[0].status
    assert row["score"] == row["val_accuracy"] == ""
    assert not (tmp_path / "s/trial-000/seed-1").exists()
    kept = contents(tmp_path / "s")
    assert sweep.run(tmp_path / "s", resume=True) == trials
    assert contents(tmp_path / "s") == kept


@pytest.mark.slow
def test_a_run_without_the_measure_ends_after_one_round(base: Experiment, tmp_path: Path) -> None:
    local = Experiment.of({**base.described(), "algorithm": "local_only"})
    with pytest.warns(SettingWarning, match="test data"):
        sweep = Sweep(local, LR, by="global_accuracy")
    trials = sweep.run(tmp_path / "s")
    assert {t.status for t in trials} == {
        "failed: seed 0: this run does not measure global_accuracy: its data or its algorithm have nothing to measure "
        "it on"
    }
    assert sweep.ranked(trials) == []
    assert not (tmp_path / "s/best.json").exists()
    assert len(History.read(tmp_path / "s/trial-000/seed-0").metrics) == 2


@pytest.mark.parametrize("values", [[0, 0.5, 0.9, None], [0, 0.5, None, 0.9]])
def test_a_measure_that_is_lost_in_the_end_is_no_score(
    base: Experiment, tmp_path: Path, values: list[float | None]
) -> None:
    """Nor one that is undefined on the way there: without that round the trial would look the better."""
    made = Made(val_accuracy=[values] * 3)
    trials = Sweep(base, LR).run(tmp_path / "s", train=made)
    assert {t.status for t in trials} == {
        "failed: seed 0: val_accuracy is not known at the end of this run: it was not measured or is not finite"
    }


def test_a_measure_that_is_undefined_before_training_may_be_defined_later(base: Experiment, tmp_path: Path) -> None:
    """Such as the precision of initial weights that predict no positive."""
    made = Made(val_accuracy=[[None, 0.5, 0.9, 0.7]] * 3)

    def train(name: str, job: Job, directory: Path, *, resume: bool, on_round: OnHistory) -> History:
        history = made(name, job, directory, resume=resume, on_round=on_round)
        on_round(History(algorithm="FedAvg", metrics=history.metrics[:2]))
        return history

    trials = Sweep(base, LR).run(tmp_path / "s", train=train)
    assert {t.status for t in trials} == {"done"}
    assert trials[0].score == pytest.approx(0.7)


# ---- what is refused


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"space": {}}, "a sweep needs at least one setting to vary (--over local.lr=0.01,0.1)"),
        (
            {"space": {"local.lr": 0.1}},
            "local.lr needs a list of values or a range log:LOW:HIGH, uniform:LOW:HIGH or int:LOW:HIGH, got 0.1",
        ),
        (
            {"space": {"local.lr": []}},
            "local.lr needs a list of values or a range log:LOW:HIGH, uniform:LOW:HIGH or int:LOW:HIGH, got []",
        ),
        (
            {"space": {"local.lr": "0.1"}},
            "local.lr needs a list of values or a range log:LOW:HIGH, uniform:LOW:HIGH or int:LOW:HIGH, got '0.1'",
        ),
        (
            {"space": {"local.lr": [0.1, "0.10"]}},
            "each choice of settings is named once, got local.lr = 0.1 again; drop",
        ),
        ({"space": {"shared": ["*"], "fedavg.shared": ["*"]}}, "each setting is named once, got fedavg.shared again"),
        ({"space": {"lr": [0.1]}}, "fedavg has no setting 'lr'; did you mean local.lr?"),
        ({"space": {"local.rate": [1]}}, "local has no setting 'rate'"),
        (
            {"space": {"dta.partition": ["iid"]}},
            "fedavg has no setting 'dta.partition' (did you mean 'data.partition'?)",
        ),
        ({"space": {"beta": [1]}}, "fedavg has no setting 'beta'"),
        ({"space": {"fedntd.beta": [1]}}, "fedavg has no setting 'fedntd.beta'"),
        ({"space": {"local.lr": [0.1, "much"]}}, "local.lr must be of type float, got 'much'"),
        (
            {"space": {"algorithm": ["fedavg"]}},
            "a sweep chooses between settings of one algorithm, not by algorithm: sw",
        ),
        (
            {"space": {"run.seed": [1]}},
            "a sweep chooses between settings of one algorithm, not by run.seed: name seeds",
        ),
        ({"by": "accuracy"}, "a sweep chooses by one of val_accuracy, train_loss, "),
        ({"by": "val_acuracy"}, "a sweep chooses by one of val_accuracy, train_loss, "),
        ({"seeds": []}, "a sweep needs at least one seed, each once, got []"),
        ({"seeds": [1, 1]}, "a sweep needs at least one seed, each once, got [1, 1]"),
        ({"search": 0}, "search must be in 1..10,000 trials, got 0"),
        (
            {"space": {"local.lr": "log:0.1:1"}},
            "local.lr = log:0.1:1 is searched: say how many trials (--search 20), or list values",
        ),
        ({"search": 2, "space": {"local.lr": "log:1"}}, "local.lr needs a range log:LOW:HIGH, uniform:LOW:HIGH or"),
        ({"search": 2, "space": {"local.lr": "log:a:1"}}, "local.lr needs a range log:LOW:HIGH, uniform:LOW:HIGH or"),
        ({"search": 2, "space": {"local.lr": "log:0:1"}}, "local.lr needs a range log:LOW:HIGH, uniform:LOW:HIGH or"),
        ({"search": 2, "space": {"local.lr": "log:1:0.1"}}, "local.lr needs a range log:LOW:HIGH, uniform:LOW:HIGH"),
        ({"search": 2, "space": {"local.epochs": "int:1:2.5"}}, "local.epochs needs a range log:LOW:HIGH, uniform:LO"),
        ({"search": 2, "space": {"local.epochs": "uniform:1:2"}}, "local.epochs must be of type int, got "),
        ({"search": 2, "space": {"local.lr": "uniform:-1:1"}}, "lr must be > 0, got -1.0"),
        (
            {"space": {"local.epochs": range(1, 201), "local.steps": range(1, 101)}},
            "a sweep has at most 10,000 trials, got 20,000: search among them (--search 20)",
        ),
        (
            {"space": {"data.val_fraction": [0.2, 0]}},
            "val_accuracy is measured on validation examples, and data.val_fraction is 0: hold some out with "
            "data.val_fraction (--val-fraction 0.2)",
        ),
    ],
)
def test_a_wrong_sweep_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as error:
        Sweep(experiment(), **{"space": LR, **more})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        ("data.partition", ["iid", "shards:50"], "every class needs an example for each of its 100 shards"),
        ("run.cohort_size", [3, 7], "cohort_size = 7 is larger than the federation of 6 clients"),
        ("model", ["logistic", "lenet"], "a convolutional network needs images"),
        ("run.chunk", [1, 0], "chunk must be >= 1, got 0"),
    ],
)
def test_what_does_not_fit_the_data_shows_before_the_first_trial(
    key: str, values: list[Any], message: str, base: Experiment, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        Sweep(base, {key: values}).run(tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_measure_without_data_is_refused_before_the_first_trial(base: Experiment, tmp_path: Path) -> None:
    with pytest.warns(SettingWarning, match="test data"):
        sweep = Sweep(base.changed("data.test_fraction", 0), LR, by="personal_accuracy")
    with pytest.raises(SettingError, match="personal_accuracy is measured on local_test, which this federation lacks"):
        sweep.run(tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_trials_on_several_problems_are_not_ranked(tmp_path: Path) -> None:
    """Of two partitions neither is better: the numbers are of other clients."""
    sweep = Sweep(experiment(), {"data.partition": ["iid", "shards:5"]})
    assert sweep.problems == ("data.partition",)
    trials = sweep.run(tmp_path / "sweep", train=Made(val_accuracy=[[0.1, 0.2], [0.1, 0.9]]))
    assert [t.score for t in sweep.ranked(trials)] == [0.2, 0.9]
    assert not (tmp_path / "sweep/best.json").exists()
