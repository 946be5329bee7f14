"""The last layer of a network, where logits are linear in what that layer is given: W z + b."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.batch import Batch
from fedloom.core.batches import Batches
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.patterns import layers
from fedloom.data import Examples


@dataclass(frozen=True)
class LinearHead:
    """Names and sizes of a last layer that is linear."""

    layer: str
    num_classes: int  # C
    width: int  # D

    @property
    def weight(self) -> str:
        """The name of W, [C, D]."""
        return f"{self.layer}.weight".removeprefix(".")

    @property
    def bias(self) -> str:
        """The name of b, [C], which need not be there."""
        return f"{self.layer}.bias".removeprefix(".")

    @property
    def features(self) -> str:
        """The name of z, [B, D], for `Model.features`."""
        return f"input:{self.layer}"

    def logits(self, params: Mapping[str, Tensor], z: Tensor) -> Tensor:
        """Return W z + b, [B, C]; `params` have these by their names."""
        return F.linear(z, params[self.weight], params.get(self.bias))


def linear_head(model: Model, examples: Examples, method: str) -> LinearHead:
    """Return the last layer of a network, for a method that needs it to be linear.

    Raises:
        SettingError: the last layer is no trained `nn.Linear`, or logits of `examples` are not its outputs.
    """
    layer = layers(name for name, _ in model.skeleton().named_parameters())[-1]
    last = model.skeleton().get_submodule(layer)
    if type(last) is nn.Linear:
        head, weights = LinearHead(layer, last.out_features, last.in_features), model.init(0)
        if {head.weight, *([] if last.bias is None else [head.bias])} <= set(model.params):
            x = examples.normalise(examples.x[:2], torch.float32)
            with torch.no_grad():
                logits, z = model.bind(0).with_features(weights, x, head.features)
                if z.shape[1] == head.width and torch.allclose(
                    head.logits(weights.params, z), logits, rtol=1e-4, atol=1e-5
                ):
                    return head
    raise SettingError(
        f"{method} needs a network whose logits are the outputs of its last layer, a trained nn.Linear, and the last "
        f"of {model.name} is {layer!r}, a {type(last).__name__} that is another, frozen or not the end: take a "
        "network that ends so, such as mlp"
    )


def class_sums(z: Tensor, batch: Batch, num_classes: int) -> Tensor:
    """Return for each class the sum of the real rows' z and, last, their number, [C, D + 1]. `z`: [B, D]."""
    member = (batch.y[:, None] == torch.arange(num_classes, device=z.device)) & batch.mask[:, None]
    return torch.where(member, 1.0, 0.0).to(z.dtype).T @ torch.cat([z, torch.ones_like(z[:, :1])], 1)


def class_counts(batches: Batches, num_classes: int) -> Tensor:
    """Return how many of a client's examples are of each class, [C] int64."""
    y = batches.y[batches.examples]
    real = torch.arange(len(y), device=y.device) < batches.num_examples
    return ((y[:, None] == torch.arange(num_classes, device=y.device)) & real[:, None]).sum(0)
