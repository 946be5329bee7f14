"""Gradients by example: each clipped, noise in their sum, and batches drawn by Poisson sampling (DP-SGD).

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang. *Deep Learning with Differential Privacy.* CCS 2016.
https://arxiv.org/abs/1607.00133, Algorithm 1.

    g = (sum_i g_i min(1, C / |g_i|) + N(0, (noise C)^2)) / L        L = min(batch size, examples of the client)

Each example is in each batch with probability L / n, whoever else is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedloom.core.batch import Batch, Schedule
from fedloom.core.errors import StackingError
from fedloom.core.fold.execution import current
from fedloom.core.fold.purity import identity
from fedloom.core.fold.steps import Descent, Step
from fedloom.core.local_training import Local
from fedloom.core.optimiser import Optimiser
from fedloom.core.random import fold_in
from fedloom.privacy.draws import entropy, source

HELD = 64 << 20  # bytes of gradients by example at a time, for a client


class ReadsExamplesError(StackingError):
    """A client reads its training examples, and makes no private gradients of them."""


@dataclass(frozen=True, kw_only=True)
class ExampleGradients:
    """Rule by which gradients are private for each example.

    Attributes:
        clip: the L2 norm that the gradient of an example has at most.
        noise: standard deviation of the noise in the sum, as a multiple of `clip`.
        secret: whether draws come from the system's entropy, and not from keys that the server has too.
        batch_size: expected examples of a batch, of a client that has so many.
        rows: examples of which there are gradients at a time; None: as many as `HELD` bytes hold.
    """

    clip: float
    noise: float
    secret: bool = False
    batch_size: int = 0
    rows: int | None = None
    entropy: str = field(init=False)  # for the manifest

    def __post_init__(self) -> None:
        object.__setattr__(self, "entropy", entropy(self.secret))

    def of(self, local: Local) -> ExampleGradients:
        """Return the rule of a training with this plan."""
        return replace(self, batch_size=local.batch_size, rows=local.optimiser.micro_batch)

    def held(self, trained: int) -> int:
        """Return the most bytes of gradients by example, `trained` each, with a copy: of a batch of twice its size."""
        return 2 * trained * min(2 * self.batch_size, self.rows or max(1, HELD // max(1, trained)))

    def instead(self, step: Step, batches: Schedule, context: tuple[Any, ...]) -> tuple[ByExample, tuple[Any, ...]]:
        """Return the step of a training on a client's own examples, and its context, in the place of those given.

        Raises:
            ReadsExamplesError: no gradients are made of these.
        """
        if not isinstance(step, Descent):
            raise ReadsExamplesError(
                "examples are private by clipped gradients with noise, and this fold reads a client's training "
                "examples beside them: train by minimise alone, or leave privacy out"
            )
        (lr, *rest), expected = context, batches.num_examples.clamp(1, self.batch_size).double()
        return ByExample(step.loss, step.optimiser, step.correct, step.goes_on, self), (lr, expected, *rest)


class ByExample(Descent):
    """A gradient step of an optimiser on gradients that are clipped example by example, with noise."""

    functional = True

    def __init__(
        self, loss: Callable[..., Any], optimiser: Optimiser, correct: Any, goes_on: bool, rule: ExampleGradients
    ) -> None:
        # context begins with what `_in_pieces` needs, which losses and corrections are not given
        given = correct and (lambda g, told, *context: correct(g, *context))
        super().__init__(lambda w, batch, told, *context: loss(w, batch, *context), optimiser, given, goes_on)
        self.rule, self.callables = rule, (loss,) if correct is None else (loss, correct)
        self.identity = identity((type(self), loss, optimiser, correct, goes_on, rule))

    def batches(self, batches: Schedule) -> Schedule:
        """Return as many batches, each drawn by Poisson sampling; of a second training of the same ones, others."""
        rule, number, one = self.rule, len(current().losses), batches.order.ndim == 2
        sizes, steps, keys = (t.reshape(-1).tolist() for t in (batches.num_examples, batches.num_steps, batches.key))
        drawn = []
        for n, count, key in zip(sizes, steps, keys, strict=True):
            draw, rate = source(rule.secret, key, number), min(1.0, rule.batch_size / max(n, 1))
            drawn.append([np.flatnonzero(draw.uniform(n) < rate) for _ in range(count)])
        width = max((len(rows) for each in drawn for rows in each), default=1)
        order = np.zeros((len(drawn), batches.order.shape[-2], max(1, width)), np.int64)
        mask = np.zeros(order.shape, np.bool_)
        for k, each in enumerate(drawn):
            for s, rows in enumerate(each):
                order[k, s, : len(rows)], mask[k, s, : len(rows)] = rows, True
        places, real = (torch.from_numpy(t[0] if one else t).to(batches.order.device) for t in (order, mask))
        return replace(batches, order=places, mask=real)

    def start(self, carry: Any, lead: int) -> tuple[list[Tensor], Any]:
        work, spec = super().start(carry, lead)
        return [*work, *map(torch.zeros_like, work[: spec[0]])], spec  # last, the noise of a step

    def finish(self, work: list[Tensor], spec: Any) -> Any:
        return super().finish(work[: -spec[0]], spec)

    def before(self, work: Sequence[Tensor], spec: Any, key: Tensor) -> None:
        """Draw the noise of a step: here, since a graph would have the same in every step."""
        rule, noise = self.rule, work[-spec[0] :]
        rows = [[t] for t in noise] if key.ndim == 0 else [t.unbind(0) for t in noise]
        for word, each in zip(key.reshape(-1).tolist(), zip(*rows, strict=True), strict=True):
            draw = source(rule.secret, word, "noise")
            for t in each:
                t.copy_(torch.from_numpy(draw.normal(tuple(t.shape), t.dtype)).mul_(rule.noise * rule.clip))

    def advance(
        self, work: Sequence[Tensor], spec: Any, batch: Batch, context: Any, dims: Any, unused: frozenset[int]
    ) -> Tensor | None:
        p = spec[0]
        noise = [torch.zeros_like(t) if i in unused else t for i, t in enumerate(work[-p:])]
        lr, expected, *rest = context
        context = (lr, (expected, noise), *rest)
        if dims is not None:
            of_batch, (of_lr, of_expected, *of_rest) = dims
            dims = of_batch, (of_lr, (of_expected, [0] * p), *of_rest)
        value = super().advance(work[:-p], spec, batch, context, dims, unused)
        return None if self.rule.secret else value  # a loss has no noise, and stays where its examples are

    def find_unused(self, work: Sequence[Tensor], spec: Any, batch: Batch, context: Any) -> frozenset[int]:
        return Descent(self.loss, self.optimiser, None).find_unused(work, spec, batch, context)

    def _in_pieces(
        self, once: Callable[..., Any], trained: Sequence[Tensor], rest: Sequence[Tensor], batch: Batch, context: Any
    ) -> tuple[Sequence[Tensor | None], Tensor, list[Tensor]]:
        """Return the private gradient of a batch, its loss, and what has moved untrained: nothing.

        Gradients by example are there for some rows at a time: `micro_batch`, or as many as `HELD` holds.
        """
        (expected, noise), rows = context[0], batch.mask.shape[0]
        size = self.optimiser.micro_batch or max(1, HELD // max(1, sum(t.nbytes for t in trained)))
        keys = fold_in(batch.key, torch.arange(rows, device=batch.mask.device))

        def alone(x: Tensor, y: Tensor, key: Tensor, notes: dict[str, Tensor]) -> Any:
            real = torch.ones(1, dtype=torch.bool, device=y.device)
            notes = {name: t[None] for name, t in notes.items()}
            own = Batch(x=x[None], y=y[None], mask=real, key=key, notes=notes, progress=batch.progress, full=True)
            grads, value, _ = once(trained, rest, own, context)
            return grads, value

        total, loss = list(noise), torch.zeros_like(expected)
        for start in range(0, rows, size):
            here = slice(start, start + size)
            notes = {name: table[here] for name, table in batch.notes.items()}
            grads, values = vmap(alone)(batch.x[here], batch.y[here], keys[here], notes)
            summed = self._clipped(grads, batch.mask[here])
            total = [old + new for old, new in zip(total, summed, strict=True)]
            loss = loss + torch.where(batch.mask[here], values.double(), 0.0).sum()
        return [t / expected.to(t.dtype) for t in total], (loss / expected).to(values.dtype), list(rest)

    def _clipped(self, grads: Sequence[Tensor], mask: Tensor) -> list[Tensor]:
        """Return the sum over the real examples of their gradients, [b, ...] each, clipped."""
        flat = [g.reshape(len(mask), -1) for g in grads]
        norm = torch.stack([torch.linalg.vector_norm(g, dim=1) for g in flat]).square().sum(0).sqrt()
        fine = mask & norm.isfinite()  # what is not finite would show in the sum, however small its share may be
        share = torch.where(fine, (self.rule.clip / (norm + 1e-6)).clamp(max=1.0), 0.0)
        kept = (g.contiguous().nan_to_num_(0.0, 0.0, 0.0) for g in flat)  # in place: gradients by example are large
        return [(share.to(g.dtype) @ g).reshape(whole.shape[1:]) for g, whole in zip(kept, grads, strict=True)]
