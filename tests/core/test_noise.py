"""Batches of noise: numbers of a key and nothing else."""

from __future__ import annotations

import torch

from fedloom.core.batch import Batch
from fedloom.core.batches import noise
from fedloom.core.fold import fold
from fedloom.core.random import normal


def drawn(steps: int, key: int, size: int = 50) -> torch.Tensor:
    """[steps, size, 2, 3]"""
    batches = noise((2, 3), size, steps, key, torch.zeros((), dtype=torch.float64))
    table = torch.zeros((steps, size, 2, 3), dtype=torch.float64)

    def write(carry: tuple[torch.Tensor, torch.Tensor], batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        at, out = carry
        return at + 1, out.index_copy(0, at[None], batch.x[None])

    return fold(write, (torch.zeros((), dtype=torch.int64), table), batches)[1]


def test_batches_are_standard_normal() -> None:
    z = drawn(40, key=1)
    assert abs(float(z.mean())) < 0.03
    assert abs(float(z.std()) - 1) < 0.03
    assert abs(float((z**3).mean())) < 0.1
    assert abs(float((z**4).mean()) - 3) < 0.3
    assert z.unique().numel() > 0.99 * z.numel()
    rows = z.flatten(1)
    corr = torch.corrcoef(rows)
    assert float((corr - torch.eye(40)).abs().max()) < 0.3  # batches of 300 numbers each


def test_they_depend_on_the_key_alone() -> None:
    assert torch.equal(drawn(5, key=1), drawn(5, key=1))
    assert torch.equal(drawn(3, key=1), drawn(5, key=1)[:3])
    assert not torch.equal(drawn(3, key=1), drawn(3, key=2))
    assert torch.isfinite(normal(torch.tensor(3), 0, torch.Size([100_000]))).all()
