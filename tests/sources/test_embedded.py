"""The embedded data set: its content, its licence and its integrity check."""

from __future__ import annotations

import os
import runpy
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.sources import embedded, fashion_mnist_small


@pytest.mark.slow
def test_classes_are_balanced_and_images_compact() -> None:
    train, test = fashion_mnist_small()
    assert train.class_counts().tolist() == [1000] * 10
    assert test.class_counts().tolist() == [200] * 10
    assert train.shape == test.shape == (1, 28, 28)
    assert train.x.dtype == test.x.dtype == torch.uint8


@pytest.mark.slow
def test_images_are_the_originals_in_the_original_order() -> None:
    train, test = fashion_mnist_small()
    # The first labels of the published files, t10k-labels-idx1-ubyte and train-labels-idx1-ubyte.
    assert train.y[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert test.y[:10].tolist() == [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]
    # Recorded when the file was made from originals with the published MD5 sums.
    assert (train.fingerprint(), test.fingerprint()) == ("5ffe99f0d850275e", "26697b06dd2ccc32")


@pytest.mark.skipif("FEDLOOM_DATA" not in os.environ, reason="needs FEDLOOM_DATA, a folder with FashionMNIST/raw")
def test_every_image_is_the_original() -> None:
    script = Path(__file__).parents[2] / "scripts" / "make_embedded.py"
    make = runpy.run_path(str(script))
    folder = Path(os.environ["FEDLOOM_DATA"]) / "FashionMNIST" / "raw"
    for examples, prefix, per_class in zip(fashion_mnist_small(), ("train", "t10k"), (1000, 200), strict=True):
        x = make["read_idx"](folder, f"{prefix}-images-idx3-ubyte")
        y = make["read_idx"](folder, f"{prefix}-labels-idx1-ubyte")
        rows = make["first_of_each_class"](y, per_class)
        assert np.array_equal(examples.x[:, 0].numpy(), x[rows])
        assert np.array_equal(examples.y.numpy(), y[rows])


@pytest.mark.slow
def test_normalised_images_are_nearly_standard() -> None:
    train, _ = fashion_mnist_small()
    x = train.normalise(train.x, torch.float32)
    assert abs(float(x.mean())) < 0.02
    assert abs(float(x.std()) - 1) < 0.02


def test_a_damaged_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"must have the SHA-256 0{64}, got [0-9a-f]{64}: install fedloom again"):
        fashion_mnist_small()


def test_the_licence_lies_beside_the_data() -> None:
    licence = resources.files(embedded).joinpath("LICENSE-fashion-mnist").read_text(encoding="utf-8")
    assert "The MIT License" in licence
    assert "2017 Zalando SE, https://tech.zalando.com" in licence
