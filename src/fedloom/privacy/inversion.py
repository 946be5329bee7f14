"""Reconstruction of training rows from how far a training has moved a model.

The quotient of a linear layer's gradients is its input where one row alone made them: Phong et al., "Privacy-Preserving
Deep Learning via Additively Homomorphic Encryption", IEEE TIFS 2018. Any other network: inputs whose gradient has the
direction of the one that was seen, Geiping, Bauermeister, Dröge, Moeller, "Inverting Gradients - How easy is it to
break privacy in federated learning?", NeurIPS 2020, arXiv:2003.14053.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedloom.core.batch import probe
from fedloom.core.local_training import Local
from fedloom.core.losses import task_loss
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.random import generator
from fedloom.core.task import Task
from fedloom.core.types import Params, Weights

MOST = 8  # rows that are sought at once by fitting
_UNROLLED = 5  # steps of a training that are computed again; of longer ones each stands for several
_SMOOTH = 1e-2  # weight of total variation, of images
_STRIDE = 0.1  # of a step on inputs, in spans of their values
_DROPS = (3 / 8, 5 / 8, 7 / 8)  # of all steps, after which strides are a tenth, the authors'


@dataclass(frozen=True)
class Movement:
    """Training of somebody else, as an observer knows it.

    Attributes:
        sent: the model with which it began, or the part of it that was sent.
        moved: how far each tensor has moved: what was sent less what came back.
        steps: how many it took.
        plan: of the training, with its optimiser.
        rate: of learning.
    """

    sent: Weights
    moved: Params
    steps: int
    plan: Local
    rate: float

    @property
    def optimiser(self) -> SGD:
        """Optimiser of the training where that is SGD; else plain SGD stands for it."""
        how = self.plan.optimiser
        return replace(how, micro_batch=None) if isinstance(how, SGD) else SGD(lr=how.lr)

    @property
    def undecayed(self) -> Params:
        """Movement by the examples alone, up to what weight decay has done: as in the first step."""
        shrunk = self.rate * self.steps * self.optimiser.weight_decay
        return self.moved - shrunk * self.sent.params.select(self.moved.__contains__)


def first_layer(network: Model, weights: Weights, like: Tensor) -> str | None:
    """Return the name of the linear layer that is given the rows themselves; None: the network has none.

    Args:
        network: the model that was trained.
        weights: of all of it.
        like: some rows, [n, ...].
    """
    rows = like.flatten(1)
    for name in network.layers:
        weight = weights.params.get(f"{name}.weight")
        if weight is None or f"{name}.bias" not in weights.params or weight.shape[1:] != rows.shape[1:]:
            continue
        with torch.no_grad():
            given = network.features(weights, like, f"input:{name}")
        if given.shape == rows.shape and torch.allclose(given, rows):
            return name
    return None


def quotients(seen: Movement, layer: str) -> Tensor:
    """Return what each unit of a linear layer gives away, [units, features]: a row, or a mixture of rows.

    Args:
        seen: the training.
        layer: name of the layer that is given the rows.
    """
    moved = seen.undecayed
    weight, bias = moved[f"{layer}.weight"].double(), moved[f"{layer}.bias"].double()
    there = bias.abs() > 1e-6 * seen.sent.params[f"{layer}.bias"].abs().max()  # else it is of rounding
    return weight[there] / bias[there, None]


def fitted(
    network: Model, task: Task, seen: Movement, y: Tensor, like: Tensor, iterations: int, seed: int,
    tick: Callable[[], None] = lambda: None,
) -> Tensor:  # fmt: skip
    """Return rows that would move the model in the direction in which it was seen to move, [m, ...].

    Args:
        network: the model that was trained.
        task: what it learns.
        seen: the training.
        y: targets of the rows, which the observer is given, [m, ...].
        like: rows between whose least and largest value the inputs are sought, [n, ...].
        iterations: steps on the inputs.
        seed: of the inputs with which it begins.
        tick: called after each step.
    """
    low, high = (float(v) for v in like.aminmax())
    span = max(high - low, 1e-12)
    start = generator(seed, "inversion").normal(0.5, 0.25, (len(y), *like.shape[1:]))
    x = torch.from_numpy(low + span * start).to(like).clamp_(low, high).requires_grad_()
    wanted = torch.cat([t.flatten() for t in seen.moved.values()])
    adam = torch.optim.Adam([x], lr=_STRIDE * span)
    drops = torch.optim.lr_scheduler.MultiStepLR(adam, [round(iterations * d) for d in _DROPS], 0.1)
    for _ in range(iterations):
        with torch.enable_grad():
            moved = _moved(network, task, seen, x, y)
            distance = 1 - torch.cosine_similarity(moved, wanted, dim=0)
            (slope,) = torch.autograd.grad(distance + _SMOOTH / span * _variation(x), x)
        x.grad = slope.nan_to_num(0.0).sign()
        adam.step()
        drops.step()
        with torch.no_grad():
            x.clamp_(low, high)
        tick()
    return x.detach()


def _moved(network: Model, task: Task, seen: Movement, x: Tensor, y: Tensor) -> Tensor:
    """Return how far the training would move the tensors that were seen if these were its rows, as one vector."""
    loss, how, steps = task_loss(network, task), seen.optimiser, min(seen.steps, _UNROLLED)
    rate = torch.tensor(seen.rate * seen.steps / steps, dtype=torch.float64, device=x.device)
    names = list(seen.moved)
    work = [seen.sent.params[name].detach().requires_grad_() for name in names]
    first, kept = work, how.init(work)
    for _ in range(steps):
        weights = seen.sent.merge(Weights(dict(zip(names, work, strict=True))))
        value = loss(weights, probe(x, y)).value
        grads = torch.autograd.grad(value, work, create_graph=True, allow_unused=True)
        work, kept = [t.clone() for t in work], [t.clone() for t in kept]  # a step works in place, and gradients of
        how.step_(work, grads, kept, rate)  # gradients need what was there before
    return torch.cat([(old - new).flatten() for old, new in zip(first, work, strict=True)])


def _variation(x: Tensor) -> Tensor:
    """Return the mean difference of neighbouring pixels; of what is no image 0."""
    if x.ndim < 4:
        return x.new_zeros(())
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()
