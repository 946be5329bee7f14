"""Norms of uploads: beside those of what was sent, and beside the median of uploads of the same kind."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.types import Weighted
from fedloom.engines.message import Request

ROUNDS = 5  # of the accepted uploads that a median is of
LEAST = 3  # uploads, below which there is no median worth the name
MEDIAN_BOUND = 5.0  # of a run with devices, unless said otherwise

Kept = dict[str, list[list[float]]]


def upload_norms(upload: Any, n: int) -> Tensor:
    """Return the norm of the upload of each of n clients, [n] float64.

    It is over all floating tensors together, without the weights of means.
    """
    nodes = tree.flatten(upload, is_leaf=lambda node: isinstance(node, Weighted))[0]
    return _squares([node.value if isinstance(node, Weighted) else node for node in nodes], n).sqrt()


def too_large(request: Request, norms: Tensor, bound: float) -> dict[int, str]:
    """Return the clients whose upload has a norm above `bound` times that of what they were sent, and how large it is.

    The norm of what is sent counts as 1 where it is smaller.
    """
    n = len(request.clients)
    sent = (_squares([t[None] for t in tree.leaves(request.call.broadcast)], 1) + _squares(request.scatter, n)).sqrt()
    return {
        k: f"the upload has a norm of {norm:.4g}, and at most {bound:g} times that of what was sent, {least:.4g}, is "
        "taken: raise run.norm_bound if it is sound"
        for k, norm, least in zip(request.clients, norms.tolist(), sent.clamp(min=1).tolist(), strict=True)
        if not norm <= bound * least
    }


def beyond(clients: Sequence[int], norms: Tensor, bound: float, median: float) -> dict[int, str]:
    """Return the clients whose upload has a norm above `bound` times the median of its kind, and how large it is."""
    return {
        k: f"the upload has a norm of {norm:.4g}, and at most {bound:g} times the median of its kind, {median:.4g}, is "
        "taken: raise run.median_bound if it is sound"
        for k, norm in zip(clients, norms.tolist(), strict=True)
        if not norm <= bound * median
    }


class Norms:
    """The norms of uploads that were accepted in the last rounds, by their kind.

    A kind is the method, how often its clients were asked before in the round, and their architecture: uploads of one
    kind are alike. What a round adds counts from the next one on, so that nothing depends on the order of answers.
    """

    def __init__(self, kept: Mapping[str, Sequence[Sequence[float]]] | None = None) -> None:
        self._kept: Kept = {kind: [list(norms) for norms in rounds] for kind, rounds in (kept or {}).items()}
        self._new: dict[str, list[float]] = {}

    def median(self, kind: str) -> float | None:
        """Return the median of the last rounds; None where these have too few uploads."""
        return median(norm for norms in self._kept.get(kind, ()) for norm in norms)

    def add(self, kind: str, norms: Iterable[float]) -> None:
        """Note uploads that were accepted in the round at hand."""
        self._new.setdefault(kind, []).extend(norms)

    def end_round(self) -> None:
        """Let what was noted count."""
        for kind, norms in self._new.items():
            self._kept[kind] = [*self._kept.get(kind, []), norms][-ROUNDS:] if norms else self._kept.get(kind, [])
        self._new = {}

    def copied(self) -> Norms:
        """Return a copy, which another engine goes on with."""
        return copy.deepcopy(self)

    def saved(self) -> Kept:
        """Return what a checkpoint keeps of the norms, as JSON."""
        return {kind: rounds for kind, rounds in sorted(self._kept.items()) if rounds}

    @classmethod
    def read(cls, raw: Any) -> Norms:
        """Return the norms that `saved` gave.

        Raises:
            ValueError: they are no norms.
        """
        fits = isinstance(raw, dict) and all(
            isinstance(rounds, list)
            and len(rounds) <= ROUNDS
            and all(isinstance(norms, list) and all(type(n) is float and n >= 0 for n in norms) for norms in rounds)
            for rounds in raw.values()
        )
        if not fits:
            raise ValueError("norms are lists of numbers of the last rounds, by the kind of uploads")
        return cls(raw)


def median(norms: Iterable[float]) -> float | None:
    """Return the median, which is the lower of the two in the middle where the number of norms is even.

    It is None where there are fewer than `LEAST` norms. It is also None instead of 0, by which nothing can be measured.
    """
    found = list(norms)
    return (statistics.median_low(found) or None) if len(found) >= LEAST else None


def _squares(values: Any, n: int) -> Tensor:
    """Return the sum of squares of the floating leaves [n, ...] for each of n clients."""
    total = torch.zeros(n, dtype=torch.float64)
    for leaf in tree.leaves(values):
        if leaf.is_floating_point():
            rows = leaf.flatten(1) if leaf.ndim > 1 else leaf[:, None]
            total += torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square().cpu()
    return total
