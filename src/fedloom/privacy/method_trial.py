"""Trial of a method before a private run: whether its server reads noisy means alone, and what its uploads are.

A round is computed of two small clients, and then again with the same means and other cohorts: one with a client less,
and one of nobody. What the method does next must be the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedloom.coordinator.job import Job
from fedloom.coordinator.part import Part
from fedloom.coordinator.rounds import Coordinator
from fedloom.coordinator.settings import RunSettings
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.cohort import Reduction, Replies
from fedloom.core.errors import FedloomError, SettingError, first_line
from fedloom.core.fold.execution import Execution, executing
from fedloom.core.network_makers import own_defaults
from fedloom.core.types import Tree, Weighted
from fedloom.data import Federation, by_lists
from fedloom.engines.accounting import is_named, sent_models
from fedloom.engines.cohort import AskedCohort
from fedloom.engines.links import Asked, Link, Question
from fedloom.engines.message import Answer

_CLIENTS = 40  # for each architecture
ROWS = 8  # of each client


def shapes_of(job: Any) -> dict[tuple[str, str], Tree]:
    """Return an upload of each method that the server takes a mean of, by architecture and name, for a run's rounds.

    Raises:
        SettingError: the server reads something that a noisy mean is not.
    """
    name = type(job.algorithm).__name__
    try:
        return _tried(job)
    except _Unfit as error:
        raise SettingError(
            f"privacy adds noise to means of uploads, one in a round, and {name} {error}: take a method that averages "
            "named tensors alone, such as FedAvg, or leave privacy out"
        ) from None
    except Exception as error:
        what = str(error) if isinstance(error, FedloomError) else first_line(error)
        raise SettingError(
            f"a method is tried on a few examples before a private run, and {name} fails: {what}; mend it, or leave "
            "privacy out"
        ) from error


class _Unfit(Exception):  # noqa: N818  # a finding
    """Reason why a method cannot be private."""


def _tried(job: Any) -> dict[tuple[str, str], Tree]:
    if job.algorithm.requires.one_place:
        raise _Unfit("has the examples of all clients in one place, and no uploads")
    few, settings = a_few(job.federation, len(job.population.models) * _CLIENTS), job.settings
    with warnings.catch_warnings(), own_defaults():
        warnings.simplefilter("ignore")  # they come with the run
        made = Coordinator(
            Job(
                algorithm=_short(job.algorithm), federation=few, model=job.model, task=job.task,
                settings=RunSettings(
                    rounds=settings.rounds, cohort_size=few.num_clients, seed=settings.seed, engine="loop",
                    compilation="none", device=settings.device, dtype=settings.dtype, measures=settings.measures,
                    headline=settings.headline,
                ),
                parts=(_Seeing(),),
            ),
            trains=False,
        )  # fmt: skip
        link, engine = cast(_Seen, made.parts.links[0]), made.engine
        with made.threads(), closing(engine), executing(Execution()):
            for name, server in engine.init().items():
                for round in sorted({0, 1, settings.rounds - 1} & {*range(settings.rounds)}):
                    _compare(engine, link, name, server, round)
    if job.algorithm.requires.mixed:
        raise _Unfit("mixes architectures in a round")
    return link.shapes


def _compare(engine: Any, link: _Seen, name: str, server: Any, round: int) -> None:
    """Raise _Unfit where a round does something else with another cohort and the same means."""
    everyone = tuple(k for k, of in enumerate(engine.population.assignment) if name in ("", of))

    def computed(clients: tuple[int, ...], means: list[Tree] | None) -> tuple[Any, _Log]:
        log = _Log(link, means)
        cohort = _Witness(AskedCohort(engine, clients, round, architecture=name or None), log)
        return engine.algorithm.round(server, cohort), log

    _, first = computed(everyone[:2], None)
    if first.gathered and not first.asked:
        return  # nothing leaves the clients
    if len(first.asked) != 1:
        raise _Unfit(f"takes {len(first.asked)} means in a round")
    after, log = computed(everyone, first.means)
    for clients in (everyone[1:], ()):
        other, seen = computed(clients, first.means)
        if not (_same(after, other) and _same(log.noted, seen.noted)):
            raise _Unfit("uses who has answered, or how many")
        (one,), (another,) = log.asked, seen.asked
        if another.sent.keys() - {"all"} != one.sent.keys() - {"all"} & {*clients} or not all(
            _same(one.sent[k], sent) for k, sent in another.sent.items()
        ):
            raise _Unfit("sends a client what depends on the others of its round")


@dataclass(frozen=True)
class _Sent:
    """Payloads that each client was sent, and "all" of them alike."""

    sent: dict[Any, Tree]


class _Log:
    """Log of a round: whom it asked for means, and what it noted. `means`: those to give; None: they are computed."""

    def __init__(self, seen: _Seen, means: list[Tree] | None) -> None:
        self.seen, self.given, self.means = seen, means, list[Tree]()
        self.asked, self.noted, self.gathered = list[_Sent](), dict[str, Tensor](), False


class _Known:
    """A mean that is known (a `Total`)."""

    count = 1.0

    def __init__(self, mean: Tree) -> None:
        self._mean = mean

    def add(self, uploads: Tree) -> None:
        """Take nothing: the mean is known."""

    def __bool__(self) -> bool:
        return True

    def result(self) -> Tree:
        return self._mean


class _Witness:
    """A cohort that writes down what a round asks of it, and keeps nothing."""

    def __init__(self, inner: AskedCohort, log: _Log, sampled: bool = True) -> None:
        self._inner, self._log, self._sampled = inner, log, sampled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def groups(self) -> list[_Witness]:
        return [_Witness(group, self._log, self._sampled) for group in self._inner.groups]

    @property
    def everyone(self) -> _Witness:
        return _Witness(self._inner.everyone, self._log, sampled=False)

    def only(self, clients: Tensor) -> _Witness:
        return _Witness(self._inner.only(clients), self._log, self._sampled)

    def keep(self, name: str, rows: Any) -> None:
        """Keep nothing."""

    append = evaluate = keep

    def note(self, **numbers: Tensor | float) -> None:
        self._log.noted.update({name: torch.as_tensor(v, dtype=torch.float64) for name, v in numbers.items()})

    def gather(self, fn: Callable[..., Any], *broadcast: Any, **more: Any) -> Replies[Any]:
        self._log.gathered = True
        nothing = self._log.given is not None or not tree.leaves(self._inner.gather(fn, *broadcast, **more).values)
        if not nothing:
            raise _Unfit("asks for each upload by itself (gather)")
        return Replies(cohort=self, values=[()] * len(self._inner.clients))

    def reduce(self, fn: Callable[..., Any], *broadcast: Any, scatter: Any = (), at_least: int = 1) -> Reduction:
        inner, log, ids = self._inner, self._log, self._inner.ids
        if not self._sampled:
            raise _Unfit("asks clients that are not in the round")
        each = scatter(ids) if callable(scatter) else scatter
        log.asked.append(_Sent({"all": broadcast, **{k: tree.take(each, i) for i, k in enumerate(inner.clients)}}))
        if log.given is None:
            found = inner.reduce(fn, *broadcast, scatter=scatter)
            log.seen.keep_newest()
            mean = found.mean
            log.means.append(mean)
        elif len(log.asked) > len(log.given):
            raise _Unfit("takes more means where more clients answer")
        else:
            mean = log.given[len(log.asked) - 1]
        return Reduction(cohort=self, total=_Known(mean))  # which passes all else on


def _same(one: Tree, other: Tree) -> bool:
    pairs = zip(tree.leaves(one), tree.leaves(other), strict=False)
    return tree.same_structure(one, other) and all(torch.equal(a, b) for a, b in pairs)


def _short(algorithm: Algorithm[Any, Any]) -> Algorithm[Any, Any]:
    """Return the same with one step for each client, or two epochs; as it is, where its settings want more."""
    local = algorithm.local
    try:
        return replace(algorithm, local=replace(local, steps=1) if local.steps else replace(local, epochs=2))
    except SettingError:
        return algorithm


def a_few(federation: Federation, clients: int, each: int = ROWS) -> Federation:
    """Return clients with a few of a federation's examples each."""
    roles = 1 if federation.local_val is None else 2
    rows = np.arange(clients * each * roles).reshape(roles, clients, each)
    train = federation.train.select(rows.reshape(-1) % len(federation.train))
    parts = [by_lists(part.tolist()) for part in rows]
    return Federation(
        replace(train, groups=None), parts[0], local_val=parts[1] if roles == 2 else None,
        public=federation.public, public_labels=federation.public_labels,
    )  # fmt: skip


class _Seen(Link):
    """Uploads as they come."""

    def __init__(self) -> None:
        self.shapes: dict[tuple[str, str], Tree] = {}
        self._newest: list[tuple[Question, Tree]] = []

    def take(self, question: Question, asked: Asked, good: Sequence[int]) -> Answer:
        self._newest = [(question, asked[2].upload)]
        return asked[2]

    def keep_newest(self) -> None:
        """Keep the shapes of the newest upload, which a mean is taken of."""
        ((question, upload),) = self._newest
        nodes = tree.flatten(upload, is_leaf=lambda n: isinstance(n, Weighted))[0]
        values = [node.value if isinstance(node, Weighted) else node for node in nodes]
        sets = [one for value in values for one in tree.flatten(value, is_leaf=is_named)[0]]
        models = sent_models(question.bill, question.call.broadcast, upload)
        if not tree.leaves(values):
            raise _Unfit("uploads nothing")
        if not all(map(is_named, sets)):
            raise _Unfit("uploads single numbers beside named tensors, which nothing bounds to the same scale")
        if any(kind == "model" and sent is None for kind, sent in models):
            raise _Unfit("uploads a model in whose place none or several were sent")
        given = question.references(upload)
        if any(not v.is_floating_point() and r is None for v, r in zip(tree.leaves(values), given, strict=True)):
            raise _Unfit("uploads whole numbers")
        name = str(question.architecture), question.call.method
        self.shapes[name] = tree.map_tree(torch.zeros_like, tree.take(upload, 0))


class _Seeing(Part):
    """Part with that link."""

    def __init__(self) -> None:
        self.links = (_Seen(),)
