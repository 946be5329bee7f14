"""What algorithms share that train from the global model and average: all but their name, terms and what is shared."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar, Literal

from torch import Tensor

from fedloom.core.algorithm import Algorithm
from fedloom.core.batches import Batch
from fedloom.core.client import Aggregation, Client, on_client
from fedloom.core.cohort import Cohort
from fedloom.core.errors import SettingError
from fedloom.core.fold import minimise
from fedloom.core.model import Model
from fedloom.core.task import Task
from fedloom.core.terms import Term
from fedloom.core.types import Maybe, Weighted, Weights, replace, state


@state
class Kept:
    """What a client keeps between rounds."""

    own: Weights  # the tensors that are never shared
    previous: tuple[Maybe[Weights], ...]  # the whole model after its last round; none where no term asks for it


@dataclass(frozen=True, kw_only=True)
class Averaging(Algorithm[Weights, Kept]):
    """Abstract: local training on the task's loss plus `terms`, then the mean of what is shared.

    `aggregation`: mean weighted by number of `samples`, or `uniform`. `buffers` (BatchNorm statistics): `average` them
    like parameters, keep the `server`'s, or leave them `local` to each client. `shared`: glob patterns, separated by
    spaces, of the names of tensors that are shared; one that starts with ! takes back.

    Down: the shared tensors. Up: the same. Kept: the others, and the last local model where a term asks for it.
    """

    aggregation: Aggregation = "samples"
    buffers: Literal["average", "server", "local"] = "average"
    shared: str = "*"

    judged_by_previous: ClassVar[bool] = False

    @property
    def terms(self) -> tuple[Term, ...]:
        """What is added to the task's loss."""
        return ()

    @property
    def personalises(self) -> bool:
        own = type(self).personal is not Averaging.personal or type(self).judged_with is not Averaging.judged_with
        return own or self.judged_by_previous or self.shared != "*" or self.buffers == "local"

    @property
    def _keeps_previous(self) -> bool:
        return self.judged_by_previous or any(t.keeps_previous for t in self.terms)

    def _is_shared(self, name: str) -> bool:
        verdict = False
        for pattern in self.shared.split():
            if fnmatchcase(name, pattern.removeprefix("!")):
                verdict = not pattern.startswith("!")
        return verdict

    def _travelling(self, weights: Weights) -> Weights:
        """The part that goes down and, but for buffers that the server keeps, up."""
        part = weights.select(self._is_shared)
        return Weights(params=part.params) if self.buffers == "local" else part

    def init(self, model: Model, key: int, *, num_clients: int) -> Weights:
        weights = model.init(key)
        if not self._travelling(weights).params:
            raise SettingError(f"shared = {self.shared!r} matches no parameter of {model.name}: {list(weights.params)}")
        return weights

    def init_client(self, initial: Weights, model: Model, key: int) -> Kept:
        sent = self._travelling(initial)
        own = Weights(
            params={n: t for n, t in initial.params.items() if n not in sent.params},
            buffers={n: t for n, t in initial.buffers.items() if n not in sent.buffers},
        )
        return Kept(own=own, previous=(Maybe.none(initial),) if self._keeps_previous else ())

    @on_client
    def local_update(self, client: Client[Kept], sent: Weights) -> tuple[Kept, Weighted[Weights]]:
        """Train from the global model; keep what is not shared, send the rest."""
        start, batches = sent.merge(client.state.own), client.train
        previous = client.state.previous[0] if self._keeps_previous else Maybe.none(Weights(params={}))
        for term in self.terms:
            batches = term.annotate(client.model, batches, start, previous)
        loss = functools.partial(_objective, client.model, client.task, self.terms)
        trained = minimise(loss, start, batches, self.local.optimiser, start, previous, lr=client.lr)
        own = Weights(
            params={n: trained.params[n] for n in client.state.own.params},
            buffers={n: trained.buffers[n] for n in client.state.own.buffers},
        )
        up = self._travelling(trained)
        up = Weights(params=up.params) if self.buffers == "server" else up
        kept = Kept(own=own, previous=(Maybe.some(trained),) if self._keeps_previous else ())
        return kept, Weighted(value=up, weight=client.weight(self.aggregation))

    def round(self, server: Weights, cohort: Cohort) -> Weights:
        return server.merge(cohort.reduce(self.local_update, self._travelling(server)).mean)

    def judged_with(self, server: Weights, model: Model) -> Weights:
        return self._travelling(server)

    def personal(self, client: Client[Kept], sent: Weights) -> Weights:
        together = sent.merge(client.state.own)
        return client.state.previous[0].otherwise(together) if self.judged_by_previous else together

    def global_weights(self, server: Weights) -> Weights | None:
        return server if self.shared == "*" else None


def _objective(
    model: Model,
    task: Task,
    terms: tuple[Term, ...],
    weights: Weights,
    batch: Batch,
    start: Weights,
    previous: Maybe[Weights],
) -> tuple[Tensor, Weights]:
    logits, buffers = model.train(weights, batch)
    value = task.loss(logits, batch)
    for term in terms:
        value = value + term.penalty(weights, logits, batch, start, previous)
    return value, replace(weights, buffers=buffers)
