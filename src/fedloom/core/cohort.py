"""The only bridge between server and clients: what goes down, what comes up."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from fedloom.core import tree
from fedloom.core.client import Public
from fedloom.core.errors import NobodyAnswered, StackingError
from fedloom.core.model import Model
from fedloom.core.types import Failure, Tree

T = TypeVar("T")

Predict = Callable[[Tensor], Tensor]
Scatter = tuple[Any, ...] | Callable[[Tensor], tuple[Any, ...]]


class Total(Protocol):
    """Uploads on their way to a mean."""

    def add(self, uploads: Tree) -> None:
        """Add K uploads, stacked along the leading axis of every leaf."""
        ...

    def __bool__(self) -> bool: ...

    def result(self) -> Tree:
        """Return the uploads' tree with each Weighted replaced by its mean, once something was added."""
        ...


@dataclass(frozen=True)
class Replies(Generic[T]):
    """Answers and the clients that gave them, in cohort order; the clients that did not answer, and why."""

    cohort: Cohort  # those who answered: a second exchange of the round starts from here
    values: Sequence[T]  # one upload for each of them
    failed: tuple[Failure, ...] = ()
    new_total: Callable[[], Total] = tree.WeightedMean  # by the run's aggregator

    @property
    def ids(self) -> Tensor:
        """Clients that answered, [K] int64."""
        return self.cohort.ids

    @property
    def share(self) -> float:
        """Share of all clients that answered: the papers' |S| / N."""
        return len(self.ids) / self.cohort.num_clients

    @property
    def value(self) -> T:
        """The uploads as one tree whose leaves are [K, ...]."""
        if not self.values:
            raise NobodyAnswered(_NOBODY)
        first = self.values[0]
        for other in self.values[1:]:
            if not tree.same_structure(first, other):
                raise StackingError(
                    "uploads of different architectures cannot be stacked. Gather each on its own: "
                    "for group in cohort.groups: group.gather(...)"
                )
        return tree.stack(self.values)

    def only(self, clients: Tensor) -> Replies[T]:
        """Return the answers of some clients.

        Args:
            clients: their numbers, [k].
        """
        wanted = set(clients.tolist())
        values = [value for k, value in zip(self.ids.tolist(), self.values, strict=True) if k in wanted]
        return Replies(self.cohort.only(clients), values, new_total=self.new_total)

    @property
    def mean(self) -> Any:
        """The uploads' tree with each Weighted replaced by its mean, as `Cohort.reduce` gives it."""
        total = self.new_total()
        for upload in self.values:
            total.add(tree.stack([upload]))
        return Reduction(self.cohort, total).mean


@dataclass(frozen=True)
class Reduction:
    """The mean of the answers, the clients in it, and those missing and why. Falsy if nobody answered."""

    cohort: Cohort
    total: Total
    failed: tuple[Failure, ...] = ()

    @property
    def share(self) -> float:
        """Share of all clients that answered, or that the mean is of in any case: the papers' |S| / N."""
        return float(getattr(self.total, "count", len(self.cohort.ids))) / self.cohort.num_clients

    def __bool__(self) -> bool:
        return bool(self.total)

    @functools.cached_property
    def mean(self) -> Any:
        """The upload's tree with each Weighted replaced by its mean."""
        if not self:
            raise NobodyAnswered(_NOBODY)
        return self.total.result()


_NOBODY = "nobody answered: test the replies before you read what they say, or let the round end here"


@runtime_checkable
class HasPools(Protocol):
    """An algorithm whose server appends to pools, in any round."""

    def init_pools(self, server: Any) -> Mapping[str, Any]:
        """Return one entry of each pool, by name; values do not matter.

        `cohort.append(name, entry)` adds an entry, `cohort.pool(name)` has those of earlier rounds. An entry is written
        once, in the first checkpoint after it.

        Args:
            server: a state as `init` makes it, to take shapes from.
        """
        ...


class Cohort(Protocol):
    """The clients of one round, or those of them that are still there."""

    @property
    def ids(self) -> Tensor:
        """Numbers of the clients, [K] int64, in the order of every reply."""
        ...

    @property
    def num_clients(self) -> int:
        """Number of all clients (with these architectures), asked or not: the papers' N."""
        ...

    @property
    def round(self) -> int:
        """Number of the round, from 0."""
        ...

    @property
    def least(self) -> int:
        """The fewest answers to a question that is asked once in a run: `--least` of a server; simulations: 0."""
        ...

    @property
    def model(self) -> Model:
        """The one architecture of this cohort; an error where there are several."""
        ...

    @property
    def groups(self) -> Sequence[Cohort]:
        """One cohort for each architecture among these clients."""
        ...

    @property
    def sizes(self) -> Tensor:
        """Numbers of training examples, [K] int64 (public knowledge, as in FedAvg)."""
        ...

    @property
    def num_public(self) -> int:
        """Number of public examples."""
        ...

    @property
    def public(self) -> Public:
        """The public examples, which the server may learn from as well."""
        ...

    def only(self, clients: Tensor) -> Cohort:
        """Return the cohort of some of these clients; the others are not asked.

        Args:
            clients: numbers of clients, [k]; those that are not in this cohort do not matter.
        """
        ...

    @property
    def everyone(self) -> Cohort:
        """All clients (with these architectures), asked or not: to read by `groups` what the server keeps of them.

        New clients are among them once they have joined.
        """
        ...

    def key(self, purpose: str) -> int:
        """Return a key for the server's randomness in this round.

        Args:
            purpose: a word; another one gives another key.
        """
        ...

    def rows(self, name: str, clients: Tensor | None = None) -> Any:
        """Return what the server keeps of clients, stacked, [k, ...].

        Args:
            name: of `Algorithm.init_rows`.
            clients: numbers of clients, [k]; None: this cohort.
        """
        ...

    def keep(self, name: str, rows: Any) -> None:
        """Keep rows of these clients, once the round has ended well.

        Args:
            name: of `Algorithm.init_rows`.
            rows: stacked, [K, ...], in the order of the cohort.
        """
        ...

    def append(self, name: str, entry: Any) -> None:
        """Add an entry to a pool of the server's, once the round has ended well.

        Args:
            name: of `HasPools.init_pools`.
            entry: pytree of tensors.
        """
        ...

    def pool(self, name: str) -> Sequence[Any]:
        """Return the entries of a pool from earlier rounds, in order; each is read when it is asked for.

        Args:
            name: of `HasPools.init_pools`.
        """
        ...

    def note(self, **numbers: Tensor | float) -> None:
        """Write numbers into the record of this round, once it has ended well.

        Args:
            **numbers: tensors [] or [n], or plain numbers; `x` is `server_x` in the record. Not `loss`, not `refused`.
        """
        ...

    def evaluate(self, name: str, predict: Predict | Mapping[int, Predict]) -> None:
        """Have a model evaluated on the test set, once this round has ended well.

        Args:
            name: the record gets `<name>_accuracy`.
            predict: inputs [B, ...] -> logits [B, C]. Several by number, such as those of clients: one accuracy for
                each.
        """
        ...

    def gather(
        self, fn: Callable[..., tuple[Any, T]], *broadcast: Any, scatter: Scatter = (), at_least: int = 1
    ) -> Replies[T]:
        """Call a method on every client of the cohort, and return the answers one by one.

        Args:
            fn: marked `@fl.on_client`; called as `fn(client, *broadcast, *scatter)`.
            *broadcast: what is sent to all alike.
            scatter: what is sent to each of its own: trees stacked [K, ...], or a function of client numbers [k] that
                gives them stacked [k, ...], called for some clients at a time when they are computed.
            at_least: where fewer clients answer, the round ends and leaves the server as it was; where nobody is asked,
                nobody need answer.

        Returns:
            The uploads, stacked, and the cohort of those that answered.
        """
        ...

    def reduce(
        self, fn: Callable[..., tuple[Any, Any]], *broadcast: Any, scatter: Scatter = (), at_least: int = 1
    ) -> Reduction:
        """Call a method on every client as `gather` does, but return means alone: what secure aggregation allows.

        With an aggregator other than the mean (`RunSettings.aggregator`), it is what that makes of all uploads.

        Args:
            fn: marked `@fl.on_client`; its uploads contain `Weighted` values.
            *broadcast: what is sent to all alike.
            scatter: what is sent to each of its own, as of `gather`.
            at_least: fewest answers, as of `gather`.

        Returns:
            The mean of each `Weighted`, and the cohort of those that answered.
        """
        ...
