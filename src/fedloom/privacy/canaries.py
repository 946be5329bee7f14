"""Canaries: clients, or examples, whose clipped upload or gradient is a known direction, put through a private run.

Their directions are orthogonal, so that each is a trial of its own, and as many are left out as are put in. All of the
run's way is its own: draws, exchanges, links, clipping, noise. Directions are spread over several tensors, and longer
than the clip norm.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedloom.algorithms.fedavg import FedAvg
from fedloom.coordinator.part import Part
from fedloom.coordinator.plan import Plan
from fedloom.coordinator.rounds import Coordinator
from fedloom.core import tree
from fedloom.core.batch import Batch, Schedule
from fedloom.core.fold.steps import Step
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.random import derive, generator
from fedloom.core.types import Tree, Weighted
from fedloom.data import Examples, Federation, by_lists
from fedloom.engines.engine_options import Options
from fedloom.engines.links import Link, Question
from fedloom.engines.loop import Loop
from fedloom.engines.message import Answer, Call, Request
from fedloom.engines.population import Population
from fedloom.engines.server_side import Send
from fedloom.privacy.by_example import ByExample, ExampleGradients
from fedloom.privacy.central import Central
from fedloom.privacy.clipped_sums import PrivateSum, is_weighted, values_of
from fedloom.privacy.leakage import Canaries
from fedloom.privacy.private_examples import planned
from fedloom.privacy.secret_draws import Poisson

Floats = npt.NDArray[np.float64]

WANTED = 4000  # canaries that are in
_AT_ONCE = 256  # of them, in one federation, or with one client
_LENGTH = 10.0  # of what a canary sends, in clip norms
_WORK = 1e10  # numbers that are drawn or clipped
_STEPS = 20_000  # of clients with canaries


def of_clients(job: Plan, noise: Tensor, rounds: int, architecture: str) -> Canaries:
    """Put clients into the private rounds of a run, in the place of its own; they train nothing.

    Args:
        job: the run, with privacy of clients.
        noise: as the run has found it.
        rounds: how many to compute.
        architecture: of the clients.
    """
    settings = replace(job.settings, engine="loop", compilation="none", bound="none", state_memory_mib=None)
    plan = replace(job, settings=settings, faults=None, attack=None, parts=(*job.parts, _Watching()))
    inside, outside = list[Floats](), list[Floats]()
    for number in itertools.count():
        coordinator = Coordinator(plan, trains=False)
        part = next(p for p in coordinator.parts.all if isinstance(p, Central))
        part.state = {**part.state, "noise": noise}
        part.seed = derive(settings.seed, "audit", number)
        part.sampler = coordinator.running.sampler = Poisson(part.rate, part.seed)
        asked = _Clients(coordinator, part, architecture, number)
        coordinator.engine.answers = asked.answers  # type: ignore[method-assign]
        with coordinator.threads(), closing(coordinator.engine):
            coordinator.running.server = coordinator.engine.init()
            seen = np.stack([asked.released() for _ in range(rounds)], 1)
        inside.append(seen[: asked.there])
        outside.append(seen[asked.there :])
        work = asked.numbers * rounds * (10 + 3 * part.rate * asked.there) * (number + 2)
        if sum(map(len, inside)) >= WANTED or work > _WORK:
            break
    return Canaries(np.concatenate(inside), np.concatenate(outside), part.mechanism().sum_noise)


class _Clients:
    """Clients that upload a direction each, for one computation of a run."""

    def __init__(self, coordinator: Coordinator, part: Central, architecture: str, number: int) -> None:
        self.coordinator, self.part, self.engine = coordinator, part, coordinator.engine
        people = self.engine.population
        members = [k for k, name in enumerate(people.assignment) if name == architecture]
        (self.method, self.like), *_ = [(m, like) for (a, m), like in part.shapes.items() if a in ("", architecture)]
        sizes = [leaf.numel() if leaf.is_floating_point() else 0 for leaf in values_of(self.like)]
        self.numbers = sum(sizes)
        self.there = min(len(members), self.numbers // 2, _AT_ONCE)
        draw = generator(part.seed or 0, "canaries")
        self.coordinates = _spread(sizes, 4 * self.there, draw)
        self.directions = _orthonormal(sum(map(len, self.coordinates)), 2 * self.there, draw)
        self.place = {k: i for i, k in enumerate(draw.permutation(members)[: self.there].tolist())}
        self.architecture = architecture

    def answers(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[tuple[Request, Any, Answer]]:
        for k in clients:
            if call.method != self.method:
                yield self.engine.ask(call, [k], send)
            elif k in self.place:
                upload = self._upload(call, self.place[k])
                yield self.engine.request(call, [k], send), self.engine.stack([k]), Answer(upload, (), ())

    def _upload(self, call: Call, place: int) -> Tree:
        """Return the upload of the canary at a place, stacked."""
        stacked = tree.stack([self.like])
        question = Question(self.engine, call, (), "", self.engine.bill(call.method), self.architecture)
        direction = _LENGTH * self.part.mechanism().clip * self.directions[:, place]
        parts = np.split(direction, np.cumsum([*map(len, self.coordinates)])[:-1])
        made = []
        for leaf, sent, at, part in zip(
            values_of(stacked), question.references(stacked), self.coordinates, parts, strict=True
        ):
            value = leaf if sent is None else sent[None].clone()
            value.view(-1)[at] += torch.from_numpy(part).to(value)
            made.append(value)
        nodes, spec = tree.flatten(stacked, is_leaf=is_weighted)
        filled = iter(made)
        whole = [tree.map_tree(lambda _: next(filled), node.value) for node in nodes]
        return tree.unflatten([Weighted(w, torch.ones_like(n.weight)) for w, n in zip(whole, nodes, strict=True)], spec)

    def released(self) -> Floats:
        """Compute the next round, and return what of the mean stands in each direction, in clip norms."""
        link = self.coordinator.parts.own[-1].links[0]
        assert isinstance(link, _Totals)
        link.seen.clear()
        self.coordinator.run_round()
        total = link.seen[self.architecture]
        sent = total.references(tree.stack([total.like]))
        moved = [
            (new if old is None else new.double() - old.double()).reshape(-1)[at].double()
            for new, old, at in zip(tree.leaves(total.result()), sent, self.coordinates, strict=True)
        ]
        return np.asarray(torch.cat(moved).numpy() @ self.directions * total.count / total.clip)


class _Totals(Link):
    """Link that keeps the private sums of a round, by architecture."""

    def __init__(self) -> None:
        self.seen: dict[str, PrivateSum] = {}

    def total(self, question: Question, total: Any) -> Any:
        self.seen[question.architecture or ""] = total
        return total


class _Watching(Part):
    """Part with that link."""

    def __init__(self) -> None:
        self.links = (_Totals(),)


def _spread(sizes: Sequence[int], wanted: int, draw: np.random.Generator) -> list[Tensor]:
    """Return coordinates of each tensor: as many of each, as far as it has them, and of all together those wanted."""
    counts, left = [0] * len(sizes), min(wanted, sum(sizes))
    while left:
        open_ones = [i for i, n in enumerate(sizes) if counts[i] < n]
        for i in open_ones:
            more = min(max(1, left // len(open_ones)), sizes[i] - counts[i], left)
            counts[i] += more
            left -= more
    return [torch.from_numpy(np.sort(draw.choice(n, c, replace=False))) for n, c in zip(sizes, counts, strict=True)]


def _orthonormal(numbers: int, count: int, draw: np.random.Generator) -> Floats:
    """Return orthogonal directions of length 1, [numbers, count]."""
    return np.asarray(np.linalg.qr(draw.normal(size=(numbers, count)))[0])


def of_examples(rule: ExampleGradients, plan: Local, size: int, steps: int, seed: int) -> Canaries:
    """Put examples into clients that train by a run's rule and plan: each gradient is a direction.

    Each step is looked at, as epsilon counts it. Small clients are made larger, and their batches with them, which
    leaves the rate at which each example is drawn.

    Args:
        rule: by which gradients are private.
        plan: of local training.
        size: examples of the client.
        steps: of all rounds together.
        seed: of all draws.
    """
    more = max(1, _AT_ONCE // size)
    size, batch_size = size * more, min(plan.batch_size, size) * more
    there = min(size, _AT_ONCE)
    optimiser = SGD(lr=1.0, momentum=0.0, weight_decay=0.0, micro_batch=plan.optimiser.micro_batch)
    local = replace(plan, batch_size=batch_size, optimiser=optimiser, decay=1.0, keep_optimiser=False)
    each = int(planned(np.array([size]), local)[0])
    clients = max(1, min(math.ceil(WANTED / there), _STEPS // steps))
    directions = _orthonormal(2 * there, 2 * there, generator(seed, "canaries"))
    x = np.zeros((size, 2 * there))
    x[:there] = _LENGTH * rule.clip * directions[:, :there].T
    rows = [[*range(k * size, (k + 1) * size)] for k in range(clients)]
    data = Examples(torch.from_numpy(np.tile(x, (clients, 1))).float(), torch.zeros(clients * size).long(), 2)
    watched = _Watched(clip=rule.clip, noise=rule.noise, secret=rule.secret)
    people = Population(
        Federation(data, by_lists(rows)), {"canaries": Model(lambda: _Linear(there))}, task=_Sum(), seed=seed
    )
    engine = Loop(people, FedAvg(local=local), Options(gradients=watched))
    with closing(engine):
        server = engine.init()
        for round in range(-(-steps // each)):
            server = engine.round(server, tuple(range(clients)), round)
    seen = np.stack(watched.seen).reshape(-1, clients, each, 2 * there) @ directions
    by_canary = seen.transpose(3, 1, 0, 2).reshape(2, there * clients, -1)[..., :steps]
    return Canaries(by_canary[0], by_canary[1], rule.noise)


class _Linear(nn.Module):
    """Network whose gradient is its input, in two tensors."""

    def __init__(self, half: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.zeros(half)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ torch.cat([self.first, self.second]))[:, None]


@dataclass(frozen=True)
class _Sum:
    """Task whose loss is the network's answer."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return batch.mean(logits[:, 0])

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        return y == 0


@dataclass(frozen=True, kw_only=True)
class _Watched(ExampleGradients):
    """Rule whose sums of gradients are kept as they are released, `seen`: of each step, in clip norms."""

    seen: list[Floats] = field(default_factory=list, compare=False)

    def instead(self, step: Step, batches: Schedule, context: tuple[Any, ...]) -> tuple[ByExample, tuple[Any, ...]]:
        made, context = super().instead(step, batches, context)
        return _WatchedStep(made, self), context


class _WatchedStep(ByExample):
    """A private step that is looked at."""

    def __init__(self, made: ByExample, rule: _Watched) -> None:
        self.__dict__.update(made.__dict__)
        self.watched = rule

    def advance(
        self, work: Sequence[Tensor], spec: Any, batch: Batch, context: Any, dims: Any, unused: frozenset[int]
    ) -> Tensor | None:
        before = torch.cat(list(work[: spec[0]]))
        value = super().advance(work, spec, batch, context, dims, unused)
        moved = (before - torch.cat(list(work[: spec[0]]))).double() / context[0]
        self.watched.seen.append((moved * context[1] / self.watched.clip).numpy())
        return value
