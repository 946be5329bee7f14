"""Networks that are exported, weights for them, and what it means that they are the same."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedloom import Model, Weights
from fedloom.core import tree
from fedloom.models import MODELS, Reads, build

SHAPE = (3, 18, 18)


class Users(nn.Module):
    """What users write: parameters in lists, constants as buffers, one of them not kept in a state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.rand(972)), nn.Parameter(torch.rand(()))])
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("order", torch.arange(972).flip(0), persistent=False)
        self.register_buffer("ceiling", torch.full((7,), float("inf")))
        self.last = nn.Linear(972, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)[:, self.order] * self.scales[0] + self.scales[1]
        return torch.minimum(self.last(x), self.ceiling) * self.steps


class Tied(nn.Module):
    """An autoencoder's two halves share their matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.same, self.last = nn.Linear(972, 972), nn.Linear(972, 972), nn.Linear(972, 7)
        self.same.weight = self.down.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.same(torch.tanh(self.down(x.flatten(1)))))


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    **{name: lambda name=name: build(name, SHAPE, 7) for name, one in MODELS.items() if one.reads == Reads()},
    "users": Users,
    "tied": Tied,
}


def trained(model: Model, seed: int = 5) -> Weights:
    """Weights of which no tensor is as it was initialised, but for constants."""
    g = torch.Generator().manual_seed(seed)
    weights = model.init(seed)
    moved = {
        n: b + 2
        if n.endswith("num_batches_tracked")
        else b + torch.rand(b.shape, generator=g)
        if b.is_floating_point()
        else b
        for n, b in weights.buffers.items()
    }
    return Weights(params={n: p + 0.01 for n, p in weights.params.items()}, buffers=moved)


def inputs(n: int = 5) -> Tensor:
    return torch.randn(n, *SHAPE, generator=torch.Generator().manual_seed(1))


def assert_same(a: Weights, b: Weights) -> None:
    assert list(a.params) == list(b.params)
    assert list(a.buffers) == list(b.buffers)
    for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y)
