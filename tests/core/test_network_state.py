"""What a network keeps beside its tensors: a pass leaves it as it was, whatever is in it."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedloom.core.batch import probe
from fedloom.core.model import Model
from fedloom.core.network_state import changed, generators, marks


class Plain:
    """An object of a person's own."""

    def __init__(self) -> None:
        self.seen: list[Any] = [1]


class Keeps(nn.Module):
    """Does something with what it keeps in each pass."""

    def __init__(self, value: Any, use: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.value, self.use = nn.Linear(4, 2), value, use

    def forward(self, x: Tensor) -> Tensor:
        self.use(self)
        return self.layer(x)


def bumped(array: Any) -> None:
    array += 1


USED: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "list": ([3], lambda net: net.value.append(4)),
    "an item": ([3, 4], lambda net: net.value.reverse()),
    "dict": ({"a": 3}, lambda net: net.value.update(a=4, b=5)),
    "ordered": (collections.OrderedDict(a=3, b=4), lambda net: net.value.move_to_end("a")),
    "default": (collections.defaultdict(list, a=[3]), lambda net: net.value["b"].append(4)),
    "set": ({3}, lambda net: net.value.add(4)),
    "deque": (collections.deque([3, 4], maxlen=2), lambda net: net.value.append(5)),
    "array": (np.arange(3), lambda net: bumped(net.value)),
    "tensor": (torch.arange(3), lambda net: bumped(net.value)),
    "number": (3, lambda net: setattr(net, "value", 4)),
    "nested": (
        [{"a": ([3], torch.zeros(2))}],
        lambda net: (net.value[0]["a"][0].clear(), bumped(net.value[0]["a"][1])),
    ),
    "object": (Plain(), lambda net: (net.value.seen.append(2), setattr(net.value, "more", 3))),
    "module in a list": ([nn.Linear(2, 2)], lambda net: net.value[0].weight.fill_(7)),
    "itself": ([], lambda net: net.value.append(net.value)),
}


@pytest.mark.parametrize("kind", USED)
def test_what_a_pass_changes_is_put_back(kind: str) -> None:
    value, use = USED[kind]
    model = Model(Keeps(value, use))
    weights, x = model.init(0), torch.ones(3, 4)
    made = [marks(network) for network in model.networks]
    with torch.no_grad():
        for _ in range(2):
            model(weights, x)
            model.train(weights, probe(x))
            model.train_features(weights, probe(x), "layer")
            assert [marks(network) for network in model.networks] == made
        with model.leaving():
            model.train(weights, probe(x))
            model(weights, x)
            assert [changed(old, marks(net)) for old, net in zip(made, model.networks, strict=True)] == [["value"]] * 2
    assert [marks(network) for network in model.networks] == made


def test_buffers_that_a_pass_registers_are_gone_and_given_ones_stay() -> None:
    def registers(net: Any) -> None:
        assert not hasattr(net, "late")
        assert net.empty is None
        net.register_buffer("late", torch.ones(2))
        net.late_parameter = nn.Parameter(torch.ones(2))
        net.late_layer = nn.Linear(2, 2)
        net.empty = torch.ones(2)

    network = Keeps(None, registers)
    network.register_buffer("empty", None)
    model = Model(network)
    weights, x = model.init(0), torch.ones(3, 4)
    for _ in range(2):
        model(weights, x)
        model.train(weights, probe(x))
    with model.leaving() as give:
        model.train(weights, probe(x))
        assert torch.equal(model.networks[0].empty, torch.ones(2))
        assert model.networks[1].empty is None
        give(["empty"])
        assert torch.equal(model.networks[1].empty, torch.ones(2))
    assert model.networks[1].empty is None
    assert not hasattr(model.networks[0], "late_layer")


def test_what_training_leaves_is_given_to_evaluation_by_name() -> None:
    network = Keeps([3], lambda net: setattr(net, "mode", net.training))
    network.inner = Keeps(3, lambda net: None)
    model = Model(network)
    trained, evaluated = model.networks
    with model.leaving() as give:
        model.train(model.init(0), probe(torch.ones(3, 4)))
        trained.inner.value, trained.value = 5, [6]
        give(["mode", "inner.value"])
        assert (evaluated.mode, evaluated.inner.value, evaluated.value) == (True, 5, [3])
        assert not evaluated.training
    assert not hasattr(evaluated, "mode")
    assert evaluated.inner.value == 3


def test_marks_tell_values_and_not_objects() -> None:
    def marked(value: Any) -> Any:
        return marks(Keeps(value, lambda net: None))["value"]

    others: list[tuple[Any, Any]] = [
        *(([1], [1.0]), ({"a": 1}, {"b": 1}), ([[1]], [1]), ([1], (1,)), (np.zeros(2), np.zeros(2, np.float32))),
        *((torch.zeros(2), torch.zeros(1, 2)), (torch.zeros(2), torch.tensor([0.0, -0.0]))),
    ]
    for a, b in others:
        assert marked(a) == marked(a)
        assert marked(a) != marked(b)
    assert marked(torch.tensor([torch.nan])) == marked(torch.tensor([torch.nan]))
    assert marked(torch.ones(2, dtype=torch.bfloat16)) != marked(torch.zeros(2, dtype=torch.bfloat16))
    assert marked(torch.ones(2, 3).T) == marked(torch.ones(3, 2))


def test_generators_of_the_library_of_a_network_are_not_its_own() -> None:
    assert generators(nn.Sequential(nn.Dropout(), nn.LSTM(3, 3))) == {}
    assert list(generators(Keeps({"g": [np.random.default_rng(0)]}, lambda net: None))) == ["value"]
