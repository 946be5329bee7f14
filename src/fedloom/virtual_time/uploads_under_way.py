"""Uploads under way: computed from the version of the model that their clients started from, and taken when they come.

What comes late is counted on the newest model: of n versions ago, its upload is newest + s(n) (trained - sent), as
buffered rounds have it, or newest + s(n) (trained - newest), as FedAsync mixes models. Buffers of a network, such as
statistics of BatchNorm, are mixed in both: a variance plus a difference may be below 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.types import Params, Tree, Weighted
from fedloom.engines.accounting import is_named, sent_models
from fedloom.engines.encoding import with_sets
from fedloom.engines.links import Ask, Asked, Link, Question
from fedloom.engines.message import Answer, Request
from fedloom.virtual_time.staleness import Weight
from fedloom.virtual_time.unwaited_versions import Unwaited, Version

ROWS = "under_way"


class UploadsUnderWay(Link):
    """Answers that come when the schedule says so, on the newest model, with the weight of their age.

    An answer that comes before the model has moved is taken as it is.

    Args:
        schedule: says who starts, and who comes.
        weight: of an age.
        mixes: whether what comes late is a model to mix with, and not a difference.
        share: of the mean in the model, FedAsync's alpha.
    """

    def __init__(self, schedule: Unwaited, weight: Weight, *, mixes: bool = False, share: float = 1.0) -> None:
        self.schedule, self.weight, self.mixes, self.share = schedule, weight, mixes, share
        self.blank: Tree = None
        self._trained: dict[int, Any] = {}  # by client under way, where a round is replayed
        self.rows = {ROWS: self._like_one}

    def _like_one(self) -> Tree:
        return self.blank

    @property
    def _at(self) -> Version:
        assert self.schedule.at is not None
        return self.schedule.at

    def ask(self, question: Question, ask: Ask, clients: Sequence[int]) -> Iterator[Asked]:
        at, engine, here = self._at, question.engine, dict[int, Asked]()
        late = {k: engine.states[engine.keys.row(ROWS, one.place)] for k, one in at.arrivals.items() if one.place >= 0}
        for request, states, answer in ask(sorted(at.started)):
            sent = question.bill.of_request(request.call.sent, request.scatter, len(request.clients))
            engine.traffic.count("down", request.clients, sent)
            for i, k in enumerate(request.clients):
                one = request.one(i), tree.take(states, slice(i, i + 1)), answer_of(answer, i)
                if k in at.arrivals:
                    here[k] = one
                elif k in at.left:  # else its place was given away
                    place = engine.keys.row(ROWS, at.left[k].place)
                    engine.states[place] = kept(question, one, mixes=self.mixes)
                    if one[2].trained is not None:
                        self._trained[k] = one[2].trained
        self._note_lost(engine)
        self.schedule.computed = True
        for k in clients:
            request, states, answer = here[k] if k in here else self._come(question, k, late[k])
            yield request, states, replace(answer, down=[Counter()])

    def _note_lost(self, engine: Any) -> None:
        """Let the record name those who have lost their places."""
        lost = self._at.lost
        engine.lost.update({k: why for (k, _), why in lost.items() if k not in self._at.arrivals})
        engine.traffic.refused += sum(why.startswith("refused") for why in lost.values())

    def _come(self, question: Question, client: int, found: Any) -> Asked:
        """Return an answer that was under way, as it was kept, on the newest model."""
        engine = question.engine
        request = Request.to(question.call, [client], engine.population.seed, engine.states.accepted)
        upload = found["upload"] if self.mixes else _moved(question, found["upload"], lambda now, change: now + change)
        losses, steps = _losses(found["losses"])
        return (
            request,
            found["states"],
            Answer(upload, losses, steps, after=found["after"], trained=self._trained.pop(client, None)),
        )

    def take(self, question: Question, asked: Asked, good: Sequence[int]) -> Answer:
        """Return the answer with the weight of its age: of its difference to the newest model, or its gradient."""
        request, _, answer = asked
        ages = [self._at.number - self._at.arrivals[k].version for k in request.clients]
        factors = [self.share * self.weight(age) for age in ages]
        if all(factor == 1.0 for factor in factors):
            return answer
        given = iter(question.references(answer.upload))

        def weighed(leaf: Tensor) -> Tensor:
            around, each = next(given), torch.tensor(factors, dtype=torch.float64, device=leaf.device)
            if not leaf.is_floating_point():
                return leaf
            by = each.view(-1, *[1] * (leaf.ndim - 1))
            base = leaf.new_zeros(()).double() if around is None else around.double()
            return (base + by * (leaf.double() - base)).to(leaf.dtype)

        nodes, spec = tree.flatten(answer.upload, is_leaf=lambda n: isinstance(n, Weighted))
        made = [
            Weighted(value=tree.map_tree(weighed, n.value), weight=n.weight) if isinstance(n, Weighted) else weighed(n)
            for n in nodes
        ]
        return replace(answer, upload=tree.unflatten(made, spec))


def kept(question: Question, asked: Asked, *, mixes: bool) -> dict[str, Any]:
    """Return what is kept of a client's answer until it comes. `mixes`: models, and not their differences."""
    _, states, answer = asked
    upload = answer.upload if mixes else _moved(question, answer.upload, lambda sent, mine: mine - sent)
    found = {"upload": upload, "states": states, "losses": _summed_up(answer), "after": dict(answer.after)}
    return tree.map_tree(torch.clone, found)  # type: ignore[no-any-return]


def _moved(question: Question, upload: Tree, move: Callable[[Tensor, Tensor], Tensor]) -> Tree:
    """Return a stacked upload with the parameters of its models moved by what was sent in their place."""
    encoders = question.engine.runtime.encoders
    if encoders is not None and encoders.encoders:  # of uploads, which travel as differences then
        return upload
    models = iter(sent_models(question.bill, question.call.broadcast, upload))

    def made(params: Params) -> Params:
        _, sent = next(models)
        return params if sent is None else Params({n: move(sent.params[n], t) for n, t in params.items()})

    return with_sets(upload, is_named, made)


def answer_of(answer: Answer, place: int) -> Answer:
    """Return the answer of one of several clients."""
    here = slice(place, place + 1)
    trained = answer.trained
    if trained is not None and trained[0]:
        trained = trained[0], tree.take(trained[1], here)
    return replace(
        answer, upload=tree.take(answer.upload, here), losses=tuple(t[here] for t in answer.losses),
        steps=tuple(s[here] for s in answer.steps), after=tree.take(dict(answer.after), here), trained=trained,
    )  # fmt: skip


def _summed_up(answer: Answer) -> Tensor:
    """Return of each `minimise` of one client the number of its steps, its mean loss, and its first bad step or -1."""
    rows = list[list[float]]()
    for values, (steps,) in zip(answer.losses, answer.steps, strict=True):
        real = values[0, :steps].double()
        bad = (~real.isfinite()).nonzero().flatten().tolist()
        value = real[bad[0]] if bad else real.sum() / max(steps, 1)
        rows.append([steps, float(value), bad[0] if bad else -1])
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)


def _losses(rows: Tensor) -> tuple[tuple[Tensor, ...], tuple[tuple[int, ...], ...]]:
    """Return losses and steps that say the same as what `_summed_up` kept: of one step, or of all up to the bad one."""
    losses, steps = list[Tensor](), list[tuple[int, ...]]()
    for count, value, bad in rows.tolist():
        length = int(bad) + 1 if bad >= 0 else min(int(count), 1)
        each = torch.zeros(1, length, dtype=torch.float64)
        each[0, -1:] = value
        losses.append(each)
        steps.append((length,))
    return tuple(losses), tuple(steps)
