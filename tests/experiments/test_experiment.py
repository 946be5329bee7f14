"""Experiments share data exactly where they say the same of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.core.errors import SettingError, SettingWarning
from fedloom.data import Dataset, Examples
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.federations import Federations
from fedloom.experiments.settings_sections import DataSettings

SMALL = DataSettings(examples=200, public=20, clients=4, partition="iid", partition_seed=0)
OTHER: dict[str, Any] = {
    "source": "vehicle_like",
    "merge": True,
    "classes": 3,
    "examples": 100,
    "normalise": "0/1",
    "partition": "shards:2",
    "clients": 5,
    "partition_seed": 1,
    "test_fraction": 0.5,
    "val_fraction": 0.5,
    "public": 10,
    "public_source": "fashion_mnist_small",
    "public_labels": True,
    "augment": "crop:2",
    "arrives": "growing:0.5:4",
    "drift": "labels:2",
}
# with the same arrays
WHO_HOLDS = {"partition", "clients", "test_fraction", "val_fraction", "public_labels", "arrives", "drift"}
NAMES = [f.name for f in dataclasses.fields(DataSettings)]


def shared(monkeypatch: pytest.MonkeyPatch, *both: DataSettings) -> bool:
    """Whether one of several experiments, one after the other, made the arrays of all."""
    made: list[DataSettings] = []

    def dataset(self: Experiment) -> tuple[Dataset, Examples | None]:
        made.append(self.data)
        return Dataset(Examples(torch.zeros(9, 1), torch.zeros(9, dtype=torch.int64), 1), None), None

    with monkeypatch.context() as here:
        here.setattr(Experiment, "dataset", dataset)
        here.setattr(Experiment, "federation", lambda self, found=None: found)
        federations = Federations()
        for data in both:
            federations.of(Experiment(data=data))
    return len(made) == 1


@pytest.mark.parametrize("name", NAMES)
def test_arrays_are_shared_unless_a_setting_of_theirs_differs(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert name in OTHER, f"give data.{name} another value here, and say in WHO_HOLDS if it leaves the arrays alone"
    other = dataclasses.replace(SMALL, **{name: OTHER[name]})
    assert other != SMALL
    assert shared(monkeypatch, SMALL, other) == (name in WHO_HOLDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WHO_HOLDS))
def test_who_holds_what_leaves_the_arrays_alone(name: str) -> None:
    (mine, public), (yours, theirs) = (
        Experiment(data=data).dataset() for data in (SMALL, dataclasses.replace(SMALL, **{name: OTHER[name]}))
    )
    for a, b in ((mine.train, yours.train), (mine.test, yours.test), (public, theirs)):
        assert a is not None
        assert b is not None
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
        assert a.normalise == b.normalise


def test_a_seed_makes_other_arrays_only_where_something_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = dataclasses.replace(SMALL, examples=0, public=0, partition_seed=None)
    for data, same in ((plain, True), (dataclasses.replace(plain, public=20), False)):
        first, second = (dataclasses.replace(data, partition_seed=seed) for seed in (0, 1))
        assert shared(monkeypatch, first, second) == same


def test_a_number_of_classes_has_a_bound() -> None:
    assert Experiment().changed("data.classes", 65_536).data.classes == 65_536
    with pytest.raises(SettingError, match="classes must be >= 0 and <= 65536, got 65537"):
        Experiment().changed("data.classes", 65_537)


def test_rows_that_name_their_clients_are_not_dealt_out_anew_without_a_word(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    path = tmp_path / "wards.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y, clients_train=np.repeat(["a", "b", "c", "d"], 10))
    of = Experiment().with_all({"data.source": str(path), "data.clients": 2})
    with pytest.warns(
        SettingWarning, match=r"partition shards:2 deals the rows of wards out anew, .* 4 in all: write --"
    ):
        assert of.federation().num_clients == 2
    assert of.changed("data.partition", "natural").federation().num_clients == 4
    assert of.changed("data.partition", "iid").federation().num_clients == 2
