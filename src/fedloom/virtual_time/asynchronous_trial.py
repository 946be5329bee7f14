"""Trial of a method before a run that does not wait: whether what comes late can count, and what is kept of it.

A few rounds are computed of three small clients. A round must ask them once, and take one mean, of models and gradients
alone: of a model the difference to what was sent counts on a newer one, a gradient is a difference already.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import torch

from fedloom.coordinator.job import Job
from fedloom.coordinator.settings import RunSettings
from fedloom.core import tree
from fedloom.core.cohort import Total
from fedloom.core.errors import FedloomError, SettingError, first_line
from fedloom.core.network_makers import own_defaults
from fedloom.core.types import Tree, Weighted
from fedloom.engines.accounting import is_named, sent_models
from fedloom.engines.engine_options import Options
from fedloom.engines.links import Ask, Asked, Link, Question
from fedloom.engines.loop import Loop
from fedloom.engines.message import Answer
from fedloom.privacy.method_trial import a_few
from fedloom.virtual_time.uploads_under_way import answer_of, kept

_CLIENTS = 3


def tried(job: Any, *, mixes: bool) -> Tree:
    """Return zeros in the place of what is kept of an answer until it comes.

    Args:
        job: of the run.
        mixes: whether what comes late is a model to mix with, and not a difference.

    Raises:
        SettingError: what comes late cannot count.
    """
    name = type(job.algorithm).__name__
    try:
        return _tried(job, mixes=mixes)
    except _Unfit as error:
        raise SettingError(
            f"rounds that do not wait are of methods that ask clients once in a round, and take one mean of models and "
            f"gradients, and {name} {error}: take another method, such as FedAvg, or leave asynchrony out"
        ) from None
    except Exception as error:
        what = str(error) if isinstance(error, FedloomError) else first_line(error)
        raise SettingError(
            f"a method is tried on a few examples before a run that does not wait, and {name} fails: {what}; mend it, "
            "or leave asynchrony out"
        ) from error


class _Unfit(Exception):  # noqa: N818  # a finding
    """Reason why a method must wait."""


def _tried(job: Any, *, mixes: bool) -> Tree:
    algorithm, settings, parts = job.algorithm, job.settings, job.begun_parts
    needs = algorithm.requires
    for forbidden, why in (
        (needs.one_place, "has the examples of all clients in one place"),
        (needs.everyone, "asks all clients in each round"),
        (needs.mixed, "mixes architectures in a round"),
        (needs.server_training, "trains on the server what it has gathered"),
        (len(job.population.models) > 1, "has a round for each architecture"),
    ):
        if forbidden:
            raise _Unfit(why)
    with warnings.catch_warnings(), own_defaults():
        warnings.simplefilter("ignore")  # they come with the run
        few = a_few(job.federation, _CLIENTS)
        made = Job(
            algorithm=algorithm, federation=few, model=job.model, task=job.task,
            settings=RunSettings(
                rounds=settings.rounds, cohort_size=_CLIENTS, seed=settings.seed, device=settings.device,
                dtype=settings.dtype, measures=settings.measures, headline=settings.headline,
            ),
        )  # fmt: skip
        link = _Seen(mixes=mixes)
        gradients = next(filter(None, (part.gradients for part in parts.all)), None)
        options = Options(encoders=parts.encoders, gradients=gradients, works=parts.wants.trained, links=(link,))
        engine = Loop(made.population, algorithm, options)
        with closing(engine):
            server = engine.init()
            for round in sorted({0, 1, settings.rounds - 1} & {*range(settings.rounds)}):
                link.asked, link.sums = 0, False
                server = engine.round(server, range(_CLIENTS), round)
                if link.asked != 1:
                    raise _Unfit(f"asks its clients {link.asked} times in round {round + 1}")
    return link.blank


class _Seen(Link):
    """Uploads as they travel, and as they are read."""

    def __init__(self, *, mixes: bool) -> None:
        self.mixes, self.asked, self.blank = mixes, 0, None
        self.sums = False  # whether a mean is made

    def ask(self, question: Question, ask: Ask, clients: Sequence[int]) -> Iterator[Asked]:
        self.asked += 1
        if not self.sums:
            raise _Unfit("asks for each upload by itself (gather)")
        if len(clients) != _CLIENTS:
            raise _Unfit("asks some of a round's clients alone")
        for request, states, answer in ask(clients):
            if tree.leaves(request.scatter):
                raise _Unfit("sends each client what is its own")
            here = slice(0, 1)
            one = request.one(0), tree.take(states, here), answer_of(answer, 0)
            self.blank = tree.map_tree(torch.zeros_like, kept(question, one, mixes=self.mixes))
            yield request, states, answer

    def total(self, question: Question, total: Total) -> Total:
        self.sums = True
        return total

    def take(self, question: Question, asked: Asked, good: Sequence[int]) -> Answer:
        upload = asked[2].upload
        nodes = tree.flatten(upload, is_leaf=lambda n: isinstance(n, Weighted))[0]
        if not nodes:
            raise _Unfit("uploads nothing")
        sets = [one for node in nodes for one in tree.flatten(node.value, is_leaf=is_named)[0]]
        if not all(map(is_named, sets)):
            raise _Unfit(
                "uploads single numbers beside models, of which nothing says what an older model makes of them"
            )
        for kind, sent in sent_models(question.bill, question.call.broadcast, upload):
            if kind == "model" and sent is None:
                raise _Unfit("uploads a model in whose place none or several were sent")
            if kind not in ("model", "gradient"):
                raise _Unfit(f"uploads {kind} tensors, of which nothing says what an older model makes of them")
            if kind == "gradient" and self.mixes:
                raise _Unfit("uploads gradients, and fedasync mixes models (fedbuff:size=1 adds differences)")
        return asked[2]
