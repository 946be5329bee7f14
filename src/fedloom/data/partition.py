"""Partitions: which example belongs to which client.

`shards` and `dirichlet` are the two partitions of Lee et al., "Preservation of the Global Knowledge by Not-True
Distillation in Federated Learning" (NeurIPS 2022), draw for draw as its authors' code makes them. Every function here
draws from a local `numpy.random.RandomState`, whose stream NumPy has frozen, and `shards` from a `random.Random` too:
a seed names the same partition on every machine, and the global generators are neither read nor moved.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedloom.data.drawing import (
    IntArray,
    check_clients,
    generator_of,
    is_hopeless,
    number_of,
    starts,
    warn_of_shards,
    whole_labels,
)

_BLOCK = 1 << 16  # clients that are counted at a time: a million cost no more memory than these


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """The rows of N clients, client after client; an example has at most one owner.

    Args:
        indptr: (N + 1,) int64; client k owns `indices[indptr[k]:indptr[k + 1]]`.
        indices: int64 rows of the examples, none twice.
        name: how the partition was made, for reports.
        seed: seed it was drawn with; None if nothing was drawn.
        clients: what the clients are called, in their order; nothing if they have numbers alone.

    Raises:
        ValueError: `indptr` does not run from 0 to `len(indices)` without falling, or an index is negative or repeats.
    """

    indptr: IntArray
    indices: IntArray
    name: str = "lists"
    seed: int | None = None
    clients: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        indptr, indices = _frozen(self.indptr, "indptr"), _frozen(self.indices, "indices")
        object.__setattr__(self, "indptr", indptr)
        object.__setattr__(self, "indices", indices)
        if len(indptr) < 2 or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
            raise ValueError(
                f"indptr must rise from 0 to the number of indices, {len(indices)}, over at least one client, got "
                f"{indptr[:8]}{' ...' if len(indptr) > 8 else ''}: use Partition.from_lists"
            )
        if self.clients and len(self.clients) != len(indptr) - 1:
            raise ValueError(
                f"clients must name each of the {len(indptr) - 1} clients, got {len(self.clients)} names: name all or "
                "none"
            )
        if len(indices) and indices.min() < 0:
            raise ValueError(f"indices must not be negative, got {indices.min()}: count rows from 0")
        repeated = _first_repeated(indices)
        if repeated is not None:
            raise ValueError(
                f"an example belongs to one client once, got row {repeated} more than once: "
                "remove repeated rows from the lists"
            )

    @classmethod
    def from_lists(
        cls, lists: Sequence[Sequence[int] | IntArray], name: str = "lists", seed: int | None = None
    ) -> Partition:
        """Return the partition of one list of rows per client.

        Args:
            lists: the rows of each client.
            name: how the partition is called in files and on pages.
            seed: by which the lists were drawn, for the record.

        Raises:
            ValueError: there is no list, a row is not an integer, is negative, or appears twice.
        """
        rows = [np.asarray(r) if len(r) else np.empty(0, np.int64) for r in lists]
        indptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return cls(indptr, np.concatenate(rows) if rows else np.empty(0, np.int64), name, seed)

    def __repr__(self) -> str:
        low, high = self.sizes.min(), self.sizes.max()
        each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return f"Partition({self.name}: {self.num_clients:,} clients of {each} examples)"

    @property
    def num_clients(self) -> int:
        """Number of clients N."""
        return len(self.indptr) - 1

    @cached_property
    def sizes(self) -> IntArray:
        """Number of examples of each client, (N,); read-only."""
        return _frozen(np.diff(self.indptr), "sizes")

    def rows(self, client: int) -> IntArray:
        """Return the rows of one client, in its order; a copy, by which tensors can be indexed.

        Args:
            client: number of the client.

        Raises:
            ValueError: there is no such client.
        """
        if not 0 <= client < self.num_clients:
            raise ValueError(f"client must be in 0..{self.num_clients - 1}, got {client}: choose one of these")
        return self.indices[self.indptr[client] : self.indptr[client + 1]].copy()  # PyTorch warns of what is read-only

    def counts(self, labels: npt.ArrayLike | Tensor, num_classes: int) -> IntArray:
        """Count the examples of each client and class.

        Args:
            labels: class of every example, in [0, num_classes).
            num_classes: number of classes C.

        Returns:
            (N, C) counts.

        Raises:
            ValueError: `labels` is too short for this partition, or holds a class outside the range.
        """
        classes = covering(whole_labels(labels, num_classes), self)
        out = np.zeros((self.num_clients, num_classes), np.int64)
        for first in range(0, self.num_clients, _BLOCK):
            last = min(first + _BLOCK, self.num_clients)
            owner = np.repeat(np.arange(last - first), self.sizes[first:last])
            own = classes[self.indices[self.indptr[first] : self.indptr[last]]]
            cells = np.bincount(owner * num_classes + own, minlength=(last - first) * num_classes)
            out[first:last] = cells.reshape(last - first, num_classes)
        return out

    def pooled(self) -> Partition:
        """Return the partition in which a single client owns the rows of all."""
        return Partition(np.array([0, len(self.indices)]), self.indices, f"{self.name}, pooled", self.seed)

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits of a SHA-256 over the rows of every client; name and seed are left out."""
        digest = hashlib.sha256(f"{self.num_clients}".encode())
        digest.update(self.indptr.astype("<i8", copy=False).data)
        digest.update(self.indices.astype("<i8", copy=False).data)
        return digest.hexdigest()[:16]


def by_lists(lists: Sequence[Sequence[int] | IntArray]) -> Partition:
    """Give client k the rows `lists[k]`; see `Partition.from_lists`."""
    return Partition.from_lists(lists)


def pooled(num_examples: int) -> Partition:
    """Give one client every example.

    Raises:
        ValueError: `num_examples` is below 1.
    """
    check_clients(1, num_examples)
    return Partition(np.array([0, num_examples]), np.arange(num_examples), "pooled")


def iid(labels: npt.ArrayLike | Tensor, num_clients: int, seed: int) -> Partition:
    """Deal all examples in random order, so that sizes differ by at most one.

    Args:
        labels: class or target of every example, (n, ...); only their number matters.
        num_clients: number of clients, 1 to n.
        seed: 0 to 2**32 - 1.

    Returns:
        Which rows belong to which client.

    Raises:
        ValueError: `num_clients` or `seed` is out of range.
    """
    num_examples = number_of(labels)
    check_clients(num_clients, num_examples)
    order = generator_of(seed).permutation(num_examples)
    size, larger = divmod(num_examples, num_clients)  # the first ones have one more
    sizes = np.full(num_clients, size, np.int64)
    sizes[:larger] += 1
    return Partition(starts(sizes), order, "iid", seed)


def shards(
    labels: npt.ArrayLike | Tensor, num_clients: int, shards_per_client: int, seed: int, num_classes: int | None = None
) -> Partition:
    """Cut every class into equally many shards and give every client some at random.

    Lee et al. (2022), after McMahan et al. (2017). With s shards for each of K clients and C classes, a
    class makes s * K / C shards, contiguous in the order of the data set; the first ones take one example more where
    the class does not divide evenly. A client can draw the same class twice, so s is the largest number of its classes.

    Args:
        labels: class of every example, (n,).
        num_clients: number of clients K.
        shards_per_client: shards s of each client.
        seed: 0 to 2**32 - 1.
        num_classes: C; without it, the largest label + 1.

    Returns:
        Which rows belong to which client.

    Raises:
        ValueError: an argument is out of range, s * K is no multiple of C, or a class has fewer examples than shards.
    """
    classes = whole_labels(labels, num_classes)
    check_clients(num_clients, len(classes))
    if num_classes is None:
        num_classes = int(classes.max()) + 1
    if shards_per_client < 1:
        raise ValueError(f"shards_per_client must be at least 1, got {shards_per_client}: 2 is the usual choice")
    generator = generator_of(seed)
    total = num_clients * shards_per_client
    if total % num_classes:
        raise ValueError(
            f"shards_per_client * num_clients must be a multiple of the number of classes, {num_classes}, got "
            f"{shards_per_client} * {num_clients} = {total}: use num_clients = "
            f"{_nearest(num_clients, shards_per_client, num_classes)} or shards_per_client = "
            f"{_nearest(shards_per_client, num_clients, num_classes)} [FL-DATA-012]"
        )
    per_class = total // num_classes
    smallest = int(np.bincount(classes, minlength=num_classes).argmin())
    if (available := int((classes == smallest).sum())) < per_class:
        raise ValueError(
            f"every class needs an example for each of its {per_class} shards, got {available} of class {smallest}: "
            "use fewer clients, fewer shards per client or more data"
        )
    warn_of_shards(total, per_class)
    remaining = [np.array_split(np.flatnonzero(classes == c), per_class) for c in range(num_classes)]
    # The official code seeds both global generators: Python's deals the classes, NumPy's picks the shards.
    deal = list(range(num_classes)) * per_class
    random.Random(seed).shuffle(deal)
    rows = [remaining[c].pop(generator.choice(len(remaining[c]), replace=False)) for c in deal]
    clients = [np.concatenate(rows[k : k + shards_per_client]) for k in range(0, total, shards_per_client)]
    return Partition.from_lists(clients, f"shards s={shards_per_client}", seed)


_MANY = 2000  # draws, after which it may take long


def dirichlet(
    labels: npt.ArrayLike | Tensor,
    num_clients: int,
    alpha: float,
    seed: int,
    min_size: int = 10,
    max_attempts: int = 20_000,
    capped: bool = True,
) -> Partition:
    """Divide every class among the clients in proportions drawn from a symmetric Dirichlet distribution.

    Lee et al. (2022), "LDA" there; the routine of FedML and NIID-Bench. Class after class, the proportions
    are Dirichlet(alpha, ..., alpha), set to 0 for clients that already hold n / K examples, and renormalised. If in
    the end a client has fewer than `min_size` examples, everything is drawn again. Cap and rejection are part of the
    distribution: for small `alpha` the accepted partition is a rare draw.

    Args:
        labels: class of every example, (n,).
        num_clients: number of clients K.
        alpha: concentration, greater than 0; the smaller, the fewer classes a client has.
        seed: 0 to 2**32 - 1.
        min_size: examples that the smallest client must have.
        max_attempts: draws to make before giving up; 1,000 take about a second for K = 100 and 50,000 examples.
        capped: False leaves out the cap, so that each class is divided on its own (Yurochkin et al., 2019; Hsu et al.,
            2019); sizes then differ much more.

    Returns:
        Which rows belong to which client.

    Raises:
        ValueError: an argument is out of range, or no draw was accepted.
    """
    classes = whole_labels(labels)
    check_clients(num_clients, len(classes))
    if not (alpha > 0 and math.isfinite(alpha)):
        raise ValueError(f"alpha must be finite and greater than 0, got {alpha}: 0.1 is strong skew [FL-DATA-013]")
    plain = f"use plain_dirichlet:{alpha:g}, which has no cap and asks for 2 examples a client, or "
    lower = f"{plain if capped else ''}use balanced_dirichlet:{alpha:g}, whose clients have equally many"
    if min_size < 0 or min_size * num_clients > len(classes):
        raise ValueError(
            f"min_size must be in 0..{len(classes) // num_clients}, the mean size of {num_clients} clients with "
            f"{len(classes)} examples, got {min_size}: take fewer clients, {lower}"
        )
    if max_attempts < 1:
        raise ValueError(f"max_attempts must be at least 1, got {max_attempts}: 20_000 is the default")
    generator = generator_of(seed)
    by_class = [np.flatnonzero(classes == c) for c in range(int(classes.max()) + 1)]
    concentration = np.repeat(alpha, num_clients)
    mean_size = len(classes) / num_clients
    best, fewest = -1, num_clients
    for attempt in range(max_attempts):
        if attempt == _MANY:
            warnings.warn(
                f"{_MANY:,} draws of dirichlet alpha={alpha:g} left a client with too few examples, at best {best} of "
                f"{min_size}, and up to {max_attempts:,} are made: raise alpha, take fewer clients, {lower}",
                stacklevel=2,
            )
        # Sizes decide about acceptance, so rows are listed once, at the end. The shuffles cannot be saved: they move
        # the random stream, and the official partitions follow from it.
        sizes = np.zeros(num_clients, np.int64)
        draw: list[tuple[IntArray, IntArray]] = []
        for members in by_class:
            order = members.copy()
            generator.shuffle(order)
            proportions = generator.dirichlet(concentration)
            if capped:
                proportions = proportions * (sizes < mean_size)
            share = proportions.sum()
            if not share > 0:  # all mass on full clients, or lost to underflow at a tiny alpha: NaN in the original
                break
            cuts = (np.cumsum(proportions / share) * len(order)).astype(np.int64)[:-1]
            sizes += np.diff(cuts, prepend=0, append=len(order))
            draw.append((order, cuts))
        else:
            smallest = int(sizes.min())
            if smallest >= min_size:
                everyone = np.arange(num_clients)
                lengths = [np.diff(cuts, prepend=0, append=len(order)) for order, cuts in draw]
                owner = np.concatenate([np.repeat(everyone, length) for length in lengths])
                rows = np.concatenate([order for order, _ in draw])[np.argsort(owner, kind="stable")]
                indptr = starts(sizes)
                for a, b in itertools.pairwise(indptr.tolist()):
                    generator.shuffle(rows[a:b])
                return Partition(indptr, rows, f"{'' if capped else 'plain '}dirichlet alpha={alpha:g}", seed)
            best, fewest = max(best, smallest), min(fewest, int((sizes < min_size).sum()))
            if is_hopeless(attempt + 1, fewest):
                break
    reached = (
        f"the best left {best} to its smallest client" if best >= 0 else "each found only full clients for a class"
    )
    raise ValueError(
        f"every client needs min_size={min_size} examples, but none of {attempt + 1} attempts with alpha={alpha} and "
        f"{num_clients} clients got there, {reached}: "
        f"raise alpha, take fewer clients, try another seed, {lower} [FL-DATA-027]"
    )


def _frozen(values: npt.ArrayLike, what: str) -> IntArray:
    array = np.array(values)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise ValueError(
            f"{what} must be a list of integers, got {array.dtype} with {array.ndim} axes: convert it to int64"
        )
    result = array.astype(np.int64, copy=False)  # `array` is a copy already
    result.flags.writeable = False
    return result


def _first_repeated(indices: IntArray) -> int | None:
    """Return the smallest row that is there more than once, None if none is. `indices`: not negative."""
    if len(indices) and indices.max() < 8 * len(indices):  # marking is far cheaper than sorting
        seen = np.zeros(int(indices.max()) + 1, np.bool_)
        seen[indices] = True
        if np.count_nonzero(seen) == len(indices):
            return None
    ordered = np.sort(indices)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    return int(repeated[0]) if len(repeated) else None


def covering(classes: IntArray, partition: Partition) -> IntArray:
    """Return `classes`, if there is one for every row of the partition."""
    if len(partition.indices) and partition.indices.max() >= len(classes):
        raise ValueError(
            f"labels must cover every row of the partition, got {len(classes)} labels for row "
            f"{partition.indices.max()}: pass the labels of the examples that were partitioned"
        )
    return classes


def _nearest(value: int, factor: int, multiple: int) -> str:
    """Name the values nearest to `value` that make `value * factor` a multiple of `multiple`."""
    step = multiple // math.gcd(multiple, factor)
    below = value // step * step
    return f"{below} or {below + step}" if below else f"{step}"
