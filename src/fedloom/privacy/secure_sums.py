"""Secure aggregation in a run: means are of sums in fixed point, which masks leave as they are, bit for bit."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.coordinator.part import Brief, Part
from fedloom.coordinator.trial_round import try_round
from fedloom.core import tree
from fedloom.core.cohort import Total
from fedloom.core.errors import NobodyAnswered, RefusedError, SettingError
from fedloom.core.grammar import arguments
from fedloom.core.types import Failure, Tree, Weighted
from fedloom.data import Examples
from fedloom.engines.accounting import PayloadSize
from fedloom.engines.links import Asked, Link, Question
from fedloom.privacy.fixed_point import Bits, FixedPoint, Words
from fedloom.privacy.masked_terms import LEAST, Terms, bytes_beside
from fedloom.privacy.method_trial import a_few
from fedloom.privacy.weighted_parts import weighted_of

References = Callable[[Tree], Sequence[Tensor | None]]  # stacked uploads -> what was sent in the place of each leaf
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

    def moved(self, uploads: Tree, references: References) -> Tree:
        """Return stacked uploads as they are added up."""
        return uploads

    def fixed(self, whole: float, clients: int) -> FixedUploads:
        """Return how uploads become words: with weights of all clients together up to `whole`."""
        return FixedUploads(self, whole, clients)

    def weights(self, of: Any, round: int, clients: Sequence[int]) -> list[float]:
        """Return the largest weight that each client may have: 1, or its number of examples, which all know.

        Args:
            of: an engine, or a runtime.
            round: from 0.
            clients: their numbers.
        """
        if getattr(of.algorithm, "aggregation", "") == "uniform":
            return [1.0] * len(clients)
        sizes = of.population.at(round).partition.sizes
        return [float(max(1, sizes[k])) for k in clients]

    def check(self, terms: Terms, clients: int) -> None:
        """Raise RefusedError where a device must not be in a sum of some clients with these terms."""


class SecureSums(Part):
    """Refusal of what needs single uploads, and the link that adds them up in fixed point."""

    def __init__(self, asked: SecureAggregation) -> None:
        self.asked, self.links = asked, (InFixedPoint(asked),)

    @classmethod
    def of(cls, job: Brief) -> SecureSums | None:
        text, noisy = job.settings.secure_aggregation, has_noise(job.settings.privacy)
        return None if text == "none" or noisy else cls(SecureAggregation.read(text))

    def check_settings(self, job: Any) -> None:
        """Raise SettingError where something needs single uploads, by what a run is asked for."""
        settings, name = job.settings, type(job.algorithm).__name__
        links = [type(link).__name__ for part in job.parts for link in part.links]
        single, needs = "shows the server no single upload", job.algorithm.requires
        remote = job.federation.train.remote is not None
        for forbidden, what, why in (
            (settings.aggregator != "mean", f"aggregator = {settings.aggregator!r}", single),
            (settings.bound != "none", f"bound = {settings.bound!r}", single),
            (settings.on_nonfinite != "stop", f"on_nonfinite = {settings.on_nonfinite!r}", single),
            (settings.privacy != "none" and not has_noise(settings.privacy), f"privacy = {settings.privacy!r}",
             "leaves nobody but clients to clip and add noise (distributed:...)"),
            (job.attack is not None, f"attack = {type(job.attack).__name__}", "lets nobody change a single upload"),
            (bool(links), f"the link {' '.join(links[:1])}", "shows links no single upload"),
            (settings.partial_sums is not None, f"partial_sums = {settings.partial_sums}", "adds up all at once"),
            (settings.stateless, "stateless = true", "shows the server no client's state"),
            (needs.server_training, f"{name}, whose server trains", "tries methods first: some have no small round"),
            (remote and needs.mixed, f"{name}, which mixes architectures", "adds up devices of one network"),
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
        if remote:
            from fedloom.privacy import mask_secrets as mask_secrets  # which a run needs then, and says so if it cannot

    def check(self, job: Any) -> None:
        self.check_settings(job)
        self.try_link(job, InFixedPoint(self.asked, stop=True))

    def try_link(self, job: Any, link: InFixedPoint) -> None:
        """Raise SettingError where a round with one batch for each client fails with this link."""
        if job.federation.train.remote is not None:
            job = replace(job, federation=_blank(job), fleet=None)
        trial = Part()
        trial.links = (link,)
        settings = replace(job.settings, secure_aggregation="none", privacy="none")  # which would ask for the next one
        try:
            try_round(replace(job, settings=settings), [trial])
        except SettingError as error:
            raise (error.__cause__ if isinstance(error.__cause__, SettingError) else error) from None


class InFixedPoint(Link):
    """Uploads in fixed point: what cannot be written so is not taken, and the others are added up.

    `stop`: raise SettingError instead.
    """

    sums_only = "secure_aggregation"

    def __init__(self, asked: SecureAggregation, *, stop: bool = False) -> None:
        self.asked, self.stop = asked, stop
        self.sum: MaskedMean | None = None  # of the newest question

    def total(self, question: Question, total: Total) -> Total:
        weights = self.asked.weights(question.engine, question.call.round, question.clients)
        self.sum = MaskedMean(self.asked, weights)
        self.least = self.sum.least
        return self.sum

    def answers(self, question: Question, answers: Iterator[Asked]) -> Iterator[Asked]:
        if (mean := self.sum) is None:  # a method without a mean
            yield from answers
            return
        engine, down = question.engine, Counter(control=bytes_beside(mean.clients)[1])
        for request, states, answer in answers:
            n = len(request.clients)
            engine.traffic.count("down", request.clients, [down] * n)
            up = answer.up if answer.upload == () else mean.fixed.sent(question.bill, answer.upload, n)
            yield request, states, replace(answer, up=up)
        try:
            mean.add_up()  # each was added before the next was asked for, and no state has moved
        except NobodyAnswered as error:
            why = dict.fromkeys(question.clients, f"lost: there is no sum: {error}") | engine.lost
            engine.traffic.failed += [Failure(k, why[k], int(question.call.exchange)) for k in sorted(why)]
            raise

    def refuse(self, question: Question, asked: Asked) -> dict[int, str]:
        request, _, answer = asked
        if self.sum is None or not tree.leaves(answer.upload):  # a method without a mean; a device, which looks itself
            return {}
        limits = self.asked.weights(question.engine, question.call.round, request.clients)
        bad = self.sum.beyond(answer.upload, request.clients, limits)
        if bad and self.stop:
            raise SettingError(
                f"in a trial of one batch, secure_aggregation refuses client {min(bad)}: {bad[min(bad)]}"
            )
        return bad


@dataclass(frozen=True)
class FixedUploads:
    """Uploads as words: of each `Weighted` its numbers, and then its weight.

    `whole`: the most that the weights of all clients together may be.
    """

    asked: SecureAggregation
    whole: float
    clients: int

    @functools.cached_property
    def point(self) -> FixedPoint:
        """Fixed point of weighted numbers."""
        return FixedPoint.chosen(self.asked.bits, self.asked.most, self.whole, max(1, self.clients))

    @functools.cached_property
    def heft(self) -> FixedPoint:
        """Fixed point of weights."""
        return FixedPoint(self.point.bits, 1.0, self.whole, max(1, self.clients))

    @property
    def dtype(self) -> torch.dtype:
        """Type in which words travel."""
        return torch.int32 if self.point.bits == 32 else torch.int64

    def sent(self, bill: PayloadSize, uploads: Tree, count: int) -> list[Counter[str]]:
        """Return the bytes by kind that each of `count` clients sends: its words, and the protocol's messages."""
        word, each = self.point.bits // 8, Counter[str]()
        for kind, part in bill.parts_of_uploads(uploads):
            each[kind] += word * sum(leaf[0].numel() for leaf in tree.leaves(part))
        each["control"] += word * len(weighted_of(uploads)[0]) + bytes_beside(self.clients)[0]
        return [each] * count

    def words(self, nodes: Sequence[Weighted[Any]], place: int, most: float = math.inf) -> Words:
        """Return the words of one client.

        Args:
            nodes: of stacked uploads.
            place: of the client in them.
            most: it weighs no more.

        Raises:
            OutOfRange: a number is beyond the range.
        """
        out = list[Words]()
        for node in nodes:
            weight = min(float(node.weight[place]), most)
            flat = torch.cat([leaf[place].detach().double().flatten() for leaf in tree.leaves(node.value)])
            out += [self.point.encode(flat.cpu().numpy(), weight), self.heft.encode(np.ones(1), weight)]
        return np.concatenate(out)


class MaskedMean:
    """Means of uploads, of sums in fixed point (a `Total`).

    `weights`: the largest that each client may have which is asked.
    """

    def __init__(self, asked: SecureAggregation, weights: Sequence[float]) -> None:
        self.asked, self.clients = asked, len(weights)
        self.fixed = asked.fixed(sum(weights), len(weights))
        _ = self.fixed.heft  # refused before anybody is asked
        self.least = max(LEAST, (self.clients - 1) // 2 + 2)  # more than half of each one's neighbours, and it
        self.count = 0
        self._sum: Words | None = None
        self._each: dict[int, Words] = {}
        self._like: list[tuple[list[Tensor], Any]] = []  # of each Weighted
        self._spec: Any = None

    def expect(self, uploads: Tree) -> int:
        """Take note of the shapes of stacked uploads of which the sum will be given; return the number of its words.

        Raises:
            StackingError: there is something else in them than `Weighted`.
            SettingError: there are whole numbers.
        """
        self._note(*weighted_of(uploads))
        return sum(1 + sum(leaf.numel() for leaf in leaves) for leaves, _ in self._like)

    def _note(self, nodes: Sequence[Weighted[Any]], spec: Any) -> None:
        self._spec = spec
        self._like = [(lambda f: ([v[0] for v in f[0]], f[1]))(tree.flatten(node.value)) for node in nodes]

    def give(self, total: Words) -> None:
        """Take the sum of the uploads that are expected, as others have added it up; each counts once it is added.

        Raises:
            RefusedError: numbers and weights within their limits do not give this sum: somebody has sent others.
        """
        rounding = self.clients / 2 * (1 / self.fixed.point.scale + self.asked.most / self.fixed.heft.scale)
        for _, _, numbers, weight in self._decoded(total):
            most = self.asked.most * weight * (1 + 1e-9) + rounding
            if not (0 < weight <= self.fixed.whole + rounding and np.abs(numbers).max(initial=0.0) <= most):
                raise RefusedError(
                    f"the sum is beyond what numbers up to {self.asked.most:g} and weights up to "
                    f"{self.fixed.whole:g} give: a device has sent something else"
                )
        self._sum = total

    def _decoded(self, total: Words) -> Iterator[tuple[list[Tensor], Any, npt.NDArray[np.float64], float]]:
        """Yield of each `Weighted` its leaves, what holds them, and the sums of its weighted numbers and of weights."""
        at = 0
        for leaves, spec in self._like:
            end = at + sum(leaf.numel() for leaf in leaves)
            (weight,) = self.fixed.heft.decode(total[end : end + 1])
            yield leaves, spec, self.fixed.point.decode(total[at:end]), float(weight)
            at = end + 1

    def beyond(self, uploads: Tree, clients: Sequence[int], weights: Sequence[float]) -> dict[int, str]:
        """Return the clients with numbers beyond the range, or weights beyond theirs, and how far."""
        out = dict[int, str]()
        for node in weighted_of(uploads)[0]:
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
        if not tree.leaves(uploads):  # one that is in the sum
            self.count += 1
            return
        nodes, spec = weighted_of(uploads)
        self._note(nodes, spec)
        for i in range(len(nodes[0].weight)):
            vector = self.fixed.words(nodes, i)
            if self.asked.masks:
                self._each[self.count] = vector
            else:
                self._sum = vector if self._sum is None else self._sum + vector
            self.count += 1

    def add_up(self) -> None:
        """Add up under masks what was added, if it is enough for a sum.

        Raises:
            NobodyAnswered: there is no sum.
        """
        if not (self and self._each):
            return
        from fedloom.privacy.masked_in_process import masked_sum  # most simulations need no keys

        try:
            self._sum = masked_sum(self._each, clients=self.clients)
        except RefusedError as error:
            raise NobodyAnswered(str(error)) from None

    def __bool__(self) -> bool:
        """Return whether enough were added for a sum under masks."""
        return self.count >= self.least

    def result(self) -> Tree:
        """Return the uploads' tree with each Weighted replaced by its mean."""
        made = list[Tree]()
        if self._sum is None:
            self.add_up()
        assert self._sum is not None
        for leaves, spec, numbers, weight in self._decoded(self._sum):
            if not weight:
                raise ValueError("the mean of uploads whose weights are all zero")
            parts = np.split(numbers / weight, np.cumsum([leaf.numel() for leaf in leaves])[:-1])
            means = [torch.from_numpy(part).reshape(v.shape).to(v) for part, v in zip(parts, leaves, strict=True)]
            made.append(tree.unflatten(means, spec))
        return tree.unflatten(made, self._spec)


def has_noise(privacy: str) -> bool:
    """Return whether a setting `privacy` has clients add noise before their uploads are masked."""
    return privacy.partition(":")[0] == "distributed"


def _blank(job: Any) -> Any:
    """Return clients with blank examples, in the place of devices, to try a method on."""
    few = a_few(job.federation, max(LEAST, job.federation.num_clients))
    train = Examples(**{field.name: getattr(few.train, field.name) for field in fields(Examples)})
    return replace(few, train=train)
