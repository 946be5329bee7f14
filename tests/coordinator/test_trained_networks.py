"""The trained global network of a history: its weights, and frozen parts as the run began with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fedloom as fl
from tiny import LOCAL, federation

SETTINGS = fl.RunSettings(rounds=1, cohort_size=2, seed=3, threads=1)


def network() -> nn.Module:
    made = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    made[0].requires_grad_(False)
    return made


def test_a_network_has_what_was_trained_and_what_the_run_began_with(tmp_path: Path) -> None:
    clients = federation()
    begun: list[object] = []
    history = fl.run(
        fl.FedAvg(local=LOCAL), clients, network, SETTINGS, directory=tmp_path / "run", on_start=begun.append
    )
    made = history.module()
    model = fl.Model(network, frozen="")
    (weights,) = history.server.values()
    first = fl.load_network(tmp_path / "run" / "initial-0.safetensors", model)
    assert torch.equal(made.get_parameter("0.weight"), first.frozen["0.weight"])
    assert not made.get_parameter("0.weight").requires_grad
    assert torch.equal(made.get_parameter("2.weight"), weights.params["2.weight"])
    assert not made.training
    made.get_parameter("2.weight").data.zero_()  # a copy
    assert weights.params["2.weight"].abs().sum() > 0
    with pytest.raises(fl.SettingError, match=r"history.module\(\) is of a run in this process; fedloom export DIR"):
        fl.History.read(tmp_path / "run").module()


def test_one_of_several_networks_is_named() -> None:
    both = {"one": lambda: nn.Linear(4, 3), "two": network}
    history = fl.run(fl.FedAvg(local=LOCAL), federation(), both, SETTINGS)
    assert isinstance(history.module("two"), nn.Sequential)
    with pytest.raises(fl.SettingError, match=r"the run has the global models one, two: name one"):
        history.module()
    with pytest.raises(fl.SettingError, match="no global model 'three'; it has one, two: name one of these"):
        history.module("three")


def test_no_network_where_none_is_global_or_trained() -> None:
    begun: list[fl.History] = []
    history = fl.run(fl.LocalOnly(local=LOCAL), federation(), network, SETTINGS, on_start=begun.append)
    with pytest.raises(fl.SettingError, match=r"LocalOnly has no global model, and history.module\(\) is one"):
        history.module()
    begun[0].server = None
    with pytest.raises(fl.SettingError, match="no round is done yet: ask after the first"):
        begun[0].module()
