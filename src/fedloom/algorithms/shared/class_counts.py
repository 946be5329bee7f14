"""Count the examples of each class that a client has, for losses that are made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from fedloom.core.algorithm import Algorithm
from fedloom.core.batches import Batches
from fedloom.core.client import Client
from fedloom.core.model import Model
from fedloom.core.requires import Requires

if TYPE_CHECKING:
    from fedloom.data import Federation


class CountsClasses(Algorithm[Any, Any]):
    """Numbers of examples of each class that a client has (a mixin)."""

    num_classes: ClassVar[int]  # of an instance that is `bind`

    @property
    def requires(self) -> Requires:
        return super().requires | Requires(targets=("classes",), logits=2)

    def bind(self, federation: Federation, models: Mapping[str, Model]) -> Self:
        return super().bind(federation, models).with_context(num_classes=federation.num_classes)

    def class_counts(self, client: Client[Any]) -> Tensor:
        """Return how many of a client's examples are of each class, [C] float64."""
        return class_counts(client.train, self.num_classes).double()


def class_counts(batches: Batches, num_classes: int) -> Tensor:
    """Return how many of a client's examples are of each class, [C] int64."""
    y = batches.y[batches.examples]
    real = torch.arange(len(y), device=y.device) < batches.num_examples
    return ((y[:, None] == torch.arange(num_classes, device=y.device)) & real[:, None]).sum(0)
