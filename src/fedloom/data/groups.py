"""Splits that keep groups whole, such as the rows of one patient."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedloom.data.drawing import IntArray, starts, whole_labels
from fedloom.data.hold_out import quotas_of, sizes_held_out
from fedloom.data.partition import Partition, covering


def split_whole_groups(
    partition: Partition,
    labels: npt.ArrayLike,
    groups: IntArray,
    test_fraction: float,
    seed: int,
    stream: int = 0,
) -> tuple[Partition, Partition]:
    """Hold out a part of every client's examples, by whole groups: a group is held out at all clients or at none.

    A client goes through its groups in random order and gives one up where that brings what it gives up nearer to the
    numbers that `split` would take of each class. So one whose groups are large may give up nothing. A group that
    several clients have is decided on by the first of them, and each client keeps an example. Rows keep their order.

    Args:
        partition: rows of every client.
        labels: class of every example, indexed by row; the same for all where there are no classes.
        groups: (N,) int64 group of every example, indexed by row.
        test_fraction: in [0, 1).
        seed: 0 to 2**32 - 1.
        stream: another number draws other groups by the same seed.

    Returns:
        What remains for training, and what was held out; both have the clients of `partition`.

    Raises:
        ValueError: `test_fraction` or `seed` is out of range, or `labels` or `groups` do not cover the partition.
    """
    classes = whole_labels(labels)
    own = covering(classes, partition)[partition.indices]
    names, group = np.unique(covering(groups, partition)[partition.indices], return_inverse=True)
    test_sizes = sizes_held_out(partition.sizes, test_fraction, seed)
    num_classes = int(classes.max(initial=0)) + 1
    client = np.repeat(np.arange(partition.num_clients), partition.sizes)
    decides = np.full(len(names), partition.num_clients)  # the first client that has the group
    np.minimum.at(decides, group, client)
    elsewhere = _other_clients(client, group, decides)
    held_out = np.zeros(len(names), np.bool_)
    remaining = partition.sizes.copy()
    generator = np.random.RandomState(0)
    for k in np.flatnonzero(test_sizes).tolist():
        generator.seed([seed, k, stream] if stream else [seed, k])
        mine = slice(partition.indptr[k], partition.indptr[k + 1])
        here, place = np.unique(group[mine], return_inverse=True)
        counts = np.bincount(place * num_classes + own[mine], minlength=len(here) * num_classes)
        counts = counts.reshape(len(here), num_classes)
        missing = quotas_of(generator, counts.sum(0), int(test_sizes[k])) - counts[held_out[here]].sum(0)
        for i in generator.permutation(np.flatnonzero(decides[here] == k)):
            size, others = int(counts[i].sum()), elsewhere.get(int(here[i]), [])
            nearer = np.abs(missing - counts[i]).sum() < np.abs(missing).sum()
            if nearer and remaining[k] > size and all(remaining[other] > rows for other, rows in others):
                held_out[here[i]] = True
                missing = missing - counts[i]
                remaining[k] -= size
                for other, rows in others:
                    remaining[other] -= rows
    out = held_out[group]
    sizes = np.bincount(client[out], minlength=partition.num_clients)
    name = partition.name
    return (
        Partition(starts(partition.sizes - sizes), partition.indices[~out], name, partition.seed, partition.clients),
        Partition(starts(sizes), partition.indices[out], f"{name}, held out", partition.seed),
    )


def _other_clients(client: IntArray, group: IntArray, first: IntArray) -> dict[int, list[tuple[int, int]]]:
    """Return, for each group that several clients have, the others beside its first client and how many rows each has.

    `client`, `group`: of each row; `first`: the first client of each group.
    """
    shared = client != first[group]
    pairs, rows = np.unique(np.stack([group[shared], client[shared]], axis=1), axis=0, return_counts=True)
    out: dict[int, list[tuple[int, int]]] = {}
    for (which, other), count in zip(pairs.tolist(), rows.tolist(), strict=True):
        out.setdefault(which, []).append((other, count))
    return out
