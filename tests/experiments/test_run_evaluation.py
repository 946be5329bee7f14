"""Measures of a trained model on new rows, over all of them and by site."""

from __future__ import annotations

import csv
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, roc_auc_score, root_mean_squared_error

import fedloom as fl
from fedloom import Experiment
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.core.task_measures import measures_of
from fedloom.data import Tokens
from fedloom.experiments.prediction_rows import held_out_by
from fedloom.experiments.predictions import predict
from fedloom.experiments.run_evaluation import evaluate_run
from fedloom.experiments.training_rows import TrainedOn, count_trained
from runs_of_tables import LABEL, TARGET, tables, trained
from tiny import federation, linear


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("classes")
    whole, new, rows = tables(folder)
    return {"run": trained(folder, f"{whole}?{LABEL}"), "new": new, "rows": rows}


def of_site(rows: list[dict[str, str]], site: str) -> Any:
    return np.flatnonzero([row["client"] == site for row in rows])


@pytest.mark.slow
def test_measures_and_intervals_of_classes(classes: dict[str, Any], tmp_path: Path) -> None:
    run, new, rows = classes["run"], classes["new"], classes["rows"]
    told = list[int]()
    found = evaluate_run(run, new, resamples=50, seed=3, on_hundredth=told.append)
    assert told == [*range(1, 101)]  # of all rows and those of sites
    said = predict(run, new)
    y = np.array([row["readmitted"] == "yes" for row in rows])
    assert said.probabilities is not None
    p = said.probabilities[:, 1]
    assert list(found.measures) == list(measures_of(fl.Classification()))
    assert found.measures["accuracy"].value == accuracy_score(y, said.values == 1)
    assert found.measures["macro_f1"].value == pytest.approx(f1_score(y, said.values, average="macro"))
    assert found.measures["auc"].value == pytest.approx(roc_auc_score(y, p))
    rng = np.random.default_rng(3)
    each = [roc_auc_score(y[rows], p[rows]) for rows in (rng.integers(0, len(y), len(y)) for _ in range(50))]
    auc = found.measures["auc"]
    np.testing.assert_allclose((auc.low, auc.high), np.quantile(each, (0.025, 0.975)))
    assert (found.rows, found.whose, found.round) == (len(rows), "global model", 2)
    # sites: of Kiel there are 24 rows
    assert found.few == {"Kiel": 24}
    assert list(found.by_site) == ["Bremen", "Hamburg", "Luebeck", "Rostock"]
    own = of_site(rows, "Rostock")
    assert found.by_site["Rostock"]["accuracy"].value == accuracy_score(y[own], said.values[own])
    assert found.by_site["Rostock"]["auc"].value == pytest.approx(roc_auc_score(y[own], p[own]))
    with found.csv(tmp_path / "measures.csv").open() as file:
        read = list(csv.DictReader(file))
    assert len(read) == 5 * len(found.measures)
    assert {row["site"]: row["rows"] for row in read} == {
        "": "245", "Bremen": "60", "Hamburg": "90", "Luebeck": "40", "Rostock": "31",
    }  # fmt: skip
    assert float(read[0]["value"]) == found.measures["accuracy"].value


@pytest.mark.slow
def test_a_client_is_evaluated_on_what_it_holds_out(classes: dict[str, Any], tmp_path: Path) -> None:
    """As in the run's own record of the round, without new rows."""
    run, job = classes["run"], Experiment.from_directory(classes["run"]).job()
    assert job.federation.local_test is not None
    names, sizes = job.federation.partition.clients, job.federation.local_test.sizes
    for round in (1, 2):
        logged = fl.History.read(run).metrics[round]["personal_by_client"]
        for client, name in enumerate(names):
            found = evaluate_run(run, client=name, at=round, resamples=20)
            assert found.measures["accuracy"].value == logged[str(client)]
            assert (found.rows, found.whose) == (sizes[client], f"model of client {name}")
            assert found.measures["log_loss"].low < found.measures["log_loss"].high
    assert evaluate_run(run, client=2, job=job, resamples=20).by_site == {}


def test_what_no_client_holds_out_is_refused(classes: dict[str, Any], tmp_path: Path) -> None:
    run = classes["run"]
    with pytest.raises(SettingError, match=r"^a model is evaluated on rows, and none are named: give new ones"):
        evaluate_run(run)
    with pytest.raises(SettingError, match=r"^clients are the numbers 0 to 4, got 5: name one of them$"):
        evaluate_run(run, client=5)
    none = trained(tmp_path, f"{run.parent / 'all.csv'}?{LABEL}", data={"test_fraction": 0})
    with pytest.raises(
        SettingError, match=r"clients hold out, got none of client Kiel: give rows .*--test-fraction 0\.2"
    ):
        evaluate_run(none, client="Kiel")


def test_what_devices_hold_out_is_not_here() -> None:
    there: Any = SimpleNamespace(train=SimpleNamespace(remote={"devices": 3}), num_clients=3, local_test=None)
    with pytest.raises(SettingError, match=r"^what clients hold out .* is on devices: give rows that are here"):
        held_out_by(there, 2)
    here = SimpleNamespace(train=SimpleNamespace(remote=None), num_clients=2, partition=SimpleNamespace(clients=()))
    some: Any = SimpleNamespace(**vars(here), local_test=SimpleNamespace(rows=lambda k: np.arange(3 * k)))
    assert held_out_by(some, 1).tolist() == [0, 1, 2]
    assert held_out_by(some, None).tolist() == [0, 1, 2]
    with pytest.raises(SettingError, match=r"clients hold out, got none of client 0: give rows"):
        held_out_by(some, 0)


def test_rows_without_a_site_are_not_all_rows(classes: dict[str, Any], tmp_path: Path) -> None:
    """They had the name of all rows, whose measures were lost."""
    lines = classes["new"].read_text().splitlines()
    assert lines[0].split(",")[-1] == "client"
    gaps = [line.rpartition(",")[0] + "," * (k > 0) if 0 < k <= 40 else line for k, line in enumerate(lines)]
    (tmp_path / "gaps.csv").write_text("\n".join(gaps))
    whole = evaluate_run(classes["run"], classes["new"], measures=["accuracy"], resamples=5).measures["accuracy"]
    found = evaluate_run(classes["run"], tmp_path / "gaps.csv", measures=["accuracy"], resamples=5)
    assert (found.measures["accuracy"], found.sizes["missing"]) == (whole, 40)
    by_hand = replace(found, by_site={"": found.by_site["missing"]}, sizes={"": 40})
    for table, site in ((found.table(), "missing"), (by_hand.table(), "")):
        rows = list(table)
        assert (rows[1][:2], rows[1][3]) == (["", found.rows], whole.value)
        assert [site, 40] in [row[:2] for row in rows[2:]]


def test_rows_that_the_run_trained_on_are_counted(classes: dict[str, Any], tmp_path: Path) -> None:
    """By their values, whatever file they stand in: not held-out rows, and not rows with another target."""
    run, whole = classes["run"], classes["run"].parent / "all.csv"
    header, *lines = whole.read_text().splitlines()
    columns = [k for k, name in enumerate(header.split(",")) if name not in ("patient", "los_days", "client")]
    values = [tuple(line.split(",")[k] for k in columns) for line in lines]
    training = {values[row] for row in Experiment.from_directory(run).federation().partition.indices}
    trained_on = sum(one in training for one in values)
    assert trained_on < len(lines)
    said = rf"^{trained_on} of {len(lines)} rows equal training rows of the run in inputs and target \(by chance 1%\): "
    with pytest.warns(SettingWarning, match=said):
        assert evaluate_run(run, whole, resamples=2).trained_on == trained_on
    new = classes["new"].read_text().splitlines()
    other = [line.replace(",yes,", ",?,").replace(",no,", ",yes,").replace(",?,", ",no,") for line in lines]
    by_chance = evaluate_run(run, classes["new"], resamples=2).trained_on
    assert by_chance == 2
    for rows, count in ((lines[::-1] + new[1:], trained_on + by_chance), (other, 0)):
        (tmp_path / "mixed.csv").write_text("\n".join([header, *rows]))
        with pytest.warns(SettingWarning) if count else nullcontext():
            assert evaluate_run(run, tmp_path / "mixed.csv", resamples=2).trained_on == count


def test_training_rows_are_recognised_in_every_type_and_not_in_another_shape() -> None:
    images = fl.Examples(torch.arange(48, dtype=torch.uint8).reshape(4, 1, 3, 4), torch.arange(4), 4)
    tokens = fl.Examples(torch.arange(12, dtype=torch.int16).reshape(4, 3), torch.arange(4), 4, Tokens(12))
    numbers = fl.Examples(torch.eye(4), torch.eye(4)[:, :3], 3)
    for train in (images, tokens, numbers):
        new = replace(train, x=train.x.flip(0), y=train.y.flip(0))
        assert count_trained(new, train, np.arange(4)) == TrainedOn(4, 4, 0.0)
        assert count_trained(new, train, np.array([1, 2])) == TrainedOn(2, 4, 0.0)
        assert count_trained(replace(new, y=train.y.roll(1, 0).flip(0)), train, np.arange(4)).count == 0
    wide = replace(tokens, x=tokens.x.long())
    assert count_trained(wide, tokens, np.arange(4)).count == 4
    assert count_trained(replace(wide, x=wide.x[:, :2]), tokens, np.arange(4)).count == 0


def test_rows_that_are_alike_by_chance_are_not_warned_of() -> None:
    few = fl.Examples(torch.tensor([[0.0], [0.0], [1.0], [2.0]]), torch.zeros(4, dtype=torch.int64), 1)
    found = count_trained(few, few, np.arange(3))
    assert found == TrainedOn(3, 4, 2 / 3)
    assert not found.is_notable
    assert TrainedOn(4, 4, 2 / 3).is_notable


def test_thirty_rows_make_an_interval(classes: dict[str, Any], tmp_path: Path) -> None:
    lines = classes["new"].read_text().splitlines(keepends=True)
    (tmp_path / "30.csv").write_text("".join(lines[:31]))
    (tmp_path / "29.csv").write_text("".join([lines[0], *lines[31:60]]))
    found = evaluate_run(classes["run"], f"{tmp_path}/*.csv", measures=["accuracy"], resamples=5)
    assert (list(found.by_site), found.few) == (["30"], {"29": 29})
    assert list(found.measures) == ["accuracy"]


def test_measures_of_numbers_are_in_the_unit_of_the_target(tmp_path: Path) -> None:
    whole, new, rows = tables(tmp_path)
    run = trained(tmp_path, f"{whole}?{TARGET}", task="regression")
    found, said = evaluate_run(run, new, resamples=20), predict(run, new)
    days = np.array([float(row["los_days"]) for row in rows])
    assert found.measures["rmse"].value == pytest.approx(root_mean_squared_error(days, said.values[:, 0]))
    assert found.measures["mae"].value == pytest.approx(mean_absolute_error(days, said.values[:, 0]))
    assert 1 < found.measures["rmse"].value < 10
    assert found.measures["rmse"].low < found.measures["rmse"].value < found.measures["rmse"].high


def test_a_federations_own_examples(tmp_path: Path) -> None:
    """The test set of a run gives the number that the run logged."""
    whole = federation()
    settings = fl.RunSettings(rounds=1, cohort_size=2)
    job = fl.Job(algorithm=fl.FedAvg(), federation=whole, model=linear, settings=settings)
    history = job.run(tmp_path / "run")
    found = evaluate_run(tmp_path / "run", whole.test, job=job, resamples=10)
    assert found.measures["accuracy"].value == history.last("global_accuracy")
    assert found.loss == pytest.approx(history.last("global_loss"))
    owners = np.arange(len(whole.train)) % 2
    with pytest.warns(SettingWarning, match="^72 of 90 rows equal training rows of the run"):
        found = evaluate_run(tmp_path / "run", fl.Dataset(whole.train, None, owners), job=job, resamples=10)
    assert found.sizes == {"0": 45, "1": 45}
    with pytest.raises(SettingError, match="to evaluate takes targets, got an array of inputs alone"):
        evaluate_run(tmp_path / "run", whole.train.x.numpy(), job=job)
    with pytest.raises(SettingError, match="seed of the resamples must be at least 0, got -1"):
        evaluate_run(tmp_path / "run", whole.test, job=job, seed=-1)
    with pytest.raises(SettingError, match="resamples must be at least 1, got 0"):
        evaluate_run(tmp_path / "run", whole.test, job=job, resamples=0)
    with pytest.raises(SettingError, match=r"got 'acuracy' \(did you mean 'accuracy'\?\)"):
        evaluate_run(tmp_path / "run", whole.test, job=job, measures=["acuracy"])


def test_labels_are_zero_or_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 4)).astype(np.float32), rng.integers(0, 2, (40, 3)).astype(np.float32)
    train = fl.Examples(torch.from_numpy(x), torch.from_numpy(y), 3, targets=("a", "b", "c"))
    job = fl.Job(
        algorithm=fl.FedAvg(), federation=fl.federate(train, fl.iid(train.y, 4, seed=0)), model=linear,
        settings=fl.RunSettings(rounds=1, cohort_size=2), task=fl.MultiLabel(),
    )  # fmt: skip
    job.run(tmp_path / "run")
    with pytest.warns(SettingWarning, match="^32 of 40 rows equal training rows of the run"):
        found = evaluate_run(tmp_path / "run", train, job=job, resamples=5)
    said = predict(tmp_path / "run", train, job=job)
    assert found.measures["label_accuracy"].value == pytest.approx((said.values == (y > 0.5)).mean())
    assert said.names == ("a", "b", "c")
    assert next(iter(said.rows())) == ["row", "a", "b", "c", "probability a", "probability b", "probability c"]
    other = fl.Examples(train.x, 2 * train.y, 3, name="scores")
    with pytest.raises(SettingError, match="labels are 0 or 1, got 2 in scores"):
        evaluate_run(tmp_path / "run", other, job=job)
