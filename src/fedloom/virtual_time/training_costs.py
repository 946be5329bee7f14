"""Costs of a client's exchange before it is computed: examples and FLOPs by its plan and a trial, bytes by a trial.

A method is tried for two rounds on a few clients with few examples, and again with twice as many. What is seen there of
each exchange is what it costs every client: the bytes both ways, and the FLOPs of matrix products and convolutions.
These are counted in gradients of one example: as many for each example of the client's plan, and others that do not
depend on it, such as of public examples. So a teacher, a second model or an inner loop takes its time.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedloom.coordinator.engine_choice import flops_of
from fedloom.coordinator.job import Job
from fedloom.coordinator.settings import RunSettings
from fedloom.core.errors import FedloomError, SettingError, first_line
from fedloom.core.local_training import Local
from fedloom.core.network_makers import own_defaults
from fedloom.data import Federation
from fedloom.engines.engine_options import Options
from fedloom.engines.links import Asked, Link, Question
from fedloom.engines.loop import Loop
from fedloom.engines.message import Answer, Request
from fedloom.privacy.method_trial import ROWS, a_few


def _of_lstm(inputs: Sequence[int], of_inputs: Sequence[int], of_hidden: Sequence[int], *_: Any, **__: Any) -> int:
    """Return the FLOPs of a layer of an LSTM by shapes: inputs [T, B, D], weights [4 H, D] and [4 H, H]."""
    return 2 * inputs[0] * inputs[1] * (math.prod(of_inputs) + math.prod(of_hidden))


def _of_lstm_gradient(*shapes: Any, **more: Any) -> int:
    """Return those of its gradient: as many for the weights, and for inputs and hidden states."""
    return 2 * _of_lstm(*shapes, **more)


_FUSED = {  # operators that PyTorch's counter does not know: it has LSTM as one for float32 on a processor
    torch.ops.aten.mkldnn_rnn_layer: _of_lstm,
    torch.ops.aten.mkldnn_rnn_layer_backward: _of_lstm_gradient,
}


@dataclass(frozen=True)
class Cost:
    """Costs of an exchange for a client.

    Attributes:
        down: bytes that it receives.
        up: bytes that it sends.
        trainings: gradients of an example for each example of the round's plan, epochs included: 1 of FedAvg.
        beside: gradients of an example that do not depend on the plan.
        steady: whether all clients were sent and have sent as many bytes in each round of the trial.
        gradient: FLOPs of the gradient of an example, of the whole network, whatever of it is computed once.
    """

    down: float
    up: float
    trainings: float = 1.0
    beside: float = 0.0
    steady: bool = True
    gradient: float = 0.0


def planned(size: int, plan: Local) -> tuple[int, int]:
    """Return the examples and the steps of a training of a client with `size` examples.

    Of 120 examples, batches of 50 and 5 epochs these are 600 and 15; of 4 steps in place of the epochs 120 + 50 and 4.
    """
    each = -(-size // plan.batch_size)
    if plan.steps is None:
        return size * plan.epochs, each * plan.epochs
    passes, rest = divmod(plan.steps, max(1, each))
    return passes * size + rest * plan.batch_size, plan.steps


def bytes_of(question: Question, request: Request, answer: Answer) -> list[tuple[int, int]]:
    """Return the bytes that each client of an answer has received and sent, as they are counted."""
    n, bill = len(request.clients), question.bill
    down = bill.of_request(request.call.sent, request.scatter, n)
    up = bill.of_uploads(answer.upload, n) if answer.up is None else answer.up
    return [(each.total(), sent.total()) for each, sent in zip(down, up, strict=True)]


def architecture_of(kind: str) -> str:
    """Return the architecture in the name of an exchange, `Question.kind`."""
    return kind.split(" ", 2)[2]


class Work:
    """Work of an engine's clients in exchanges: examples, steps, and FLOPs where they count (`by_flops`)."""

    def __init__(self, engine: Any, by_flops: bool) -> None:
        self._people, self._plan, self._by_flops = engine.population, engine.algorithm.training, by_flops

    def of(self, client: int, round: int, cost: Cost) -> tuple[float, int, float]:
        """Return examples, steps and FLOPs of an exchange with a client in a round: gradients of one example count."""
        rows, steps = planned(int(self._people.at(round).partition.sizes[client]), self._plan)
        examples = rows * cost.trainings + cost.beside
        return examples, int(steps * cost.trainings + 0.5), examples * cost.gradient * self._by_flops


@own_defaults()
def costs_of(job: Any) -> dict[str, Cost]:
    """Return what an exchange costs a client of a run, by method, exchange and architecture (`Question.kind`).

    Raises:
        SettingError: the method fails.
    """
    kinds, plan, out = len(job.population.models), job.algorithm.training, dict[str, Cost]()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come with the run
            one, two = (_seen_of(job, a_few(job.federation, 2 * kinds, rows)) for rows in (ROWS, 2 * ROWS))
            each = {name: flops_of(model, job.population, _FUSED) for name, model in job.population.models.items()}
    except Exception as error:
        what = str(error) if isinstance(error, FedloomError) else first_line(error)
        raise SettingError(
            f"a method is tried on a few examples before a run with a clock, to know what its exchanges cost, and "
            f"{type(job.algorithm).__name__} fails: {what}; mend it, or leave the clock out"
        ) from error
    few, more = planned(ROWS, plan)[0], planned(2 * ROWS, plan)[0]
    for kind, (small, large) in ((kind, (one[kind], two[kind])) for kind in one if kind in two):
        # 8 examples and 5 epochs with 100 FLOPs each and 300 of public ones are 4300, of 16 examples they are 8300:
        # (8300 - 4300) / (80 - 40) = 100, and 4300 - 40 * 100 = 300
        (down, up), *others = small.bytes
        cost = Cost(*small.bytes[-1], steady=all(other == (down, up) for other in others))
        if gradient := each[architecture_of(kind)]:  # else it has no products to compare
            # 8 examples and 5 epochs with 100 FLOPs each and 300 of public ones are 4300, of 16 examples they are 8300:
            # (8300 - 4300) / (80 - 40) = 100, and 4300 - 40 * 100 = 300
            slope = (large.flops - small.flops) / (more - few) if more > few else small.flops / few
            beside = max(0.0, small.flops - slope * few)
            cost = replace(cost, trainings=slope / gradient, beside=beside / gradient, gradient=gradient)
        out[kind] = cost
    return out


def _seen_of(job: Any, few: Federation) -> dict[str, _Exchange]:
    """Return what exchanges with a few clients cost in two rounds; in one where the server trains."""
    settings = job.settings
    made = Job(
        algorithm=job.algorithm, federation=few, model=job.model, task=job.task,
        settings=RunSettings(
            rounds=settings.rounds, cohort_size=few.num_clients, seed=settings.seed, dtype=settings.dtype,
            measures=settings.measures, headline=settings.headline,
        ),
    )  # fmt: skip
    parts, seen = job.begun_parts.copied(), _Seen(job.algorithm.requires.server_training)
    links = (*(link for link in parts.links if link.sums_only), seen)
    engine = Loop(
        made.population, job.algorithm,
        Options(encoders=parts.encoders, links=links, counts_states=settings.stateless),
    )  # fmt: skip
    with closing(engine), suppress(_Enough):
        server = engine.init()
        for round in range(1 if seen.once else 2):
            server = engine.round(server, tuple(range(few.num_clients)), round)
    return seen.exchanges


@dataclass
class _Exchange:
    """An exchange of a trial: bytes of each client in each round, and the FLOPs of one in the last."""

    bytes: list[tuple[int, int]]
    flops: float = 0.0


class _Enough(Exception):  # noqa: N818  # what follows is the server's
    """All that is to be seen was seen."""


class _Seen(Link):
    """Costs of exchanges as they come. `once`: the server trains for long after the first."""

    def __init__(self, once: bool) -> None:
        self.once, self.exchanges = once, dict[str, _Exchange]()

    def answers(self, question: Question, answers: Iterator[Asked]) -> Iterator[Asked]:
        found = self.exchanges.setdefault(question.kind, _Exchange([]))
        with FlopCounterMode(display=False, custom_mapping=_FUSED) as counted:
            first = next(answers)
        found.flops = float(counted.get_total_flops())
        for request, states, answer in itertools.chain([first], answers):
            found.bytes += bytes_of(question, request, answer)
            yield request, states, answer
        if self.once:
            raise _Enough
