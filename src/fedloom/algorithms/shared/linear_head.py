"""The last layer of a network, where logits are linear in what that layer is given: W z + b."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.algorithms.shared.class_counts import class_counts
from fedloom.core.algorithm import Algorithm
from fedloom.core.batch import Batch
from fedloom.core.client import Client
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.patterns import layers
from fedloom.core.requires import Requires
from fedloom.core.types import Params, Weights
from fedloom.data import Examples, Federation

V = TypeVar("V")
S = TypeVar("S")
_FAR = -1e9


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

    def part(self, weights: Weights) -> Params:
        """Return W and b of a model."""
        return weights.params.select(lambda name: name in (self.weight, self.bias))

    def added(self, weights: Weights, part: Params) -> Weights:
        """Return a model with another W and b added to its own: linear layers of the same z add up."""
        return weights.merge(Weights({name: weights.params[name] + tensor for name, tensor in part.items()}))

    def train(self, model: Model, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor, Weights]:
        """Return logits [B, C] and z [B, D] in training mode, of one pass, and the weights with moved buffers."""
        (logits, z), buffers = model.train_features(weights, batch, self.features)
        return logits, z, Weights(weights.params, buffers)

    def class_counts(self, client: Client[Any]) -> Tensor:
        """Return how many of a client's examples are of each class, [C] float64."""
        return class_counts(client.train, self.num_classes).double()

    def nearest(self, centres: Tensor, known: Tensor) -> Weights:
        """Return W and b with which the largest logit is that of the class whose centre is nearest to z.

        Logits are 2 <z, C_j> - |C_j|^2, which differ from -|z - C_j|^2 by what is the same for all classes. `centres`:
        [C, D]; `known` [C] bool: the others are far from everything.
        """
        return Weights({self.weight: 2 * centres, self.bias: torch.where(known, -centres.square().sum(1), _FAR)})


@dataclass(frozen=True, kw_only=True)
class EndsLinear(Algorithm[V, S]):
    """Last layer of each network, which must be linear (abstract)."""

    heads: ClassVar[Mapping[str, LinearHead]]  # by architecture, of an instance that is `bind`

    @property
    def requires(self) -> Requires:
        return super().requires | Requires(targets=("classes",), front=True)

    def bind(self, federation: Federation, models: Mapping[str, Model]) -> Self:
        method = type(self).__name__
        heads = {name: linear_head(model, federation.train, method) for name, model in models.items()}
        return super().bind(federation, models).with_context(heads=heads)

    def head(self, model: Model) -> LinearHead:
        """Return the last layer of a network."""
        return self.heads[model.name]

    def check_alike(self, models: Mapping[str, Model], *, bias: bool) -> None:
        """Raise SettingError where last layers are given features of several widths.

        It is raised, too, where `bias` says that each needs one, and one has none.
        """
        method, heads = type(self).__name__, self.heads
        if len({head.width for head in heads.values()}) > 1:
            raise SettingError(
                f"{method} compares features of all networks, whose last layers must have equally many inputs, got "
                f"{', '.join(f'{head.width} of {name}' for name, head in heads.items())}: give each network a last "
                "hidden layer of the same width"
            )
        if bias and (without := [name for name, head in heads.items() if head.bias not in models[name].params]):
            raise SettingError(
                f"{method} puts prototypes into the last layer, which must have a bias for it, and that of "
                f"{without[0]} has none: write nn.Linear(..., bias=True)"
            )


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
