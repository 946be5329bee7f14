"""Predictions for new rows are those of the exported weights."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedloom as fl
from fedloom.core.errors import SettingError
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.export import export
from fedloom.experiments.prediction_rows import RowReader
from fedloom.experiments.predictions import Predictions, predict, predict_by
from fedloom.experiments.trained_model import task_of, trained_model
from hospitals import write_table
from runs_of_tables import LABEL, TARGET, linear, tables, trained
from tiny import federation, linear as tiny_linear


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of classes by FedAvg with fine-tuning, whose personal models differ from the global one."""
    folder = tmp_path_factory.mktemp("classes")
    whole, new, rows = tables(folder)
    run = trained(folder, f"{whole}?{LABEL}", algorithm="fedavg_ft")
    return {"run": run, "new": new, "rows": rows, "folder": folder, "whole": whole}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of a regression."""
    folder = tmp_path_factory.mktemp("numbers")
    whole, new, rows = tables(folder)
    run = trained(folder, f"{whole}?{TARGET}", task="regression")
    return {"run": run, "new": new, "rows": rows}


def features(run: Path, rows: list[dict[str, str]]) -> Any:
    """What the run's preparation makes of rows."""
    kept = Experiment.from_directory(run).federation().train.preparation
    assert kept is not None
    return kept.new_rows(pd.DataFrame(rows))


@pytest.mark.parametrize("which", ["classes", "numbers"])
def test_rows_of_which_the_model_says_nothing_are_refused(which: str, request: pytest.FixtureRequest) -> None:
    """They would be read as the first class."""
    run, new = (request.getfixturevalue(which)[name] for name in ("run", "new"))
    experiment = Experiment.from_directory(run)
    job = experiment.job()
    found = trained_model(run, job)
    wild = dataclasses.replace(found, weights=fl.tree.map_tree(lambda t: t.sign() * 3e38, found.weights))
    reader = RowReader(job.federation.train, experiment)
    with pytest.raises(
        SettingError, match=r"global model after round \d+ are NaN or infinite for \d+ of .* first line"
    ):
        predict_by(wild, reader, task_of(wild, run), new)


@pytest.mark.parametrize("client", [None, "Kiel"])
def test_classes_are_those_of_the_exported_weights(client: str | None, classes: dict[str, Any], tmp_path: Path) -> None:
    run = classes["run"]
    found = trained_model(run, Experiment.from_directory(run).job(), client=client)
    file = export(found.model, found.weights, tmp_path / "model.pt")
    logits = linear(file, features(run, classes["rows"]))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    said = predict(run, classes["new"], client=client)
    np.testing.assert_allclose(said.probabilities, p, rtol=1e-5)
    assert said.values.tolist() == p.argmax(1).tolist()
    assert said.labels == [["no", "yes"][k] for k in p.argmax(1)]
    assert said.sites == tuple(row["client"] for row in classes["rows"])
    assert (said.names, said.counted) == (("no", "yes"), "line")
    assert said.places.tolist() == list(range(2, 2 + len(classes["rows"])))
    assert (said.whose, said.round) == ("global model" if client is None else "model of client Kiel", 2)


def test_the_global_model_and_those_of_clients_and_of_rounds_differ(classes: dict[str, Any]) -> None:
    made = [
        predict(classes["run"], classes["new"], **more).probabilities.tobytes()  # type: ignore[union-attr]
        for more in ({}, {"client": "Kiel"}, {"client": "Hamburg"}, {"at": 0})
    ]
    assert len(set(made)) == 4
    assert predict(classes["run"], classes["new"], client=2).whose == "model of client Kiel"


def test_numbers_are_in_the_unit_of_the_target(numbers: dict[str, Any], tmp_path: Path) -> None:
    run = numbers["run"]
    job = Experiment.from_directory(run).job()
    found = trained_model(run, job)
    file = export(found.model, found.weights, tmp_path / "model.pt")
    train = job.federation.partition.indices
    days = job.federation.train.y.double().numpy()[train]
    wanted = days.mean() + days.std() * linear(file, features(run, numbers["rows"]))
    said = predict(run, numbers["new"])
    np.testing.assert_allclose(said.values, wanted, rtol=1e-5)
    assert said.names == ("los_days",)
    assert said.probabilities is None
    with pytest.raises(SettingError, match="labels are names of classes"):
        _ = said.labels


def test_the_table_of_predictions(classes: dict[str, Any], numbers: dict[str, Any], tmp_path: Path) -> None:
    said = predict(classes["run"], classes["new"])
    with said.csv(tmp_path / "deep" / "said.csv").open() as file:
        read = list(csv.reader(file))
    assert read[0] == ["line", "site", "prediction", "probability no", "probability yes"]
    assert said.probabilities is not None
    assert read[5] == ["6", "Bremen", said.labels[4], *map(str, said.probabilities[4].tolist())]
    assert len(read) == 1 + len(said)
    with pytest.raises(SettingError, match=r"said.csv exists; choose another name, or replace a file with overwrite"):
        said.csv(tmp_path / "deep" / "said.csv")
    number = predict(numbers["run"], numbers["new"])
    with number.csv(tmp_path / "deep" / "said.csv", overwrite=True).open() as file:
        read = list(csv.reader(file))
    assert read[:2] == [["line", "site", "los_days"], ["2", "Bremen", str(number.values[0, 0])]]


def test_several_files_are_sites_and_the_target_may_be_missing(numbers: dict[str, Any], tmp_path: Path) -> None:
    rows = [{name: cell for name, cell in row.items() if name != "los_days"} for row in numbers["rows"]]
    columns = ["sex", "diagnosis", "creatinine", "age"]
    for place in ("north", "south"):
        (tmp_path / place).mkdir()
    write_table(tmp_path / "north" / "ward.csv", [{n: row[n] for n in columns} for row in rows[:30]])
    others = [{n: row[n] for n in columns[::-1]} for row in rows[30:]]
    write_table(tmp_path / "south" / "ward.csv", others, separator=";")
    said = predict(numbers["run"], f"{tmp_path}/*/ward.csv")
    np.testing.assert_array_equal(said.values, predict(numbers["run"], numbers["new"]).values)
    assert said.sites == ("north",) * 30 + ("south",) * (len(rows) - 30)


def test_a_frame_gives_what_its_file_gives(classes: dict[str, Any]) -> None:
    frame = pd.read_csv(classes["new"]).drop(columns=["readmitted"])
    said, read = predict(classes["run"], frame), predict(classes["run"], classes["new"])
    np.testing.assert_array_equal(said.probabilities, read.probabilities)
    assert (said.counted, said.places[0], said.sites) == ("row", 0, read.sites)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(
        tmp_path_factory.mktemp("images"), "fashion_mnist_small", data={"partition": "iid", "clients": 5},
        local={"epochs": 1},
    )  # fmt: skip


@pytest.mark.slow
def test_images_by_name_as_arrays_and_as_a_file(images: Path, tmp_path: Path) -> None:
    _, test = fl.fashion_mnist_small()
    said = predict(images, "fashion_mnist_small")
    assert len(said) == len(test)
    job = Experiment.from_directory(images).job()
    weight, bias = trained_model(images, job).weights.params.values()
    x = (test.x.double() / 255 - test.normalise.mean[0]) / test.normalise.std[0]
    logits = x.flatten(1) @ weight.double().T + bias
    np.testing.assert_allclose(said.probabilities, logits.softmax(-1), rtol=1e-3, atol=1e-6)
    for data in (test.select(np.arange(7)), test.x[:7].numpy(), test.x[:7, 0]):
        np.testing.assert_allclose(predict(images, data, job=job).probabilities, said.probabilities[:7], rtol=1e-4)  # type: ignore[index]
    np.savez(tmp_path / "new.npz", x=test.x[:7].numpy())
    np.testing.assert_array_equal(predict(images, tmp_path / "new.npz", job=job).values, said.values[:7])


def test_a_run_from_python_takes_its_job(tmp_path: Path) -> None:
    whole = federation()
    job = fl.Job(
        algorithm=fl.FedAvg(), federation=whole, model=tiny_linear, settings=fl.RunSettings(rounds=1, cohort_size=2)
    )
    history = job.run(tmp_path / "run")
    (weights,) = history.server.values()
    assert whole.test is not None
    said = predict(tmp_path / "run", whole.test, job=job)
    wanted = (whole.test.x @ weights.params["weight"].T + weights.params["bias"]).argmax(-1)
    assert said.values.tolist() == wanted.tolist()
    assert said.labels == [str(k) for k in wanted.tolist()]
    with pytest.raises(SettingError, match="started from Python with objects of its own"):
        predict(tmp_path / "run", whole.test)


class OwnTask:
    """A task that says which rows are right and no more."""

    def loss(self, logits: torch.Tensor, batch: Any) -> torch.Tensor:
        return fl.Classification().loss(logits, batch)

    def correct(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1) == y


def test_a_task_that_says_no_prediction_is_refused(tmp_path: Path) -> None:
    whole, settings = federation(), fl.RunSettings(rounds=1, cohort_size=2)
    job = fl.Job(algorithm=fl.FedAvg(), federation=whole, model=tiny_linear, settings=settings, task=OwnTask())
    job.run(tmp_path / "run")
    message = "the task OwnTask does not say what a model predicts: give it a method predicted"
    with pytest.raises(SettingError, match=message):
        predict(tmp_path / "run", whole.test, job=job)


def test_a_margin_is_no_probability(tmp_path: Path) -> None:
    train = fl.from_arrays(np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2)
    whole = fl.federate(train, fl.iid(train.y, 4, seed=0))
    settings = fl.RunSettings(rounds=1, cohort_size=2)
    job = fl.Job(
        algorithm=fl.FedAvg(), federation=whole, model=lambda: torch.nn.Linear(3, 1), settings=settings, task=fl.Hinge()
    )
    (weights,) = job.run(tmp_path / "run").server.values()
    said = predict(tmp_path / "run", train, job=job)
    margin = train.x @ weights.params["weight"].T + weights.params["bias"]
    assert said.probabilities is None
    assert said.values.tolist() == (margin[:, 0] > 0).long().tolist()


def test_data_that_changed_or_are_gone_are_refused(tmp_path: Path) -> None:
    whole, new, _ = tables(tmp_path)
    run = trained(tmp_path, f"{whole}?{LABEL}")
    kept = whole.read_text()
    whole.write_text(kept + kept.splitlines()[3] + "\n")
    message = rf"all.csv\?{LABEL} has changed since the run in {run} was trained on it \(local_test, partition, test, "
    with pytest.raises(SettingError, match=message):
        predict(run, new)
    whole.unlink()
    with pytest.raises(SettingError, match=r"cannot be read: there is no file .*all\.csv'.*; bring it back, or call"):
        predict(run, new)
    whole.write_text(kept)
    assert len(predict(run, new))


@pytest.mark.parametrize(
    ("values", "probabilities", "names", "lines"),
    [
        (
            np.array([[True, False], [False, False]]), np.array([[0.75, 0.5], [0.25, 0.0]]), ("bag", "shoe"),
            ["row,site,bag,shoe,probability bag,probability shoe", "0,a,1,0,0.75,0.5", "7,b,0,0,0.25,0.0"],
        ),
        (np.array([[1.5], [-2e-7]]), None, ("days",), ["row,site,days", "0,a,1.5", "7,b,-2e-07"]),
        (
            np.array([[1.5, 3.0], [0.1, 1e9]]), None, ("days", "cost"),
            ["row,site,days,cost", "0,a,1.5,3.0", "7,b,0.1,1000000000.0"],
        ),
        (
            np.array([1, 0]), np.array([[0.25, 0.75], [1.0, 0.0]]), ("no", "yes"),
            ["row,site,prediction,probability no,probability yes", "0,a,yes,0.25,0.75", "7,b,no,1.0,0.0"],
        ),
    ],
)  # fmt: skip
def test_the_file_of_predictions_of_each_kind_of_task(
    values: Any, probabilities: Any, names: tuple[str, ...], lines: list[str], tmp_path: Path
) -> None:
    """Labels are 1 and 0, numbers are whole, and classes have their names."""
    said = Predictions(values, probabilities, names, np.array([0, 7]), "row", ("a", "b"), "global model", 3)
    assert said.csv(tmp_path / "said.csv").read_text(encoding="utf-8").splitlines() == lines
    without = dataclasses.replace(said, sites=())
    assert next(without.rows())[1] != "site"
    header, first, second = dataclasses.replace(said, kept={"patient": ["007", "x"]}).rows()
    assert (header[:3], first[:3], second[:3]) == (["row", "site", "patient"], [0, "a", "007"], [7, "b", "x"])
    if values.ndim > 1:
        with pytest.raises(SettingError, match="these predictions are of another task: take values"):
            _ = said.labels
