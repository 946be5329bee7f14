"""Examples of each client that are held out from training."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedloom.data.drawing import IntArray, check_seed, starts, whole_labels
from fedloom.data.partition import Partition, covering

_MANY = 1000  # clients, from which what all of them give up is one computation


def split(
    partition: Partition, labels: npt.ArrayLike | Tensor, test_fraction: float, seed: int, stream: int = 0
) -> tuple[Partition, Partition]:
    """Hold out a part of every client's examples that has the distribution of the rest.

    A client with n examples gives up `round(test_fraction * n)`, halves rounded up, but never its last one. Classes
    share that number in proportion, by largest remainder, ties at random. Rows keep the order of `partition`. What a
    client gives up depends on its own rows and the largest label alone, not on the rows of other clients.

    Args:
        partition: rows of every client.
        labels: class of every example, indexed by row.
        test_fraction: in [0, 1).
        seed: 0 to 2**32 - 1.
        stream: another number draws other rows by the same seed.

    Returns:
        What remains for training, and what was held out; both have the clients of `partition`.

    Raises:
        ValueError: `test_fraction` or `seed` is out of range, or `labels` does not cover the partition.
    """
    classes = whole_labels(labels)
    num_classes = int(classes.max(initial=0)) + 1
    sizes, indptr = partition.sizes, partition.indptr.tolist()
    test_sizes = sizes_held_out(sizes, test_fraction, seed)
    own = covering(classes, partition)[partition.indices]
    held_out = np.zeros(len(own), np.bool_)
    generator, left = np.random.RandomState(0), np.flatnonzero(test_sizes)
    if len(left) > _MANY:
        many = import_module("fedloom.data.many_clients")  # the same, faster: small federations do without it
        left = many.mark_held_out(held_out, left, partition.indptr, own, num_classes, test_sizes, seed, stream)
    for client in left.tolist():
        # The stream of RandomState([seed, client]), which costs more to make.
        generator.seed([seed, client, stream] if stream else [seed, client])
        start, stop, test_size = indptr[client], indptr[client + 1], int(test_sizes[client])
        mine = own[start:stop]
        quotas = quotas_of(generator, np.bincount(mine, minlength=num_classes), test_size)
        for c in quotas.nonzero()[0]:
            held_out[start + generator.permutation((mine == c).nonzero()[0])[: quotas[c]]] = True
    kept = starts(sizes - test_sizes), partition.indices[~held_out], partition.name, partition.seed, partition.clients
    return (
        Partition(*kept),
        Partition(starts(test_sizes), partition.indices[held_out], f"{partition.name}, held out", partition.seed),
    )


def sizes_held_out(sizes: IntArray, test_fraction: float, seed: int) -> IntArray:
    """Return how many examples each client gives up to a split, never its last one."""
    if not 0 <= test_fraction < 1:
        raise ValueError(f"test_fraction must be in [0, 1), got {test_fraction}: 0.2 holds out a fifth [FL-DATA-014]")
    check_seed(seed)
    rounded: IntArray = np.floor(test_fraction * sizes + 0.5).astype(np.int64)
    return np.maximum(np.minimum(rounded, sizes - 1), 0)


def quotas_of(generator: np.random.RandomState, counts: IntArray, test_size: int) -> IntArray:
    """Share `test_size` among classes with `counts` examples, by largest remainder, ties at random."""
    # Whole numbers, so that equal remainders are ties on every machine.
    quotas, remainders = np.divmod(counts * test_size, counts.sum())
    tie_break = generator.permutation(len(counts))
    largest_first = tie_break[np.argsort(-remainders[tie_break], kind="stable")]
    quotas[largest_first[: test_size - int(quotas.sum())]] += 1
    return quotas


def set_aside(partition: Partition, held_out: npt.NDArray[np.bool_], length: int) -> tuple[Partition, Partition]:
    """Return the training rows and the held-out rows of the clients that have training rows."""
    if held_out.dtype != np.bool_ or held_out.shape != (length,):
        raise ValueError(
            f"held_out must be a boolean for each of the {length} training examples, got {held_out.dtype} of shape "
            f"{held_out.shape}: pass that of the same Dataset"
        )
    if partition.indices.max(initial=0) >= length:
        raise ValueError(f"partition must hold rows of train, 0..{length - 1}, got {partition.indices.max()}")
    out = held_out[partition.indices]
    client = np.repeat(np.arange(partition.num_clients), partition.sizes)
    training, testing = (np.bincount(client[rows], minlength=partition.num_clients) for rows in (~out, out))
    stays = training > 0
    if not stays.any():
        raise ValueError("a client needs a row that is not held out, got none that has one: use test_fraction")
    name = partition.name
    if left_out := int((~stays).sum()):
        name += f", {left_out} of {len(stays)} clients without training rows left out"
    names = tuple(n for n, there in zip(partition.clients, stays, strict=True) if there) if partition.clients else ()
    kept = Partition(starts(training[stays]), partition.indices[~out], name, partition.seed, names)
    tested = partition.indices[out & stays[client]]
    return kept, Partition(starts(testing[stays]), tested, f"{name}, held out", partition.seed)
