"""Runs whose networks have frozen parts: what their manifests say, and that no other backbone takes their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.coordinator import Job
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


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_with_the_same_backbone(tmp_path: Path) -> None:
    whole = run(net, tmp_path / "whole", rounds=3)
    run(net, tmp_path / "two")
    rest = run(net, tmp_path / "two", rounds=3, resume=True)
    for a, b in zip(tree.leaves(whole.server), tree.leaves(rest.server), strict=True):
        assert torch.equal(a, b)


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.lora_A, self.lora_B = nn.Linear(4, 2, bias=False), nn.Linear(2, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.w(x) + self.lora_B(self.lora_A(x))))  # type: ignore[no-any-return]


HEAD, A, B, NORM = 6 * 3 + 3, 4 * 2, 2 * 6, 6 + 6 + 6 + 6  # weight, bias, running mean and variance


@pytest.mark.some(10)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", [fl.FedAvg, fl.Scaffold, fl.FedNTD])
@pytest.mark.parametrize(
    ("frozen", "more", "elements", "counters"),
    [
        ("* !head", {}, HEAD, 0),
        ("w", {}, HEAD + B + NORM, 1),
        ("w norm", {}, HEAD + B, 0),
        ("w norm", {"factors": "both"}, HEAD + A + B, 0),
        ("* !norm", {}, NORM, 1),
    ],
)
def test_bytes_are_what_is_trained_of_each_client(
    frozen: str, more: dict[str, Any], elements: int, counters: int, method: Any, dtype: Any
) -> None:
    """Down and up: elements of what is trained, by their size, by clients; SCAFFOLD has variates beside parameters."""
    settings = fl.RunSettings(rounds=2, cohort_size=3, dtype=dtype)
    model = Model(Adapted, name="net", frozen=frozen, **more)
    history = fl.run(method(local=LOCAL), federation(), model, settings)
    sent = elements + (model.num_params if method is fl.Scaffold else 0)
    expected = 3 * (sent * (4 if dtype == "float32" else 8) + counters * 8)  # a counter of batches is a whole number
    assert [(m["bytes_down"], m["bytes_up"]) for m in history.metrics[1:]] == [(expected, expected)] * 2


@pytest.mark.parametrize("part", ["weight", "running_var"])
def test_another_backbone_is_refused(part: str, tmp_path: Path) -> None:
    own, other = net(), net()
    with torch.no_grad():
        tensor = other[0].weight if part == "weight" else other[1].running_var
        tensor.view(-1)[0] += 1
    run(own, tmp_path / "run")
    initial = json.loads((tmp_path / "run/manifest.json").read_text())["initial"]
    job = Job(
        algorithm=fl.FedAvg(local=LOCAL),
        federation=federation(),
        model=Model(other, name="net", frozen="* !last:1"),
        settings=fl.RunSettings(rounds=2, cohort_size=3),
    )
    for use in (
        lambda: run(other, tmp_path / "run", rounds=3, resume=True),
        lambda: job.replay(tmp_path / "run", 1),
        lambda: job.restore(tmp_path / "run"),
        lambda: job.branch(tmp_path / "run", tmp_path / "branch"),
    ):
        with pytest.raises(SettingError, match="began with other weights of net"):
            use()
    assert json.loads((tmp_path / "run/manifest.json").read_text())["initial"] == initial
    assert run(own, tmp_path / "run", rounds=3, resume=True).metrics[-1]["round"] == 3
