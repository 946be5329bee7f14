"""Stochastic weight averaging against PyTorch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fedloom.algorithms.fedbe import minimise_averaged
from fedloom.core import tree
from fedloom.core.batches import Batches
from fedloom.core.local_training import Local
from fedloom.core.losses import task_loss
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import replace
from fedloom.tasks import Classification
from small import TINY, batches_of, clients_of


@pytest.mark.parametrize(("since", "every"), [(2, 2), (0, 1), (3, 5), (7, 1), (100, 5)])
def test_it_is_that_of_torch(since: int, every: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 6)), rng.integers(4, size=24)
    batches, start = stored_order(x, y), TINY.init(3, torch.float64)
    optimiser = SGD(lr=0.1, momentum=0.9, weight_decay=1e-2)
    ours = minimise_averaged(task_loss(TINY, Classification()), start, batches, optimiser, since=since, every=every)

    module = TINY.skeleton().to_empty(device="cpu").double().requires_grad_(True)
    module.load_state_dict(start.params)
    reference = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    mean = AveragedModel(module)
    for step in range(8):
        rows = slice(3 * step, 3 * step + 3)
        reference.zero_grad()
        F.cross_entropy(module(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])).backward()
        reference.step()
        if step + 1 > since and (step + 1) % every == 0:
            mean.update_parameters(module)
    theirs = mean.module if int(mean.n_averaged) else module
    for name, value in theirs.named_parameters():
        np.testing.assert_allclose(ours.params[name], value.detach(), rtol=1e-10, atol=1e-12)


def test_buffers_are_those_of_the_last_step() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(x))

    model = Model(Normed)
    rng = np.random.default_rng(0)
    x, y = rng.normal(2.0, size=(24, 6)), rng.integers(4, size=24)
    batches, loss = stored_order(x, y, model), task_loss(model, Classification())
    ends = [
        minimise_averaged(loss, model.init(0, torch.float64), batches, SGD(lr=0.1), since=since, every=1)
        for since in (0, 100)
    ]
    assert int(ends[0].buffers["norm.num_batches_tracked"]) == 8
    assert torch.equal(ends[0].buffers["norm.running_mean"], ends[1].buffers["norm.running_mean"])
    assert not torch.equal(ends[0].params["head.weight"], ends[1].params["head.weight"])


def stored_order(x: np.ndarray, y: np.ndarray, model: Model = TINY) -> Batches:
    """8 batches of 3 of these examples, in their order."""
    stacked = batches_of(clients_of([(x, y)], model=model), [0], Local(epochs=1, batch_size=3))
    return replace(tree.take(stacked, 0), x=stacked.x, y=stacked.y)
