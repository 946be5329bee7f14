"""The private way of uploads to their mean: each is clipped, the sum has noise, and a fixed number divides it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.cohort import Total
from fedloom.core.errors import SettingError, StackingError
from fedloom.core.types import Tree, Weighted
from fedloom.engines.links import Asked, Link, Question
from fedloom.engines.message import Answer
from fedloom.privacy.secret_draws import Floats, normals

Shapes = Mapping[tuple[str, str], Tree]  # (architecture, method) -> an upload
_RATE = 0.2  # of the clip norm, the papers' eta_C


@dataclass
class Mechanism:
    """Rules of each upload and of their sum.

    Attributes:
        shapes: of uploads.
        rate: probability with which each client is in a round.
        seed: of the noise; None: the system's entropy.
        quantile: of the norms of uploads, which the clip norm follows; None: it stays.
        clip: the largest norm of an upload.
        noise: standard deviation of all noise of a round, as a multiple of what one client changes at most.
        expected: how many clients a round has on average.
    """

    shapes: Shapes
    rate: float
    seed: int | None
    quantile: float | None
    clip: float
    noise: float
    expected: float

    @property
    def bits_noise(self) -> float:
        """Standard deviation of the noise on the number of uploads within the clip norm.

        It is the paper's twentieth of a cohort, and at least what leaves the sum noise of about the same size.
        """
        return max(self.expected / 20, self.noise) if self.noise else 0.0

    @property
    def sum_noise(self) -> float:
        """Standard deviation of the noise on the sum, as a multiple of the clip norm."""
        if self.quantile is None or not self.noise:
            return self.noise
        return float((self.noise**-2 - (2 * self.bits_noise) ** -2) ** -0.5)

    def next_clip(self, within: float, draw: Callable[[int], Floats]) -> float:
        """Return the clip norm of the next round.

        Args:
            within: sum over uploads of 1/2 for one within the clip norm, -1/2 for another.
            draw: standard normal numbers.
        """
        if self.quantile is None:
            return self.clip
        share = 0.5 + (within + self.bits_noise * float(draw(1)[0])) / self.expected
        return self.clip * math.exp(-_RATE * (share - self.quantile))


@dataclass
class PrivateSum:
    """Sum of clipped uploads, on the way to a noisy mean (a `Total`). There is one where nobody answers, too.

    An upload is one vector: the differences of models to what was sent, and all else that it has. Whole numbers, such
    as BatchNorm's counters, stay what was sent.
    """

    like: Tree  # an upload
    references: Callable[[Tree], Sequence[Tensor | None]]
    clip: float
    std: float  # of the noise on the sum
    count: float  # of uploads, on average, which divides the sum
    draw: Callable[[int], Floats]
    within: float = 0.0  # 1/2 for each upload within the clip norm, -1/2 for another
    _sums: list[Tensor] = field(default_factory=list)
    _mean: list[Tree] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sums = [torch.zeros_like(leaf, dtype=torch.float64) for leaf in values_of(self.like)]

    def __bool__(self) -> bool:
        return True

    def add(self, uploads: Tree) -> None:
        if not tree.same_structure(tree.take(uploads, 0), self.like):
            raise StackingError(tree.UNLIKE)
        values, sent = values_of(uploads), self.references(uploads)
        for i in range(len(values[0])):  # one client after the other: how they were stacked cannot change the sum
            moved = [
                v[i].double() if given is None else v[i].double() - given.double()
                for v, given in zip(values, sent, strict=True)
            ]
            counted = [m for m, v in zip(moved, values, strict=True) if v.is_floating_point()]
            norm = math.sqrt(sum(float(m.square().sum()) for m in counted))
            factor = self.clip / norm if norm > self.clip else 1.0
            self.within += 0.5 if norm <= self.clip else -0.5
            for total, m in zip(self._sums, moved, strict=True):
                total.add_(m, alpha=factor)

    def result(self) -> Tree:
        """Return the noisy mean: the same, however often it is asked for."""
        if not self._mean:
            nodes, spec = tree.flatten(self.like, is_leaf=is_weighted)
            made = iter(self._noisy())
            self._mean = [tree.unflatten([tree.map_tree(lambda _: next(made), n.value) for n in nodes], spec)]
        return self._mean[0]

    def _noisy(self) -> list[Tensor]:
        out = list[Tensor]()
        sent = self.references(tree.stack([self.like]))
        for leaf, total, given in zip(values_of(self.like), self._sums, sent, strict=True):
            if not leaf.is_floating_point():
                assert given is not None  # else it was refused before the run
                out.append(given)
                continue
            noise = torch.from_numpy(self.draw(total.numel()).reshape(total.shape)).to(total.device)
            mean = (total + self.std * noise) / self.count
            out.append((mean if given is None else given.double() + mean).to(leaf.dtype))
        return out


class ClippedSums(Link):
    """Link that makes a `PrivateSum` of each mean, by a mechanism."""

    always = True

    def __init__(self, mechanism: Callable[[], Mechanism], moved: Callable[[float], None]) -> None:
        self.mechanism, self.moved = mechanism, moved
        self._sums: dict[str, PrivateSum] = {}  # of the round at hand, by architecture
        self._round = 0
        self._due = self._summed = False  # whether the next exchange, and this one, is of a mean

    def total(self, question: Question, total: Total) -> Total:
        how, engine, name = self.mechanism(), question.engine, question.architecture or ""
        if (like := how.shapes.get((name, question.call.method))) is None or name in self._sums:
            raise SettingError(
                f"privacy was promised for one mean in a round, and {type(engine.algorithm).__name__} takes another "
                f"one of {question.call.method} in round {question.call.round + 1}: leave privacy out"
            )
        self._round, self._due = question.call.round, True
        self._sums[name] = PrivateSum(
            like, question.references, how.clip, how.sum_noise * how.clip,
            how.rate * engine.population.members[name], normals(how.seed, self._round, name),
        )  # fmt: skip
        return self._sums[name]

    def lost(self, question: Question) -> dict[int, str]:
        self._summed, self._due = self._due, False
        return {}

    def take(self, question: Question, asked: Asked, good: Sequence[int]) -> Answer:
        if not self._summed and tree.leaves(asked[2].upload):
            raise SettingError(
                f"privacy was promised for means alone, and {type(question.engine.algorithm).__name__} asks for each "
                f"upload in round {question.call.round + 1}: leave privacy out"
            )
        return asked[2]

    def end_round(self, clients: Collection[int]) -> None:
        within = float(np.sum([one.within for one in self._sums.values()]))
        self.moved(self.mechanism().next_clip(within, normals(self.mechanism().seed, self._round, "bits")))
        self._sums, self._due = {}, False


def values_of(upload: Tree) -> list[Tensor]:
    """Return the leaves of an upload, without the weights of means."""
    nodes = tree.flatten(upload, is_leaf=is_weighted)[0]
    return [leaf for node in nodes for leaf in tree.leaves(node.value)]


def is_weighted(node: object) -> bool:
    return isinstance(node, Weighted)
