"""Costs of a client's exchange before it is computed: examples and FLOPs by its plan, bytes and trainings by a trial.

A method is tried for two rounds on a few clients with few examples. What is seen there of each exchange, the bytes both
ways and how often a client goes over the batches that are planned, is what it costs every client.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from fedloom.coordinator.job import Job
from fedloom.coordinator.settings import RunSettings
from fedloom.coordinator.thread_count import flops_of
from fedloom.core.errors import FedloomError, SettingError, first_line
from fedloom.core.local_training import Local
from fedloom.core.network_makers import own_defaults
from fedloom.engines.engine_options import Options
from fedloom.engines.links import Asked, Link, Question
from fedloom.engines.loop import Loop
from fedloom.engines.message import Answer, Request
from fedloom.privacy.method_trial import a_few


@dataclass(frozen=True)
class Cost:
    """Costs of an exchange for a client: bytes that it receives and sends, and trainings, 2 with two models.

    A training goes once over the batches that are planned for a round; its epochs count as one.
    """

    down: float
    up: float
    trainings: float


def planned(size: int, plan: Local) -> tuple[int, int]:
    """Return the examples and the steps of a training of a client with `size` examples.

    Of 120 examples, batches of 50 and 5 epochs these are 600 and 15; of 4 steps in place of the epochs 120 + 50 and 4.
    """
    each = -(-size // plan.batch_size)
    if plan.steps is None:
        return size * plan.epochs, each * plan.epochs
    passes, rest = divmod(plan.steps, max(1, each))
    return passes * size + min(rest * plan.batch_size, size), plan.steps


def bytes_of(question: Question, request: Request, answer: Answer) -> list[tuple[int, int]]:
    """Return the bytes that each client of an answer has received and sent, as they are counted."""
    n, bill = len(request.clients), question.bill
    down = bill.of_request(request.call.broadcast, request.scatter, n)
    up = bill.of_uploads(answer.upload, n) if answer.up is None else answer.up
    return [(each.total(), sent.total()) for each, sent in zip(down, up, strict=True)]


class Work:
    """Work of an engine's clients: examples, steps and FLOPs of some trainings of one in a round."""

    def __init__(self, engine: Any, by_flops: bool) -> None:
        people = engine.population
        self._people, self._plan = people, engine.algorithm.training
        self._flops = {name: flops_of(model, people) if by_flops else 0.0 for name, model in people.models.items()}

    def of(self, client: int, round: int, trainings: float) -> tuple[float, int, float]:
        """Return examples, steps and FLOPs."""
        rows, steps = planned(self._size(client, round), self._plan)
        examples = rows * trainings
        return examples, int(steps * trainings + 0.5), examples * self._flops[self._people.assignment[client]]

    def trainings(self, client: int, round: int, answer: Answer, place: int) -> float:
        """Return how often a client has trained, by the steps that its answer tells of. `place`: in the answer."""
        _, steps = planned(self._size(client, round), self._plan)
        return sum(each[place] for each in answer.steps) / max(1, steps)

    def _size(self, client: int, round: int) -> int:
        return int(self._people.at(round).partition.sizes[client])


@own_defaults()
def costs_of(job: Any) -> dict[str, Cost]:
    """Return what an exchange costs a client of a run, by method, exchange and architecture (`Question.kind`).

    Raises:
        SettingError: the method fails.
    """
    few, settings = a_few(job.federation, 2 * len(job.population.models)), job.settings
    made = Job(
        algorithm=job.algorithm, federation=few, model=job.model, task=job.task,
        settings=RunSettings(
            rounds=settings.rounds, cohort_size=few.num_clients, seed=settings.seed, dtype=settings.dtype,
            measures=settings.measures, headline=settings.headline,
        ),
    )  # fmt: skip
    parts, once = job.begun_parts.copied(), job.algorithm.requires.server_training
    seen = _Seen(once)
    links = (*(link for link in parts.links if link.sums_only), seen)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come with the run
            options = Options(encoders=parts.encoders, links=links, counts_states=settings.stateless)
            engine = Loop(made.population, job.algorithm, options)
            seen.work = Work(engine, by_flops=False)
            with closing(engine), suppress(_Enough):
                server = engine.init()
                for round in range(1 if once else 2):
                    server = engine.round(server, tuple(range(few.num_clients)), round)
    except Exception as error:
        what = str(error) if isinstance(error, FedloomError) else first_line(error)
        raise SettingError(
            f"a method is tried on a few examples before a run with a clock, to know what its exchanges cost, and "
            f"{type(job.algorithm).__name__} fails: {what}; mend it, or leave out what asks for this (deadline=, "
            "there= or availability= of clock, spares, asynchrony)"
        ) from error
    return seen.costs


class _Enough(Exception):  # noqa: N818  # what follows is the server's
    """All that is to be seen was seen."""


class _Seen(Link):
    """Costs of exchanges as they come, the newest of each kind. `once`: the server trains for long after the first."""

    def __init__(self, once: bool) -> None:
        self.once, self.costs = once, dict[str, Cost]()
        self.work: Work

    def answers(self, question: Question, answers: Iterator[Asked]) -> Iterator[Asked]:
        for request, states, answer in answers:
            (down, up), *_ = bytes_of(question, request, answer)
            trainings = self.work.trainings(request.clients[0], request.call.round, answer, 0)
            self.costs[question.kind] = Cost(down, up, trainings)
            yield request, states, answer
        if self.once:
            raise _Enough
