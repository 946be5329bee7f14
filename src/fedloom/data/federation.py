"""A federation: who holds which training, validation and test examples."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property, partial
from html import escape

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedloom.data.changes import Arrival, Drift
from fedloom.data.drawing import starts
from fedloom.data.examples import Dataset, Examples
from fedloom.data.groups import split_whole_groups
from fedloom.data.hold_out import set_aside, split
from fedloom.data.partition import Partition

_SHOWN = 20  # clients in a notebook


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """The examples of N clients, and those that everyone is measured on.

    `partition`, `local_test` and `local_val` are rows of the same `train`, share no row, and have the same clients.

    Args:
        train: all examples that clients hold.
        partition: training rows of each client, at least one each; none for a new client, which only tests.
        test: the global test set.
        local_test: rows held out per client, to measure personalised models on.
        local_val: rows held out per client, to choose between models on.
        public: examples known to everyone.
        public_labels: whether their labels are known too; if not, they are never read.
        arrives: by which rule training examples arrive, where all are not there from the first round on.
        drift: by which rule examples become others.
        largest_elsewhere: the most training examples of a client of the run that is not among these; 0: all are here.
        begun: the federation with which the run of these clients began, where some have come or changed since.

    Raises:
        ValueError: a row is out of range or has two roles, a client has nothing to train on, or the parts differ in
            number of clients, shape of an example or number of classes.
    """

    train: Examples
    partition: Partition
    test: Examples | None = None
    local_test: Partition | None = None
    local_val: Partition | None = None
    public: Examples | None = None
    public_labels: bool = False
    arrives: Arrival | None = None
    drift: Drift | None = None
    largest_elsewhere: int = 0
    begun: Federation | None = None

    def __post_init__(self) -> None:
        for name, kind, example in (("arrives", Arrival, "Growing(0.2, 50)"), ("drift", Drift, "LabelDrift(50)")):
            if (rule := getattr(self, name)) is not None and not isinstance(rule, kind):
                raise ValueError(
                    f"{name} must be a fedloom.data.{kind.__name__}, got {rule!r:.80}: give fedloom.data.{example}, or "
                    "a rule that derives from that class"
                )
        roles = {"partition": self.partition, "local_test": self.local_test, "local_val": self.local_val}
        owner: npt.NDArray[np.uint8] = np.zeros(len(self.train), np.uint8)
        for role, part in roles.items():
            if part is None:
                continue
            if part.num_clients != self.num_clients:
                raise ValueError(
                    f"{role} must have the {self.num_clients} clients of partition, got {part.num_clients}: "
                    "give clients without such rows an empty list"
                )
            if len(part.indices) and part.indices.max() >= len(self.train):
                raise ValueError(
                    f"{role} must hold rows of train, 0..{len(self.train) - 1}, got {part.indices.max()}: "
                    "pass the examples that were partitioned"
                )
            owner[part.indices] += 1
        if (owner > 1).any():
            row = int(np.argmax(owner > 1))
            using = [role for role, part in roles.items() if part is not None and row in part.indices]
            raise ValueError(f"a row has one role, got row {row} in {' and '.join(using)}: use federate or split")
        self._check_groups(roles)
        held = self.partition.sizes if self.local_test is None else self.partition.sizes + self.local_test.sizes
        if not held.all():
            raise ValueError(
                f"every client needs a training example, got none for client {int(held.argmin())}: "
                "leave that client out, or partition with min_size=1 or more"
            )
        for role, examples in {"test": self.test, "public": self.public}.items():
            if examples is not None and examples.shape != self.train.shape:
                is_image = len(self.train.shape) > 1
                remedy = "resize them, or repeat grey images over the channels" if is_image else "give them its columns"
                raise ValueError(
                    f"{role} examples must have the shape of the training examples, {self.train.shape}, got "
                    f"{examples.shape} of {examples.name}: {remedy}"
                )
        if self.public_labels and self.public is not None and self.public.num_classes > self.num_classes:
            raise ValueError(
                f"public examples with labels must be of the clients' {self.num_classes} classes, got "
                f"{self.public.num_classes}: take them out of the training examples, or leave their labels out with "
                "public_labels=False"
            )
        if self.test is not None and self.test.num_classes != self.num_classes:
            raise ValueError(
                f"test must have the {self.num_classes} classes of train, got {self.test.num_classes}: "
                "give both the same num_classes"
            )

    def _check_groups(self, roles: dict[str, Partition | None]) -> None:
        """Refuse a group of examples that has rows in several roles."""
        if self.train.groups is None:
            return
        role_of = np.full(int(self.train.groups.max(initial=0)) + 1, -1)
        for number, part in enumerate(roles.values()):
            of = self.train.groups[[] if part is None else part.indices]
            if (other := (role_of[of] >= 0) & (role_of[of] != number)).any():
                group = int(of[other.argmax()])
                row, names = int((self.train.groups == group).argmax()), [*roles]
                raise ValueError(
                    f"a group is on one side of a split, got group {group}, that of row {row}, in "
                    f"{names[role_of[group]]} and {names[number]}: use federate, or hold out whole groups"
                )
            role_of[of] = number

    def __repr__(self) -> str:
        return f"Federation({self.train!r}, {self.partition!r}{'; '.join(['', *self._beside()])})"

    def _beside(self) -> list[str]:
        """Return the sizes of the examples beside those to train on, in words."""
        held = {"local test": self.local_test, "local validation": self.local_val}
        others = {"test": self.test, "public": self.public}
        sizes = {n: p.sizes.sum() for n, p in held.items() if p} | {n: len(e) for n, e in others.items() if e}
        return [f"{size:,} {name}" for name, size in sizes.items()]

    def _repr_html_(self) -> str:
        """Return what a notebook shows: which classes each of the first clients holds."""
        said = f"<p>{escape(repr(self))}</p>"
        if not self.train.has_classes:
            return said
        classes = self.train.classes or range(self.num_classes)
        rows = [[f"<th>{escape(str(name))}</th>" for name in ("client", *classes, "all")]]
        for client, counts in enumerate(self.counts()[:_SHOWN]):
            name = self.partition.clients[client] if self.partition.clients else client
            cells = [
                f'<td style="background:rgba(0,114,178,{0.6 * n / max(1, counts.max()):.2f})">{n:,}</td>'
                for n in counts
            ]
            rows.append([f"<th>{escape(str(name))}</th>", *cells, f"<td>{counts.sum():,}</td>"])
        more = f"<p>and {self.num_clients - _SHOWN:,} more clients</p>" if self.num_clients > _SHOWN else ""
        return f"{said}<table>{''.join(f'<tr>{chr(10).join(row)}</tr>' for row in rows)}</table>{more}"

    @property
    def num_clients(self) -> int:
        """Number of clients N."""
        return self.partition.num_clients

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return self.train.num_classes

    @property
    def largest(self) -> int:
        """The most training examples of a client of the run."""
        return max(int(self.partition.sizes.max()), self.largest_elsewhere)

    def counts(self) -> npt.NDArray[np.int64]:
        """Return the training examples of each client and class, (N, C).

        Raises:
            ValueError: the targets are floating point numbers, which have no classes.
        """
        return self.partition.counts(self.train.y, self.num_classes)

    @property
    def changes(self) -> bool:
        """True if examples are not the same in every round."""
        return self.arrives is not None or self.drift is not None

    def at(self, round: int, first: int = 0) -> Federation:
        """Return the federation of a round: the training examples that are present, as they are by then.

        Args:
            round: from 0.
            first: the number that client 0 has elsewhere, where these are some clients of a larger federation.

        Raises:
            ValueError: by a rule a client has no training example in this round, or an example another shape or type.
        """
        if not self.changes:
            return self
        known: dict[tuple[int, int], Federation] = self.__dict__.setdefault("_known", {})
        if (found := known.get((round, first))) is None:
            train, test = self.train, self.test
            if self.drift is not None:
                train = train.drifted(self.drift, self._owners + np.where(self._owners < 0, 0, first), round)
                test = test and test.drifted(self.drift, np.full(len(test), -1), round)
            found = replace(self, train=train, test=test, partition=self.there(round), arrives=None, drift=None)
            self.__dict__["_known"] = {**dict([*known.items()][-1:]), (round, first): found}  # of two rounds
        return found

    def arrived(self, client: int, round: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the place in the order of arrival of each example that is present, and the round since which it is.

        Args:
            client: number of the client.
            round: from 0.

        Returns:
            Both of shape (n,), in the order of the rows of `at(round).partition`.
        """
        _, place, since, until = self._timetable
        own = slice(self.partition.indptr[client], self.partition.indptr[client + 1])
        there = (since[own] <= round) & (round < until[own])
        return place[own][there], since[own][there]

    @cached_property
    def _timetable(self) -> tuple[npt.NDArray[np.int64], ...]:
        """Return (rows, places, since, until) of all training examples, client by client in their order of arrival."""
        assert self.arrives is not None
        p = self.partition
        client = np.repeat(np.arange(p.num_clients), p.sizes)
        place = np.arange(len(p.indices)) - p.indptr[:-1][client]
        orders = {int(n): self.arrives.order(int(n)) for n in np.unique(p.sizes)}
        order = np.concatenate([start + orders[int(n)] for start, n in zip(p.indptr[:-1], p.sizes, strict=True)])
        since, until = self.arrives.times(place, p.sizes[client])
        return p.indices[order], place, since, until

    def check_changes(self, rounds: int) -> None:
        """Refuse rules of arrival and drift that do not fit the examples, as far as is known before a run.

        Drift is tried in the first round alone.

        Args:
            rounds: number of rounds of the run.

        Raises:
            ValueError: a rule does not fit the examples, or not in every round.
        """
        self.at(0)
        if self.arrives is not None:
            until = np.unique(self._timetable[3])
            for round in until[until < rounds].tolist():  # in between, none leave
                self.there(round)

    def there(self, round: int) -> Partition:
        """Return the training rows of each client that are present in a round.

        Args:
            round: from 0.

        Raises:
            ValueError: a client that has training rows has none in this round.
        """
        p = self.partition
        if self.arrives is None:
            return p
        rows, _, since, until = self._timetable
        there = (since <= round) & (round < until)
        sizes = np.diff(np.concatenate([[0], np.cumsum(there)])[p.indptr])
        if (none := (sizes == 0) & (p.sizes > 0)).any():
            raise ValueError(
                f"every client has a training example in every round, and by {self.arrives} client {none.argmax()} has "
                f"none in round {round + 1}: let its first be there from the first round on, and one at a time leave"
            )
        return Partition(starts(sizes), rows[there], p.name, p.seed, p.clients)

    @cached_property
    def _owners(self) -> npt.NDArray[np.int64]:
        """Client of each row of `train`, -1 of rows that nobody has."""
        owners = np.full(len(self.train), -1, np.int64)
        for part in (self.partition, self.local_test, self.local_val):
            if part is not None:
                owners[part.indices] = np.repeat(np.arange(part.num_clients), part.sizes)
        return owners

    def pooled(self) -> Federation:
        """Return the federation in which one client holds every training row: centralised training.

        Raises:
            ValueError: the data change, and one client would have other examples in a round than all of them.
        """
        if self.changes:
            raise ValueError("data that change are not pooled: pool the federation of a round, at(round)")
        return Federation(
            self.train,
            self.partition.pooled(),
            self.test,
            None if self.local_test is None else self.local_test.pooled(),
            None if self.local_val is None else self.local_val.pooled(),
            self.public,
            self.public_labels,
        )

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits of a SHA-256 over all examples and partitions; names are left out."""
        parts = (self.train, self.partition, self.test, self.local_test, self.local_val, self.public)
        listing = " ".join("-" if part is None else part.fingerprint() for part in parts)
        listing += " labelled" if self.public_labels else ""
        listing += f" {self.arrives} {self.drift}" if self.changes else ""
        return hashlib.sha256(listing.encode()).hexdigest()[:16]


def federate(
    train: Examples,
    partition: Partition,
    *,
    test: Examples | None = None,
    test_fraction: float = 0.2,
    val_fraction: float = 0.0,
    held_out: npt.NDArray[np.bool_] | None = None,
    public: Examples | None = None,
    public_labels: bool = False,
    arrives: Arrival | None = None,
    drift: Drift | None = None,
    seed: int = 0,
) -> Federation:
    """Make a federation of a partition, holding out local test and validation sets on every client.

    What prepares the columns of a table (`read_csv`, `from_frame`) is fitted anew, on all clients' training rows.

    Args:
        train: all examples that clients hold.
        partition: rows of each client.
        test: the global test set.
        test_fraction: part of every client's rows to hold out, in [0, 1), with `split`: stratified by class, or at
            random for floating point targets; where `train` has groups, by whole groups. At 0 the federation has no
            local test sets.
        val_fraction: part of the rows that then remain to every client, to choose between models on, in [0, 1), taken
            in the same way. At 0 there are no local validation sets. The test rows do not depend on it.
        held_out: (N,) bool, rows of `train` to test on locally instead of a fraction. Clients without other rows are
            left out, and the name of the partition says how many.
        public: examples known to everyone.
        public_labels: whether their labels are known too.
        arrives: by which rule training examples arrive; none: all are there from the first round on.
        drift: by which rule examples become others; none: they stay as they are.
        seed: seed of the local splits, 0 to 2**32 - 1.

    Returns:
        What a run trains on; print it to see sizes and what is held out.

    Raises:
        ValueError: what `split` and `Federation` refuse, `val_fraction` is out of range, `held_out` does not fit
            `train`, all clients would be left out, or `test` is of the type of `train` but normalised in another way.
    """
    _check_kinds(train, partition, test, public)
    alike = test is not None and (train.has_tokens or test.has_tokens or test.x.dtype == train.x.dtype)
    if test is not None and alike and test.normalise != train.normalise:
        raise ValueError(
            f"test examples must be normalised as those that train, {train.normalise}, got {test.normalise}: networks "
            "would be evaluated on other inputs than they have learnt; give both the same normalise"
        )
    if not 0 <= val_fraction < 1:
        raise ValueError(f"val_fraction must be in [0, 1), got {val_fraction}: 0.1 takes one remaining row in ten")
    labels = np.zeros(len(train), np.int64) if not train.has_classes else train.y.cpu().numpy()
    part = split if train.groups is None else partial(split_whole_groups, groups=train.groups)
    local_test: Partition | None
    if held_out is not None:
        training, local_test = set_aside(partition, held_out, len(train))
    else:
        training, local_test = part(partition, labels, test_fraction=test_fraction, seed=seed)
        local_test = local_test if test_fraction > 0 else None
    local_val: Partition | None = None
    if val_fraction > 0:
        training, local_val = part(training, labels, test_fraction=val_fraction, seed=seed, stream=1)
    if train.preparation is not None:  # neither held-out rows nor those of others decide on means or categories
        fitted = train.preparation.fitted(training.indices, train.y.cpu().numpy(), training.sizes)
        train, test, public = train.prepared(fitted), test and test.prepared(fitted), public and public.prepared(fitted)
    return Federation(train, training, test, local_test, local_val, public, public_labels, arrives, drift)


def _check_kinds(train: object, partition: object, test: object, public: object) -> None:
    """Refuse what is no `Examples` and no `Partition`, with the way from what was given to what is meant."""
    for name, given in {"train": train, "test": test, "public": public}.items():
        if not isinstance(given, Examples) and (given is not None or name == "train"):
            if isinstance(given, Dataset):
                remedy = f"pass its part, dataset.{name if name == 'test' else 'train'}"
            elif isinstance(given, np.ndarray | Tensor):
                remedy = "make them with fedloom.from_arrays(x, y)"
            else:
                remedy = "make them with fedloom.from_torch(dataset), fedloom.from_arrays(x, y) or fedloom.from_frame"
            raise ValueError(f"{name} must be fedloom.Examples, got {type(given).__name__}: {remedy} [FL-DATA-001]")
    if not isinstance(partition, Partition):
        raise ValueError(
            f"partition must be a fedloom.Partition, got {type(partition).__name__}: make one with "
            "fedloom.iid(train.y, 10, seed=0), or of lists with fedloom.Partition.from_lists(lists) [FL-DATA-003]"
        )
