"""Pairs of images with two labels: made of the embedded images, and learnt, reported, verified and predicted."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

import fedloom as fl
from commands import call
from fedloom.sources.sources_by_name import load

METHODS = ("fedavg", "fedprox", "scaffold", "pfedsd", "local_only", "centralised")


@pytest.mark.slow
def test_labels_say_which_images_are_there() -> None:
    train, test, _, _ = load("fashion_mnist_pairs", "")
    images, _ = fl.fashion_mnist_small()
    assert test is not None
    assert (tuple(train.x.shape), train.x.dtype, train.targets) == ((2000, 1, 28, 56), torch.uint8, ("trouser", "bag"))
    assert tuple(test.x.shape) == (500, 1, 28, 56)
    kinds = {row.numpy().tobytes(): int(y) for row, y in zip(images.x, images.y, strict=True)}
    sides = [[kinds[half.contiguous().numpy().tobytes()] for half in pair.split(28, -1)] for pair in train.x[:300]]
    wanted = np.array([[1 in pair, 8 in pair] for pair in sides])
    np.testing.assert_array_equal(train.y[:300].numpy(), wanted)
    counts = np.unique(train.y.numpy(), axis=0, return_counts=True)[1]
    assert counts.tolist() == [500] * 4
    first = np.array([pair[0] for pair in sides])[wanted[:, 1]]
    assert 0.3 < (first == 8).mean() < 0.7  # a bag is on either side
    assert train.fingerprint() == load("fashion_mnist_pairs", "").train.fingerprint()


@pytest.mark.slow
@pytest.mark.usefixtures("_eighty_columns")
def test_two_labels_of_pairs_from_training_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "pairs"
    shared = (
        "--data fashion_mnist_pairs --task multi_label --model mlp --measures macro_f1,auc --partition iid --clients 8"
    )
    more = "--cohort 4 --rounds 4 --epochs 3 --lr 0.1 --test-fraction 0.2 --threads 1 --engine stacked"
    status, out, err = call(capsys, "compare", *METHODS, *shared.split(), *more.split(), "--out", str(runs))
    assert status == 0, err
    assert "Label accuracy after the last round" in out
    histories = {name: fl.History.read(runs / name) for name in METHODS}
    for name, history in histories.items():
        whose = "personal" if name == "local_only" else "global"
        first, last = history.series(f"{whose}_label_accuracy")[[0, -1]]
        assert last > 0.85 > first, name
        assert history.last("personal_auc") > 0.9
        assert "class_accuracy" not in history.metrics[-1]
    assert histories["pfedsd"].metrics[-1]["personal_label_accuracy"] > 0.85
    assert call(capsys, "report", str(runs))[0] == 0
    page = (runs / "report/report.html").read_text()
    assert "6 methods on fashion_mnist_pairs" in page
    assert "label accuracy" in page
    status, out, _ = call(capsys, "summary", str(runs))
    assert status == 0
    assert "macro F1" in out or "Global macro F1" in out
    status, out, err = call(capsys, "verify", str(runs / "pfedsd"))
    assert status == 0, err
    said, pairs = tmp_path / "said.csv", ("--data", "fashion_mnist_pairs")
    assert call(capsys, "predict", str(runs / "pfedsd"), *pairs, "--client", "3", "--out", str(said))[0] == 0
    rows = list(csv.DictReader(said.read_text().splitlines()))
    _, test, _, _ = load("fashion_mnist_pairs", "")
    assert test is not None
    told = np.array([[int(row["trouser"]), int(row["bag"])] for row in rows])
    assert (told == test.y.numpy()).mean() > 0.8
    status, out, _ = call(capsys, "evaluate", str(runs / "fedavg"), *pairs, "--measures", "subset_accuracy")
    assert status == 0
    assert "subset accuracy" in out
