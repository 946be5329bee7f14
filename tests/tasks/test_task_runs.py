"""Runs of tasks: what records say of global and personal models, against scikit-learn on the same models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import nn

import fedloom as fl
from fedloom.coordinator import Job
from fedloom.coordinator.chosen_rounds import validated_round
from fedloom.core.batch import Batch
from fedloom.core.task_measures import Score, Sum

LOCAL = fl.Local(epochs=1, batch_size=8, optimiser=fl.SGD(lr=0.1))


def people(y: Any, outputs: int) -> fl.Federation:
    """Five clients of unlike size; client 4 has rows of the first 20 alone."""
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.normal(size=(len(y), 3)).astype(np.float32))
    parts = fl.data.by_lists([range(20), range(20, 50), range(50, 70), range(70, 110), range(110, 130)])
    test = fl.data.Examples(x[130:], torch.from_numpy(y[130:]), outputs)
    return fl.federate(fl.data.Examples(x[:130], torch.from_numpy(y[:130]), outputs), parts, test=test,
                       test_fraction=0.4, seed=0)  # fmt: skip


def trained(task: Any, y: Any, logits: int, outputs: int = 2, **settings: Any) -> tuple[fl.History, fl.Federation]:
    federation = people(y, outputs)
    made = fl.run(
        fl.FedPer(local=LOCAL, personal_layers="bias"), federation, lambda: nn.Linear(3, logits),
        fl.RunSettings(rounds=2, cohort_size=3, seed=0, **settings), task=task,
    )  # fmt: skip
    return made, federation


CLASSES = np.concatenate([np.random.default_rng(0).integers(0, 2, 110), np.zeros(20, int), np.arange(60) % 2])


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_areas_under_curves_of_clients_and_of_the_global_test_set(engine: Any, tmp_path: Path) -> None:
    names, federation = ("auc", "balanced_accuracy"), people(CLASSES, 2)
    job = Job(
        algorithm=fl.FedPer(local=LOCAL, personal_layers="bias"), federation=federation, model=lambda: nn.Linear(3, 2),
        settings=fl.RunSettings(rounds=2, cohort_size=5, seed=0, engine=engine, measures=names),
    )  # fmt: skip
    found = job.run(tmp_path / "run")
    last, past = found.metrics[-1], job.restore(tmp_path / "run")
    assert last["personal_auc_undefined"] == 1  # client 4 has one class
    assert [m["name"] for m in found.manifest["measures"]] == ["accuracy", *names]
    train, rows, areas, balanced = federation.train, federation.local_test, [], []
    assert rows is not None
    for k in range(5):
        own, w = rows.rows(k).copy(), past.personal_weights(k)
        z = train.x[own] @ w.params["weight"].T + w.params["bias"]
        if k < 4:
            areas.append(sk.roc_auc_score(train.y[own], z.double().softmax(-1)[:, 1]))
        balanced.append(sk.recall_score(train.y[own], z.argmax(1), average="macro", labels=np.unique(train.y[own])))
    assert last["personal_auc"] == pytest.approx(np.mean(areas), abs=1e-9)
    assert last["personal_balanced_accuracy"] == pytest.approx(np.mean(balanced), abs=1e-9)


@pytest.mark.slow
def test_engines_agree_on_scores() -> None:
    kinds = ("loop", "stacked", "workers")
    runs = [trained(fl.Classification(), CLASSES, 2, engine=kind, measures=("auc",))[0] for kind in kinds]
    for name in ("personal_auc", "personal_accuracy"):
        values = [run.series(name) for run in runs]
        np.testing.assert_allclose(values[1], values[0], atol=1e-6)
        np.testing.assert_array_equal(values[2], values[0])


@pytest.mark.slow
def test_a_regression_is_recorded_in_the_unit_of_its_target(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    federation = people((1000 + 50 * rng.normal(size=190)).astype(np.float32), 1)
    y = federation.train.y
    made = fl.run(
        fl.LocalOnly(local=LOCAL), federation, lambda: nn.Linear(3, 1),
        fl.RunSettings(rounds=2, cohort_size=5, seed=0, measures=("mae",), per_client=True), task=fl.Regression(),
        directory=tmp_path / "run",
    )  # fmt: skip
    read = fl.History.read(tmp_path / "run")
    assert (read.headline.name, read.headline.better, read.metrics) == ("rmse", "low", made.metrics)
    last = made.metrics[-1]
    by_client = np.array(list(last["personal_by_client"].values()))
    assert last["personal_rmse"] == pytest.approx(by_client.mean())
    assert last["personal_worst_tenth"] == by_client.max()  # of five, one; the largest error is the worst
    assert 20 < last["personal_rmse"] < 200
    sizes = federation.local_test.sizes  # type: ignore[union-attr]
    pooled = np.sqrt((by_client**2 * sizes).sum() / sizes.sum())
    assert last["personal_rmse_by_samples"] == pytest.approx(pooled)
    assert "class_accuracy" not in last
    assert read.federation["train"] is None
    assert read.federation["targets"]["train"][0][0][4] == float(y[federation.partition.rows(0)].max())
    assert read.summaries("personal_rmse").best == min(read.series("personal_rmse"))


class Quadrant:
    """A task of one's own with two measures: how often the first output has the sign of the target, and its spread."""

    targets = "numbers"

    def loss(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        return batch.mean((logits[:, 0] - batch.y).square())

    @property
    def measures(self) -> tuple[Any, ...]:
        def signs(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (logits[:, 0] > 0) == (y > 0)

        def width(outputs: torch.Tensor, y: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
            return torch.where(real, outputs, -torch.inf).amax(-1) - torch.where(real, outputs, torch.inf).amin(-1)

        return (
            Sum(name="signs", title="signs", meaning="Share of right signs.", rows=signs),
            Score(name="width", title="width", meaning="Width of the outputs.", unit="", better="low",
                  outputs=lambda logits: logits[:, 0].double(), values=width),
        )  # fmt: skip


def test_a_task_of_ones_own_has_measures_of_its_own() -> None:
    y = np.random.default_rng(3).normal(size=190).astype(np.float32)
    found, _ = trained(Quadrant(), y, 1, 1, measures=("width",))
    last = found.metrics[-1]
    assert 0 <= last["personal_signs"] <= 1
    assert last["personal_width"] > 0
    assert found.lower_is_better("personal_width")
    with pytest.raises(fl.SettingError, match=r"some of those of the task Quadrant, signs, width, got 'auc'"):
        trained(Quadrant(), y, 1, 1, measures=("auc",))


def test_the_best_round_is_that_of_the_least_error() -> None:
    rmse = fl.Regression().measures[0]
    records = [{"round": t, "val_rmse": v} for t, v in enumerate((9.0, 3.0, 5.0, 3.0))]
    assert validated_round(records, rmse) == 1
