"""Stochastic weight averaging: training that ends with the mean of the models on its way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from fedloom.core import tree
from fedloom.core.batches import Batch, Batches
from fedloom.core.fold import fold
from fedloom.core.losses import Loss
from fedloom.core.optimiser import Optimiser
from fedloom.core.types import Params, Weights


def minimise_averaged(
    loss: Loss, start: Weights, batches: Batches, optimiser: Optimiser, *, since: int, every: int
) -> Weights:
    """As `fold.minimise`, at the optimiser's own rate, but for the mean of the models after some of the steps.

    Those are the steps whose number, from 1, is above `since` and a multiple of `every` (Izmailov et al., UAI 2018);
    without any it is the last model. Buffers are those of the last step.
    """

    def objective(params: Params, buffers: Params, batch: Batch) -> tuple[Tensor, Params]:
        value, moved = loss(Weights(params=params, buffers=buffers), batch)
        return value, moved.buffers

    def step(carry: Any, batch: Batch) -> Any:
        w, moments, mean, t, count = carry
        gradient, buffers = grad(objective, has_aux=True)(w.params, w.buffers, batch)
        params, moments = optimiser.apply(w.params, gradient, moments)
        t = t + 1
        due = (t > since) & (t % every == 0)
        count = count + due
        mean = {n: torch.where(due, m + (params[n] - m) / count.clamp(min=1), m) for n, m in mean.items()}
        return Weights(params=params, buffers=buffers), moments, mean, t, count

    zero = torch.zeros((), dtype=torch.int64, device=batches.num_steps.device)
    moments = optimiser.init(tree.leaves(start.params))
    w, _, mean, _, count = fold(step, (start, moments, start.params, zero, zero), batches)
    return Weights(
        params={n: torch.where(count > 0, m, w.params[n]) for n, m in mean.items()},
        buffers=w.buffers,
    )
