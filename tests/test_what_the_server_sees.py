"""What an upload tells of the examples: the numbers of docs/privacy.md, computed by an attack of a few lines."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.data import natural
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.sources import fashion_mnist_small

PAGE = Path(__file__).parents[1] / "docs/privacy.md"
ROWS = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)


def logistic() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def differences(make: object, rows: int, clients: int, batch: int, steps: int) -> np.ndarray:
    """Return how near an attacker comes to each training row, [rows]: its largest difference in a pixel from 0 to 1.

    It has what the server of FedAvg sent and the mean that it got. The gradient of a unit's weights is that of its bias
    times the input, so the quotient of the two is the input, where one row alone made this gradient.
    """
    whole, _ = fashion_mnist_small()
    x, y = whole.x[: rows * clients].numpy(), whole.y[: rows * clients].numpy()
    federation = fl.federate(fl.from_arrays(x, y, num_classes=10), natural(np.repeat(np.arange(clients), rows)))
    optimiser = fl.SGD(lr=0.1, momentum=0.0, weight_decay=0.0)
    algorithm = fl.FedAvg(local=fl.Local(steps=steps, batch_size=batch, optimiser=optimiser))
    engine = Loop(Population(federation, {"net": fl.Model(make, name="net")}, seed=0), algorithm, Options())
    sent = engine.init()["net"]
    moved = sent.params - engine.round({"net": sent}, range(clients), 0)["net"].params
    weight, bias = moved["1.weight"], moved["1.bias"]
    found = weight[bias != 0] / bias[bias != 0, None]  # [units, pixels]
    known = torch.as_tensor(x).flatten(1) / 255  # [rows, pixels]
    return (found[:, None] - known).abs().amax(-1).amin(0).numpy()  # type: ignore[no-any-return]


@pytest.mark.some(1)
@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_rows_that_come_out_are_those_of_the_page(row: tuple[str, ...]) -> None:
    rows, clients, batch, steps, *counts = map(int, row)
    for make, count in zip((logistic, mlp), counts, strict=True):
        assert int((differences(make, rows, clients, batch, steps) < 1e-3).sum()) == count


def test_one_row_in_one_step_comes_out_to_a_hundred_thousandth() -> None:
    assert differences(logistic, 1, 1, 1, 1).max() < 1e-5
    assert "to 0.00001" in PAGE.read_text()


def test_the_quotient_is_the_row_in_plain_pytorch_too() -> None:
    """A second way: no engine, no algorithm, the gradient of one batch of one row."""
    whole, _ = fashion_mnist_small()
    net, x = logistic(), whole.x[:1].float() / 255
    nn.functional.cross_entropy(net(x), whole.y[:1]).backward()
    layer = net[1]  # type: ignore[index]
    assert (layer.weight.grad[0] / layer.bias.grad[0] - x.flatten()).abs().max() < 1e-5
