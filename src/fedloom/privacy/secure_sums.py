"""Secure aggregation in a run: means are of sums in fixed point, which masks leave as they are, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedloom.coordinator.part import Brief, Part
from fedloom.coordinator.trial_round import try_round
from fedloom.core import tree
from fedloom.core.cohort import Total
from fedloom.core.errors import SettingError, StackingError
from fedloom.core.grammar import arguments
from fedloom.core.types import Tree, Weighted, Weights
from fedloom.engines.accounting import is_named
from fedloom.engines.links import Asked, Link, Question
from fedloom.privacy.fixed_point import Bits, FixedPoint, Words
from fedloom.privacy.masked_terms import LEAST

_FORM = "range=8,bits=32,masks=true"
_KEYS = {"range": float, "bits": int, "masks": bool}


@dataclass(frozen=True)
class SecureAggregation:
    """Secure aggregation as it was asked for.

    Attributes:
        most: the range: numbers of uploads are at most this far from 0.
        bits: of a word; None: 32 where means of a cohort err by at most 1e-6, else 64.
        masks: whether a simulation masks too, and not only adds up as if it did.
    """

    most: float
    bits: Bits | None = None
    masks: bool = False

    @classmethod
    def read(cls, text: str) -> SecureAggregation:
        """Return what a text asks for.

        Raises:
            SettingError: something is missing, said twice or out of range.
        """
        found = arguments("secure_aggregation", text.replace(",", "&"), _KEYS, _FORM)
        most, bits = found.get("range", math.nan), found.get("bits")
        if not most > 0 or bits not in (None, 32, 64):
            raise SettingError(
                f"secure_aggregation has a range above 0, and words of 32 or 64 bits, got {text!r}: write range=8, or "
                f"{_FORM}"
            )
        return cls(most, cast(Bits | None, bits), found.get("masks", False))


class SecureSums(Part):
    """Refusal of what needs single uploads, and the link that adds them up in fixed point."""

    def __init__(self, asked: SecureAggregation) -> None:
        self.asked, self.links = asked, (InFixedPoint(asked),)

    @classmethod
    def of(cls, job: Brief) -> SecureSums | None:
        text = job.settings.secure_aggregation
        return None if text == "none" else cls(SecureAggregation.read(text))

    def check(self, job: Any) -> None:
        settings, name = job.settings, type(job.algorithm).__name__
        links = [type(link).__name__ for part in job.parts for link in part.links]
        single, needs = "shows the server no single upload", job.algorithm.requires
        for forbidden, what, why in (
            (job.federation.train.remote is not None, "devices", "is for simulations yet"),
            (settings.aggregator != "mean", f"aggregator = {settings.aggregator!r}", single),
            (settings.bound != "none", f"bound = {settings.bound!r}", single),
            (settings.on_nonfinite != "stop", f"on_nonfinite = {settings.on_nonfinite!r}", single),
            (settings.privacy != "none", f"privacy = {settings.privacy!r}", "leaves nobody to clip and add noise"),
            (job.attack is not None, f"attack = {type(job.attack).__name__}", "lets nobody change a single upload"),
            (bool(links), f"the link {' '.join(links[:1])}", "shows links no single upload"),
            (settings.partial_sums is not None, f"partial_sums = {settings.partial_sums}", "adds up all at once"),
            (settings.stateless, "stateless = true", "shows the server no client's state"),
            (needs.server_training, f"{name}, whose server trains", "tries methods first: some have no small round"),
        ):  # fmt: skip
            if forbidden:
                raise SettingError(
                    f"secure_aggregation = {settings.secure_aggregation!r} {why}, got {what}: leave one of them out"
                )
        if job.trainees.cohort_size < LEAST:
            raise SettingError(
                f"secure_aggregation adds up {LEAST} clients or more, and a round asks {job.trainees.cohort_size}: "
                "raise cohort_size (--cohort)"
            )
        trial = Part()
        trial.links = (InFixedPoint(self.asked, stop=True),)
        try:  # in which the setting would ask for the next trial
            try_round(replace(job, settings=replace(settings, secure_aggregation="none")), [trial])
        except SettingError as error:
            raise (error.__cause__ if isinstance(error.__cause__, SettingError) else error) from None


class InFixedPoint(Link):
    """Uploads in fixed point: what cannot be written so is not taken, and the others are added up.

    `stop`: raise SettingError instead.
    """

    sums_only = "secure_aggregation"

    def __init__(self, asked: SecureAggregation, *, stop: bool = False) -> None:
        self.asked, self.stop = asked, stop
        self._sum: MaskedMean | None = None

    def total(self, question: Question, total: Total) -> Total:
        self._sum = MaskedMean(self.asked, _largest_weights(question, question.clients))
        self.least = self._sum.least
        return self._sum

    def refuse(self, question: Question, asked: Asked) -> dict[int, str]:
        request, _, answer = asked
        if self._sum is None:  # the upload of a method without a mean
            return {}
        limits = _largest_weights(question, request.clients)
        bad = self._sum.beyond(answer.upload, request.clients, limits)
        if bad and self.stop:
            raise SettingError(
                f"in a trial of one batch, secure_aggregation refuses client {min(bad)}: {bad[min(bad)]}"
            )
        return bad


class MaskedMean:
    """Means of uploads, of sums in fixed point (a `Total`).

    `weights`: the largest that each client may have which is asked.
    """

    def __init__(self, asked: SecureAggregation, weights: Sequence[float]) -> None:
        self.asked, self.clients = asked, len(weights)
        whole, n = sum(weights), max(1, len(weights))
        self.point = FixedPoint.chosen(asked.bits, asked.most, whole, n)
        self.heft = FixedPoint(self.point.bits, 1.0, whole, n)  # of weights
        self.least = max(LEAST, (self.clients - 1) // 2 + 2)  # more than half of each one's neighbours, and it
        self.count = 0
        self._sum: Words | None = None
        self._each: dict[int, Words] = {}
        self._like: list[tuple[list[Tensor], Any]] = []  # of each Weighted
        self._spec: Any = None

    def beyond(self, uploads: Tree, clients: Sequence[int], weights: Sequence[float]) -> dict[int, str]:
        """Return the clients with numbers beyond the range, or weights beyond theirs, and how far."""
        out = dict[int, str]()
        for node in self._nodes(uploads)[0]:
            rows = [
                leaf.detach().abs().flatten(1) if leaf.ndim > 1 else leaf.abs()[:, None]
                for leaf in tree.leaves(node.value)
            ]
            largest = torch.stack([r.double().amax(1) for r in rows if r.shape[1]]).amax(0).tolist()
            for k, number, weight, most in zip(clients, largest, node.weight.tolist(), weights, strict=True):
                if not number <= self.asked.most:
                    out[k] = (
                        f"its upload has a number of {number:.4g}, and secure_aggregation has range={self.asked.most:g}"
                        ": raise the range if it is sound"
                    )
                elif not 0 <= weight <= most:
                    out[k] = (
                        f"its upload weighs {weight:.4g}, and secure_aggregation takes at most {most:g}: weigh clients "
                        "by examples, or alike"
                    )
        return out

    def add(self, uploads: Tree) -> None:
        nodes, self._spec = self._nodes(uploads)
        self._like = [(lambda f: ([v[0] for v in f[0]], f[1]))(tree.flatten(node.value)) for node in nodes]
        for i in range(len(nodes[0].weight)):
            words = list[Words]()
            for node in nodes:
                weight = float(node.weight[i])
                flat = torch.cat([leaf[i].detach().double().flatten() for leaf in tree.leaves(node.value)])
                words += [self.point.encode(flat.cpu().numpy(), weight), self.heft.encode(np.ones(1), weight)]
            vector = np.concatenate(words)
            if self.asked.masks:
                self._each[self.count] = vector
            else:
                self._sum = vector if self._sum is None else self._sum + vector
            self.count += 1

    def __bool__(self) -> bool:
        """Return whether enough were added for a sum under masks."""
        return self.count >= self.least

    def result(self) -> Tree:
        """Return the uploads' tree with each Weighted replaced by its mean."""
        total, made, at = self._total(), list[Tree](), 0
        for leaves, spec in self._like:
            size = sum(leaf.numel() for leaf in leaves)
            numbers, heft = self.point.decode(total[at : at + size]), self.heft.decode(total[at + size : at + size + 1])
            if not heft[0]:
                raise ValueError("the mean of uploads whose weights are all zero")
            at += size + 1
            parts = np.split(numbers / heft[0], np.cumsum([leaf.numel() for leaf in leaves])[:-1])
            means = [torch.from_numpy(part).reshape(v.shape).to(v) for part, v in zip(parts, leaves, strict=True)]
            made.append(tree.unflatten(means, spec))
        return tree.unflatten(made, self._spec)

    def _total(self) -> Words:
        if not self.asked.masks:
            assert self._sum is not None
            return self._sum
        from fedloom.privacy.masked_in_process import masked_sum  # most simulations need no keys

        return masked_sum(self._each, clients=self.clients)

    def _nodes(self, uploads: Tree) -> tuple[list[Weighted[Any]], Any]:
        """Return the `Weighted` of uploads, and what holds them.

        Raises:
            StackingError: there is something else in them.
            SettingError: there are whole numbers, of which a mean is the maximum.
        """
        nodes, spec = tree.flatten(uploads, is_leaf=lambda n: isinstance(n, Weighted))
        if not all(isinstance(node, Weighted) for node in nodes):
            raise StackingError(tree.UNWEIGHTED)
        if names := [name for node in nodes for name in _whole_numbers(node.value)]:
            raise SettingError(
                f"secure_aggregation adds up floating numbers, and the mean of {', '.join(names[:3])} would be a "
                "maximum, which no sum gives: leave such counters out of uploads (buffers = 'local' or 'server'), or "
                "take a network or a method without them"
            )
        return nodes, spec


def _whole_numbers(value: Tree) -> list[str]:
    """Return the names of the tensors in stacked values that are not floating."""
    out = list[str]()
    for node in tree.flatten(value, is_leaf=is_named)[0]:
        named = (
            {**node.params, **node.buffers}
            if isinstance(node, Weights)
            else node
            if is_named(node)
            else {"a tensor": node}
        )
        out += [name for name, leaf in named.items() if not leaf.is_floating_point()]
    return out


def _largest_weights(question: Question, clients: Sequence[int]) -> list[float]:
    """Return the largest weight that each client may have: 1, or its number of examples, which all know."""
    engine = question.engine
    if getattr(engine.algorithm, "aggregation", "") == "uniform":
        return [1.0] * len(clients)
    sizes = engine.population.at(question.call.round).partition.sizes
    return [float(max(1, sizes[k])) for k in clients]
