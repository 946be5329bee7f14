"""Losses over batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedloom.core import tree
from fedloom.core.derivatives import mean_loss
from fedloom.core.optimiser import Local
from fedloom.core.task import Classification
from fedloom.core.types import replace
from small import TINY, batches_of, clients_of, random_data


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_mean_loss_is_one_over_any_number_of_passes(epochs: int) -> None:
    [(x, y)] = data = random_data([11])
    stacked: Any = batches_of(clients_of(data), [0], Local(epochs=epochs, batch_size=4))
    weights = TINY.init(0, torch.float64)
    found = mean_loss(
        TINY, Classification(), weights, tree.take(replace(stacked, x=stacked.x[None], y=stacked.y[None]), 0)
    )
    expected = torch.nn.functional.cross_entropy(TINY(weights, torch.tensor(x)), torch.tensor(y))
    torch.testing.assert_close(found, expected.double(), rtol=0, atol=1e-12)
