"""Clients that end local training at weights chosen beforehand: the uploads of a golden file, by a whole round.

The logit of an example is <x, w>, so that x is the gradient: a step at rate 1 on rows x = w - end leads from w to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.batch import Batch
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Params, Weights
from fedloom.data import Federation, Partition, from_arrays
from small import InOrder, Tiny


class Steered(nn.Module):
    """Put before a network among the bases of a class: its tensors, with the scalar product as its logit."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ flat(dict(self.named_parameters()))[:, None]


class SteeredTiny(Steered, Tiny):
    pass


class Logit:
    """The task of making the logit small."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return batch.mean(logits[:, 0])

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        return y == 0


LEAP = Local(epochs=1, batch_size=100, optimiser=SGD(lr=1.0))


def flat(params: dict[str, Tensor]) -> Tensor:
    return torch.cat([p.flatten() for p in params.values()])


def rows(start: Weights, end: Weights, count: int = 1) -> Tensor:
    """So many equal examples that lead from `start` to `end`."""
    return flat(start.params - Params({n: end.params[n] for n in start.params})).repeat(count, 1)


def clients_at(build: Any, data: Sequence[Tensor]) -> InOrder:
    """A population with these examples of each client, named "steered"."""
    x, sizes = torch.cat(list(data)), [len(rows) for rows in data]
    parts = [part.numpy() for part in torch.arange(len(x)).split(sizes)]
    train = from_arrays(x.numpy(), torch.zeros(len(x), dtype=torch.int64).numpy(), num_classes=1)
    federation = Federation(train=train, partition=Partition.from_lists(parts))
    return InOrder(federation, {"steered": Model(build, name="steered")}, task=Logit(), dtype=x.dtype)
