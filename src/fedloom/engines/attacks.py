"""Simulated clients that lie, in what they upload or by what they train on: who they are, and when they lie."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.choices import check_choices
from fedloom.core.errors import SettingError
from fedloom.core.random import derive, generator, normal
from fedloom.core.types import Tree, Weighted, Weights
from fedloom.data import Federation
from fedloom.engines.accounting import PayloadSize, sent_tensors
from fedloom.engines.links import Asked, OfUploads, Question
from fedloom.engines.message import Call, Request
from fedloom.engines.population import Population


@dataclass(frozen=True)
class Attack:
    """Clients that lie, the same ones in every round: those that are listed, or a share of all, drawn by the seed.

    They train, keep their state and are evaluated as the others; only what is uploaded is a lie. Weights of means are
    true, and so are integers and the buffers of models, whose lies (a negative variance) would show.
    """

    share: float | None = field(default=None, kw_only=True)
    clients: tuple[int, ...] = field(default=(), kw_only=True)
    seed: int = field(default=0, kw_only=True)

    least = 1  # attackers, without whom it is none
    together = False  # whether it needs the uploads of all attackers at once

    def __post_init__(self) -> None:
        check_choices(self)
        if (self.share is None) == (not self.clients):
            raise SettingError(
                f"attackers are a share of the clients or a list of them, got share = {self.share} and clients = "
                f"{self.clients}: give one of both"
            )
        if self.share is not None and not 0 < self.share <= 1:
            raise SettingError(f"the share of attackers is above 0 and at most 1, got {self.share:g}: set 0.25")
        if len(set(self.clients)) < len(self.clients):
            raise SettingError(f"attackers are distinct clients, got {self.clients}: name each once")

    def attackers(self, num_clients: int) -> frozenset[int]:
        """Return the clients that lie, of so many."""
        if self.share is None:
            return frozenset(self.clients)
        count = math.floor(self.share * num_clients + 1e-9)
        return frozenset(generator(self.seed, "attackers").permutation(num_clients)[:count].tolist())

    def check(self, federation: Federation) -> None:
        """Raise SettingError where these are no attackers of this federation."""
        there = federation.num_clients
        if self.clients and not 0 <= min(self.clients) <= max(self.clients) < there:
            raise SettingError(f"attackers are among the clients 0..{there - 1}, got {self.clients}: name others")
        if (count := len(self.attackers(there))) < self.least:
            which = f"a share of {self.share:g}" if self.share is not None else f"the list {self.clients}"
            raise SettingError(
                f"{type(self).__name__} needs {self.least} attackers, got {which} of {there} clients, which is "
                f"{count}: raise it"
            )

    def labels(self, y: Tensor, num_classes: int) -> Tensor | None:
        """Return the labels on which attackers train in the place of y; None: on y."""
        return None

    def inputs(self, x: Tensor) -> Tensor | None:
        """Return the inputs on which attackers train in the place of x; None: on x."""
        return None

    def values(self, honest: Tensor, sent: Tensor, draw: Draw) -> Tensor:
        """Return what M attackers upload in the place of a tensor [M, ...].

        `sent`: what they were sent in its place, or zeros where an upload is no model that was sent.
        """
        return honest

    def in_round(
        self, answers: Iterable[Asked], call: Call, asked: int, payload: PayloadSize, population: Population
    ) -> Iterator[Asked]:
        """Yield the answers to a call as `asked` clients give them of whom some lie."""
        liars = self.attackers(population.num_clients)
        for several in [list(answers)] if self.together else ([answer] for answer in answers):
            places = [[i for i, k in enumerate(request.clients) if k in liars] for request, *_ in several]
            lying = [(one, there) for one, there in zip(several, places, strict=True) if there]
            uploads = [tree.take(one[2].upload, torch.tensor(there)) for one, there in lying]
            lies = iter(
                self._lies(uploads, [k for one, there in lying for k in _names(one[0], there)], call, asked, payload)
            )
            for one, there in zip(several, places, strict=True):
                request, states, answer = one
                yield (
                    (request, states, replace(answer, upload=_put(answer.upload, there, next(lies)))) if there else one
                )

    def _lies(
        self, uploads: Sequence[Tree], clients: Sequence[int], call: Call, asked: int, payload: PayloadSize
    ) -> Iterator[Tree]:
        """Yield what attackers upload in the place of each of these, stacked."""
        whole = tree.cat(uploads) if uploads else ()
        leaves, spec = tree.flatten(whole)
        if not leaves:
            yield from uploads
            return
        out = list(leaves)
        sent = sent_tensors(payload, call.broadcast, whole)
        keys = [derive(self.seed, "attack", call.round, call.exchange, k) for k in clients]
        for number, place in _uploaded(whole):
            if place is not None and (honest := leaves[place]).is_floating_point():
                given = sent[number]
                base = torch.zeros_like(honest[0]) if given is None else given
                out[place] = self.values(honest.double(), base.double(), Draw(keys, number, asked)).to(honest.dtype)
        lies, first = tree.unflatten(out, spec), 0
        for upload in uploads:
            count = len(tree.leaves(upload)[0])
            yield tree.take(lies, slice(first, first + count))
            first += count


@dataclass(frozen=True)
class Draw:
    """Draws of an attack, and what it knows of the round.

    `keys`: of each attacker in this exchange. `number`: that of the tensor in the upload. `asked`: clients of the
    exchange.
    """

    keys: Sequence[int]
    number: int
    asked: int

    def normal(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Return standard normal numbers for each attacker, [M, *shape]."""
        each = [normal(torch.tensor(key, device=device), self.number, shape) for key in self.keys]
        return torch.stack(each).double()


class Lies(OfUploads):
    """Lies of clients in the place of what they have learnt."""

    def __init__(self, attack: Attack) -> None:
        self.attack, self.said = attack, f"attack = {type(attack).__name__}"
        self._uploaded = None if type(attack).labels is Attack.labels else True  # it changes what is trained on

    def answers(self, question: Question, answers: Iterator[Asked]) -> Iterator[Asked]:
        call, asked = question.call, len(question.clients)
        for one in self.attack.in_round(answers, call, asked, question.bill, question.engine.population):
            self.saw(one[2].upload)
            yield one


def poisoned(population: Population, attack: Attack) -> Population:
    """Return the population whose attackers train on the examples of an attack; what they hold out stays as it is.

    Raises:
        SettingError: it changes images, of which a network is given the outputs of its front.
    """

    def of(federation: Federation) -> Federation:
        train, attackers = federation.train, sorted(attack.attackers(population.num_clients))
        rows = torch.from_numpy(np.concatenate([federation.partition.rows(k) for k in attackers]))
        labels, inputs = attack.labels(train.y[rows], train.num_classes), attack.inputs(train.x[rows])
        x, y = train.x, train.y
        if labels is not None:
            y = y.clone()
            y[rows] = labels
        if inputs is not None:
            x = x.clone()
            x[rows] = inputs
        return federation if labels is inputs is None else replace(federation, train=replace(train, x=x, y=y))

    if type(attack).labels is Attack.labels and type(attack).inputs is Attack.inputs:
        return population
    if population.behind and type(attack).inputs is not Attack.inputs:
        raise SettingError(
            f"{type(attack).__name__} changes what attackers train on, and frozen layers at the front have computed it "
            "once: set front = 'off' (--front off)"
        )
    behind = {name: of(its) for name, its in population.behind.items()}
    return replace(population, federation=of(population.federation), behind=behind)


def _names(request: Request, places: Sequence[int]) -> list[int]:
    return [request.clients[i] for i in places]


def _put(upload: Tree, places: Sequence[int], lies: Tree) -> Tree:
    """Return stacked uploads with lies in some places."""
    index = torch.tensor(places)
    return tree.map_tree(lambda rows, lie: rows.index_copy(0, index.to(rows.device), lie), upload, lies)


def _uploaded(upload: Tree) -> Iterator[tuple[int, int | None]]:
    """Yield, for each leaf of the values, its number among these and its place among all leaves.

    The place is None for a buffer of a model, about which nobody lies.
    """
    number = place = 0
    for node in tree.flatten(upload, is_leaf=lambda n: isinstance(n, Weighted))[0]:
        weighted = isinstance(node, Weighted)
        value = node.value if weighted else node
        for inner in tree.flatten(value, is_leaf=lambda n: isinstance(n, Weights))[0]:
            trained = len(inner.params) if isinstance(inner, Weights) else 1
            for i in range(len(tree.leaves(inner))):
                yield number, place if i < trained else None
                number, place = number + 1, place + 1
        place += len(tree.leaves(node.weight)) if weighted else 0
