"""Devices that hold tokens: what they register, what the server makes of it, and the same run as in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.core.errors import RefusedError, SettingError
from fedloom.core.model import Model
from fedloom.data import Inputs, Tokens
from fedloom.deploy.device.data_manager import DataManager
from fedloom.deploy.registration import Registration
from fedloom.deploy.server.device_registry import Registry
from fedloom.engines.engine import Engine
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.experiments.settings_sections import DataSettings
from fedloom.testing.in_process import DevicesInProcess
from tokens_made import LENGTH, VOCABULARY, Attending, classifier, federation


def registered(examples: fl.Examples, name: str, **changes: Any) -> Registration:
    data = DataManager(fl.Dataset(examples, None), DataSettings(), 0)
    described = data.registration(name * 32).described()
    return Registration.of({**described, **changes})


def test_a_server_knows_a_vocabulary_and_no_token() -> None:
    train = federation().train
    short = fl.Examples(train.x.to(torch.int16), train.y, VOCABULARY, Tokens(), "others")
    devices = [registered(train, "a"), registered(short, "b")]
    made = Registry.of("c" * 32, devices, ["net"]).federation(federation().test)
    assert made.train.normalise == Tokens()
    assert (made.num_classes, made.train.shape, made.train.y.shape[1:]) == (VOCABULARY, (LENGTH,), (LENGTH,))
    assert not made.train.x.any()
    assert not made.train.y.any()
    assert made.train.fingerprint()
    fl.Job(
        algorithm=fl.FedAvg(), federation=made, model=Attending, task=fl.NextToken(),
        settings=fl.RunSettings(cohort_size=2),
    ).check()  # fmt: skip


def test_several_inputs_and_classes_of_sequences_are_registered() -> None:
    x = federation().train.x.numpy()
    inputs = {"tokens": x, "prices": np.ones((100, 2), np.float32)}
    device = registered(fl.from_arrays(inputs, np.arange(100) % 3), "a")
    assert isinstance(device.normalise, Inputs)
    assert [part.name for part in device.normalise.parts] == ["tokens", "prices"]
    assert (device.has_classes, sum(device.train) + sum(device.test)) == (True, 100)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": None}, "integers are token ids, which a device registers as such"),
        ({"inputs": {"padding": -1}}, "inputs are token ids or several by name"),
        ({"inputs": {"inputs": [["a", [2], "words"]], "padding": 0}}, "inputs of a network are integers, truths"),
        (
            {"vocabulary": -1},
            "tokens, a whole number below 2..31, got -1: give it other examples, or the",
        ),
    ],
)
def test_what_is_no_registration_of_tokens_is_refused(changes: Any, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        registered(federation().train, "a", **changes)


def test_devices_have_the_same_vocabulary() -> None:
    train = federation().train
    larger = fl.Examples(train.x, train.y, VOCABULARY + 1, Tokens())
    with pytest.raises(SettingError, match=r"the same vocabulary, got 12 on a.* and 13 on b"):
        Registry.of("c" * 32, [registered(train, "a"), registered(larger, "b")], ["net"])


@pytest.mark.parametrize("classes", [False, True])
def test_a_run_on_devices_is_that_in_one_process(classes: bool) -> None:
    whole = federation(classes=classes)
    population = Population(
        federation=whole, models={"net": Model(classifier if classes else Attending)}, dtype=torch.float64,
        task=fl.Classification() if classes else fl.NextToken(),
    )  # fmt: skip
    found = []
    kinds: tuple[type[Engine], ...] = (Loop, DevicesInProcess)
    for kind in kinds:
        engine = kind(population, fl.Scaffold(local=fl.Local(batch_size=4, epochs=1)), Options())
        server = engine.init()
        for t in range(2):
            server = engine.round(server, [0, 1, 3], t)
        results = engine.evaluate(server, range(5), 1, "all")
        found.append((server["net"], results))
        engine.close()
    (one, here), (two, there) = found
    for n, t in enumerate(fl.tree.leaves(one)):
        assert torch.allclose(t, fl.tree.leaves(two)[n], atol=1e-12)
    for k, result in here.items():
        assert torch.allclose(result.loss, there[k].loss, atol=1e-9)
