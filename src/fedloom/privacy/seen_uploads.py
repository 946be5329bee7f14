"""Trainings of a round as others see them: each upload, and the mean of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedloom.coordinator.replay import RoundReplay
from fedloom.core import tree
from fedloom.core.cohort import Total
from fedloom.core.errors import SettingError
from fedloom.core.types import Params, Tree, Weighted, Weights
from fedloom.engines.accounting import is_named, sent_models
from fedloom.engines.links import Asked, Link, Question
from fedloom.engines.message import Answer, Request
from fedloom.privacy.inversion import Movement

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sight:
    """Training that somebody sees, and the rows it was of, which nobody sees.

    Attributes:
        movement: how it has moved a model.
        rows: of the training examples, in the order in which they were first visited.
        clients: whose they are.
    """

    movement: Movement
    rows: Ints
    clients: tuple[int, ...]


@dataclass(frozen=True)
class SeenRound:
    """Uploads of a round by client, and their mean as it leaves the run's own links: clipped, noisy, of masked sums."""

    uploads: dict[int, Sight]
    mean: Sight | None


class Overheard(Link):
    """Link that keeps what was sent and what came back, of the first exchange that moves a model."""

    def __init__(self) -> None:
        self.uploads: dict[int, tuple[Request, float, Weights, Params]] = {}
        self.total_of: tuple[Question, Total] | None = None
        self._newest: tuple[Question, Total] | None = None

    def total(self, question: Question, total: Total) -> Total:
        self._newest = question, total
        return total

    def take(self, question: Question, asked: Asked, good: Sequence[int]) -> Answer:
        request, _, answer = asked
        if (found := movement_of(question, answer.upload)) is not None:
            sent, moved = found
            for i in good:
                one = request.one(i)
                self.uploads.setdefault(
                    one.clients[0], (one, question.call.rate, sent, Params({n: t[i] for n, t in moved.items()}))
                )
            if self.total_of is None:
                self.total_of = self._newest
        return answer


def movement_of(question: Question, uploads: Tree) -> tuple[Weights, Params] | None:
    """Return the model that was sent and how far stacked uploads are from it; None where they have no such model."""
    nodes = tree.flatten(uploads, is_leaf=lambda n: isinstance(n, Weighted) or is_named(n))[0]
    values = [node.value if isinstance(node, Weighted) else node for node in nodes]
    named = [n for value in values for n in tree.flatten(value, is_leaf=is_named)[0] if is_named(n)]
    models = sent_models(question.bill, question.call.broadcast, uploads)
    for (_, sent), got in zip(models, named, strict=True):
        if sent is not None and isinstance(got, Weights) and got.params:
            return sent, Params({n: sent.params[n] - t for n, t in got.params.items()})
    return None


def seen_in(past: RoundReplay, number: int, bare: bool = False) -> SeenRound:
    """Compute a past round again, and return what is seen of it.

    Args:
        past: the run's rounds.
        number: which of them, from 1.
        bare: whether clients make gradients as they would without privacy of examples; nothing that follows is the
            run's then.

    Raises:
        SettingError: no upload of the round is a model in whose place one was sent.
    """
    link, engine = Overheard(), past.coordinator.engine
    options = engine.options
    try:
        if bare:
            if number > 1:
                past.replay(number - 1)
            else:
                past.coordinator.load(past.files, 0)
            other = engine.variant(engine.algorithm, replace(options, gradients=None, links=(*options.links, link)))
            other.states.update({k: engine.states[k] for k in engine.states})
            clients, server = past.coordinator.asked(number - 1)[0], past.coordinator.state[1]
            with past.coordinator.threads():
                other.round(server, tuple(clients), number - 1)
        else:
            engine.options = replace(options, links=(*options.links, link))
            past.replay(number)
    finally:
        engine.options = options
    if not link.uploads:
        raise SettingError(
            f"rows are sought in uploads of a model by clients that were sent one, and round {number} of "
            f"{type(engine.algorithm).__name__} has none: name another round, or analyse another method"
        )
    uploads = {k: _sight(engine, *seen) for k, seen in link.uploads.items()}
    return SeenRound(uploads, _of_mean(link, uploads))


def _sight(engine: Any, request: Request, rate: float, sent: Weights, moved: Params) -> Sight:
    plan = engine.algorithm.training
    batches = engine.population.train_batches(request, plan)
    visited = batches.examples[0][batches.order[0][batches.mask[0]]]
    rows = torch.tensor([*dict.fromkeys(visited.tolist())]).numpy()
    return Sight(Movement(sent, moved, int(batches.num_steps[0]), plan, rate), rows, request.clients)


def _of_mean(link: Overheard, uploads: dict[int, Sight]) -> Sight | None:
    """Return what is seen of the mean; rows of clients in turn."""
    if link.total_of is None or not link.total_of[1]:
        return None
    question, total = link.total_of
    found = movement_of(question, tree.stack([total.result()]))
    if found is None:
        return None
    first = next(iter(uploads.values())).movement
    places = [(i, k, row) for k, one in uploads.items() for i, row in enumerate(one.rows.tolist())]
    movement = replace(
        first, sent=found[0], moved=Params({n: t[0] for n, t in found[1].items()}),
        steps=max(one.movement.steps for one in uploads.values()),
    )  # fmt: skip
    return Sight(movement, np.array([row for *_, row in sorted(places)], np.int64), tuple(uploads))
