"""Rules by which uploads become a mean: the weighted mean, and those that survive clients that lie."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.cohort import Total
from fedloom.core.errors import NobodyAnswered, SettingError, StackingError
from fedloom.core.grammar import Named, by_name, make_named
from fedloom.core.types import Params, Tree, Weighted, Weights

References = Callable[[Tree], Sequence[Tensor | None]]  # uploads -> what was sent, for each leaf of their values

LEAST = 3  # uploads, of which one that lies can be told from the others
_TIE = 1e-9  # 0.2 * 15 is 3, on whichever side of it the product is rounded
_LARGEST = 1e140  # beyond it a number counts as this, so that its square is one too
_STEPS, _MOVED = 1000, 1e-14  # of Weiszfeld's algorithm: the most, and the relative step after which it ends


@dataclass(frozen=True)
class Part:
    """The uploads' tensors that a rule takes for one vector: the parameters of a model, its buffers, or a tensor.

    `rows`: the tensors, each [K, ...]. `sent`: of each what the clients were sent in its place, or nothing where that
    is unknown.
    """

    rows: Sequence[Tensor]
    sent: Sequence[Tensor]
    weights: Tensor  # [K] float64

    def values(self) -> Iterator[Tensor]:
        """Yield the tensors in float64, one at a time: all of them would take twice the memory of the uploads."""
        return (rows.double().clamp(-_LARGEST, _LARGEST) for rows in self.rows)

    def mean(self, factors: Tensor, around: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Return the sum of `factors` [K] times the rows, or of their differences to `around`, which is added."""
        out = []
        for n, values in enumerate(self.values()):
            if around is None:
                out.append(torch.tensordot(factors, values, 1))
            else:
                out.append(around[n] + torch.tensordot(factors, values - around[n], 1))
        return out

    def distances(self, around: Sequence[Tensor]) -> Tensor:
        """Return the Euclidean distance of each vector to `around`, [K]."""
        squares = [(v - at).reshape(len(v), -1).square().sum(1) for v, at in zip(self.values(), around, strict=True)]
        return torch.stack(squares).sum(0).sqrt()

    def equally_long(self) -> Part:
        """Return the vectors whose differences to what was sent have the median of their norms, without those of none.

        They are the vectors themselves where it is unknown what was sent, or nobody has moved.
        """
        norms = self.distances([sent.double() for sent in self.sent]) if self.sent else torch.zeros(0)
        if not bool((moved := norms > 0).any()):
            return self
        factors = _median(norms[moved].sort().values) / norms[moved]
        rows = []
        for values, sent in zip(self.values(), self.sent, strict=True):
            around, shape = sent.double(), (-1, *[1] * (values.ndim - 1))
            rows.append(around + factors.view(shape) * (values[moved] - around))
        return Part(rows, self.sent, self.weights[moved])

    @property
    def shares(self) -> Tensor:
        """The weights divided by their sum."""
        if not bool(total := self.weights.sum()):
            raise ValueError("the mean of uploads whose weights are all zero")
        return self.weights / total

    def by_coordinate(self, of: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Return `of` the values of each coordinate, sorted [K, ...]."""
        return [of(values.sort(0).values) for values in self.values()]


class Aggregator(ABC):
    """A rule by which K uploads become one.

    It is called for the parameters and for the buffers of a model on their own, and for each `Weighted` of an upload on
    its own. Uploads that weigh nothing are left out.
    """

    needs = 1
    """Uploads without which it says nothing, and the round ends as if nobody had answered."""

    @abstractmethod
    def __call__(self, part: Part) -> list[Tensor]:
        """Return one tensor in the place of the K of each, float64."""

    def check(self, asked: int) -> None:
        """Raise SettingError where rounds ask too few clients for this rule."""
        if asked < max(LEAST, self.needs):
            raise SettingError(
                f"aggregator = {self} needs the uploads of {max(LEAST, self.needs)} clients, and a round asks {asked}: "
                "raise cohort_size (--cohort), or use aggregator = 'mean'"
            )

    def total(self, references: References) -> Total:
        """Return where uploads are collected. `references`: what was sent in the place of their values."""
        return Collected(self, references)


class Mean(Aggregator):
    """The weighted mean. Uploads are summed as they come, and none is held."""

    def __str__(self) -> str:
        return "'mean'"

    def check(self, asked: int) -> None:
        """Take any number of clients."""

    def __call__(self, part: Part) -> list[Tensor]:
        return part.mean(part.shares)

    def total(self, references: References) -> Total:
        return tree.WeightedMean()


@dataclass(frozen=True)
class Trimmed(Aggregator):
    """The mean by coordinate without the share of the lowest and that of the highest values.

    Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML
    2018, arXiv:1803.01498, definition 2. A share of a value counts as one; of one or two uploads none is left out. The
    weights say nothing.
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise ValueError(
                f"the share that is left out at either end is above 0 and below 0.5, got {self.share:g}: write median "
                "to leave out all but the middle"
            )

    def __str__(self) -> str:
        return f"'trimmed:{self.share:g}'"

    def __call__(self, part: Part) -> list[Tensor]:
        count = len(part.weights)
        out = min(math.ceil(self.share * count - _TIE), (count - 1) // 2)
        return part.by_coordinate(lambda values: values[out : count - out].mean(0))


@dataclass(frozen=True)
class Median(Aggregator):
    """The median by coordinate; of an even number, the mean of the two in the middle.

    Yin et al. (ICML 2018), definition 1. The weights say nothing.
    """

    def __str__(self) -> str:
        return "'median'"

    def __call__(self, part: Part) -> list[Tensor]:
        return part.by_coordinate(_median)


@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """The point with the least weighted sum of distances to the uploads, by the smoothed Weiszfeld algorithm.

    Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning" (RFA), IEEE Transactions on Signal
    Processing 2022, arXiv:1912.13445, with the authors' nu = 1e-6. It begins at the mean of differences to the median
    by coordinate, clipped as `Clip` does, and goes on until it moves by less than 1e-14 of the mean distance, 1000
    steps at most; the authors take 3 steps from the mean, after which an upload a million times too large still counts.
    Of single numbers it is the weighted median, to which the algorithm comes slowly. The weights are those of the mean.

    Not of the paper: uploads that are models that were sent are taken as equally long differences (`equally_long`), and
    one that is what was sent does not count. It is the one point near all honest ones where these are unlike, and some
    clients that stay at or near it would hold the median there.
    """

    nu: float = 1e-6

    def __str__(self) -> str:
        return "'geometric_median'"

    def __call__(self, part: Part) -> list[Tensor]:
        if sum(rows[0].numel() for rows in part.rows) == 1:
            (values,) = part.values()
            return [_weighted_median(values.flatten(), part.shares).reshape(values.shape[1:])]
        part = part.equally_long()
        shares = part.shares
        at = _clipped(part, part.by_coordinate(_median))
        for _ in range(_STEPS):
            distances = part.distances(at)
            beta = shares / distances.clamp(min=self.nu)
            before, at = at, part.mean(beta / beta.sum())
            moved = torch.stack([(a - b).square().sum() for a, b in zip(at, before, strict=True)]).sum().sqrt()
            if float(moved) <= _MOVED * float((shares * distances).sum()):
                break
        return at


@dataclass(frozen=True)
class Krum(Aggregator):
    """The upload that is closest to its neighbours, or the mean of some that are.

    Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
    NeurIPS 2017, arXiv:1703.02757: the score of an upload is the sum of its squared distances to the K - f - 2 closest
    others, and K >= 2 f + 3. Of equal scores the lower number of the client counts. The weights say nothing.

    `f`: clients that may lie; None: as many as K uploads allow, (K - 3) / 2 rounded down, and the K - f others are
    averaged. `m`: how many uploads with the lowest scores are averaged (multi-Krum); None: one, Krum.
    """

    f: int | None = None
    m: int | None = None

    def __post_init__(self) -> None:
        if self.f is not None and (self.f < 0 or (self.m is not None and self.m < 1)):
            raise ValueError(f"0 or more clients lie, and 1 or more uploads are averaged, got {self}: write krum:2")

    def __str__(self) -> str:
        if self.f is None:
            return "'multi_krum'"
        return f"'krum:{self.f}'" if self.m is None else f"'multi_krum:{self.f}:{self.m}'"

    @property
    def needs(self) -> int:  # type: ignore[override]
        return LEAST if self.f is None else max(2 * self.f + 3, self.f + (self.m or 1))

    def __call__(self, part: Part) -> list[Tensor]:
        count = len(part.weights)
        f, m = ((count - 3) // 2, count - (count - 3) // 2) if self.f is None else (self.f, self.m or 1)
        squares = torch.zeros(count, count, dtype=torch.float64, device=part.weights.device)
        for values in part.values():  # not by a product of matrices, where one huge upload blots out the others
            flat = values.reshape(len(values), -1)
            squares += torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
        squares.fill_diagonal_(math.inf)
        scores = squares.sort(1).values[:, : count - f - 2].sum(1)
        chosen = scores.sort(stable=True).indices[:m].sort().values
        return [values[chosen].mean(0) for values in part.values()]


MEAN = Mean()
AGGREGATORS = by_name(
    (
        Named(("mean",), lambda: MEAN),
        Named(("trimmed:SHARE",), Trimmed, (float,)),
        Named(("median",), Median),
        Named(("geometric_median",), GeometricMedian),
        Named(("krum:F",), Krum, (int,)),
        Named(("multi_krum", "multi_krum:F:M"), Krum, (int, int)),
    )
)


def aggregator(text: str) -> Aggregator:
    """Return the rule of that name, a key of `AGGREGATORS`.

    Raises:
        SettingError: there is no such rule, or a value is missing, malformed or out of range.
    """
    made: Aggregator = make_named("aggregator", text, AGGREGATORS)
    return made


class Collected:
    """Uploads that are held until a rule makes one of them: as many models as clients have answered."""

    def __init__(self, rule: Aggregator, references: References) -> None:
        self._rule, self._references = rule, references
        self._uploads: list[Tree] = []  # stacked, as they came

    def add(self, uploads: Tree) -> None:
        nodes = tree.flatten(uploads, is_leaf=_is_weighted)[0]
        if not all(map(_is_weighted, nodes)):
            raise StackingError(tree.UNWEIGHTED)
        if self._uploads and not tree.same_structure(tree.take(self._uploads[0], 0), tree.take(uploads, 0)):
            raise StackingError(tree.UNLIKE)
        self._uploads.append(uploads)

    def __bool__(self) -> bool:
        return bool(self._uploads)

    def result(self) -> Tree:
        """Return the uploads' tree with each Weighted replaced by what the rule makes of its values.

        Raises:
            NobodyAnswered: the rule needs more uploads than there are.
        """
        uploads = self._uploads[0] if len(self._uploads) == 1 else tree.cat(self._uploads)
        nodes, spec = tree.flatten(uploads, is_leaf=_is_weighted)
        sent, out = list(self._references(uploads)), []
        for node in nodes:
            leaves, inner = tree.flatten(node.value)
            mine = sent[: len(leaves)]
            del sent[: len(leaves)]
            out.append(tree.unflatten(self._one(node, leaves, mine), inner))
        return tree.unflatten(out, spec)

    def _one(self, node: Weighted[Tree], leaves: Sequence[Tensor], sent: Sequence[Tensor | None]) -> list[Tensor]:
        weights = tree.checked_weights(node.weight)
        counted = weights > 0
        if not counted.any():
            raise ValueError("the mean of uploads whose weights are all zero")
        if (count := int(counted.sum())) < self._rule.needs:
            raise NobodyAnswered(
                f"aggregator = {self._rule} needs the uploads of {self._rule.needs} clients, got {count}"
            )
        out, everybody = list(leaves), bool(counted.all())
        for places in _parts(node.value):
            rows = [leaves[n] if everybody else leaves[n][counted] for n in places]
            if not rows[0].is_floating_point():
                out[places[0]] = rows[0].sort(0).values[(count - 1) // 2]
                continue
            known = [given for n in places if (given := sent[n]) is not None]
            part = Part(rows, known if len(known) == len(places) else (), weights[counted])
            for n, made in zip(places, self._rule(part), strict=True):
                out[n] = made.to(leaves[n].dtype)
        return out


def _parts(value: Tree) -> list[list[int]]:
    """Return the places of the leaves that are one vector each; leaves that are not floating stand alone."""
    out, place = list[list[int]](), 0
    for node in tree.flatten(value, is_leaf=lambda n: isinstance(n, Weights | Params))[0]:
        for group in (node.params, node.buffers) if isinstance(node, Weights) else (node,):
            leaves = tree.leaves(group)
            numbered = list(enumerate(leaves, place))
            together = [n for n, leaf in numbered if leaf.is_floating_point()]
            out += ([together] if together else []) + [[n] for n, _ in numbered if n not in together]
            place += len(leaves)
    return out


def _clipped(part: Part, around: Sequence[Tensor]) -> list[Tensor]:
    """Return `around` and the weighted mean of differences to it of norms up to their median."""
    norms = part.distances(around)
    most = _median(norms.sort().values)
    return part.mean(part.shares * torch.where(norms > most, most / norms, 1.0), around)


def _weighted_median(values: Tensor, shares: Tensor) -> Tensor:
    """Return the number with the least weighted sum of distances to values [K]; the middle, where several have it."""
    values, order = values.sort()
    below = shares[order].cumsum(0)
    return (values[below >= 0.5 - _TIE][0] + values[below >= 0.5 + _TIE][0]) / 2


def _median(values: Tensor) -> Tensor:
    """Return the median of sorted values [K, ...]."""
    middle = (len(values) - 1) // 2
    return (values[middle] + values[len(values) // 2]) / 2


def _is_weighted(node: Any) -> bool:
    return isinstance(node, Weighted)
