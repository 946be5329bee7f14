"""Data that change from round to round: training examples that arrive and leave, examples that drift."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IntArray = npt.NDArray[np.int64]

NEVER = 1 << 40  # the round of what does not happen
_TIE = 1e-9  # 0.2 * 15 is 3, on whichever side of it the product is rounded


@dataclass(frozen=True)
class Arrival(ABC):
    """Rule by which the training examples of a client arrive, and may leave again.

    They arrive in an order that `seed` and their number decide. A rule of your own derives from this class as a frozen
    dataclass: its fields tell runs apart. Every client must have an example in every round.
    """

    seed: int = field(default=0, kw_only=True)

    @abstractmethod
    def times(self, place: IntArray, size: IntArray) -> tuple[IntArray, IntArray]:
        """Return the rounds, from 0, since which and until before which examples are there, [n] each.

        `place`: [n], of each example in its client's order of arrival, from 0. `size`: [n], how many its client has in
        all. `NEVER`: the round of what does not happen.
        """

    def order(self, size: int) -> IntArray:
        """Return the order in which a client's `size` examples arrive, as positions among them."""
        return np.random.RandomState([self.seed % (1 << 32), size]).permutation(size).astype(np.int64)


@dataclass(frozen=True)
class Growing(Arrival):
    """The share `start` of each client's examples is there in round 1, all from round `by` on, growing evenly."""

    start: float
    by: int

    def __post_init__(self) -> None:
        if not 0 < self.start <= 1 or self.by < 1:
            raise ValueError(
                f"examples grow from a share above 0 and at most 1 to all, by round 1 or later, got {self.start:g} "
                f"and {self.by}: start with 0.2, by round 50"
            )

    def times(self, place: IntArray, size: IntArray) -> tuple[IntArray, IntArray]:
        done = ((place + 1) / size - self.start) / max(1 - self.start, _TIE)  # of the way from `start` to all
        since = np.ceil(done.clip(0, 1) * (self.by - 1) - _TIE).astype(np.int64)
        return np.where(place == 0, 0, since), np.full_like(place, NEVER)


@dataclass(frozen=True)
class Window(Arrival):
    """A stretch of each client's examples, of the share `share`, moves evenly to their end by round `by`."""

    share: float
    by: int

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or self.by < 1:
            raise ValueError(
                f"a window holds a share above 0 and at most 1, and ends by round 1 or later, got {self.share:g} and "
                f"{self.by}: hold 0.2, by round 50"
            )

    def times(self, place: IntArray, size: IntArray) -> tuple[IntArray, IntArray]:
        width = np.maximum(1, np.floor(size * self.share + _TIE)).astype(np.int64)
        rest, steps = size - width, self.by - 1

        def passed(examples: IntArray) -> IntArray:
            """Return the round in which so many examples have left."""
            rounds = -(-examples * steps // np.maximum(rest, 1))
            return np.where(examples <= 0, 0, np.where(examples > rest, NEVER, rounds))

        return passed(place - width + 1), passed(place + 1)


@dataclass(frozen=True)
class Drift:
    """Rule by which labels, or stored values, become others from round to round.

    It is the same for what clients train on, hold out and are tested on, and for the global test set, which is the
    client -1; public examples stay as they are. A rule of your own derives from this class as a frozen dataclass: its
    fields tell runs apart. `share`: of the clients, whose examples drift; below 1 the global test set stays as it is.
    """

    share: float = field(default=1.0, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"a share of clients above 0 and at most 1 drifts, got {self.share:g}: set 1 for all")

    @property
    def changes_features(self) -> bool:
        """True if stored values may change, and not labels alone."""
        return type(self).features is not Drift.features

    def labels(self, y: Tensor, clients: IntArray, round: int, num_classes: int) -> Tensor:
        """Return the labels [n] of examples of some clients, [n], in a round, from 0."""
        return y

    def features(self, x: Tensor, clients: IntArray, round: int) -> Tensor:
        """Return the stored values [n, ...] of examples of some clients, [n], in a round, from 0."""
        return x

    def drifting(self, clients: IntArray) -> Tensor:
        """Return which examples are of clients whose data drift, [n] bool, by their clients [n]."""
        if self.share == 1:
            return torch.ones(len(clients), dtype=torch.bool)
        known, place = np.unique(clients, return_inverse=True)
        seed = self.seed % (1 << 32)
        drawn = [k >= 0 and np.random.RandomState([seed, k]).random_sample() < self.share for k in known.tolist()]
        return torch.from_numpy(np.array(drawn, bool)[place.reshape(-1)])


@dataclass(frozen=True)
class LabelDrift(Drift):
    """Every `every` rounds each class takes the label of the next, and the last that of the first."""

    every: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_rounds(self.every)

    def labels(self, y: Tensor, clients: IntArray, round: int, num_classes: int) -> Tensor:
        if y.is_floating_point() or y.ndim > 1:
            each = "" if y.ndim == 1 else f" of shape {tuple(y.shape[1:])} each"
            raise ValueError(
                f"classes take the label of the next, got targets of {y.dtype}{each}: let inputs drift instead"
            )
        moved = (y + round // self.every) % num_classes
        return torch.where(self.drifting(clients).to(y.device), moved, y)


@dataclass(frozen=True)
class RotationDrift(Drift):
    """Every `every` rounds images, which must be square, turn by a quarter, anticlockwise; masks with them."""

    every: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_rounds(self.every)

    def features(self, x: Tensor, clients: IntArray, round: int) -> Tensor:
        if x.ndim != 4 or x.shape[2] != x.shape[3]:
            raise ValueError(f"square images turn by quarters, got examples of {tuple(x.shape[1:])}: use another drift")
        return self._turned(x, clients, round)

    def labels(self, y: Tensor, clients: IntArray, round: int, num_classes: int) -> Tensor:
        return y if y.ndim < 3 else self._turned(y, clients, round)  # a class for each pixel

    def _turned(self, images: Tensor, clients: IntArray, round: int) -> Tensor:
        turns, out, chosen = round // self.every % 4, images.clone(), self.drifting(clients).to(images.device)
        out[chosen] = torch.rot90(images[chosen], turns, (-2, -1))
        return out


@dataclass(frozen=True)
class OffsetDrift(Drift):
    """Stored values grow by `step` in every round; bytes end at 0 and 255."""

    step: float

    def features(self, x: Tensor, clients: IntArray, round: int) -> Tensor:
        by = torch.where(self.drifting(clients).to(x.device), self.step * round, 0.0)
        moved = x.double() + by.double().view(-1, *[1] * (x.ndim - 1))
        return moved.to(x.dtype) if x.is_floating_point() else moved.round().clamp(0, 255).to(x.dtype)


def _check_rounds(every: int) -> None:
    if every < 1:
        raise ValueError(f"data drift every so many rounds, 1 or more, got {every}: set 50 for every fiftieth")
