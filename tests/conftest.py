"""What many tests share: the golden files and small federations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> dict[str, Any]:
    """A golden file as a dict of arrays, e.g. golden("fedntd/ntd_loss"), or what a .json file holds.

    No test reads these files in another way: tests/reading.py finds by these calls which files are read.
    """
    if name.endswith(".json"):
        return json.loads((GOLDEN / name).read_text(encoding="utf-8"))  # type: ignore[no-any-return]
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


@pytest.fixture(autouse=True)
def _one_thread_each() -> None:
    """Tests run side by side on few cores."""
    torch.set_num_threads(1)
