"""The cohort that an engine gives to a round: it asks, and accepts or refuses what comes back."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.client import Public
from fedloom.core.cohort import Predict, Reduction, Replies, Scatter, Total
from fedloom.core.errors import NobodyAnswered, SettingError, StackingError
from fedloom.core.model import Model
from fedloom.core.random import derive
from fedloom.core.types import Failure
from fedloom.engines.links import Asked, Question
from fedloom.engines.message import Answer, Call, Request
from fedloom.engines.non_finite import mean_losses
from fedloom.engines.personal import models_in
from fedloom.engines.round_traffic import Exchange
from fedloom.engines.server_side import Send, ServerSide


class AskedCohort:
    """The clients of one round, or those of them that are still there: a `fedloom.core.cohort.Cohort`."""

    def __init__(
        self,
        engine: ServerSide,
        clients: tuple[int, ...],
        round: int,
        *,
        exchanges: dict[int, int] | None = None,
        architecture: str | None = None,
    ) -> None:
        self.engine, self.clients, self.round = engine, clients, round
        # How often each client was asked in this round: what it draws must not depend on other architectures.
        self.exchanges = {} if exchanges is None else exchanges
        self.architecture = architecture

    @property
    def ids(self) -> Tensor:
        return torch.tensor(self.clients, dtype=torch.int64, device=self.engine.population.device)

    @property
    def num_clients(self) -> int:
        p = self.engine.population
        return p.num_clients if self.architecture is None else p.members[self.architecture]

    @property
    def least(self) -> int:
        return self.engine.least

    @property
    def model(self) -> Model:
        names = {self.engine.population.assignment[k] for k in self.clients}
        if len(names) != 1:
            raise StackingError(
                f"this cohort has the architectures {sorted(names)}: use group.model for group in cohort.groups"
            )
        return self.engine.population.models[names.pop()]

    @property
    def groups(self) -> Sequence[AskedCohort]:
        p = self.engine.population
        by_model = {n: tuple(k for k in self.clients if p.assignment[k] == n) for n in p.models}
        return [self._with(c, architecture=n) for n, c in by_model.items() if c]

    @property
    def sizes(self) -> Tensor:
        p = self.engine.population
        return torch.as_tensor(p.at(self.round).partition.sizes[list(self.clients)], device=p.device)

    @property
    def num_public(self) -> int:
        public = self.engine.population.federation.public
        return 0 if public is None else len(public)

    @property
    def public(self) -> Public:
        return self.engine.population.public

    def only(self, clients: Tensor) -> AskedCohort:
        wanted = set(clients.tolist())
        return self._with(tuple(k for k in self.clients if k in wanted))

    @property
    def everyone(self) -> AskedCohort:
        p = self.engine.population
        late = {*self.engine.removed(), *self.engine.absent(self.round)}
        there = (k for k in range(p.num_clients) if self.architecture in (None, p.assignment[k]) and k not in late)
        return self._with(tuple(there))

    def key(self, purpose: str) -> int:
        return derive(self.engine.population.seed, "server", self.round, purpose)

    def rows(self, name: str, clients: Tensor | None = None) -> Any:
        return self.engine.rows(name, self.clients if clients is None else clients.tolist())

    def keep(self, name: str, rows: Any) -> None:
        keys = [self.engine.keys.row(name, k) for k in self.clients]
        (rows,) = _one_each((rows,), len(keys))
        self.engine.kept.append((keys, rows, self.round))

    def append(self, name: str, entry: Any) -> None:
        new = self.engine.keys.entries(name, [key for keys, _, _ in self.engine.kept for key in keys])
        key = self.engine.keys.entry(name, len(self.pool(name)) + len(new))
        self.engine.kept.append(([key], tree.stack([entry]), self.round))

    def pool(self, name: str) -> Sequence[Any]:
        return self.engine.pool(name)

    def note(self, **numbers: Tensor | float) -> None:
        if taken := {"loss", "refused"} & {*numbers}:
            raise SettingError(f"server_{min(taken)} is a number of fedloom's: let cohort.note name yours otherwise")
        said = {f"server_{n}": v.tolist() if hasattr(v, "tolist") else v for n, v in numbers.items()}
        self.engine.noted.update(said)

    def evaluate(self, name: str, predict: Predict | Mapping[int, Predict]) -> None:
        self.engine.to_judge[name] = predict

    def gather(self, fn: Callable[..., Any], *broadcast: Any, scatter: Scatter = (), at_least: int = 1) -> Replies[Any]:
        parts, name = self.engine.options.partial_sums, self.engine.chain.sums_only
        if said := name or (parts and f"partial_sums = {parts}"):
            raise SettingError(
                f"{said} is for uploads of which only the mean is used, and {type(self.engine.algorithm).__name__} "
                f"needs each: leave {name or 'partial_sums'} out"
            )
        values: dict[int, Any] = {}
        failed: list[Failure] = []
        question = self._question(fn, broadcast)
        for ids, uploads in self._exchange(question, scatter, failed, at_least):
            values.update({k: tree.take(uploads, i) for i, k in enumerate(ids)})
        there = tuple(k for k in self.clients if k in values)
        new_total = partial(self._new_total, question)
        return Replies(self._with(there), [values[k] for k in there], tuple(failed), new_total)

    def reduce(self, fn: Callable[..., Any], *broadcast: Any, scatter: Scatter = (), at_least: int = 1) -> Reduction:
        question = self._question(fn, broadcast)
        total, failed, there = self._new_total(question), list[Failure](), set[int]()
        parts = self._parts()
        sums = [tree.WeightedMean() for _ in parts]
        place = {k: i for i, part in enumerate(parts) for k in part}
        chain = self.engine.chain
        least = max(at_least, chain.least) if at_least and not chain.always else 0
        for ids, uploads in self._exchange(question, scatter, failed, least, parts):
            there.update(ids)
            if isinstance(uploads, tree.WeightedMean):
                sums[place[ids[0]]].merge(uploads)
            elif sums:
                for i, k in enumerate(ids):
                    sums[place[k]].add(tree.take(uploads, slice(i, i + 1)))
            else:
                total.add(uploads)
        if sums:
            total = whole = tree.WeightedMean()
            for each in sums:
                whole.merge(each)
        cohort = self._with(tuple(k for k in self.clients if k in there))
        return Reduction(cohort=cohort, total=total, failed=tuple(failed))

    def _new_total(self, question: Question) -> Total:
        """Return a place where uploads become a mean, by the links on their way."""
        self.engine.took_mean = True
        return self.engine.chain.total(question, tree.WeightedMean)

    def _question(self, fn: Callable[..., Any], broadcast: tuple[Any, ...]) -> Question:
        """Return what these clients are asked next."""
        engine, name = self.engine, self._name(fn)
        number = max((self.exchanges.get(k, 0) for k in self.clients), default=0)
        rate = engine.algorithm.local.rate(self.round)
        encoders, encoded = engine.runtime.encoders, None
        if encoders is not None and encoders.download is not None:
            encoded = encoders.small(broadcast, derive(engine.population.seed, "downloads", self.round, name, number))
            broadcast = encoders.whole(encoded)
        call = Call(name, broadcast, self.round, number, rate, works=engine.options.works, encoded=encoded)
        return Question(engine, call, sorted(self.clients), name, engine.bill(name), self.architecture)

    def _parts(self) -> list[tuple[int, ...]]:
        """Return the groups of clients whose uploads are added up together.

        They depend on who was asked, and not on who answers.
        """
        count = self.engine.options.partial_sums
        if count is None:
            return []
        cut = [np.array_split(sorted(group.clients), count) for group in self.groups]
        return [tuple(part.tolist()) for parts in cut for part in parts if len(part)]

    def _exchange(
        self,
        asked_of_all: Question,
        scatter: Scatter,
        failed: list[Failure],
        at_least: int,
        parts: Sequence[Sequence[int]] = (),
    ) -> Iterator[tuple[Sequence[int], Any]]:
        """Yield (clients, stacked uploads) of those that answer, in order of client number within each architecture.

        The order, and with it every sum, does not depend on the order of the cohort. A client's new state is tentative
        until its answer is accepted. Where architectures differ, it is tentative until all have answered, since uploads
        that have no common mean are rejected before any state moves; so it is where `at_least` some have to answer, or
        none is accepted. `parts`: groups of the clients, whose uploads may come as their sum.

        Raises:
            NobodyAnswered: fewer have answered.
        """
        engine, chain = self.engine, self.engine.chain
        number, send = int(asked_of_all.call.exchange), self._sender(scatter)
        self.exchanges.update(dict.fromkeys(self.clients, number + 1))
        engine.traffic.asked.update(self.clients)
        groups, accepted, lost = self.groups, list[int](), dict[int, str]()
        coming: Iterator[Asked] = iter(())
        try:
            for group in groups:
                kind = f"{asked_of_all.call.method} {number} {group.architecture}"
                question = replace(asked_of_all, clients=sorted(group.clients), kind=kind)
                lost.update(gone := chain.lost(question))
                order = [k for k in question.clients if k not in gone]
                engine.lost = lost
                asked = [tuple(k for k in part if k in order) for part in parts]
                call = replace(question.call, sums=tuple(part for part in asked if part))
                question = replace(question, call=call, clients=order)
                coming = chain.answers(question, partial(self._ask, call, send))
                for request, states, answer in coming:
                    engine.states.offer(request.clients, states, (self.round, number))
                    bad = chain.refuse(question, (request, states, answer))
                    engine.judged(request.clients, bad, self.round)
                    engine.traffic.refused += len(bad)
                    lost.update(bad)
                    good = [i for i, k in enumerate(request.clients) if k not in bad]
                    there = [request.clients[i] for i in good]
                    if len(groups) == 1 and at_least <= 1:
                        engine.states.accept(there)
                    accepted.extend(there)
                    self._note(request, states, answer, good)
                    if good and answer.summed is not None:
                        yield there, answer.summed.total
                    elif good:
                        answer = chain.take(question, (request, states, answer), good)
                        index = torch.tensor(good, device=engine.population.device)
                        yield there, answer.upload if not bad else tree.take(answer.upload, index)
            engine.traffic.accepted += len(accepted)
            failed += (found := [Failure(k, why, number) for k, why in sorted(lost.items())])
            engine.traffic.failed += found
            if self.clients and len(accepted) < at_least:
                asked_for, method = len(self.clients), f"{type(engine.algorithm).__name__}.{asked_of_all.call.method}"
                raise NobodyAnswered(
                    f"{method} needs the answers of {at_least} clients, got {len(accepted)} of {asked_for}"
                )
            engine.states.accept(accepted)
        finally:
            if isinstance(coming, Generator):  # now, and not after the engine: pending requests are given up
                coming.close()
            engine.states.drop_offers()

    def _ask(self, call: Call, send: Send, clients: Sequence[int]) -> Iterator[Asked]:
        return self.engine.answers(call, clients, send) if clients else iter(())

    def _name(self, fn: Callable[..., Any]) -> str:
        """Return the name by which a method is sent: one of the run's own algorithm, marked @on_client."""
        name, algorithm = getattr(fn, "__qualname__", fn), self.engine.algorithm
        if not getattr(fn, "on_client", False):
            raise StackingError(f"{name} runs on clients: mark it @on_client")
        sent = str(getattr(fn, "__name__", ""))
        if getattr(fn, "__self__", None) is not algorithm or getattr(algorithm, sent, None) != fn:
            raise StackingError(
                f"clients run methods of the run's own {type(algorithm).__name__}, which are sent by name; "
                f"{name} is not one of them: call it from a method of the algorithm that is marked @on_client"
            )
        return sent

    def _sender(self, scatter: Scatter) -> Callable[[Sequence[int]], tuple[Any, ...]]:
        """Return a function from clients to what they are sent, stacked: looked up, or computed when it is needed."""
        device = self.engine.population.device
        if callable(scatter):

            def computed(ids: Sequence[int]) -> tuple[Any, ...]:
                return _one_each(scatter(torch.tensor(ids, device=device)), len(ids))

            return computed
        place, everything = {k: i for i, k in enumerate(self.clients)}, _one_each(scatter, len(self.clients))

        def looked_up(ids: Sequence[int]) -> tuple[Any, ...]:
            return tree.take(everything, torch.tensor([place[k] for k in ids], device=device)) if everything else ()

        return looked_up

    def _note(self, request: Request, states: Any, answer: Answer, good: Sequence[int]) -> None:
        """Count what moved, and show a replay what happened; a rejected upload has been sent all the same."""
        engine, ids, n = self.engine, request.clients, len(request.clients)
        summed = answer.summed
        engine.traffic.losses.update(mean_losses(request, answer) if summed is None else summed.losses)
        for work, found in answer.after.items():
            engine.traffic.found(work, {ids[i]: tree.take(found, i) for i in good})
        bill = engine.bill(request.call.method)
        down = bill.of_request(request.call.sent, request.scatter, n) if answer.down is None else answer.down
        engine.traffic.count("down", ids, down)
        engine.traffic.count("up", ids, bill.of_uploads(answer.upload, n) if answer.up is None else answer.up)
        if engine.watch is None:
            return
        lead, trained = answer.trained or (0, ())
        model = engine.population.models[engine.population.assignment[ids[0]]]
        for i in good:
            models = models_in(tree.take(trained, i) if lead else trained, model)
            clear, upload = len(models) == 1, tree.take(answer.upload, i)
            state = engine.runtime.own(tree.take(states, i))
            name, number = request.call.method, int(request.call.exchange)
            unclear = answer.trained is not None and not clear
            losses = [values[i, : took[i]] for values, took in zip(answer.losses, answer.steps, strict=True)]
            engine.watch(Exchange(name, number, ids[i], state, upload, models[0] if clear else None, unclear, losses))

    def _with(self, clients: tuple[int, ...], architecture: str | None = None) -> AskedCohort:
        return AskedCohort(
            self.engine, clients, self.round, exchanges=self.exchanges, architecture=architecture or self.architecture
        )


def _one_each(scatter: Any, count: int) -> tuple[Any, ...]:
    if not isinstance(scatter, tuple):
        raise StackingError(f"scatter is a tuple with an entry for each argument, got {type(scatter).__name__}")
    for leaf in tree.leaves(scatter):
        if not isinstance(leaf, Tensor) or leaf.shape[:1] != (count,):
            raise StackingError(f"scatter has one entry for {count} clients each, got {getattr(leaf, 'shape', leaf)!r}")
    return scatter
