"""A threshold that validation examples choose: against scikit-learn on the same models, and on every engine."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn import metrics as sk
from torch import nn

import fedloom as fl
from fedloom.coordinator import Job
from fedloom.coordinator.descriptions import plain
from fedloom.coordinator.evaluation import Evaluation
from fedloom.coordinator.part import Running
from fedloom.coordinator.personal_models import PersonalModels, Threshold
from fedloom.core.task_measures import chosen_measures, measures_of, sums_of, values_of_sums
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.predictions import predict
from fedloom.experiments.run_evaluation import evaluate_run
from fedloom.testing import check_task
from fedloom.testing.in_process import DevicesInProcess
from fedloom.testing.messages import Messages
from hospitals import write_table

Floats = npt.NDArray[np.float64]

TASK = fl.Binary(threshold="validation", positive_weight=2.0)
CUTS = np.linspace(-6, 6, 97)
NAMES = ("recall", "precision", "balanced_accuracy", "macro_f1")


def best_cut(z: Floats, y: npt.NDArray[np.int64]) -> float:
    """The cut with the best F1 by scikit-learn, of equals the nearest to 0."""
    return float(max(CUTS, key=lambda cut: (round(sk.f1_score(y, z > cut, zero_division=0.0), 12), -abs(cut))))


def at_cut(z: Floats, y: npt.NDArray[np.int64], cut: float) -> dict[str, float]:
    said = z > cut
    return {
        "recall": sk.recall_score(y, said),
        "precision": sk.precision_score(y, said),
        "balanced_accuracy": sk.balanced_accuracy_score(y, said),
        "macro_f1": sk.f1_score(y, said, average="macro"),
    }


def rare(n: int, seed: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.22).astype(np.int64)
    y[:2] = 0, 1
    return (rng.normal(size=(n, 3)) + y[:, None] * [1.0, -0.7, 0.2]).astype(np.float32), y


@pytest.mark.parametrize("seed", range(4))
def test_the_threshold_and_the_measures_at_it_are_those_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y = np.concatenate([[0, 1], rng.random(300) < 0.1]).astype(np.int64)
    z = np.round(rng.normal(size=len(y)) * 2 + 1.5 * y - 2, 1)
    rows = sums_of(TASK, NAMES, torch.from_numpy(z[:, None]).float(), torch.from_numpy(y))
    totals = {name: each.sum(0) for name, each in rows.items()}
    threshold = TASK.choose(totals["recall"])
    cut = best_cut(z, y)
    assert threshold == pytest.approx(1 / (1 + math.exp(-cut)), abs=1e-12)
    found = values_of_sums(TASK.measured_at(threshold), totals, len(y))
    assert found == pytest.approx(at_cut(z, y, cut), abs=1e-12)
    assert all(map(math.isnan, values_of_sums(TASK, totals, len(y)).values()))  # before one is chosen
    assert all(map(math.isnan, values_of_sums(TASK.measured_at(None), totals, len(y)).values()))
    said = TASK.at(threshold).predicted(torch.from_numpy(z[:, None])).numpy()
    assert said.tolist() == (z > cut).astype(int).tolist()


def test_without_class_1_no_threshold_is_chosen() -> None:
    logits, y = torch.zeros(5, 1), torch.zeros(5, dtype=torch.int64)
    assert TASK.choose(sums_of(TASK, ["recall"], logits, y)["recall"].sum(0)) is None


def test_of_equal_thresholds_it_is_the_one_nearest_to_one_half() -> None:
    logits, y = torch.tensor([[-4.0], [4.0]]), torch.tensor([0, 1])
    assert TASK.choose(sums_of(TASK, ["recall"], logits, y)["recall"].sum(0)) == 0.5


@pytest.mark.slow
def test_a_threshold_that_is_set_is_written_down_as_before() -> None:
    assert plain(fl.Binary()) == {"kind": "Binary", "threshold": 0.5, "positive_weight": 1.0}
    assert chosen_measures(fl.Binary()) == ("accuracy",)
    assert chosen_measures(TASK) == ("accuracy", "recall")
    assert "at the threshold" not in measures_of(fl.Binary())["recall"].meaning
    assert "at the threshold that validation examples choose" in measures_of(TASK)["recall"].meaning
    check_task(TASK, outputs=1)


def people() -> fl.Federation:
    x, y = rare(400, 0)
    examples = fl.data.Examples(torch.from_numpy(x), torch.from_numpy(y), 2)
    test = fl.data.Examples(*map(torch.from_numpy, rare(200, 1)), 2)
    parts = fl.data.by_lists([range(40), range(40, 130), range(130, 260), range(260, 320), range(320, 400)])
    return fl.federate(examples, parts, test=test, test_fraction=0.3, val_fraction=0.25, seed=0)


def job(algorithm: Any, federation: fl.Federation | None = None, **settings: Any) -> Job:
    asked = fl.RunSettings(rounds=2, cohort_size=3, seed=0, measures=NAMES, **settings)
    return Job(
        algorithm=algorithm, federation=federation or people(), model=lambda: nn.Linear(3, 1), settings=asked, task=TASK
    )


LOCAL = fl.Local(epochs=2, batch_size=8, optimiser=fl.SGD(lr=0.1))


@pytest.mark.some(1)
@pytest.mark.parametrize("algorithm", [fl.FedAvg(local=LOCAL), fl.FedPer(local=LOCAL, personal_layers="bias")])
def test_records_have_the_threshold_of_the_pooled_validation_examples(algorithm: Any, tmp_path: Path) -> None:
    made = job(algorithm)
    found = made.run(tmp_path / "run")
    past, f = made.restore(tmp_path / "run"), made.federation
    assert f.local_val is not None
    assert f.local_test is not None

    def logits(k: int, rows: Any) -> Floats:
        w = past.personal_weights(k)
        return np.asarray((f.train.x[rows] @ w.params["weight"].T + w.params["bias"])[:, 0].double())

    def labels(rows: Any) -> npt.NDArray[np.int64]:
        return f.train.y[rows].numpy()

    val, test = ([part.rows(k).copy() for k in range(5)] for part in (f.local_val, f.local_test))
    cut = best_cut(np.concatenate([logits(k, val[k]) for k in range(5)]), labels(np.concatenate(val)))
    last = found.metrics[-1]
    assert last["threshold"] == pytest.approx(1 / (1 + math.exp(-cut)), abs=1e-12)
    assert {record["threshold"] for record in found.metrics} != {0.5}
    for whose, rows in (("val", val), ("personal", test)):
        each = [at_cut(logits(k, rows[k]), labels(rows[k]), cut) for k in range(5) if labels(rows[k]).any()]
        recall = np.mean([m["recall"] for m in each])
        assert last[f"{whose}_recall"] == pytest.approx(recall, abs=1e-12)
    if not algorithm.personalises:
        assert f.test is not None
        (w,) = past.global_weights().values()
        z = np.asarray((f.test.x @ w.params["weight"].T + w.params["bias"])[:, 0].double())
        want = at_cut(z, f.test.y.numpy(), cut)
        assert {n: last[f"global_{n}"] for n in NAMES} == pytest.approx(want, abs=1e-12)
        assert last["global_accuracy"] == pytest.approx(sk.accuracy_score(f.test.y, z > 0))  # at one half
    assert fl.History.read(tmp_path / "run").metrics == found.metrics


@pytest.mark.slow
def test_engines_choose_the_same_threshold() -> None:
    thresholds = [
        job(fl.FedAvg(local=LOCAL), engine=kind).run().series("threshold") for kind in ("loop", "stacked", "workers")
    ]
    assert (thresholds[0] == thresholds[1]).all()
    assert (thresholds[0] == thresholds[2]).all()
    assert len(thresholds[0]) == 3


@pytest.mark.slow
def test_messages_and_devices_add_up_to_the_same_threshold() -> None:
    algorithm, made = fl.FedPer(local=LOCAL, personal_layers="bias"), job(fl.FedAvg(local=LOCAL))
    population = made.population
    records = []
    for kind in (Loop, Stacked, Messages, DevicesInProcess):
        engine = kind(population, algorithm, Options())
        evaluation = Evaluation(algorithm, population, engine, range(5))
        server = engine.round(engine.init(), (0, 1, 2, 3, 4), 0)
        now = Running(made, algorithm, engine, evaluation, fl.History("FedPer"), server=server)
        records.append({**Threshold([1]).after(now), **PersonalModels().due(now)})
        engine.close()
    for record in records[1:]:
        assert record["threshold"] == records[0]["threshold"]
        by_client, first = record.pop("personal_by_client"), records[0].get("personal_by_client")
        assert by_client == pytest.approx(first, rel=1e-6)
        assert record == pytest.approx({k: v for k, v in records[0].items() if k != "personal_by_client"}, rel=1e-6)


def test_without_validation_examples_the_run_is_refused() -> None:
    f = people()
    x, y = f.train.x, f.train.y
    plainly = fl.federate(f.train, fl.data.by_lists([range(200), range(200, 400)]), test_fraction=0.3, seed=0)
    with pytest.raises(
        fl.SettingError, match=r"chooses its threshold on validation examples of clients, got none: hold"
    ):
        job(fl.FedAvg(), plainly)
    none = fl.data.Examples(x, torch.zeros_like(y), 2)
    of_zeros = fl.federate(none, fl.data.by_lists([range(200), range(200, 400)]), val_fraction=0.3, seed=0)
    with pytest.raises(fl.SettingError, match=r"got none of class 1 among 96: hold more out"):
        job(fl.FedAvg(), of_zeros)


@pytest.mark.parametrize(
    ("threshold", "message"),
    [("best", "threshold is a probability or 'validation', got 'best'"), (1.0, "threshold must be > 0 and < 1, got 1")],
)
def test_other_thresholds_are_refused(threshold: Any, message: str) -> None:
    with pytest.raises(fl.SettingError, match=message):
        fl.Binary(threshold=threshold)


def test_predictions_and_evaluations_of_a_run_take_its_threshold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = rare(400, 0)
    rows = [
        {"client": f"site{k % 3}", "a": repr(float(a)), "b": repr(float(b)), "c": repr(float(c)), "ill": str(of)}
        for k, ((a, b, c), of) in enumerate(zip(x, y, strict=True))
    ]
    whole, new = write_table(tmp_path / "all.csv", rows[:300]), write_table(tmp_path / "new.csv", rows[300:])
    described = {
        "algorithm": "fedavg", "model": "svm", "task": "binary?threshold=validation",
        "data": {"source": f"{whole}?label=ill&client=client", "partition": "natural", "val_fraction": 0.3},
        "local": {"lr": 0.1},
        "run": {"rounds": 2, "cohort_size": 3, "threads": 1},
    }  # fmt: skip
    history = Experiment.of(described).job().run(tmp_path / "run")
    threshold = history.metrics[-1]["threshold"]
    assert threshold not in (0.5, None)
    said = predict(tmp_path / "run", new)
    assert said.threshold == threshold
    assert said.probabilities is not None
    assert said.values.tolist() == (said.probabilities[:, 1] > threshold).astype(int).tolist()
    assert (said.values != (said.probabilities[:, 1] > 0.5)).any()
    found = evaluate_run(tmp_path / "run", new, resamples=10)
    assert found.threshold == threshold
    assert found.measures["recall"].value == pytest.approx(sk.recall_score(y[300:], said.values))
    assert found.measures["accuracy"].value == pytest.approx(sk.accuracy_score(y[300:], said.values))
    early = predict(tmp_path / "run", new, at=0)
    assert early.threshold == history.metrics[0]["threshold"]
    monkeypatch.setattr(fl.History, "read", lambda directory: fl.History("FedAvg"))
    with pytest.raises(fl.SettingError, match=r"chose no threshold after round 2 of .*: name another round \(--at\)"):
        predict(tmp_path / "run", new)


def test_the_threshold_is_set_in_words() -> None:
    assert catalogue.task("binary?threshold=validation&positive_weight=3") == fl.Binary("validation", 3.0)
    assert catalogue.task("binary?threshold=0.3") == fl.Binary(0.3)
    with pytest.raises(fl.SettingError, match=r"threshold of task binary is of another kind, got 'threshold=best'"):
        catalogue.task("binary?threshold=best")
