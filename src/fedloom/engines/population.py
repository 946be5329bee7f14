"""Population of a run: each client's data and architecture, on the device where they are simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedloom.core.batch import Notes
from fedloom.core.batches import Batches, plan
from fedloom.core.client import Public
from fedloom.core.cutting import cutting
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.masking import masking
from fedloom.core.model import Model
from fedloom.core.random import derive
from fedloom.core.task import NeedsLabelStatistics, Task, notes_of
from fedloom.core.task_measures import chosen_measures
from fedloom.core.types import replace
from fedloom.data import Examples, Federation
from fedloom.engines.message import Request, Rows
from fedloom.tasks import Classification


@dataclass(frozen=True)
class Stacking:
    """Findings of what `vmap` makes of clients of one architecture.

    Attributes:
        problem: why it cannot train two of them on the task; None if it can.
        differs: what of a stack changes a client's answers, though `vmap` can train them; None if nothing does.
        one_by_one: the first operation that it computes client by client, having no rule for it; None if there is none.
        flops: of the matrix products and convolutions of one example's gradient.
    """

    problem: str | None
    differs: str | None = None
    one_by_one: str | None = None
    flops: float = 0.0


@dataclass(frozen=True, eq=False)
class Population:
    """A federation with models: `models` by name, `assignment` the name for each client (default: in turn).

    `seed` governs everything random. Floating tensors are of `dtype`, all tensors on `device`. `first`: the number
    that client 0 has elsewhere, where these are some clients of a larger population. `measures`: names of those of
    the task that are computed beside its `headline` ("": the task's first); afterwards that is the first of them.
    `behind`: the same federation with other inputs, by the name of the architecture that is given these: the outputs
    of its front.
    """

    federation: Federation
    models: Mapping[str, Model]
    assignment: Sequence[str] = ()
    task: Task = field(default_factory=Classification)
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    first: int = 0
    measures: tuple[str, ...] = ()
    headline: str = ""
    behind: Mapping[str, Federation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "measures", chosen_measures(self.task, self.measures, self.headline))
        names, seed = list(self.models), derive(self.seed, "init")
        if not names:
            raise SettingError("a population needs at least one model")
        inputs = self.federation.train.normalise
        bound = {n: model.reading(inputs).bind(seed, self.dtype, self.device) for n, model in self.models.items()}
        if (train := self.federation.train).has_tokens:
            bound = {n: masking(model, seed, self.dtype, self.device, train) for n, model in bound.items()}
            bound = {n: cutting(model, seed, self.dtype, self.device, train) for n, model in bound.items()}
        object.__setattr__(self, "models", bound)
        n = self.federation.num_clients
        if not self.assignment:
            object.__setattr__(self, "assignment", tuple(names[k % len(names)] for k in range(n)))
        if len(self.assignment) != n:
            raise SettingError(f"assignment names a model for each of {n} clients, got {len(self.assignment)}")
        unknown = set(self.assignment) - set(names)
        if unknown:
            raise SettingError(f"assignment names unknown models {sorted(unknown)}; there are {names}")

    @property
    def num_clients(self) -> int:
        return self.federation.num_clients

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Training examples of each client in all rounds, [N]."""
        return self.federation.partition.sizes

    travels = True  # whether anything is sent: clients and server are apart

    def holders(self, clients: Sequence[int]) -> Sequence[int]:
        """Return who holds the examples of some clients of the federation: these clients."""
        return clients

    def owners(self, clients: Sequence[int]) -> Sequence[int]:
        """Return whose examples some of these clients hold: their own."""
        return clients

    def architecture(self, client: int) -> str:
        """Return the name of the model that a client of the federation is evaluated by."""
        return self.assignment[client]

    def at(self, round: int) -> Federation:
        """Return the federation of a round, from 0."""
        return self.federation.at(round, self.first)

    @cached_property
    def members(self) -> dict[str, int]:
        """Number of clients that have each model; counted once, since there may be a million."""
        counts = Counter(self.assignment)
        return {name: counts[name] for name in self.models}

    def examples_of(self, name: str) -> Federation:
        """Return the federation with the inputs that an architecture is given."""
        return self.behind.get(name, self.federation)

    def seen_by(self, name: str, round: int) -> Federation:
        """Return the federation of a round, from 0, with the inputs that an architecture is given."""
        return self.examples_of(name).at(round, self.first)

    def _train(self, name: str, examples: Examples) -> tuple[Tensor, Tensor]:
        """Return the arrays of an architecture's training examples of a round, kept until those of another are asked.

        Architectures that are given the same examples share them.
        """
        known: dict[int, tuple[Examples, tuple[Tensor, Tensor]]] = self.__dict__.setdefault("_newest", {})
        whose = id(self.examples_of(name))  # which lives as long as this population
        if whose not in known or known[whose][0] is not examples:
            known[whose] = examples, self._arrays(examples)
        return known[whose][1]

    @cached_property
    def tried(self) -> dict[Model, Stacking]:
        """Return what `vmap` makes of each model, as far as it was tried: a job's check and its run ask the same."""
        return {}

    def example(self, name: str) -> tuple[Tensor, Tensor]:
        """Return one example as the networks of an architecture and tasks get it, [1, ...] both."""
        train = self.examples_of(name).train
        x, y = self._arrays(train, 1)
        return train.normalise(x.clone(), self.dtype), y  # a network may write on it

    def prepare(self) -> None:
        """Make what all clients share, so that processes forked after this share it too."""
        _ = [self._train(name, self.seen_by(name, 0).train) for name in self.models], self.public, self.members

    def _arrays(self, examples: Examples, first: int | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and labels, of the first so many or of all."""
        x = examples.x[:first].to(self.device)
        return (x.to(self.dtype) if x.is_floating_point() else x), examples.y[:first].to(self.device)

    def train_batches(self, request: Request, local: Local) -> Batches:
        """Return the training batches of the K clients of a request, padded to one shape and stacked."""
        clients = request.clients
        shuffles, keys = [shuffle for shuffle, _ in request.keys], [key for _, key in request.keys]
        f = self.at(request.call.round)
        sizes = f.partition.sizes[list(clients)]
        order, mask = plan(sizes, local.batch_size, shuffles, epochs=local.epochs, steps=local.steps)
        rows = [f.partition.rows(k) for k in clients]
        batches = self._stack(clients, rows, order, mask, keys, request.call.round)
        notes = self._notes(f, rows, clients, request.call.round)
        return replace(batches, notes=notes, augment=f.train.augment, private=True)

    def _notes(self, f: Federation, rows: Sequence[npt.NDArray[np.int64]], clients: Sequence[int], round: int) -> Notes:
        """Return what stands beside each of the clients' training examples, [K, n, ...]: padding has zeros.

        It is what the task's loss needs to know and, where examples arrive, the `place` of each among all that its
        client ever has, and `since` which round it is there.
        """
        told: list[Notes] = [{} for _ in rows]
        if isinstance(self.task, NeedsLabelStatistics):
            told = [notes_of(self.task, f.train.y[torch.tensor(r)], self.dtype) for r in rows]
        if self.federation.arrives is not None:
            for notes, k in zip(told, clients, strict=True):
                place, since = map(torch.from_numpy, self.federation.arrived(k, round))
                notes.update(place=place, since=since)
        return {
            name: pad_sequence([notes[name] for notes in told], batch_first=True).to(self.device) for name in told[0]
        }

    def held_out_batches(self, clients: Sequence[int], kind: Rows, round: int) -> Batches:
        """Return one pass over the held-out examples (or training examples) of K clients of one architecture, stacked.

        The examples are those of a round, in stored order. num_examples = 0 for a client that holds out nothing.
        """
        f = self.at(round)
        partition = {"val": f.local_val, "test": f.local_test, "train": f.partition}[kind]
        own = [np.zeros(0, np.int64) if partition is None else partition.rows(k) for k in clients]
        sizes = np.array([len(r) for r in own], np.int64)
        batch_size = f.train.at_once(self.models[self.assignment[clients[0]]].evaluation_batch(200))
        order, mask = plan(sizes, batch_size, None)
        return self._stack(clients, own, order, mask, [0] * len(own), round)

    @cached_property
    def public(self) -> Public:
        """The public examples; unless their labels are known, y is 0 everywhere."""
        examples = self.federation.public
        source = self.federation.train.select(np.zeros(1, np.int64)) if examples is None else examples
        x, labels = self._arrays(source)
        y = labels if self.federation.public_labels else torch.zeros_like(labels, dtype=torch.int64)
        n = 0 if examples is None else len(examples)
        zero = torch.zeros((), dtype=torch.int64, device=self.device)
        index = torch.zeros((0, 1), dtype=torch.int64, device=self.device)
        batches = Batches(
            x=x, y=y, examples=torch.zeros_like(index[:, 0]),
            order=index, mask=index.bool(), num_steps=zero, num_examples=zero + n, key=zero,
            prepare=source.normalise, dtype=self.dtype,
        )  # fmt: skip
        return Public(batches=batches)

    def _any_row(self, client: int) -> int:
        """Return a row of the client's own."""
        f = self.federation
        held = [p.rows(client) for p in (f.partition, f.local_test, f.local_val) if p is not None]
        return int(next(rows for rows in held if len(rows))[0])

    def _stack(
        self,
        clients: Sequence[int],
        rows: Sequence[npt.NDArray[np.int64]],
        order: npt.NDArray[np.int64],
        mask: npt.NDArray[np.bool_],
        keys: Sequence[int],
        round: int,
    ) -> Batches:
        sizes = np.array([len(r) for r in rows], np.int64)
        examples = np.empty((len(rows), max(1, int(sizes.max(initial=0)))), np.int64)
        for i, r in enumerate(rows):
            # padding is a row of the client's own: nothing of anybody else's can leak into it
            examples[i] = r[0] if len(r) else self._any_row(clients[i])
            examples[i, : len(r)] = r
        name = self.assignment[clients[0]]
        train = self.seen_by(name, round).train
        x, y = self._train(name, train)

        def put(a: npt.NDArray[Any]) -> Tensor:
            return torch.from_numpy(a).to(self.device)

        return Batches(
            x=x,
            y=y,
            examples=put(examples),
            order=put(order),
            mask=put(mask),
            num_steps=put(mask.any(2).sum(1)),
            num_examples=put(sizes),
            key=torch.tensor(list(keys), device=self.device),
            prepare=train.normalise,
            dtype=self.dtype,
            cut=self.models[name].cut,
        )


@dataclass(frozen=True, eq=False)
class Pooled(Population):
    """Population of one client, with the first model, that holds the examples of all clients of a federation.

    `num_owners`: how many these are.
    """

    num_owners: int = 1
    travels = False

    @classmethod
    def of(cls, clients: Population) -> Pooled:
        """Put the examples of all clients of a population into the hands of one."""
        name = next(iter(clients.models))
        return cls(
            federation=clients.federation.pooled(),
            models={name: clients.models[name]},
            task=clients.task,
            seed=clients.seed,
            device=clients.device,
            dtype=clients.dtype,
            measures=clients.measures,
            headline=clients.headline,
            num_owners=clients.num_clients,
        )

    def holders(self, clients: Sequence[int]) -> Sequence[int]:
        return (0,)

    def owners(self, clients: Sequence[int]) -> Sequence[int]:
        return range(self.num_owners)

    def architecture(self, client: int) -> str:
        return self.assignment[0]
