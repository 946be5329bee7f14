"""The generator of DENSE: the authors' images, its sizes, its beginning, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import golden
from torch import Tensor, nn

from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.types import Weights
from fedloom.models import DenseGenerator

NAME = "fedloom.models:DenseGenerator"


def batch_of(z: Tensor) -> Batch:
    real = torch.ones(len(z), dtype=torch.bool)
    return Batch(x=z, y=real.long(), mask=real, key=torch.tensor(0), full=True)


@pytest.mark.parametrize(("tag", "channels", "size"), [("32x3", 3, 32), ("28x1", 1, 28)])
def test_it_makes_the_images_of_the_authors(tag: str, channels: int, size: int) -> None:
    """With the statistics of a batch, and with the running ones after it."""
    file = golden("ktpfl_dense/dense_generator")
    arrays = {name.removeprefix(f"{tag}/"): torch.from_numpy(a) for name, a in file.items() if name.startswith(tag)}
    model = Model.by_name(NAME, nz=6, ngf=4, channels=channels, size=size)
    begins = model.init(0)
    given = {name.removeprefix("params/"): a for name, a in arrays.items() if name.startswith("params/")}
    assert {*begins.params, *begins.buffers} == {*given}
    weights = Weights({n: given[n] for n in begins.params}, {n: given[n] for n in begins.buffers})
    images, moved = model.train(weights, batch_of(arrays["z"]))
    np.testing.assert_allclose(images, arrays["out_train"], rtol=1e-5)
    after = model(Weights(weights.params, moved), arrays["z"])
    np.testing.assert_allclose(after, arrays["out_eval_after_1_train_batch"], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "channels", "size"),
    [("DENSE Generator nz256 ngf64 32x32x3", 3, 32), ("DENSE Generator nz256 ngf64 28x28x1", 1, 28)],
)
def test_it_has_the_sizes_of_the_authors_code(name: str, channels: int, size: int) -> None:
    recorded, network = golden("ktpfl_dense/model_sizes.json")[name], DenseGenerator(256, 64, channels, size)
    assert sum(p.numel() for p in network.parameters()) == recorded["params"]
    assert len(list(network.parameters())) == recorded["trainable_tensors"]
    assert sum(isinstance(m, nn.BatchNorm2d) for m in network.modules()) == recorded["n_bn_layers"]
    assert sum(b.numel() for b in network.buffers() if b.is_floating_point()) == recorded["bn_buffers_float"]
    assert sum(t.numel() * t.element_size() for t in network.state_dict().values()) == recorded["state_dict_bytes"]
    assert list(network(torch.zeros(2, *recorded["input"])).shape[1:]) == recorded["output"]


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 64), (2, 4)])
def test_images_of_any_multiple_of_four_lie_between_0_and_1(channels: int, size: int) -> None:
    torch.manual_seed(0)
    images = DenseGenerator(5, 3, channels, size)(torch.randn(7, 5))
    assert images.shape == (7, channels, size, size)
    assert 0 < float(images.min().detach()) < float(images.max().detach()) < 1


def test_it_begins_as_the_authors_begin_it_in_every_epoch() -> None:
    torch.manual_seed(0)
    for layer in DenseGenerator(16, 32, 3, 16).modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.BatchNorm2d):
            weight = layer.weight.detach()
            spread = 0.02 / weight.numel() ** 0.5
            assert abs(float(weight.mean()) - isinstance(layer, nn.BatchNorm2d)) < 5 * spread
            assert float(weight.std()) == pytest.approx(0.02, rel=5 / (2 * weight.numel()) ** 0.5)
            assert layer.bias is None or not layer.bias.any()


def test_an_algorithm_gets_it_by_its_name() -> None:
    made = Model.by_name(NAME, nz=5, ngf=3, channels=1, size=8)
    assert made is Model.by_name(NAME, nz=5, ngf=3, channels=1, size=8)
    assert made(made.init(1), torch.zeros(2, 5)).shape == (2, 1, 8, 8)
    with pytest.raises(SettingError, match=r"does not take the settings .*multiple of 4 pixels wide, got 30: crop"):
        Model.by_name(NAME, nz=5, ngf=3, channels=1, size=30)
    with pytest.raises(ValueError, match="at least 1, got 0, 3 and 1: name others"):
        DenseGenerator(0, 3, 1, 8)
