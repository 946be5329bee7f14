"""Small finished runs of made-up tables, and models of them by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedloom import Experiment
from hospitals import Row, hospitals, write_table, write_whole

LABEL = "label=readmitted&client=client&drop=patient,los_days&prepare=standard"
TARGET = "target=los_days&client=client&drop=patient,readmitted&prepare=standard"


def described(source: str, **more: Any) -> dict[str, Any]:
    """The settings of two rounds of FedAvg with a linear network on a table of natural clients."""
    told: dict[str, Any] = {
        "algorithm": "fedavg",
        "model": "logistic",
        "data": {"source": source, "partition": "natural"},
        "run": {"rounds": 2, "cohort_size": 2, "threads": 1},
    }
    for name, value in more.items():
        told[name] = {**told.get(name, {}), **value} if isinstance(value, dict) else value
    return told


def trained(folder: Path, source: str, **more: Any) -> Path:
    """The directory of such a run."""
    directory = folder / "run"
    Experiment.of(described(source, **more)).job().run(directory)
    return directory


def tables(folder: Path) -> tuple[Path, Path, list[Row]]:
    """The table of some hospitals to train on, one of other rows, and these rows."""
    new = [{**row, "client": site} for site, rows in hospitals(seed=7).items() for row in rows]
    return write_whole(folder / "all.csv", hospitals()), write_table(folder / "new.csv", new), new


def linear(file: Path, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """The logits of an exported linear network."""
    weight, bias = torch.load(file, weights_only=True).values()
    return np.asarray(x.astype(np.float64) @ weight.numpy().T.astype(np.float64) + bias.numpy())
