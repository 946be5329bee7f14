"""LEAF's JSON files: users are natural clients, test files are held out, broken files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.sources import load


def users(**examples: list[int]) -> dict[str, Any]:
    """A file in which user u has one example for each label; its values are the label and its number."""
    data = {u: {"x": [[label, i / 2] for i, label in enumerate(ys)], "y": ys} for u, ys in examples.items()}
    return {"users": list(data), "num_samples": [len(d["y"]) for d in data.values()], "user_data": data}


def write(folder: Path, part: str, name: str, content: object) -> None:
    (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / part / name).write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize("place", ["", "data"])
def test_users_are_clients(tmp_path: Path, place: str) -> None:
    write(tmp_path / place, "train", "b.json", users(zoe=[2]))
    write(tmp_path / place, "train", "a.json", users(ann=[0, 1], bob=[3]))
    write(tmp_path / place, "test", "a.json", users(bob=[1], new=[0], none=[], ann=[2]))
    train, test, owners, held_out = load("leaf", tmp_path)
    assert test is not None
    assert owners is not None
    assert held_out is not None
    assert train.y.tolist() == [0, 1, 3, 2, 1, 0, 2]
    assert owners.tolist() == [0, 0, 1, 2, 1, 3, 0]
    assert held_out.tolist() == [False] * 4 + [True] * 3
    assert (test.y.tolist(), test.num_classes, train.x.dtype) == ([1, 0, 2], 4, torch.float32)
    assert train.x[:2].tolist() == [[0, 0], [1, 0.5]]
    assert (owners.dtype, held_out.dtype) == (np.int64, np.bool_)


def test_files_whose_names_begin_with_a_dot_are_left_out(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write(tmp_path, part, "a.json", users(ann=[0, 1]))
        write(tmp_path, part, "._a.json", "no JSON")
    assert load("leaf", tmp_path).train.owners == ("ann",)


def test_femnist_gives_images(tmp_path: Path) -> None:
    pixels = (np.arange(784) / 783).tolist()
    one = {"users": ["f0_1"], "num_samples": [1], "user_data": {"f0_1": {"x": [pixels], "y": [61]}}}
    write(tmp_path, "train", "0.json", one)
    write(tmp_path, "test", "0.json", one)
    train, _, owners, _ = load("femnist", tmp_path)
    assert owners is not None
    assert (train.shape, train.num_classes, train.y.tolist(), owners.tolist()) == ((1, 28, 28), 62, [61, 61], [0, 0])
    np.testing.assert_allclose(train.x[0, 0, 1, :2].numpy(), [28 / 783, 29 / 783], rtol=1e-6)
    one["user_data"]["f0_1"]["x"] = [[255 * p for p in pixels]]  # type: ignore[index]
    write(tmp_path, "train", "0.json", one)
    with pytest.raises(ValueError, match=r"the pixels of FEMNIST are in 0\.\.1, got 0\.\.255"):
        load("femnist", tmp_path)
    write(tmp_path, "train", "0.json", users(ann=[0]))
    with pytest.raises(ValueError, match="examples must be lists of 784 numbers, got 2 of user 'ann'"):
        load("femnist", tmp_path)


def changed(key: str, value: object) -> dict[str, Any]:
    return {**users(ann=[0, 1], bob=[3]), key: value}


def data(x: object, y: object) -> dict[str, Any]:
    return {"users": ["ann"], "num_samples": [2], "user_data": {"ann": {"x": x, "y": y}}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "one whole JSON document"),
        ("{", "one whole JSON document"),
        ("[" * 100_000, "one whole JSON document"),
        ('{"users": [' + "9" * 5000 + "]}", "one whole JSON document"),
        ('{"users": [NaN]}', "numbers must be finite, got NaN"),
        ("[]", "must hold users, num_samples, user_data, two lists and an object, got list"),
        ({"users": [], "num_samples": []}, "must hold users, num_samples, user_data"),
        (changed("users", ["ann"]), "must name the same users, got 1, 2 and 2"),
        (changed("users", ["ann", "eve"]), "must name the same users"),
        (changed("users", ["ann", 3]), "must name the same users"),
        (changed("num_samples", [2, 2]), "user 'bob' must have lists x and y of num_samples=2, got 1 and 1"),
        (changed("num_samples", [2, 10**30]), "num_samples=1000000000000000000000000000000, got 1 and 1"),
        (changed("num_samples", [2, True]), "num_samples=True"),
        (changed("user_data", {"ann": [], "bob": {}}), "user 'ann' must have lists x and y"),
        (data([[1], [2]], [0]), "got 2 and 1"),
        (data([[1], [2]], "01"), "got 2 and str"),
        (data([[1], [2]], [0, 1.5]), r"labels of user 'ann' must be integers in 0\.\.65535, got 1\.5"),
        (data([[1], [2]], [0, -1]), "got -1"),
        (data([[1], [2]], [0, 10**9]), "got 1000000000"),
        (data([[1], [2, 3]], [0, 1]), "lists of equally many numbers, finite in float32"),
        (data([["1"], ["2"]], [0, 1]), "lists of equally many numbers, finite in float32, got <U1"),
        (data([[1], [None]], [0, 1]), "lists of equally many numbers, finite in float32, got object"),
        (data([[1], [10**400]], [0, 1]), "lists of equally many numbers, finite in float32"),
        (data([1, 2], [0, 1]), r"lists of equally many numbers, finite in float32, got int64 of shape \(2,\)"),
        (data([[], []], [0, 1]), "lists of equally many numbers, finite in float32"),
        (data([[1], [1e300]], [0, 1]), "finite in float32, got a larger number"),
        (
            '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1e999]], "y": [0]}}}',
            "finite in float32, got a larger number",
        ),
        (users(ann=[]), "the files must hold examples, got none"),
        (users(zoe=[1]), "the files of train/ must name a user once, got 'zoe'"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 80 else "file",
)
def test_broken_files_are_refused(tmp_path: Path, content: object, message: str) -> None:
    if message.startswith("the files of train/"):
        write(tmp_path, "train", "b.json", users(zoe=[2]))
    write(tmp_path, "train", "a.json", content)
    write(tmp_path, "test", "a.json", users(ann=[0]))
    with pytest.raises(ValueError, match=message) as caught:
        load("leaf", tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "train"))


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train: the folder must hold \.json files of LEAF, got none"):
        load("leaf", tmp_path)
    outside, root = tmp_path / "secret.json", tmp_path / "data"
    outside.write_text("{}")
    (root / "train").mkdir(parents=True)
    (root / "train" / "a.json").symlink_to(outside)
    with pytest.raises(ValueError, match="links must stay inside"):
        load("leaf", root)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "data").symlink_to(root)
    with pytest.raises(ValueError, match=f"links must stay inside .*other, got {root}: copy what it points to"):
        load("leaf", tmp_path / "other")
