"""Sums that nobody sees into with noise of the clients: each clips, rounds and adds its part of the noise, then masks.

Kairouz, Liu, Steinke 2021, arXiv:2102.06387, algorithms 1 and 2, without the rotation that spreads a vector over all of
its numbers: words have room for its largest. The grid is that of `fixed_point`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.cohort import Total
from fedloom.core.errors import RefusedError, SettingError
from fedloom.core.random import generator
from fedloom.core.types import Tree, Weighted
from fedloom.engines.links import Asked, Question
from fedloom.privacy import concentrated
from fedloom.privacy.discrete_gaussian import LARGEST, Bits, discrete_gaussian, seeded_bits, system_bits
from fedloom.privacy.draws import uniforms
from fedloom.privacy.fixed_point import OutOfRange, Words
from fedloom.privacy.masked_terms import Terms
from fedloom.privacy.secure_sums import (
    FixedUploads,
    InFixedPoint,
    MaskedMean,
    References,
    SecureAggregation,
)
from fedloom.privacy.weighted_parts import weighted_of

_WRAPS = 2.0**-40  # the most that the probability may be with which any number of a sum leaves the range
_COARSE = 1.5  # by how much the bound of a norm may grow by rounding
_ROUNDING = 1 + 1e-9  # of a norm, computed in double precision


@dataclass(frozen=True, kw_only=True)
class NoisyAggregation(SecureAggregation):
    """Secure aggregation of clipped uploads, to which clients add noise.

    Attributes:
        clip: the largest norm of an upload.
        noise: standard deviation of the noise of the fewest clients together, as a multiple of what one adds at most.
        least: the fewest clients of whom there is a sum; noise is sized for them.
        seed: of the noise; None: each client's system.
        round: from 0.
    """

    clip: float
    noise: float
    least: int
    seed: int | None = None
    round: int = 0

    def moved(self, uploads: Tree, references: References) -> Tree:
        nodes, spec = weighted_of(uploads)
        sent = iter(references(uploads))

        def less(leaf: Tensor) -> Tensor:
            given = next(sent)
            return leaf.double() if given is None else leaf.double() - given.to(leaf.device).double()

        return tree.unflatten([Weighted(tree.map_tree(less, n.value), torch.ones_like(n.weight)) for n in nodes], spec)

    def fixed(self, whole: float, clients: int) -> NoisyUploads:
        return NoisyUploads(self, whole, clients)

    def weights(self, of: Any, round: int, clients: Sequence[int]) -> list[float]:
        return [1.0] * len(clients)

    def check(self, terms: Terms, clients: int) -> None:
        if terms.neighbours == clients - 1 and terms.threshold < self.least - 1:
            raise RefusedError(
                f"noise is sized for {self.least} devices or more, and this sum would be shown of "
                f"{terms.threshold + 1}: nothing is sent"
            )


@dataclass(frozen=True)
class NoisyUploads(FixedUploads):
    """Clipped uploads with noise as words: of each `Weighted` its numbers, and then its weight, which is 1."""

    asked: NoisyAggregation

    @functools.cached_property
    def bits(self) -> Bits:
        """Source of the random bits of noise, of all clients one after the other in a simulation."""
        return self._bits("noise of clients")

    @functools.cached_property
    def rounding(self) -> Bits:
        """Source of those of rounding.

        It has its own, since how many it takes follows uploads: with one source noise would follow their order.
        """
        return self._bits("rounding of clients")

    def _bits(self, name: str) -> Bits:
        seed = self.asked.seed
        return system_bits if seed is None else seeded_bits(generator(seed, name, self.asked.round))

    def norm(self, dimension: int) -> float:
        """Return the most that one client adds to the sum without noise, in steps of the grid."""
        return concentrated.rounded_norm(self.asked.clip * self.point.scale, dimension) * _ROUNDING

    def scale(self, dimension: int) -> int:
        """Return the scale of one client's noise, in steps of the grid."""
        return math.ceil(self.asked.noise * self.norm(dimension) / math.sqrt(self.asked.least))

    def loss(self, dimension: int, clients: int) -> float:
        """Return rho of a sum with the noise of some clients."""
        return concentrated.loss(self.norm(dimension), self.scale(dimension), clients, dimension)

    def check(self, dimension: int) -> None:
        """Raise SettingError where the range has no room for the noise, or the grid is too coarse or too fine."""
        asked, step = self.asked, 1 / self.point.scale
        tail = math.sqrt(2 * math.log(2 * dimension / _WRAPS) / asked.least)  # of a mean of sub-Gaussian numbers
        needed = asked.clip + step + tail * self.scale(dimension) * step
        if needed > asked.most:
            raise SettingError(
                f"numbers of a mean of {asked.least} clients, clipped at {asked.clip:g}, with noise, are up to "
                f"{needed:.3g} from 0, and secure_aggregation has range={asked.most:g}: raise the range to "
                f"{math.ceil(101 * needed) / 100:g}"
            )
        exact = asked.noise * self.norm(dimension) / math.sqrt(asked.least)
        if exact > LARGEST:
            raise SettingError(f"a client's noise is up to 2^55 steps of {step:.3g}, got {exact:.3g}: write bits=32")
        if exact < 1 or self.norm(dimension) > _COARSE * asked.clip / step:
            raise SettingError(
                f"numbers are rounded to steps of {step:.3g}, which is too coarse for {dimension} numbers clipped at "
                f"{asked.clip:g} with a noise of {exact:.3g} steps by each client: lower the range, or add bits=64"
            )

    def words(self, nodes: Sequence[Weighted[Any]], place: int, most: float = math.inf) -> Words:
        leaves = [[leaf[place].detach().flatten() for leaf in tree.leaves(node.value)] for node in nodes]
        flat = torch.cat([leaf for each in leaves for leaf in each]).double().cpu().numpy()
        norm = float(np.linalg.norm(flat))
        if not math.isfinite(norm):
            raise OutOfRange("an upload is not finite")
        whole = self._rounded(flat * (min(1.0, self.asked.clip / norm if norm else 1.0) * self.point.scale))
        whole += discrete_gaussian(self.scale(len(flat)), len(flat), self.bits)
        ends = np.cumsum([sum(leaf.numel() for leaf in each) for each in leaves])[:-1]
        one = self.heft.encode(np.ones(1), 1.0)
        parts = np.split(whole.astype(self.point.dtype), ends)
        return np.concatenate([words for part in parts for words in (part, one)])

    def _rounded(self, numbers: Any) -> Any:
        """Return numbers rounded at random to whole ones, so often until their norm is within its bound."""
        under, bound = np.floor(numbers), self.norm(len(numbers))
        while True:
            up = uniforms(self.rounding(len(numbers)).tobytes()) < numbers - under
            rounded = under + up
            if float(np.linalg.norm(rounded)) <= bound:
                return rounded.astype(np.int64)


class NoisyMean(MaskedMean):
    """Mean of clipped uploads with noise (a `Total`): what was sent, and the mean of what differs from it.

    `asked`: with its round. `references`: what was sent, as of `Question`.
    """

    fixed: NoisyUploads

    def __init__(self, asked: NoisyAggregation, clients: int, references: References) -> None:
        super().__init__(asked, [1.0] * clients)
        self.least, self.references = asked.least, references
        self._sent: list[tuple[Tensor | None, torch.dtype]] = []

    @property
    def dimension(self) -> int:
        """Count of the numbers in an upload."""
        return sum(leaf.numel() for leaves, _ in self._like for leaf in leaves)

    def expect(self, uploads: Tree) -> int:
        return super().expect(self._moved(uploads))

    def add(self, uploads: Tree) -> None:
        super().add(self._moved(uploads) if tree.leaves(uploads) else uploads)

    def _moved(self, uploads: Tree) -> Tree:
        values = [leaf for node in weighted_of(uploads)[0] for leaf in tree.leaves(node.value)]
        self._sent = [(given, v.dtype) for given, v in zip(self.references(uploads), values, strict=True)]
        return self.asked.moved(uploads, self.references)

    def result(self) -> Tree:
        """Return the uploads' tree with each Weighted replaced by its mean with noise."""
        sent = iter(self._sent)

        def whole(mean: Tensor) -> Tensor:
            given, dtype = next(sent)
            return (mean if given is None else given.double() + mean.to(given.device)).to(dtype)

        return tree.map_tree(whole, super().result())


class InNoisyFixedPoint(InFixedPoint):
    """Clipped uploads with noise of the clients, in fixed point: one sum in a round.

    `aggregation`: as it is now. `released`: told of each sum, and of the clients that were asked.
    """

    def __init__(
        self,
        aggregation: Callable[[], NoisyAggregation],
        released: Callable[[NoisyMean, Collection[int]], None],
    ) -> None:
        self.aggregation, self.released = aggregation, released
        self.sum: NoisyMean | None = None

    @property
    def asked(self) -> NoisyAggregation:  # type: ignore[override]
        return self.aggregation()

    def total(self, question: Question, total: Total) -> Total:
        if self.sum is not None:
            raise SettingError(
                f"privacy was promised for one mean in a round, and {type(question.engine.algorithm).__name__} takes "
                f"another one of {question.call.method} in round {question.call.round + 1}: leave privacy out"
            )
        asked = replace(self.asked, round=question.call.round)
        self.sum, self.least = NoisyMean(asked, len(question.clients), question.references), asked.least
        return self.sum

    def refuse(self, question: Question, asked: Asked) -> dict[int, str]:
        return {}

    def end_round(self, clients: Collection[int]) -> None:
        if self.sum is not None and self.sum:
            self.released(self.sum, clients)
        self.sum = None
