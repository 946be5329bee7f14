"""Which experiments share their examples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedloom.core.errors import StorageError
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.federations import Federations
from fedloom.experiments.remote_source import is_remote


def test_one_federation_for_the_same_data_and_its_arrays_for_the_same_source(tmp_path: Path) -> None:
    x, y = np.arange(90, dtype=np.float32)[:, None], np.arange(90) % 3
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    base = Experiment(algorithm="fedavg")
    for key, value in {"source": str(tmp_path / "own.npz"), "clients": 4, "examples": 60, "partition": "iid"}.items():
        base = base.changed(f"data.{key}", value)
    shared = Federations()
    first = shared.of(base)
    assert shared.of(base.changed("run.rounds", 3)) is first
    divided = shared.of(base.changed("data.partition", "shards:3"))
    assert divided is not first
    assert divided.train.x.data_ptr() == first.train.x.data_ptr()
    drawn = shared.of(base.changed("run.seed", 1))  # another seed draws other examples
    assert drawn.train.x.tolist() != first.train.x.tolist()
    assert base.changed("run.seed", 1).federation().train.x.tolist() == drawn.train.x.tolist()


def test_what_devices_hold_is_elsewhere(tmp_path: Path) -> None:
    assert [is_remote(source) for source in ("devices:reg.json", "devices", "mnist:data")] == [True, False, False]
    remote = Experiment(algorithm="fedavg").changed("data.source", f"devices:{tmp_path / 'none.json'}")
    with pytest.raises(StorageError, match=r"none\.json"):
        Federations().of(remote)
