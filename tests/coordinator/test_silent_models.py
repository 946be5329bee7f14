"""A model that says nothing, whose outputs are no numbers, wins nothing: no round, no patience, no sweep, no table."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedloom as fl
from fedloom.coordinator import History, Job
from fedloom.coordinator.chosen_rounds import validated_round
from fedloom.coordinator.evaluation import mean
from fedloom.core.task_measures import TaskMeasure, measures_of
from fedloom.data import by_lists
from fedloom.evaluate import classify, forgetting
from fedloom.experiments.trials import at_end
from fedloom.report import summary
from targets_made import TARGETS, TASKS, federation as of_targets
from tiny import LOCAL, examples, linear

HUGE = 3e38  # what a product with it overflows to is no number


def burst(weights: Any, silent: Tensor) -> Any:
    return fl.tree.map_tree(lambda t: torch.where(silent, HUGE * t.sign(), t), weights)


class Loud(torch.nn.Linear):
    """A layer whose overflows are no numbers: of some sizes a kernel gives inf where another one has inf - inf."""

    def forward(self, x: Tensor) -> Tensor:
        h = super().forward(x)
        return h * (h - h + 1)


@dataclass(frozen=True, kw_only=True)
class Bursting(fl.FedAvg):
    """FedAvg whose personal models say nothing after round 2, whatever they have learnt; their weights are finite."""

    def personal(self, client: Any, sent: Any) -> Any:
        return burst(sent, client.round == 1)


@dataclass(frozen=True, kw_only=True)
class OneBursts(fl.FedAvg):
    """FedAvg where the personal model of whoever has few training examples says nothing."""

    def personal(self, client: Any, sent: Any) -> Any:
        return burst(sent, client.num_examples < 7)


def clouds(**more: Any) -> fl.Federation:
    """Five clients of 20 examples and one of 10, which trains on 6 of them."""
    lists = np.split(np.random.default_rng(0).permutation(110), range(20, 110, 20))
    kept = {"test": examples(60, seed=1), "test_fraction": 0.2, "val_fraction": 0.2} | more
    return fl.federate(examples(110), by_lists(lists), **kept)


def job(algorithm: type[fl.FedAvg], task: Any = None, **settings: Any) -> Job:
    task = task or fl.Classification()
    federation = clouds() if task == fl.Classification() else of_targets("numbers")
    if isinstance(task, fl.MultiLabel):
        federation = of_targets("labels")
    run = fl.RunSettings(**{"rounds": 4, "cohort_size": 3, "threads": 1, "compilation": "none", **settings})
    return Job(
        algorithm=algorithm(local=dataclasses.replace(LOCAL, epochs=1)), federation=federation,
        model=lambda: Loud(federation.train.shape[0], TARGETS),
        task=task, settings=run,
    )  # fmt: skip


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("task", [fl.Classification(), *TASKS.values()], ids=lambda task: type(task).__name__)
def test_every_measure_of_every_client_is_undefined_in_that_round_alone(task: Any, engine: str) -> None:
    names = tuple(measures_of(task))
    whole = job(Bursting, task, measures=names, engine=engine, per_client=True)
    history, clients = whole.run(), whole.federation.num_clients
    for record in history.metrics:
        for name in names:
            for whose in ("personal", "val"):
                assert (record[f"{whose}_{name}"] is None) == (record["round"] == 2), (record["round"], name)
        count = len(record["personal_by_client"])
        assert count == (0 if record["round"] == 2 else clients)
        assert (record["better_than_global"] is None) == (record["round"] == 2)
        assert (record["personal_worst_tenth"] is None) == (record["round"] == 2)
    first = names[0]
    assert history.metrics[2][f"personal_{first}_undefined"] == clients
    assert history.metrics[2][f"personal_{first}_by_samples"] is None
    column = f"personal_{'right' if first == 'accuracy' else first}"
    assert set(history.per_client[2]["judged"][column]) == {None}
    json.dumps(history.metrics, allow_nan=False)


@pytest.mark.parametrize("headline", ["accuracy", "auc", "balanced_accuracy", "average_precision"])
def test_that_round_is_never_the_best(headline: str, tmp_path: Path) -> None:
    history = job(Bursting, headline=headline, keep_best=True, keep_every=100).run(tmp_path / "run")
    values = {m["round"]: m[f"val_{headline}"] for m in history.metrics}
    assert values.pop(2) is None
    assert history.validated_round == max(values, key=lambda t: (values[t], -t))
    best = (tmp_path / "run" / "checkpoints").glob("*.json")
    assert 2 not in {int(path.stem) for path in best}
    assert not math.isnan(history.summaries(f"personal_{headline}").validated)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_one_client_without_an_answer_leaves_the_mean_undefined(engine: str) -> None:
    """Left out, it would make the mean of the others the better: who diverges on the hardest client would win."""
    history = job(OneBursts, measures=("auc",), rounds=2, engine=engine, per_client=True).run()
    for record in history.metrics:
        for name in ("accuracy", "auc"):
            assert record[f"val_{name}"] is record[f"personal_{name}"] is None
            assert record[f"personal_{name}_undefined"] >= 1
        for name in ("personal_accuracy_by_samples", "personal_std", "personal_worst_tenth", "better_than_global"):
            assert record[name] is None
        assert len(record["personal_by_client"]) == 5
        assert record["global_on_clients"] is not None
    assert history.validated_round is None
    assert math.isnan(history.last("personal_accuracy"))
    assert at_end(history, "val_accuracy", "val_accuracy") is None


@pytest.mark.filterwarnings("ignore:.*it diverged")
@pytest.mark.parametrize("headline", ["accuracy", "auc"])
def test_whoever_trains_to_say_nothing_has_no_number_after_training(headline: str) -> None:
    """One step at such a rate: the loss was finite, and so are the weights."""
    wild = dataclasses.replace(LOCAL, epochs=1, steps=1, optimiser=fl.SGD(lr=1.2e38))
    one = job(fl.FedAvg, rounds=2, cohort_size=6, headline=headline, per_client=True, on_nonfinite="refuse")
    history = dataclasses.replace(one, algorithm=fl.FedAvg(local=wild)).run()
    record, each = history.metrics[1], history.per_client[1]["trained"]
    assert not record["failed"]
    assert None in each["trained"]
    assert None not in each["received"]
    assert record[f"trained_{headline}"] is None
    assert record[f"received_{headline}"] is not None
    for name in (f"global_{headline}", "global_loss", "forgetting", "in_local_accuracy", "out_local_accuracy"):
        assert record[name] is None
    assert set(record["class_accuracy"]) == {None}
    assert history.metrics[2][f"received_{headline}"] is None


def test_a_threshold_is_not_chosen_by_the_clients_that_answer() -> None:
    federation = clouds(test=None)
    train = dataclasses.replace(federation.train, y=(federation.train.y > 0).long(), num_classes=2)
    federation = dataclasses.replace(federation, train=train)
    run = fl.RunSettings(rounds=1, cohort_size=3, threads=1, measures=("recall",))
    task = fl.Binary(threshold="validation")
    found = {
        kind: fl.run(kind(local=LOCAL), federation, lambda: torch.nn.Linear(4, 1), run, task=task, progress=False)
        for kind in (fl.FedAvg, OneBursts)
    }
    assert found[fl.FedAvg].metrics[-1]["threshold"] is not None
    assert found[OneBursts].metrics[-1]["threshold"] is None


def test_a_global_model_without_an_answer_has_no_accuracy_by_class_and_no_loss() -> None:
    network = fl.Model(linear)
    weights = burst(network.init(0), torch.tensor(True))
    found = classify(network, weights, fl.Classification(), examples(60))
    assert found.silent > 0
    assert math.isnan(found.accuracy)
    assert np.isnan(found.per_class).all()
    one = examples(6)
    told = dataclasses.replace(found, silent=0, total=np.array([2, 0, 4]), right=np.array([1, 0, 4]))
    np.testing.assert_array_equal(told.per_class, [0.5, np.nan, 1.0])
    assert told.accuracy == 5 / len(one.y)


def test_forgetting_is_from_the_best_round_that_had_an_accuracy() -> None:
    per_class = np.array([[0.5, 0.2], [np.nan, np.nan], [0.4, 0.3]])
    np.testing.assert_allclose(forgetting(per_class), [0.1, -0.1])
    np.testing.assert_allclose(forgetting(per_class, "all"), [0.1, 0.0])
    assert np.isnan(forgetting(per_class[:2])).all()


def test_a_mean_leaves_out_what_data_leave_undefined_and_nothing_that_diverged() -> None:
    assert mean([1.0, math.nan, 3.0]) == 2.0
    assert mean([1.0, math.inf]) is None
    assert mean([math.inf, -math.inf]) is None
    assert mean([math.nan]) is mean([]) is None


def test_no_number_is_the_best_round() -> None:
    measure = TaskMeasure(name="auc", title="AUC", meaning="")
    for low in (measure, dataclasses.replace(measure, better="low")):
        values = (0.2, math.nan, 0.2, None, math.inf, -math.inf)
        assert validated_round([{"round": t, "val_auc": v} for t, v in enumerate(values)], low) == 0
    assert validated_round([{"round": 0, "val_auc": math.nan}, {"round": 1}], measure) is None


def test_patience_counts_what_was_measured() -> None:
    """A number that is undefined is neither an improvement nor a measurement without one."""
    settings, watched = fl.RunSettings(patience=2), job(Bursting).measures["val_accuracy"]
    assert settings.reason_to_stop([0.5, 0.5], watched) is None
    assert settings.reason_to_stop([0.5, 0.5, 0.5], watched) == "val accuracy did not improve on 0.5 in 2 measurements"
    still = dataclasses.replace(LOCAL, optimiser=fl.SGD(lr=1e-12), epochs=1)  # so that nothing improves
    one = dataclasses.replace(
        job(Bursting, monitor="val_accuracy", patience=2, rounds=9), algorithm=Bursting(local=still)
    )
    assert one.run().metrics[-1]["round"] == 4  # rounds 3 and 4 did not improve on round 1, round 2 was not measured


def test_a_table_shows_no_number_of_a_method_that_ended_so() -> None:
    def told(algorithm: str, seed: int, *values: float | None) -> History:
        records = [{"round": t, "personal_accuracy": v} for t, v in enumerate(values)]
        return History(algorithm, metrics=records, settings={"algorithm": algorithm, "run": {"seed": seed}})

    runs = [told("fedavg", s, 0.1, 0.6, 0.5 + s / 100) for s in range(3)]
    burst_ = [told("fedprox", s, 0.1, 0.9, None if s == 1 else 0.9) for s in range(3)]
    table = summary({"fedavg": runs, "fedprox": burst_}).csv()
    rows = [line.split(",") for line in table.splitlines() if ",last," in line]
    assert [row[1] for row in rows] == ["fedavg"]


@pytest.mark.parametrize(("rounds", "said"), [(2, True), (3, False)])
def test_a_caption_says_that_a_run_has_no_number(rounds: int, said: bool) -> None:
    """And not that the mean leaves out all clients."""
    caption = summary({"m": [job(Bursting, rounds=rounds).run()]}).captions()["personal_accuracy"]
    assert ("Undefined at the end of a run where no client has it, or a model says nothing" in caption) == said
    assert "leaves out" not in caption
