"""A device that uploads a file of weights instead of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.core.errors import CodecError, SettingError
from fedloom.core.model import Model
from fedloom.core.types import Weights
from fedloom.deploy.device import Membership
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.fleet import RankFleet
from fedloom.deploy.server.joining import register_devices
from fedloom.engines.message import Call, Request
from fedloom.experiments.experiment import Experiment
from fedloom.models import build
from fedloom.testing.in_process import InProcess

WORDS: dict[str, Any] = {"algorithm": "dense", "model": "mlp,logistic", "data.classes": 3, "run.engine": "devices"}


def device(folder: Path, network: str | None = "mlp", seed: int = 5, model: str = "mlp") -> Membership:
    """One with a file of weights of a network."""
    rng = np.random.default_rng(0)
    y = np.resize([0, 1, 2], 12)
    np.savez(folder / "mine.npz", x=rng.integers(256, size=(12, 3, 8, 8)).astype(np.uint8), y=y)
    torch.manual_seed(seed)
    if network is not None:
        torch.save(build(network, (3, 8, 8), 3).state_dict(), folder / "bought.pt")
    return Membership(str(folder / "mine.npz"), folder / "state", model, upload=str(folder / "bought.pt"))


def joined(one: Membership, folder: Path, **more: Any) -> RankFleet:
    fleet = RankFleet(InProcess([one]), Audit(folder / "audit.jsonl"))
    settings = Experiment().with_all(WORDS | more).described()
    register_devices(fleet, folder / "devices.json", settings, str(settings["model"]).split(","))
    return fleet


def test_it_uploads_the_file_whatever_it_is_sent(tmp_path: Path) -> None:
    said = list[str]()
    one = device(tmp_path)
    one.say = said.append
    joined(one, tmp_path)
    assert one.controller is not None
    assert said[0] == f"instead of training this device uploads {tmp_path}/bought.pt, weights of mlp"
    runtime = one.controller.runtime
    sent: Weights = runtime.initial("mlp")
    request = Request.to(Call("local_update", (sent,), 0, 0, 0.1), [0], 0)
    _, answer = runtime.answer(request, ())
    stored = torch.load(tmp_path / "bought.pt", weights_only=True)
    assert {name: value[0].tolist() for name, value in answer.upload.params.items()} == {
        name: value.tolist() for name, value in stored.items()
    }
    assert (answer.losses, answer.steps) == ((), ())  # it has not trained


def test_the_one_network_of_a_server_needs_no_name(tmp_path: Path) -> None:
    one = device(tmp_path, model="")
    joined(one, tmp_path, model="mlp")
    assert one.model == "mlp"


@pytest.mark.parametrize(
    ("how", "more", "message"),
    [
        ({"model": ""}, {}, r"one of the networks mlp, logistic, got --model '': name it"),
        ({"network": "logistic"}, {}, r"a file has the tensors of the network behind it, here mlp: name another"),
        ({"network": None}, {}, r"a model is a file that can be read, got .*bought\.pt"),
        ({}, {"algorithm": "fedavg"}, "are distilled by dense, .*, got FedAvg: name one of these, or train"),
        (
            {},
            {"run.privacy": "examples:noise=1,delta=1e-5,clip=1"},
            "counts the noise of training, which a file .* does not have: leave --upload out, or do not join",
        ),
    ],
)
def test_what_is_refused_before_it_registers(
    how: dict[str, Any], more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    one = device(tmp_path, **how)
    settings = Experiment().with_all(WORDS | more).described()
    with pytest.raises((SettingError, CodecError), match=message):
        one._prepare({"settings": settings})
    assert one.controller is None


def test_weights_have_the_precision_of_the_run(tmp_path: Path) -> None:
    one = device(tmp_path)
    joined(one, tmp_path, **{"run.dtype": "float64"})
    assert one._weights is not None
    assert {t.dtype for t in one._weights.params.values()} == {torch.float64}
    assert isinstance(one.models["mlp"], Model)
