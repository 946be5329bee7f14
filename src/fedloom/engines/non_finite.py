"""Numbers that are not finite in what clients and servers compute: where, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.errors import NonFiniteError
from fedloom.engines.links import Asked, Link, Question
from fedloom.engines.message import Answer, Request

REMEDY = "; a lower rate (local.lr, or rates of the method's own) or clipping (local.clip) may help [FL-RUN-016]"


def mean_losses(request: Request, answer: Answer) -> dict[int, float]:
    """Return the mean training loss of each client that took a step: that of its last `minimise`."""
    found: dict[int, float] = {}
    for losses, real in _losses(answer.losses, answer.steps):
        count = real.sum(1)
        means = (torch.where(real, losses, 0.0).double().sum(1) / count).tolist()
        found.update({k: m for k, m, n in zip(request.clients, means, count.tolist(), strict=True) if n})
    return found


def _losses(losses: Sequence[Tensor], steps: Sequence[Sequence[int]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each `minimise` of n clients, its losses by client and step, [n, S], and which steps were taken."""
    for values, counts in zip(losses, steps, strict=True):
        index = torch.arange(values.shape[1], device=values.device)
        yield values, index < torch.tensor(counts, device=values.device)[:, None]


def first_bad_loss(losses: Sequence[Tensor], steps: Sequence[Sequence[int]]) -> dict[int, tuple[int | None, str]]:
    """Return (batch, what) of the first loss that is not finite, for each client that has one, by its place."""
    found: dict[int, tuple[int | None, str]] = {}
    for values, real in _losses(losses, steps):
        wrong = real & ~values.isfinite()
        for i in wrong.any(1).nonzero().flatten().tolist():
            batch = int(wrong[i].nonzero()[0])
            found.setdefault(i, (batch, f"the loss is {float(values[i, batch])}"))
    return found


def at_batch(what: str, batch: int | None) -> str:
    """Say what happened, and at which batch where that is known."""
    return what if batch is None else f"{what} at batch {batch}"


def finite(values: Any) -> bool:
    """Return whether all floating leaves are finite.

    NaN and infinity survive a sum, which reads each tensor once.
    """
    sums = [t.sum(dtype=torch.float64) for t in tree.leaves(values) if t.is_floating_point()]
    return not sums or bool(torch.stack(sums).isfinite().all())


def not_finite(request: Request, states: Any, answer: Answer) -> dict[int, tuple[int | None, str]]:
    """Return the clients with losses, uploads or states that are not finite: (batch, what) of each."""
    ids = request.clients
    bad = {ids[i]: found for i, found in first_bad_loss(answer.losses, answer.steps).items()}
    for kind, values in (("upload", answer.upload), ("state", states)):
        for leaf in tree.leaves(values):
            if leaf.is_floating_point():
                # NaN and infinity survive a sum, which reads the tensor once
                total = leaf.flatten(1).sum(1, dtype=torch.float64) if leaf.ndim > 1 else leaf
                for i in (~total.isfinite()).nonzero().flatten().tolist():
                    bad.setdefault(ids[i], (None, f"the {kind} is not finite"))
    return bad


class Finite(Link):
    """Answers with numbers that are not finite: these clients are refused, or end the run. `stop`: which of both."""

    def __init__(self, *, stop: bool) -> None:
        self.stop = stop

    def refuse(self, question: Question, asked: Asked) -> dict[int, str]:
        request, states, answer = asked
        wrong = not_finite(request, states, answer) if answer.summed is None else answer.summed.wrong
        return refused(request, wrong, stop=self.stop)


def refused(request: Request, bad: Mapping[int, tuple[int | None, str]], stop: bool) -> dict[int, str]:
    """Return the clients in which `not_finite` found something, and what it is.

    Where what the server sent them is not finite, that is given as the reason instead.

    Raises:
        NonFiniteError: there is one, and `stop`.
    """
    call = request.call
    if bad and not finite((call.broadcast, request.scatter)):
        if stop:
            what = f"what it sends to {call.method} is not finite{REMEDY}"
            raise NonFiniteError(what, client=None, round=call.round + 1)
        return dict.fromkeys(bad, "what the server sent is not finite")
    if bad and stop:
        k, (where, what) = next(iter(bad.items()))
        raise NonFiniteError(what + REMEDY, client=k, round=call.round + 1, batch=where)
    return {k: at_batch(what, where) for k, (where, what) in bad.items()}
