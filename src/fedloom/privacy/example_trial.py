"""Trial of a method before a run that protects examples: what it uploads may depend on none but by private gradients.

Clients compute two rounds in which each batch has their first example alone, and again with others of all others.
Whatever they upload must be the same bits.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedloom.coordinator.job import Job
from fedloom.coordinator.settings import RunSettings
from fedloom.core import tree
from fedloom.core.batch import Batch, Schedule
from fedloom.core.errors import FedloomError, SettingError, first_line
from fedloom.core.fold.steps import Step
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.network_makers import own_defaults
from fedloom.core.types import Tree
from fedloom.data import Federation
from fedloom.engines.engine_options import Options
from fedloom.engines.links import Asked, Link, Question
from fedloom.engines.loop import Loop
from fedloom.engines.message import NOTES
from fedloom.privacy.by_example import ByExample, ExampleGradients, ReadsExamplesError
from fedloom.privacy.method_trial import ROWS, a_few
from fedloom.wording import some_of


def check_network(model: Model) -> None:
    """Raise SettingError where a network keeps statistics of a batch, which clipped gradients do not cover."""
    layers = [
        name for name, layer in model.skeleton().named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm)
        or (isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats)
    ]  # fmt: skip
    if layers:
        raise SettingError(
            f"privacy of examples clips what each example of a batch says by itself, and {model.name} has statistics "
            f"of the whole batch in {some_of(layers, 4)}: take nn.GroupNorm in its place, which knows one example alone"
        )


@own_defaults()
def trainings(job: Any, rule: ExampleGradients) -> int:
    """Return how often a client of a run goes over its batches in a round, rounded up.

    Raises:
        SettingError: what a client uploads depends on its examples beside private gradients.
    """
    name = type(job.algorithm).__name__
    if job.algorithm.requires.one_place:
        raise SettingError(
            f"privacy of examples is against whoever sees uploads, and {name} has the examples of all clients in one "
            "place: leave privacy out"
        )
    few = a_few(job.federation, 2 * len(job.population.models))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come with the run
            count, one = _uploads(job, few, rule)
            _, other = _uploads(job, with_others(few, few.partition.indices[::ROWS]), rule)
    except ReadsExamplesError:
        raise SettingError(_BESIDE.format(name, "read their training examples")) from None
    except Exception as error:
        what = str(error) if isinstance(error, FedloomError) else first_line(error)
        raise SettingError(
            f"a method is tried on a few examples before a run that protects these, and {name} fails: {what}; take "
            "another method or network, or leave privacy out"
        ) from error
    if not same(one, other):
        raise SettingError(_BESIDE.format(name, "upload what depends on their examples"))
    return count


_BESIDE = (
    "privacy of examples is that of clipped gradients with noise, and clients of {} {} beside these (a mean loss, "
    "class counts, validation examples, gradients of their own): take a method that trains by `train` or minimise "
    "alone, such as FedAvg, or leave privacy out"
)


def same(one: Tree, other: Tree) -> bool:
    """Return whether two trees have the same bits."""

    def equal(a: Tensor, b: Tensor) -> bool:
        return torch.equal(a.nan_to_num(), b.nan_to_num()) if a.is_floating_point() else torch.equal(a, b)

    return tree.same_structure(one, other) and all(map(equal, tree.leaves(one), tree.leaves(other)))


def _uploads(job: Any, federation: Federation, rule: ExampleGradients) -> tuple[int, list[Any]]:
    """Return how often clients go over their batches in a round, and what they upload in two."""
    tried, clients = _FirstAlone(clip=rule.clip, noise=1.0), federation.num_clients
    rounds, seen = seen_of(job, federation, Options(gradients=tried), clients)
    plan = job.algorithm.training
    each = plan.steps or -(-ROWS // min(plan.batch_size, ROWS)) * plan.epochs
    return -(-sum(tried.steps) // (each * rounds * clients)), seen


def seen_of(job: Any, federation: Federation, options: Options, clients: int) -> tuple[int, list[Any]]:
    """Return the number of rounds that were tried, two at most, and what clients upload and note in these.

    Args:
        job: of the run.
        federation: of a few clients.
        options: of the engine.
        clients: how many are in each round.
    """
    settings = job.settings
    made = Job(
        algorithm=job.algorithm, federation=federation, model=job.model, task=job.task,
        settings=RunSettings(
            rounds=settings.rounds, cohort_size=federation.num_clients, seed=settings.seed, dtype=settings.dtype,
        ),
    )  # fmt: skip
    link = _Seen(once=job.algorithm.requires.server_training)
    engine = Loop(made.population, job.algorithm, replace(options, links=(*options.links, link)))
    rounds = 1 if link.once else 2
    with closing(engine), contextlib.suppress(_Enough):
        server = engine.init()
        for round in range(rounds):
            server = engine.round(server, tuple(range(clients)), round)
    return rounds, link.seen


@dataclass(frozen=True, kw_only=True)
class _FirstAlone(ExampleGradients):
    """Rule by which each batch has the client's first example. `steps`: of each training so far."""

    steps: list[int] = field(default_factory=list, compare=False)

    def of(self, local: Local) -> _FirstAlone:
        return self

    def instead(self, step: Step, batches: Schedule, context: tuple[Any, ...]) -> tuple[ByExample, tuple[Any, ...]]:
        made, (lr, expected, *rest) = super().instead(step, batches, context)
        return _First(made, self), (lr, torch.ones_like(expected), *rest)


class _First(ByExample):
    """A private step that looks at what moves beside."""

    def __init__(self, made: ByExample, rule: _FirstAlone) -> None:
        self.__dict__.update(made.__dict__)
        self.tried = rule

    def batches(self, batches: Schedule) -> Schedule:
        self.tried.steps.append(int(batches.num_steps))
        first = torch.zeros_like(batches.order[:, :1])
        return replace(batches, order=first, mask=torch.ones_like(first, dtype=torch.bool))

    def advance(
        self, work: Sequence[Tensor], spec: Any, batch: Batch, context: Any, dims: Any, unused: frozenset[int]
    ) -> Tensor | None:
        p, r, rebuild = spec
        if r:
            with torch.no_grad():
                _, moved = self._objective(rebuild, work[:p], work[p : p + r], batch, context[1:])
            if not all(map(torch.equal, moved, work[p : p + r])):
                raise SettingError(
                    "a training step moves buffers by the examples of its batch, which no gradient does, and private "
                    "ones leave them as they are"
                )
        return super().advance(work, spec, batch, context, dims, unused)


class _Enough(Exception):  # noqa: N818  # what follows is the server's
    """All that is to be seen was seen."""


class _Seen(Link):
    """Uploads as they come. `once`: those of one exchange alone, after which the server trains for long."""

    def __init__(self, once: bool) -> None:
        self.once, self.seen = once, list[Any]()

    def take(self, question: Question, asked: Asked, good: Sequence[int]) -> Any:
        self.seen.append(tree.map_tree(torch.clone, (asked[2].upload, asked[2].after.get(NOTES, {}))))
        if self.once and asked[0].clients[-1] == question.clients[-1]:
            raise _Enough
        return asked[2]


def with_others(federation: Federation, kept: Sequence[int] | npt.NDArray[np.int64] = ()) -> Federation:
    """Return the same clients with other examples, of one class; `kept`: rows that stay."""
    train, rows = federation.train, np.asarray(kept, np.int64)
    x, y = train.x.flip(0), train.y.flip(0)
    x = x + 1 if x.is_floating_point() else x
    y = torch.full_like(y, (int(train.y[0]) + 1) % train.num_classes) if train.has_classes else y
    x[rows], y[rows] = train.x[rows], train.y[rows]
    return replace(federation, train=replace(train, x=x, y=y))
