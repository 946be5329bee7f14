"""What a step of a stack holds: activations counted by hand, and frozen tensors once."""

from __future__ import annotations

import torch
from torch import nn

import fedloom as fl
from fedloom.core.model import Model
from fedloom.engines.engine_options import Options
from fedloom.engines.memory import activation_bytes, frozen_bytes, step_bytes
from fedloom.engines.stacked import Stacked
from tiny import LOCAL, population


def test_activations_are_what_the_gradient_needs() -> None:
    """Of a network 4 -> 5 -> tanh -> 3: the answer of tanh, [5], and the input, [4], where the first layer learns."""
    p = population(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
    model = p.models["net"]
    assert activation_bytes(model, p) == 4 * (4 + 5)
    assert step_bytes(model, p, 10) == 8 * 4 * (4 * 5 + 5 + 5 * 3 + 3) + 10 * 36
    head = Model(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), name="net", frozen="0")
    q = fl.replace(p, models={"net": head})
    assert activation_bytes(q.models["net"], q) == 4 * 5


def test_chunks_weigh_activations_and_frozen_tensors() -> None:
    """A head of 3 numbers upon 64 MiB: by what is trained alone, two million clients would be one stack."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 1 << 20), nn.Linear(1 << 20, 3, bias=False)
            self.body.requires_grad_(False)
            self.head.weight.requires_grad_(False)
            self.bias = nn.Parameter(torch.zeros(3))
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x) * self.scale) + self.bias  # type: ignore[no-any-return]

    p = population(Wide)
    frozen = 4 * (5 << 20) + 4 * (3 << 20)
    assert frozen_bytes(p) == frozen
    each = 8 * 4 * 4 + LOCAL.batch_size * (4 << 20)
    assert Stacked(p, fl.FedAvg(local=LOCAL), Options()).chunks == {"net": ((2 << 30) - frozen) // each}
    assert Stacked(p, fl.FedAvg(local=LOCAL), Options(chunk=7)).chunks == {"net": 7}
