"""Which model of a run is taken, and what is said where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom as fl
from fedloom.core.errors import SettingError, StorageError
from fedloom.data import natural
from fedloom.experiments.predictions import predict
from fedloom.experiments.trained_model import client_number, trained_model
from tiny import LOCAL, federation, linear

SETTINGS = fl.RunSettings(rounds=4, cohort_size=2, checkpoint_every=2)


def job(algorithm: Any, **more: Any) -> fl.Job:
    return fl.Job(algorithm=algorithm, federation=federation(), model=linear, settings=SETTINGS, **more)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run") / "run"
    job(fl.FedAvg(local=LOCAL)).run(directory)
    return directory


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"at": 1}, "has no checkpoint of round 1, only of 0, 2, 4; others can be replayed"),
        ({"at": "last"}, "at is the number of a round that was kept, or 'best', got 'last'"),
        ({"at": "best"}, "the best round is that with the highest val_accuracy, which no round of .* has"),
        ({"client": 6}, r"client must be in 0\.\.5, got 6"),
        ({"client": "Kiel"}, "a client is named by its name or number, and clients are the numbers 0 to 5, got 'Kiel'"),
        ({"client": 0, "model": "linear"}, "a client has one model: give --client 0 or --model linear, not both"),
        ({"model": "mlp"}, "the run has no model 'mlp'; it has"),
    ],
)
def test_models_that_are_not_there(more: dict[str, Any], message: str, run: Path) -> None:
    with pytest.raises((SettingError, StorageError), match=message):
        trained_model(run, job(fl.FedAvg(local=LOCAL)), **more)


def test_an_algorithm_without_a_global_model(tmp_path: Path) -> None:
    alone = job(fl.LocalOnly(local=LOCAL))
    alone.run(tmp_path / "run")
    with pytest.raises(SettingError, match="LocalOnly has no global model; name a client with --client 0"):
        trained_model(tmp_path / "run", alone)
    assert trained_model(tmp_path / "run", alone, client="3").whose == "model of client 3"


def test_a_run_of_another_format(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    facts = json.loads((run / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps({**facts, "format": 1}))
    with pytest.raises(StorageError, match=r"holds a run of format 1, and format .* is read: run it again"):
        trained_model(other, job(fl.FedAvg(local=LOCAL)))
    (other / "settings.json").write_text("{}")
    with pytest.raises(StorageError, match="holds a run of format 1"):
        predict(other, "new.csv")
    with pytest.raises(SettingError, match=r"holds no run; name a folder with a settings\.json"):
        predict(tmp_path / "nothing", "new.csv")


def test_names_of_clients_come_before_their_numbers() -> None:
    train = federation().train
    owners = np.arange(len(train)) % 3

    def named(*names: str) -> fl.Federation:
        return fl.federate(train, natural(owners, names))

    words, digits = named("Kiel", "1", "Bremen"), named("20", "10", "30")
    assert [client_number(words, c) for c in ("Kiel", "1", "Bremen", "2", 0)] == [0, 1, 2, 2, 0]
    assert [client_number(digits, c) for c in ("10", 2)] == [1, 2]
    with pytest.raises(SettingError, match=r"and the clients are '20', '10', '30', got '2'"):
        client_number(digits, "2")
    with pytest.raises(SettingError, match=r"got 'Keil' \(did you mean 'Kiel'\?\)"):
        client_number(words, "Keil")
