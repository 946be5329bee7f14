"""Clients as PFLlib writes them: what its own lines save is read, what a pickle could run is not."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom as fl

DRAW = np.random.default_rng(0)


def client(rows: int, classes: int = 4) -> dict[str, Any]:
    return {"x": DRAW.normal(size=(rows, 1, 8, 8)).astype(np.float32), "y": np.arange(rows) % classes}


def saved(path: Path, value: Any) -> None:
    """What `save_file` of PFLlib's dataset_utils.py does with a client's dictionary."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb") as file:
        np.savez_compressed(file, data=value)


def folder(path: Path) -> Path:
    """Three clients of 30 rows to train on and 10 to test on."""
    for part, rows in (("train", 30), ("test", 10)):
        for k in range(3):
            saved(path / part / f"{k}.npz", client(rows))
    (path / "config.json").write_text(json.dumps({"num_clients": 3, "num_classes": 5}))
    return path


def test_its_clients_are_natural_and_test_files_are_held_out(tmp_path: Path) -> None:
    """Twelve clients, so that they are not in the order of names: 10.npz follows 9.npz."""
    made = []
    for k in range(12):
        for part, rows in (("train", 6 + k), ("test", 2)):
            saved(tmp_path / part / f"{k}.npz", one := client(rows))
            made.append(one)
    data = fl.sources.load("pfllib", tmp_path)
    assert data.owners is not None
    assert data.held_out is not None
    assert np.array_equal(data.train.x, np.concatenate([one["x"] for one in made]))
    assert np.array_equal(data.train.y, np.concatenate([one["y"] for one in made]))
    assert np.bincount(data.owners).tolist() == [8 + k for k in range(12)]
    assert np.flatnonzero(data.held_out[:19]).tolist() == [6, 7, 15, 16]
    assert data.test is not None
    assert np.array_equal(data.test.x, data.train.x[data.held_out])
    federation = fl.federate(
        data.train, fl.data.natural(data.owners), test=data.test, held_out=data.held_out, val_fraction=0.0
    )
    assert federation.partition.sizes.tolist() == [6 + k for k in range(12)]


def test_config_says_how_many_classes_there_are(tmp_path: Path) -> None:
    assert fl.sources.load("pfllib", folder(tmp_path)).train.num_classes == 5
    (tmp_path / "config.json").write_text(json.dumps({"num_classes": 3}))
    with pytest.raises(ValueError, match="num_classes must be a whole number from 4, which the labels take, got 3"):
        fl.sources.load("pfllib", tmp_path)
    (tmp_path / "config.json").unlink()
    assert fl.sources.load("pfllib", tmp_path).train.num_classes == 4


@pytest.mark.parametrize("protocol", [3, 4])
def test_what_an_older_numpy_has_pickled(protocol: int, tmp_path: Path) -> None:
    """NumPy wrote protocol 3 before 1.26; arrays in Fortran order and big-endian ones are turned."""
    value = client(30)
    value["x"] = np.asfortranarray(value["x"])
    value["y"] = value["y"].astype(">i4")
    path = folder(tmp_path) / "train/1.npz"
    box = np.empty((), object)
    box[()] = value
    with zipfile.ZipFile(path, "w") as archive, archive.open("data.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(box))
        pickle.dump(box, file, protocol)
    data = fl.sources.load("pfllib", tmp_path)
    assert np.array_equal(data.train.x[40:70], value["x"])
    assert np.array_equal(data.train.y[40:70], value["y"])


class Harmful:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return exec, ("raise SystemExit('run')",)


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("train", Harmful(), "the pickle may name NumPy arrays only, got the global builtins.exec"),
        ("train", {"x": Harmful(), "y": 1}, "the pickle may name NumPy arrays only"),
        ("train", {"x": np.zeros((2, 3), np.float32)}, "the dictionary must have x and y, got x"),
        ("train", {"y": np.zeros(2, int), "a": np.zeros(1), "b": np.zeros(1)}, "must have x and y, got y, a, b"),
        ("train", {"x": [[1, 2], [3, 4]], "y": np.zeros(2, int)}, "'x' must be an array of numbers, got list"),
        ("train", {"x": np.zeros((2, 3)), "y": np.zeros(3, int)}, "x must be examples"),
        ("train", {"x": np.zeros((2, 3), np.int64), "y": np.zeros(2, int)}, "floating point or uint8, got int64"),
        ("train", {"x": np.zeros((2, 3)), "y": np.array([0, -1])}, "y must be classes, integers from 0"),
        ("train", {"x": np.zeros((2, 3)), "y": np.zeros(2)}, "y must be classes, integers from 0"),
        ("train", np.zeros(3), "data is no dictionary"),
        ("train", np.array([{}, {}]), "the file must hold one dictionary of arrays"),
        ("test", {"x": np.zeros((2, 3)), "y": np.zeros(2, int)}, "x of all clients must have one shape and type"),
    ],
)
def test_anything_else_is_refused_and_not_run(part: str, value: Any, said: str, tmp_path: Path) -> None:
    saved(folder(tmp_path) / part / "0.npz", value)
    with pytest.raises(ValueError, match=said) as error:
        fl.sources.load("pfllib", tmp_path)
    assert f"{part}/0.npz" in str(error.value).replace("\\", "/")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    (folder(tmp_path) / "test/2.npz").unlink()
    with pytest.raises(ValueError, match=r"as many in test/, got 3 files in train/ and 2 files in test/"):
        fl.sources.load("pfllib", tmp_path)


def test_clients_that_unpack_to_more_than_the_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them together: each file alone fits into 30,000 bytes."""
    monkeypatch.setattr("fedloom.sources.pfllib.memory", lambda: 30_000)
    with pytest.raises(ValueError, match=r"test/2.npz: the clients together must take at most half of the memory"):
        fl.sources.load("pfllib", folder(tmp_path))
