"""Small models and federations that golden tests share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.algorithms import DENSE, FedADI, FedDAFL
from fedloom.core.batches import Batches, plan
from fedloom.core.local_training import Distill, Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Adam
from fedloom.core.types import Weights, replace
from fedloom.data import Federation, Partition, from_arrays
from fedloom.engines.message import Call, Request
from fedloom.engines.population import Population


class Tiny(nn.Module):
    """golden/pfedsd_apfl/README.md: "Tiny model everywhere"."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 5)
        self.fc2 = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.fc1(x)))


class DenseTiny(nn.Module):
    """golden/ktpfl_dense/README.md, conventions"""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 5, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(5)
        self.fc = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return self.fc(z.mean((2, 3)))


class Painter(nn.Module):
    """A generator without BatchNorm: `channels` values in (0, 1) of noise, or images of that many channels."""

    def __init__(self, nz: int, ngf: int, channels: int, size: int) -> None:
        super().__init__()
        shape = (channels,) if channels == size else (channels, size, size)
        self.first, self.last = nn.Linear(nz, ngf), nn.Linear(ngf, math.prod(shape))
        self.shape = shape

    def forward(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.last(torch.tanh(self.first(z)))).unflatten(1, self.shape)


TINY = Model(Tiny, name="tiny")


@dataclass(frozen=True, eq=False)
class InOrder(Population):
    """Clients that visit their examples in stored order, as golden runs do."""

    def train_batches(self, request: Request, local: Local) -> Batches:
        batches = super().train_batches(request, local)
        sizes = self.at(request.call.round).partition.sizes[list(request.clients)]
        order, mask = plan(sizes, local.batch_size, None, epochs=local.epochs, steps=local.steps)
        return replace(batches, order=torch.from_numpy(order), mask=torch.from_numpy(mask))


def batches_of(
    population: Population, clients: Sequence[int], local: Local, round: int = 0, exchange: int | str = 0
) -> Batches:
    """The training batches of some clients in an exchange of a run, stacked."""
    request = Request.to(Call("local_update", (), round, exchange, local.rate(round)), clients, population.seed)
    return population.train_batches(request, local)


def clients_of(
    data: Sequence[tuple[Any, Any]],
    *,
    model: Model = TINY,
    num_classes: int = 4,
    held_out: Mapping[int, tuple[Any, Any]] | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> InOrder:
    """A population of one architecture with the given (x, y) for each client, and for some (x, y) to validate on."""
    val = [(held_out or {}).get(k, (x[:0], y[:0])) for k, (x, y) in enumerate(data)]
    everything = [*data, *val]
    ends = np.cumsum([0, *(len(y) for _, y in everything)])
    rows = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    x, y = (np.concatenate([np.asarray(part[i]) for part in everything]) for i in (0, 1))
    federation = Federation(
        train=from_arrays(x, y, num_classes=num_classes),
        partition=Partition.from_lists(rows[: len(data)]),
        local_val=Partition.from_lists(rows[len(data) :]) if held_out else None,
    )
    return InOrder(federation, {model.name: model}, dtype=dtype, seed=seed)


def random_data(sizes: Sequence[int], seed: int = 0) -> list[tuple[Any, Any]]:
    """(x, y) for each client: numbers for `Tiny`, and classes that have nothing to do with them."""
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, 6)), rng.integers(4, size=n)) for n in sizes]


def weights_at(g: Mapping[str, Any], prefix: str, index: Any = ()) -> Weights:
    """The weights stored under `prefix` + qualified name; buffers are told by BatchNorm's names."""
    found = {n.removeprefix(prefix): torch.as_tensor(a[index]) for n, a in g.items() if n.startswith(prefix)}
    buffers = {n: t for n, t in found.items() if n.endswith(("running_mean", "running_var", "num_batches_tracked"))}
    return Weights(params={n: t for n, t in found.items() if n not in buffers}, buffers=buffers)


def assert_params(got: Weights, want: Weights, *, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    """The trained tensors agree, name by name."""
    assert set(got.params) == set(want.params)
    for name, value in want.params.items():
        np.testing.assert_allclose(got.params[name].numpy(), value.numpy(), rtol=rtol, atol=atol, err_msg=name)


DREAMS: dict[str, Any] = {
    "generator": "small:Painter",
    "nz": 5,
    "ngf": 7,
    "synthesis": Distill(batch_size=6, optimiser=Adam(lr=0.02, betas=(0.5, 0.999))),
    "distill": Distill(batch_size=4, optimiser=SGD(lr=0.01, momentum=0.9)),
}
ONE_SHOT: dict[str, Any] = {
    "dense": DENSE(T_G=3, **DREAMS),
    "fed_dafl": FedDAFL(steps=3, **DREAMS),
    "fed_adi": FedADI(steps=3, alpha_tv=0.1, synthesis=DREAMS["synthesis"], distill=DREAMS["distill"]),
}
"""Methods whose server makes examples, of vectors like those of `fedloom.testing`."""
