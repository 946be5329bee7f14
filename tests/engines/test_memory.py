"""What a step of a stack holds: activations counted by hand and measured, and frozen tensors once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import fedloom as fl
from fedloom.core.model import Model
from fedloom.engines.engine_options import Options
from fedloom.engines.memory import COPIES, activation_bytes, frozen_bytes, step_bytes
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from tiny import LOCAL, federation, population


def test_activations_are_what_is_there_at_a_time() -> None:
    """Of a network 4 -> 5 -> tanh -> 3: inputs and their copy, the answer of tanh, and gradients where it learns."""
    p = population(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
    model = p.models["net"]
    # at the gradient before tanh: x, its copy, tanh, the gradients of both its sides, and of logits and their square
    assert activation_bytes(model, p) == 4 * (4 + 4 + 5 + 5 + 5 + 3 + 3)
    assert step_bytes(model, p, 10) == 8 * 4 * (4 * 5 + 5 + 5 * 3 + 3) + 10 * 4 * 29
    head = Model(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), name="net", frozen="0")
    q = fl.replace(p, models={"net": head})
    # at the logits, before and after the bias: no gradient goes further; a mask of a byte, and a label of eight
    assert activation_bytes(q.models["net"], q) == 4 * (4 + 4 + 5 + 3 + 3) + 1 + 8


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
    wide = activation_bytes(p.models["net"], p)
    assert 3 * (4 << 20) < wide < 3 * (4 << 20) + 200  # the body's answer, its gradient, and their product
    each = COPIES * 4 * 4 + LOCAL.batch_size * wide
    assert Stacked(p, fl.FedAvg(local=LOCAL), Options()).chunks == {"net": ((2 << 30) - frozen) // each}
    assert Stacked(p, fl.FedAvg(local=LOCAL), Options(chunk=7)).chunks == {"net": 7}


# ---- predictions beside what PyTorch's profiler measures


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        hidden = [layer for _ in range(3) for layer in (nn.Linear(512, 512), nn.Tanh())]
        self.body, self.head = nn.Sequential(nn.Linear(4, 512), *hidden), nn.Linear(512, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.w, self.head = nn.Linear(4, 256), nn.Linear(256, 256), nn.Linear(256, 3)
        self.lora_A, self.lora_B = nn.Linear(256, 4, bias=False), nn.Linear(4, 256, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.q(x).tanh()
        return self.head((self.w(h) + self.lora_B(self.lora_A(h))).tanh())  # type: ignore[no-any-return]


def peak(compute: Callable[[], Any]) -> int:
    """The most bytes that PyTorch has allocated at a time, beside those that were there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        compute()
    kineto: Any = measured.profiler.kineto_results  # type: ignore[union-attr]
    events = sorted((e.start_ns(), e.nbytes()) for e in kineto.events() if e.name() == "[memory]")
    return int(torch.tensor([size for _, size in events]).cumsum(0).max())


BATCH, CLIENTS = 64, 4
# what is frozen, and the least share of the prediction that a step takes: copies of weights are those of a rich method
CASES: dict[str, tuple[type[nn.Module], str, float]] = {
    "the head": (Deep, "body", 0.5),
    "the first layer": (Deep, "* !body.0", 0.5),
    "the last two layers": (Deep, "body.0 body.1 body.3", 0.2),
    "all": (Deep, "", 0.2),
    "an adapter": (Adapted, "q w head", 0.5),
}


@pytest.mark.some(5)
@pytest.mark.parametrize("compilation", ["none", "trace"])
@pytest.mark.parametrize("name", CASES)
def test_a_round_takes_what_is_predicted_and_not_much_less(name: str, compilation: Any) -> None:
    network, frozen, least = CASES[name]
    model = Model(network, name="net", frozen=frozen)
    p = Population(federation(CLIENTS, per_client=150), {"net": model})
    local = fl.Local(epochs=1, batch_size=BATCH, optimiser=fl.SGD(lr=0.1, momentum=0.9))
    engine = Stacked(p, fl.FedAvg(local=local), Options(chunk=CLIENTS, compilation=compilation))
    server = engine.round(engine.init(), range(CLIENTS), 0)  # which traces
    taken = peak(lambda: engine.round(server, range(CLIENTS), 1))
    predicted = CLIENTS * step_bytes(p.models["net"], p, BATCH)
    assert least * predicted < taken < 1.1 * predicted
    if frozen in ("body", "* !body.0"):
        assert taken < CLIENTS * frozen_bytes(p)  # which nobody copies for each client
