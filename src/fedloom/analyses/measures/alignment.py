"""The class that each neuron prefers, and the agreement of two models on it (FedNTD, section 5.1 and eq. 19)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedloom.core.model import Model
from fedloom.core.types import Weights
from fedloom.data import Examples

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def class_activations(model: Model, weights: Weights, examples: Examples, batch_size: int = 250) -> dict[str, Floats]:
    """Return h_c, the mean activation of each neuron over the examples of each class, [neurons, C] by layer.

    The network is in evaluation mode. Activations are taken after ReLU (or another non-linearity), before max-pooling
    whichever of the two comes first, and bear the name of the layer before it; the second of one layer is "NAME (2)".
    A channel of a convolution is one neuron: the mean over its pixels. NaN for a class without examples.

    Raises:
        ValueError: the network has no non-linearity of those that are known.
    """
    like, batch_size = next(iter(weights.params.values())), model.evaluation_batch(batch_size)
    classes = examples.num_classes
    sums: dict[str, Tensor] = {}
    for start in range(0, len(examples), batch_size):
        rows = slice(start, start + batch_size)
        x = examples.normalise(examples.x[rows].to(like.device), like.dtype)
        own = F.one_hot(examples.y[rows].to(like.device), classes).to(like.dtype)  # [B, C]
        for name, h in model.calling(weights, x, _activations).items():
            total = (h.T @ own).double()
            sums[name] = sums[name] + total if name in sums else total
    if not sums:
        raise ValueError(
            f"{model.name} has no non-linearity that is known ({', '.join(_KNOWN)}): alignment is about hidden neurons "
            "after one of these"
        )
    count = examples.class_counts().astype(np.float64)
    return {name: total.cpu().numpy() / np.where(count > 0, count, np.nan) for name, total in sums.items()}


def preference(means: Floats) -> Ints:
    """Return argmax_c h_c of each neuron, [neurons, C] -> [neurons]; the lowest of equal classes.

    A dead neuron, whose means are all zero, has no preference; as the naive argmax, it gets class 0 here.
    """
    return np.asarray(np.argmax(np.where(np.isfinite(means), means, -np.inf), axis=1), np.int64)


def dead(means: Floats) -> npt.NDArray[np.bool_]:
    """Return whether each neuron is silent on every example, [neurons, C] -> [neurons]."""
    return np.asarray((np.where(np.isfinite(means), means, 0.0) == 0).all(1))


@dataclass(frozen=True)
class Alignment:
    """Neurons of a layer that prefer the same class in two models."""

    neurons: int
    share: float  # of all neurons; dead ones count as preferring class 0, which inflates it
    alive: float  # of those that are alive in both models; NaN where there are none
    dead: tuple[int, int]  # dead neurons of each model


def alignment(a: Floats, b: Floats) -> Alignment:
    """Compare a layer of two models by their `class_activations`, [neurons, C] each.

    Raises:
        ValueError: the layers differ in size.
    """
    if a.shape != b.shape or a.ndim != 2:
        raise ValueError(f"alignment compares layers of one size, [neurons, C], got {a.shape} and {b.shape}")
    same, silent = preference(a) == preference(b), (dead(a), dead(b))
    living = ~(silent[0] | silent[1])
    return Alignment(
        neurons=len(a),
        share=float(same.mean()),
        alive=float(same[living].mean()) if living.any() else float("nan"),
        dead=(int(silent[0].sum()), int(silent[1].sum())),
    )


_KNOWN = (
    "relu", "relu6", "leaky_relu", "prelu", "rrelu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus",
    "hardswish", "hardtanh", "hardsigmoid", "tanh", "sigmoid", "logsigmoid", "softsign",
)  # fmt: skip
_HOMES: tuple[Any, ...] = (F, torch, Tensor)
# under each of its names, in place too; those of torch.nn call one of these
_NONLINEAR = {getattr(home, n) for name in _KNOWN for n in (name, f"{name}_") for home in _HOMES if hasattr(home, n)}


class _Watch(TorchFunctionMode):
    """Outputs of non-linearities, [B, neurons], by the layer that came before."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names, self.newest = names, "input"
        self.pooled: tuple[Tensor | None, Tensor | None] = None, None  # the newest, and of what it was made
        self.found: dict[str, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in () if func in _NONLINEAR else (*args, *(kwargs or {}).values()):  # PReLU has a parameter too
            if isinstance(value, Tensor) and id(value) in self.names:
                self.newest = self.names[id(value)]
        out = func(*args, **(kwargs or {}))
        if func in (F.max_pool2d, torch.max_pool2d):
            self.pooled = out, args[0]
        if func in _NONLINEAR:
            h = out
            if args[0] is self.pooled[0]:  # neurons are those before pooling, which a monotonous function may follow
                h = func(self.pooled[1], *args[1:], **(kwargs or {}))
            earlier = sum(name == self.newest or name.startswith(f"{self.newest} (") for name in self.found)
            name = f"{self.newest} ({earlier + 1})" if earlier else self.newest
            # a tensor of its own: the network may go on to change this one in place
            self.found[name] = h.flatten(2).mean(2) if h.ndim > 2 else h.clone()
        return out


def _activations(network: nn.Module, x: Tensor) -> dict[str, Tensor]:
    watch = _Watch({id(t): n.rpartition(".")[0] for n, t in network.named_parameters()})
    with torch.no_grad(), watch:
        network(x)
    return watch.found
