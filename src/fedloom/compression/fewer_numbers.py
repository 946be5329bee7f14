"""Fewer numbers than an upload has: its largest, some at random, or the factors of matrices of low rank.

Methods named `encode` and `read` are pure functions of tensors, which run for each client of a stack.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.compression.bit_packing import bits_for, packed, unpacked
from fedloom.core.errors import CodecError
from fedloom.core.random import fold_in, normal, uniform

Named = dict[str, Tensor]  # by the names of tensors, or by "" where an upload is one vector
_START = 1 << 40  # the key by which power iterations begin, the same for all


class Fewer:
    """Stage of an encoder that leaves numbers out (abstract)."""

    by_feedback = True
    """Bias: what is left waits for the next upload, unless somebody says otherwise."""
    whole = True
    """One vector for an upload, unless somebody says otherwise."""

    def init(self, values: Named) -> Named:
        """Return what a client keeps for it at first."""
        return {}

    def encode(self, key: Tensor, values: Named, kept: Named, contracts: bool) -> tuple[Named, Named, Named]:
        """Return (what travels beside the numbers, the numbers that are left, what the client keeps).

        Args:
            key: of its draws.
            values: of one client.
            kept: as `init` made it, or as it was returned last.
            contracts: whether what is read is nearer to the values than 0 is, or right in the mean.
        """
        raise NotImplementedError

    def shapes(self, like: Named) -> Named:
        """Return the numbers that are left of values without storage."""
        raise NotImplementedError

    def check(self, beside: Named, like: Named) -> None:
        """Raise CodecError unless what has travelled beside the numbers can be read."""

    def read(self, beside: Named, numbers: Named, like: Named) -> Named:
        """Return the values, with zeros for what was left out."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Some(Fewer):
    """Some of a tensor's numbers. `share`: how many, from 1 on a count."""

    share: float

    def __post_init__(self) -> None:
        if not (0 < self.share < 1 or (self.share >= 1 and float(self.share).is_integer())):
            raise ValueError(f"a share is above 0 and below 1, and a count is whole, got {self.share:g}: correct it")

    def count(self, of: int) -> int:
        """Return how many of so many numbers are sent."""
        return min(of, max(1, round(self.share * of) if self.share < 1 else int(self.share)))

    def shapes(self, like: Named) -> Named:
        return {name: t.new_empty(self.count(t.numel())) for name, t in like.items()}

    def read(self, beside: Named, numbers: Named, like: Named) -> Named:
        out = {}
        for name, t in like.items():
            zeros = torch.zeros(t.numel(), dtype=t.dtype, device=numbers[name].device)
            out[name] = zeros.scatter(0, self.places(beside[name], t.numel()), numbers[name]).view(t.shape)
        return out

    def places(self, beside: Tensor, size: int) -> Tensor:
        """Return the places of the numbers that were sent, by what has travelled beside them."""
        raise NotImplementedError


class TopK(_Some):
    """The largest numbers, of their absolute values, and where they were."""

    def encode(self, key: Tensor, values: Named, kept: Named, contracts: bool) -> tuple[Named, Named, Named]:
        beside, numbers = {}, {}
        for name, t in values.items():
            flat = t.flatten()
            places = flat.abs().topk(self.count(len(flat)), sorted=False).indices.sort().values
            beside[name], numbers[name] = packed(places, bits_for(len(flat))), flat[places]
        return beside, numbers, kept

    def check(self, beside: Named, like: Named) -> None:
        for name, t in like.items():
            places = self.places(beside[name], t.numel())
            if int(places[-1]) >= t.numel() or not bool((places.diff() > 0).all()):
                raise CodecError(f"places of numbers are distinct, in their order and below {t.numel()}")

    def places(self, beside: Tensor, size: int) -> Tensor:
        return unpacked(beside, bits_for(size), self.count(size)).long()


class RandK(_Some):
    """Numbers at random places, which follow from a key that travels; right in the mean, unless they contract."""

    by_feedback = False

    def encode(self, key: Tensor, values: Named, kept: Named, contracts: bool) -> tuple[Named, Named, Named]:
        beside, numbers = {}, {}
        for site, (name, t) in enumerate(values.items()):
            beside[name], flat = fold_in(key, site), t.flatten()
            some = flat[self.places(beside[name], len(flat))]
            numbers[name] = some if contracts else some * (len(flat) / len(some))
        return beside, numbers, kept

    def places(self, beside: Tensor, size: int) -> Tensor:
        order = (uniform(beside, 0, torch.Size([size])) * (1 << 24)).long() << 32
        return (order | torch.arange(size, device=order.device)).topk(self.count(size), largest=False).indices


@dataclass(frozen=True)
class LowRank(Fewer):
    """The factors of matrices: one power iteration a round, which begins where the client's last one ended.

    A tensor [m, ...] is a matrix of m rows. One whose factors have no fewer numbers, or one row, travels as it is.
    """

    rank: int
    whole = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"a rank is 1 or more, got {self.rank}: raise it")

    def factored(self, t: Tensor) -> bool:
        """Return whether the factors of a tensor travel in its place."""
        rows = t.shape[0] if t.ndim else 1
        return self.rank * (rows + t.numel() // max(1, rows)) < t.numel()

    def init(self, values: Named) -> Named:
        return {name: self._start(t) for name, t in values.items() if self.factored(t)}

    def _start(self, t: Tensor) -> Tensor:
        key = torch.tensor(_START, device=t.device)
        return normal(key, 0, torch.Size([t[0].numel(), self.rank])).to(t.dtype)

    def encode(self, key: Tensor, values: Named, kept: Named, contracts: bool) -> tuple[Named, Named, Named]:
        numbers, new = {}, dict(kept)
        for name, t in values.items():
            if not self.factored(t):
                numbers[name] = t
                continue
            matrix, start = t.flatten(1), kept[name] if name in kept else self._start(t)
            left = _orthonormal(matrix @ start)
            right = matrix.T @ left
            numbers[_left(name)], numbers[_right(name)] = left, right
            if name in kept:  # not of what is none of the model's tensors
                norms = right.norm(dim=0)
                new[name] = torch.where(norms > 0, right / norms, start)
        return {}, numbers, new

    def shapes(self, like: Named) -> Named:
        out = {}
        for name, t in like.items():
            if self.factored(t):
                out[_left(name)] = t.new_empty(t.shape[0], self.rank)
                out[_right(name)] = t.new_empty(t.numel() // t.shape[0], self.rank)
            else:
                out[name] = t
        return out

    def read(self, beside: Named, numbers: Named, like: Named) -> Named:
        return {
            name: (numbers[_left(name)] @ numbers[_right(name)].T).view(t.shape) if self.factored(t) else numbers[name]
            for name, t in like.items()
        }


def _left(name: str) -> str:
    return f"{name} left"


def _right(name: str) -> str:
    return f"{name} right"


def _orthonormal(columns: Tensor) -> Tensor:
    """Return columns [m, r] by Gram and Schmidt, in float64; zeros for what the ones before it span."""
    made: list[Tensor] = []
    for column in columns.double().unbind(1):
        rest = column
        for _ in range(2):  # once leaves what rounding has lost
            for before in made:
                rest = rest - before * (before @ rest)
        norm = rest.norm()
        made.append(torch.where(norm > 1e-6 * column.norm(), rest / norm, 0.0))
    return torch.stack(made, 1).to(columns.dtype)
