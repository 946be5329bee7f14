"""The files of code that settings name: their digests are kept, and others are warned of."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedloom import verify
from fedloom.core.errors import SettingWarning
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.named_code import digests, named_code
from fedloom.storage.files import digest

NETWORK = """
import json
import torch
import own_parts
from fedloom.models import LogisticRegression
def network(): return own_parts.made()
"""
PARTS = "from torch import nn\ndef made(): return nn.Linear(4, 3)\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    Path("own_network.py").write_text(NETWORK)
    Path("own_parts.py").write_text(PARTS)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def test_files_are_those_named_and_those_beside_them_that_they_import(here: Path) -> None:
    for name, text in {
        "own_package/__init__.py": "from .inner.layers import Layer",
        "own_package/inner/__init__.py": "",
        "own_package/inner/layers.py": "from ..sizes import WIDTH\nfrom . import cell\n",
        "own_package/inner/cell.py": "import own_package.missing, os.path, numpy",
        "own_package/sizes.py": "WIDTH = (",  # which cannot be parsed: whoever imports it is told
        "own_package/unused.py": "",
        "own_parts.py": "import own_network",  # in a circle
    }.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    found = digests(["own_network:network", "own_package:Net", "own_nobody:Net"])
    assert list(found) == [
        "own_network.py", "own_package/__init__.py", "own_package/inner/__init__.py", "own_package/inner/cell.py",
        "own_package/inner/layers.py", "own_package/sizes.py", "own_parts.py",
    ]  # fmt: skip
    assert found["own_network.py"] == digest((here / "own_network.py").read_bytes())
    assert not [name for name in sys.modules if name.startswith("own_")]


@pytest.mark.slow
def test_other_code_is_warned_of_wherever_a_run_is_used(here: Path) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    np.savez("a.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])

    def experiment(rounds: int) -> Experiment:
        return Experiment().with_all(
            {
                "algorithm": "fedavg",
                "model": "own_network:network",
                "data.source": "a.npz",
                "data.clients": 3,
                "data.partition": "iid",
                "run.rounds": rounds,
                "run.cohort_size": 2,
                "run.threads": 1,
                "local.batch_size": 5,
            }
        )

    experiment(2).job().run("run")
    before = json.loads(Path("run/manifest.json").read_text())["code"]
    assert list(before) == ["own_network.py", "own_parts.py"]
    experiment(3).job().run("run", resume=True)  # without a word
    Path("own_parts.py").write_text(PARTS + "# a change\n")
    message = r"own_parts\.py, code that the settings name, was changed since the run in .*/run began, so its rounds"
    uses: dict[str, Callable[[Any], Any]] = {
        "resume": lambda job: job.run("run", resume=True),
        "replay": lambda job: job.replay("run", 2),
        "restore": lambda job: job.restore("run"),
        "branch": lambda job: job.branch("run", "branch"),
    }
    for use in uses.values():
        with pytest.warns(SettingWarning, match=message):
            use(experiment(4).job())
    assert json.loads(Path("run/manifest.json").read_text())["code"] == before  # each later resume says it too
    assert json.loads(Path("branch/manifest.json").read_text())["code"]["own_parts.py"] != before["own_parts.py"]
    assert verify("run").problems == verify("branch").problems == []


def test_an_optimiser_of_ones_own_is_code() -> None:
    assert named_code({"local": {"optimiser": "own:Lion", "schedule": "step:3:0.5"}}) == ["own:Lion"]
    assert named_code({"fedbe": {"distill": {"optimiser": {"kind": "own:Lion", "lr": 0.1}}}}) == ["own:Lion"]
    assert named_code({"local": {"optimiser": "adamw"}, "fedbe": {"distill": {"optimiser": "sgd"}}}) == []
