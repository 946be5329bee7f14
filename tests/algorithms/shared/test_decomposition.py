"""Shared and own parts of weights: what is decomposed, along which axis, and how it begins."""

from __future__ import annotations

import numpy as np
import torch
from conftest import golden
from torch import Tensor, nn

from fedloom.algorithms.shared.decomposition import decompose, effective, units
from fedloom.core.model import Model
from fedloom.core.types import Weights

YES = torch.tensor(True)


def test_units_of_a_convolution() -> None:
    g = golden("pfedsd_apfl/apfl_conv_unit")
    model = Model(lambda: nn.Conv2d(3, 4, 2), name="conv")
    given = {"weight": "WS", "bias": "bS", "weight.own": "Wk", "bias.own": "bk", "weight.mask": "mraw"}
    parts = Weights(params={name: torch.from_numpy(g[key]) for name, key in given.items()})
    found = effective(model, parts, YES)
    np.testing.assert_allclose(found.params["weight"], g["W_eff"], rtol=1e-9)
    np.testing.assert_allclose(found.params["bias"], g["b_eff"], rtol=1e-9)
    np.testing.assert_allclose(model(found, torch.from_numpy(g["x"])), g["out"], rtol=1e-9)


class Mixed(nn.Module):
    """Layers of all sorts, two of which have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2, 3, 2)
        self.grouped = nn.ConvTranspose2d(2, 4, 2, groups=2)
        self.norm = nn.BatchNorm2d(3)
        self.first, self.second = nn.Linear(5, 5, bias=False), nn.Linear(5, 5)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(self.norm(self.up(x)).mean((2, 3)).repeat(1, 2)[:, :5]))  # type: ignore[no-any-return]


def test_layers_without_output_units_are_shared_as_they_are() -> None:
    found = units(Model(Mixed, name="mixed"))
    assert {name: unit.shape for name, unit in found.items()} == {
        "up.weight": (1, -1, 1, 1),
        "up.bias": (-1,),
        "first.weight": (-1, 1),
    }
    assert found["up.weight"].mask == found["up.bias"].mask == "up.weight.mask"


def test_the_mask_of_a_transposed_convolution_scales_its_outputs() -> None:
    model = Model(lambda: nn.ConvTranspose2d(2, 3, 2), name="up")
    w, x = model.init(0), torch.randn(4, 2, 5, 5)
    parts = w.merge(decompose(model, w, raw=0.0, share=0.0))
    raw = torch.tensor([-1.0, 0.5, 3.0])
    scaled = effective(model, Weights(params={**parts.params, "weight.mask": raw}), YES)
    torch.testing.assert_close(model(scaled, x), torch.sigmoid(raw)[:, None, None] * model(w, x))


def test_weights_that_are_not_decomposed_are_those_that_came() -> None:
    model = Model(Mixed, name="mixed")
    w = model.init(0)
    found = effective(model, w.merge(decompose(model, w, raw=1.0, share=1.0)), ~YES)
    assert list(found.params) == list(w.params)
    assert all(torch.equal(found.params[name], w.params[name]) for name in w.params)
    twice = effective(model, w.merge(decompose(model, w, raw=20.0, share=1.0)), YES)
    torch.testing.assert_close(twice.params["up.weight"], 2 * w.params["up.weight"])
    assert torch.equal(twice.params["norm.weight"], w.params["norm.weight"])
    assert np.array_equal(twice.buffers["norm.running_var"], w.buffers["norm.running_var"])
