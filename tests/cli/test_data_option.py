"""`--data NAME:FOLDER` reads original files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fedloom.cli.main import main


def write(path: Path, array: np.ndarray) -> None:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def test_original_files_are_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 80), ("t10k", 20)):
        write(raw / f"{prefix}-images-idx3-ubyte.gz", rng.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        write(raw / f"{prefix}-labels-idx1-ubyte.gz", np.arange(count, dtype=np.uint8) % 10)
    few = ["--model", "logistic", "--clients", "4", "--cohort", "2", "--rounds", "1", "--partition", "iid"]
    assert main(["run", "fedavg", "--data", f"mnist:{tmp_path}", *few]) == 0
    said = "mnist, 64 training and 20 test examples of 1 x 28 x 28, 10 classes; clients hold out 16 more"
    assert said in capsys.readouterr().out


def test_missing_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fedavg", "--data", f"cifar10:{tmp_path}"]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "cifar10 needs all its files in one folder" in err
    assert "nothing is downloaded" in err
