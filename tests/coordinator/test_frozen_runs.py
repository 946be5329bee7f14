"""Runs whose networks have frozen parts: what their manifests say, and that no other backbone takes their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from tiny import LOCAL, federation


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def run(network: Any, folder: Path | None, rounds: int = 2, resume: bool = False, seed: int = 0) -> fl.History:
    settings = fl.RunSettings(rounds=rounds, cohort_size=3, seed=seed)
    model = Model(network, name="net", frozen="* !last:1")
    return fl.run(fl.FedAvg(local=LOCAL), federation(), model, settings, directory=folder, resume=resume)


def test_trained_and_frozen_parameters_are_counted_apart(tmp_path: Path) -> None:
    history = run(net, tmp_path / "run")
    assert (history.manifest["models"], history.manifest["frozen"]) == ({"net": 18}, {"net": 35})
    assert history.metrics[1]["bytes_up"] == 3 * 4 * 18
    assert "frozen" not in run_without(tmp_path / "whole").manifest


def run_without(folder: Path) -> fl.History:
    return fl.run(
        fl.FedAvg(local=LOCAL), federation(), Model(net), fl.RunSettings(rounds=1, cohort_size=3), directory=folder
    )


def test_a_run_that_was_stopped_goes_on_with_the_same_backbone(tmp_path: Path) -> None:
    whole = run(net, tmp_path / "whole", rounds=3)
    run(net, tmp_path / "two")
    rest = run(net, tmp_path / "two", rounds=3, resume=True)
    for a, b in zip(tree.leaves(whole.server), tree.leaves(rest.server), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("part", ["weight", "running_var"])
def test_another_backbone_is_refused(part: str, tmp_path: Path) -> None:
    own, other = net(), net()
    with torch.no_grad():
        tensor = other[0].weight if part == "weight" else other[1].running_var
        tensor.view(-1)[0] += 1
    run(own, tmp_path / "run")
    initial = json.loads((tmp_path / "run/manifest.json").read_text())["initial"]
    with pytest.raises(SettingError, match="began with other weights of net"):
        run(other, tmp_path / "run", rounds=3, resume=True)
    assert json.loads((tmp_path / "run/manifest.json").read_text())["initial"] == initial
    assert run(own, tmp_path / "run", rounds=3, resume=True).metrics[-1]["round"] == 3
