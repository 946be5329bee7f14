"""Bound of an upload: of its difference to what was sent, which is refused or clipped above it."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.grammar import Named, by_name, find
from fedloom.core.types import Tree, Weighted, Weights
from fedloom.engines.accounting import PayloadSize, sent_tensors
from fedloom.engines.links import Asked, OfUploads, Question
from fedloom.engines.message import Answer, Request

ROUNDS = 5  # of the accepted uploads that a median is of
LEAST = 3  # uploads, below which there is no median worth the name
BOUND_OF_DEVICES = "refuse:median:5"  # of a run with devices, unless said otherwise
_PARTS = ("the upload", "the statistics of BatchNorm in the upload")

Kept = dict[str, list[list[float]]]
Medians = tuple[float | None, float | None]  # of the two norms of `Measured`
NO_MEDIANS: Medians = (None, None)


@dataclass(frozen=True)
class Bound:
    """Bound of the norm of an upload, `most` times something.

    `clips`: the difference is made as short as the bound; else an upload beyond the bound is refused. `of`: 1, or the
    `median` norm of such uploads (`Norms`), or the norm of what was `sent` to the client, 1 at least.
    """

    clips: bool
    of: str
    most: float

    def __str__(self) -> str:
        return ":".join(["clip" if self.clips else "refuse", *([self.of] if self.of else []), f"{self.most:g}"])


BOUNDS = by_name(
    Named((f"{name}:X", f"{name}:median:X", f"{name}:sent:X"), Bound, (str, float)) for name in ("refuse", "clip")
)


def bound(text: str) -> Bound | None:
    """Return the bound that a text names, None for none.

    Raises:
        SettingError: it names none.
    """
    if text == "none":
        return None
    found = find("bound", text, BOUNDS, before="none")
    *of, most = found.values("bound", text)
    try:
        number = float(most)
    except ValueError:
        number = math.nan
    if of not in ([], ["median"], ["sent"]) or math.isnan(number):
        raise found.refusal("bound", text)
    if not 0 < number < math.inf:
        raise SettingError(f"a bound is finite and above 0, got bound = {text!r}: write none for no bound")
    return Bound(found is BOUNDS["clip"], "".join(of), number)


@dataclass(frozen=True)
class Measured:
    """The norms of the uploads of n clients, each beside what its client was sent where that is known.

    `norms`: [n, 2] float64, of the upload without statistics of BatchNorm, and of these, which have another scale;
    weights of means are in neither. `sent`: for each leaf, as of `sent_tensors`.
    """

    norms: Tensor
    sent: Sequence[Tensor | None]

    @classmethod
    def of(cls, request: Request, answer: Answer, payload: PayloadSize) -> Measured:
        """Return the norms of an answer's uploads."""
        n = len(request.clients)
        sent = sent_tensors(payload, request.call.broadcast, answer.upload, request.scatter)
        squares = torch.zeros(n, 2, dtype=torch.float64)
        for (leaf, is_buffer), given in zip(_values(answer.upload), sent, strict=True):
            if leaf.is_floating_point():
                squares[:, int(is_buffer)] += _squares([leaf if given is None else leaf - given], n)
        return cls(squares.sqrt(), sent)

    def by_kind(self, kind: str, good: Sequence[int]) -> Iterator[tuple[str, list[float]]]:
        """Yield the kinds of both norms and the norms of accepted uploads; of buffers where one has changed."""
        for part, each in enumerate(kinds(kind)):
            if part == 0 or self.norms[:, part].any():
                yield each, self.norms[list(good), part].tolist()

    def limits(self, request: Request, bound: Bound, medians: Medians) -> Tensor:
        """Return the norm that each part of each upload may have, [n, 2]; infinity where there is no median."""
        if bound.of == "median":
            row = [math.inf if middle is None else bound.most * middle for middle in medians]
            return torch.tensor([row] * len(self.norms), dtype=torch.float64)
        least = torch.ones(len(self.norms), dtype=torch.float64)
        if bound.of == "sent":
            call, n = request.call, len(self.norms)
            sent = _squares([t[None] for t in tree.leaves(call.broadcast)], 1) + _squares(request.scatter, n)
            least = sent.sqrt().clamp(min=1)
        return (bound.most * least)[:, None].expand(-1, 2)

    def beyond(self, request: Request, bound: Bound, medians: Medians = NO_MEDIANS) -> dict[int, str]:
        """Return the clients whose upload is beyond a bound that refuses it, and how far."""
        if bound.clips:
            return {}
        limits = self.limits(request, bound, medians)
        of = {"": "", "median": " times the median of its kind", "sent": " times the norm of what was sent"}[bound.of]
        beside = "" if all(given is None for given in self.sent) else " beside what was sent"
        out = dict[int, str]()
        for part, i in (~(self.norms <= limits)).T.nonzero().tolist():
            norm, limit = float(self.norms[i, part]), float(limits[i, part])
            unit = f", {limit / bound.most:.4g}," if bound.of else ""
            out.setdefault(
                request.clients[i],
                f"{_PARTS[part]} has a norm of {norm:.4g}{beside}, and at most {bound.most:g}{of}{unit} is taken: "
                "raise run.bound if it is sound",
            )
        return out

    def clipped(self, request: Request, answer: Answer, bound: Bound, medians: Medians) -> Answer:
        """Return an answer with uploads that are within a bound that clips them; those within it stay as they are."""
        limits = self.limits(request, bound, medians)
        beyond = self.norms > limits
        if not (bound.clips and beyond.any()):
            return answer
        factors, leaves = torch.where(beyond, limits / self.norms, 1.0), list[Tensor]()
        for (leaf, is_buffer), given in zip(_values(answer.upload), self.sent, strict=True):
            which = beyond[:, int(is_buffer)].to(leaf.device)
            if leaf.is_floating_point() and which.any():
                factor = factors[:, int(is_buffer)].to(leaf.device)
                around = torch.zeros_like(leaf[:1]) if given is None else given
                around = around.double().expand(leaf.shape)
                shape = (-1, *[1] * (leaf.ndim - 1))
                short = around + factor.view(shape) * (leaf.double() - around)
                leaf = torch.where(which.view(shape), short.to(leaf.dtype), leaf)
            leaves.append(leaf)
        return replace(answer, upload=_with_values(answer.upload, leaves))


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


class Bounded(OfUploads):
    """Uploads beyond a bound: refused, or clipped.

    A median is that of the last rounds; where these have none, all answers are waited for, and it is their own.
    """

    def __init__(self, bound: Bound) -> None:
        self.bound, self.said = bound, f"bound = {str(bound)!r}"
        self._medians: Medians = NO_MEDIANS
        self._norms: dict[tuple[int, ...], Measured] = {}  # of the answers at hand, by their clients

    def answers(self, question: Question, answers: Iterator[Asked]) -> Iterator[Asked]:
        bound, kept = self.bound, question.engine.norms
        uploads, buffers = map(kept.median, kinds(question.kind))
        self._medians, self._norms = (uploads, buffers), {}
        coming = (self._with_norms(question, asked) for asked in answers)
        if bound.of == "median" and uploads is None:
            together = list(coming)
            norms = [one.norms for one in self._norms.values()]
            self._medians, coming = medians_of(torch.cat(norms)) if norms else NO_MEDIANS, (one for one in together)
        yield from coming

    def _with_norms(self, question: Question, asked: Asked) -> Asked:
        request, _, answer = asked
        if answer.summed is None:
            self.saw(answer.upload)
            self._norms[request.clients] = Measured.of(request, answer, question.bill)
        return asked

    def refuse(self, question: Question, asked: Asked) -> dict[int, str]:
        request, _, answer = asked
        if answer.summed is not None:
            return dict(answer.summed.large)
        return self._norms[request.clients].beyond(request, self.bound, self._medians)

    def take(self, question: Question, asked: Asked, good: Sequence[int]) -> Answer:
        request, _, answer = asked
        measured = self._norms[request.clients]
        if self.bound.of == "median":
            for kind, norms in measured.by_kind(question.kind, good):
                question.engine.norms.add(kind, norms)
        return measured.clipped(request, answer, self.bound, self._medians)


def kinds(kind: str) -> tuple[str, str]:
    """Return the kinds of both norms of an upload of a kind."""
    return kind, f"{kind} buffers"


def medians_of(norms: Tensor) -> Medians:
    """Return the medians of the norms [n, 2] of a cohort's uploads; those that are not finite are left out."""
    uploads, buffers = (median(each[each.isfinite()].tolist()) for each in norms.T)
    return uploads, buffers


def median(norms: Iterable[float]) -> float | None:
    """Return the median, which is the lower of the two in the middle where the number of norms is even.

    It is None where there are fewer than `LEAST` norms. It is also None instead of 0, by which nothing can be measured.
    """
    found = list(norms)
    return (statistics.median_low(found) or None) if len(found) >= LEAST else None


def _values(upload: Tree) -> Iterator[tuple[Tensor, bool]]:
    """Yield the leaves of an upload without weights of means, and whether each is a buffer of a model."""
    for node in tree.flatten(upload, is_leaf=lambda n: isinstance(n, Weighted))[0]:
        value = node.value if isinstance(node, Weighted) else node
        for inner in tree.flatten(value, is_leaf=lambda n: isinstance(n, Weights))[0]:
            trained = len(inner.params) if isinstance(inner, Weights) else 1
            yield from ((leaf, i >= trained) for i, leaf in enumerate(tree.leaves(inner)))


def _with_values(upload: Tree, leaves: Sequence[Tensor]) -> Tree:
    """Return an upload with other leaves in the order of `_values`."""
    nodes, spec = tree.flatten(upload, is_leaf=lambda n: isinstance(n, Weighted))
    rest, out = iter(leaves), list[Any]()
    for node in nodes:
        value = node.value if isinstance(node, Weighted) else node
        made = tree.map_tree(lambda _: next(rest), value)
        out.append(Weighted(value=made, weight=node.weight) if isinstance(node, Weighted) else made)
    return tree.unflatten(out, spec)


def _squares(values: Any, n: int) -> Tensor:
    """Return the sum of squares of the floating leaves [n, ...] for each of n clients."""
    total = torch.zeros(n, dtype=torch.float64)
    for leaf in tree.leaves(values):
        if leaf.is_floating_point():
            rows = leaf.flatten(1) if leaf.ndim > 1 else leaf[:, None]
            total += torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square().cpu()
    return total
