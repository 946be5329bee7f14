"""New rows that a run has trained on: found by their values, since a file may have another name or order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.data import Examples

_BLOCK = 4096  # rows that are read at once
_NOTABLE = 0.1  # share of rows beyond those that are alike by chance


@dataclass(frozen=True)
class TrainedOn:
    """Number of new rows that equal a training row in input and target.

    `by_chance`: the share of training rows that equal another one, as high as that of new rows of the same source: in
    a table of a few categories most rows have a twin.
    """

    count: int
    rows: int
    by_chance: float

    @property
    def is_notable(self) -> bool:
        """True if chance does not explain the number."""
        return self.count / self.rows > self.by_chance + _NOTABLE


def count_trained(new: Examples, train: Examples, rows: npt.NDArray[np.int64]) -> TrainedOn:
    """Count the new rows that equal one of `rows` of `train`; both are prepared in the same way."""
    if new.x.shape[1:] != train.x.shape[1:] or new.y.shape[1:] != train.y.shape[1:]:
        return TrainedOn(0, len(new), 0.0)
    trained = Counter(_hashes(train, torch.tensor(rows), train))
    count = sum(one in trained for one in _hashes(new, torch.arange(len(new)), train))
    return TrainedOn(count, len(new), sum(n for n in trained.values() if n > 1) / len(rows))


def _hashes(examples: Examples, rows: Tensor, like: Examples) -> Iterator[int]:
    """Yield a hash of each row, its numbers in the types of `like`."""
    for part in torch.split(rows, _BLOCK):
        both = [_bytes(examples.x[part].to(like.x.dtype)), _bytes(examples.y[part].to(like.y.dtype))]
        width = sum(of.shape[1] for of in both)
        data = np.concatenate(both, 1).tobytes()
        yield from (hash(data[at : at + width]) for at in range(0, len(data), width))


def _bytes(values: Tensor) -> npt.NDArray[np.uint8]:
    """Return values (N, ...) as bytes (N, B)."""
    return values.cpu().contiguous().reshape(len(values), -1).view(torch.uint8).numpy()
