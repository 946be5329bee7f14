"""Labels as files and programs hold them, alike in every reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch

from fedloom.data import Dataset, Examples, from_arrays
from fedloom.experiments import catalogue
from fedloom.sources import from_huggingface, from_torch, load
from fedloom.tables import from_frame, read_csv, read_npz

Labels = npt.NDArray[np.generic]
X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
Y = np.arange(12) % 3


def npz(folder: Path, y: Labels) -> Dataset:
    np.savez(folder / "a.npz", x_train=X, y_train=y, x_test=X, y_test=y)
    return read_npz(folder / "a.npz")


def leaf(folder: Path, y: Labels) -> Dataset:
    for part in ("train", "test"):
        (folder / part).mkdir()
        data = {"a": {"x": X.tolist(), "y": y.tolist()}}
        (folder / part / "all.json").write_text(json.dumps({"users": ["a"], "num_samples": [12], "user_data": data}))
    return load("leaf", folder)


def csv(folder: Path, y: Labels) -> Dataset:
    (folder / "a.csv").write_text("x,y\n" + "".join(f"{i},{v}\n" for i, v in enumerate(y)))
    return read_csv(folder / "a.csv", label="y", test_fraction=0.0)


def frame(folder: Path, y: Labels) -> Dataset:
    return from_frame(pd.DataFrame({"x": X[:, 0], "y": y}), label="y", test_fraction=0.0)


def hub(folder: Path, y: Labels) -> Dataset:
    datasets = pytest.importorskip("datasets")
    return from_huggingface(datasets.Dataset.from_dict({"image": X.tolist(), "label": y.tolist()}))


def arrays(folder: Path, y: Labels) -> Dataset:
    return Dataset(from_arrays(X, y), None)


def items(folder: Path, y: Labels) -> Dataset:
    return Dataset(from_torch(list(zip(X, y, strict=True))), None)


def tensors(folder: Path, y: Labels) -> Dataset:
    return Dataset(from_torch(list(zip(torch.from_numpy(X), torch.from_numpy(y), strict=True))), None)


Reader = Callable[[Path, Labels], Dataset]
READERS: list[Reader] = [npz, leaf, csv, frame, hub, arrays, items, tensors]


@pytest.mark.parametrize("reader", READERS)
def test_whole_numbers_in_floating_point_are_classes(reader: Reader, tmp_path: Path) -> None:
    made = reader(tmp_path, Y.astype(np.float64)).train
    assert (made.num_classes, made.y.dtype) == (3, torch.int64)
    assert made.class_counts().tolist() == [len(made) / 3] * 3


@pytest.mark.parametrize("reader", [reader for reader in READERS if reader is not arrays])
def test_a_half_is_no_class(reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"0\.5.*number the classes from 0|integers in 0\.\.\d+, got 0\.5"):
        reader(tmp_path, np.where(Y == 0, 0.5, Y))


def test_a_half_is_a_target_of_arrays(tmp_path: Path) -> None:
    assert arrays(tmp_path, np.where(Y == 0, 0.5, Y)).train.y.is_floating_point()


@pytest.mark.parametrize("reader", [reader for reader in READERS if reader not in (csv, frame)])
@pytest.mark.parametrize("kind", [int, float])
def test_labels_from_one_make_no_empty_class(reader: Reader, kind: type, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"0\.\.C-1, each with an example.*, got 3 different ones up to 3, without 0: "
    ):
        reader(tmp_path, (Y + 1).astype(kind))


@pytest.mark.parametrize("reader", [csv, frame])
def test_tables_number_the_classes_that_they_have(reader: Reader, tmp_path: Path) -> None:
    made = reader(tmp_path, Y + 1).train
    assert (made.classes, made.num_classes, int(made.y.min())) == (("1", "2", "3"), 3, 0)


def test_a_class_may_be_in_the_test_examples_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y % 2, x_test=X, y_test=Y)
    assert read_npz(tmp_path / "a.npz").train.num_classes == 3


def test_a_device_need_not_have_each_class(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npz")
    np.savez(path, x_train=X, y_train=Y + 1, x_test=X, y_test=Y + 1)
    assert read_npz(path, every_class=False).train.class_counts().tolist() == [0, 4, 4, 4]
    assert catalogue.data(path, whole=True).train.num_classes == 4
    with pytest.raises(ValueError, match="without 0"):
        catalogue.data(path)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (Y[:, None], r"got an array of shape \(12, 1\): save y_train\.ravel\(\)$"),
        (np.eye(3)[Y], r"got an array of shape \(12, 3\): save y_train\.argmax\(1\) of one-hot rows$"),
        (
            np.array(["a", "b", "c"])[Y],
            r"got text such as 'a': save numpy\.unique\(names, return_inverse=True\)\[1\] of y_",
        ),
        (Y - 1, "got -1: number the classes from 0"),
        (Y * np.nan, "got nan: number the classes from 0"),
        (Y > 0, "got bool of shape"),
    ],
)
def test_a_file_with_other_labels_is_named_with_its_array(y: Labels, message: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=rf"a\.npz: y_train must hold class labels \(N,\), whole numbers from 0, {message}"
    ):
        npz(tmp_path, y)


def test_examples_stay_what_they_are() -> None:
    zeros = from_arrays(X, np.zeros(12, np.float32))
    assert isinstance(zeros, Examples)
    assert zeros.y.is_floating_point()  # targets may be 0
