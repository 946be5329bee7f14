"""Partitions of the personalisation experiments: balanced label skew, power-law sizes, groups, and natural owners.

`balanced_dirichlet` and `pathological` are the two partitions of pFedSD (Jin et al., "Personalized Edge Intelligence
via Federated Self-Knowledge Distillation", IEEE TPDS 2023), `lognormal` is the MNIST partition of FedProx (Li et al.,
"Federated Optimization in Heterogeneous Networks", MLSys 2020), all draw for draw as their authors' code makes them;
`lognormal_sizes` follows its FEMNIST partition.
`label_blocks` is ours, for the two settings of KT-pFL (Zhang et al., NeurIPS 2021), whose own rule is lost.
Everything draws from a local `numpy.random.RandomState`: a seed names the same partition on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedloom.data.drawing import IntArray, check_clients, generator_of, starts, warn_of_shards, whole_labels
from fedloom.data.partition import Partition


def balanced_dirichlet(
    labels: npt.ArrayLike | Tensor,
    num_clients: int,
    beta: float,
    seed: int = 7,
    group_size: int = 10,
    max_attempts: int = 20_000,
) -> Partition:
    """Divide the examples in Dirichlet proportions, then cut them into clients of one size.

    pFedSD, after the routine of FedDF (Lin et al., 2020). The shuffled examples are cut into one slice for every
    `group_size` clients. Class after class, the proportions within a group are Dirichlet(beta, ..., beta), set to 0 for
    clients that already hold the mean of the group, and renormalised; a group is drawn again until its smallest client
    has half of that mean, rounded down. The lists of all clients are then joined and cut into `num_clients` runs of
    `n // num_clients` rows, so that a client near a border of two lists holds part of both. The rows that remain at
    the end, fewer than `num_clients`, belong to nobody.

    Args:
        labels: class of every example, (n,).
        num_clients: number of clients N, 1 to n. Below `group_size` there is one smaller group, which the original
            refuses.
        beta: concentration, greater than 0; the smaller, the fewer classes a client has.
        seed: 0 to 2**32 - 1; the original always uses 7, whatever the seed of the run.
        group_size: clients that share a slice, 10 in the original; the last group may be smaller.
        max_attempts: draws to make for one group before giving up; the original never does.

    Raises:
        ValueError: an argument is out of range, or no draw was accepted for a group.
    """
    classes = whole_labels(labels)
    num_examples = len(classes)
    check_clients(num_clients, num_examples)
    if not (beta > 0 and math.isfinite(beta)):
        raise ValueError(f"beta must be finite and greater than 0, got {beta}: 0.1 is strong skew, 100 nearly none")
    if group_size < 1:
        raise ValueError(f"group_size must be at least 1, got {group_size}: 10 is the published choice")
    if max_attempts < 1:
        raise ValueError(f"max_attempts must be at least 1, got {max_attempts}: 20_000 is the default")
    generator = generator_of(seed)
    num_classes = int(classes.max()) + 1
    order = np.arange(num_examples)
    generator.shuffle(order)
    slice_size = int(group_size / num_clients * num_examples)
    lists: list[IntArray] = []
    for first in range(0, num_clients, group_size):
        members = min(group_size, num_clients - first)
        start = first // group_size * slice_size
        stop = num_examples if first + members == num_clients else start + slice_size
        rows = order[start:stop]
        by_class = [rows[classes[rows] == c] for c in range(num_classes)]
        cuts = _accepted_cuts(generator, [len(own) for own in by_class], members, beta, max_attempts)
        pieces = [np.split(own, at) for own, at in zip(by_class, cuts, strict=True)]
        lists += [np.concatenate(own) for own in zip(*pieces, strict=True)]
    size = num_examples // num_clients
    rows = np.concatenate(lists)[: size * num_clients]
    return Partition(np.arange(num_clients + 1) * size, rows, f"balanced dirichlet beta={beta:g}", seed)


def pathological(labels: npt.ArrayLike | Tensor, num_clients: int, classes_per_client: int, seed: int = 7) -> Partition:
    """Cut every class into equally many shards and give every client some at random, so that it has few classes.

    pFedSD. With s shards for each of N clients and C classes, a class makes s * N / C shards, contiguous in the order
    of the data set and of one size; what remains of the class goes to its first shards, one example to each. The
    shuffled classes of all shards are dealt s to a client, which can draw the same class twice: s is the largest
    number of its classes. `shards` is the same rule with the random stream of FedNTD.

    Args:
        labels: class of every example, (n,).
        num_clients: number of clients N.
        classes_per_client: s.
        seed: 0 to 2**32 - 1; the original always uses 7, whatever the seed of the run.

    Raises:
        ValueError: an argument is out of range, s * N is no multiple of C, or a class has fewer examples than shards.
    """
    classes = whole_labels(labels)
    check_clients(num_clients, len(classes))
    if classes_per_client < 1:
        raise ValueError(f"classes_per_client must be at least 1, got {classes_per_client}: 2 is the usual choice")
    generator = generator_of(seed)
    num_classes = int(classes.max()) + 1
    per_class, rest = divmod(num_clients * classes_per_client, num_classes)
    if rest:
        raise ValueError(
            f"classes_per_client * num_clients must be a multiple of the number of classes, {num_classes}, got "
            f"{classes_per_client} * {num_clients}: use a multiple of "
            f"{num_classes // math.gcd(num_classes, classes_per_client)} clients"
        )
    counts = np.bincount(classes, minlength=num_classes)
    if (available := int(counts.min())) < per_class:
        raise ValueError(
            f"every class needs an example for each of its {per_class} shards, got {available} of class "
            f"{counts.argmin()}: use fewer clients, fewer classes per client or more data"
        )
    warn_of_shards(num_clients * classes_per_client, per_class)
    remaining = [_shards_of(np.flatnonzero(classes == c), per_class) for c in range(num_classes)]
    deal = np.tile(np.arange(num_classes), per_class)
    generator.shuffle(deal)
    rows = [remaining[c].pop(generator.choice(len(remaining[c]), replace=False)) for c in deal]
    clients = [np.concatenate(rows[k : k + classes_per_client]) for k in range(0, len(rows), classes_per_client)]
    return Partition.from_lists(clients, f"pathological s={classes_per_client}", seed)


def lognormal(
    labels: npt.ArrayLike | Tensor,
    num_clients: int,
    seed: int,
    sigma: float = 2.0,
    classes_per_client: int = 2,
    min_per_class: int = 5,
) -> Partition:
    """Give every client neighbouring classes, in amounts with the long tail that FedProx calls a power law.

    Client u has the classes u, ..., u + s - 1, modulo C. Of each it gets `min_per_class` examples first. What remains
    of a class is then offered to the clients that have it, in proportion to draws from lognormal(0, sigma) and rounded
    down; a share that would use up the class is skipped. Rows go out in the order of the data set, and some belong to
    nobody. The original divides the 70,000 images of MNIST among 1,000 clients and splits each 90 to 10 afterwards.

    Args:
        labels: class of every example, (n,).
        num_clients: number of clients N, a multiple of the number of classes C.
        seed: 0 to 2**32 - 1.
        sigma: standard deviation of the logarithm of a share, at least 0; 0 makes equal shares. The original's 2.0
            gives MNIST sizes a standard deviation of 134 to 224, where the paper reports 106; 1.5 comes near that.
        classes_per_client: s, 1 to C.
        min_per_class: examples that every client has of each of its classes, at least 1.

    Raises:
        ValueError: an argument is out of range, or a class is too small for `min_per_class`.
    """
    classes = whole_labels(labels)
    check_clients(num_clients, len(classes))
    num_classes = int(classes.max()) + 1
    if num_clients % num_classes:
        raise ValueError(
            f"num_clients must be a multiple of the number of classes, {num_classes}, got {num_clients}: use "
            f"{-(-num_clients // num_classes) * num_classes}"
        )
    if not (sigma >= 0 and math.isfinite(sigma)):
        raise ValueError(f"sigma must be finite and at least 0, got {sigma}: 2.0 is the published choice")
    _check_classes(classes_per_client, num_classes, "2 is the published choice")
    if min_per_class < 1:
        raise ValueError(f"min_per_class must be at least 1, got {min_per_class}: 5 is the published choice")
    cycles = num_clients // num_classes
    counts = np.bincount(classes, minlength=num_classes)
    needed = min_per_class * classes_per_client * cycles
    if (available := int(counts.min())) < needed:
        raise ValueError(
            f"every class needs {needed} examples for min_per_class={min_per_class}, got {available} of class "
            f"{counts.argmin()}: use fewer clients, fewer classes per client or a smaller min_per_class"
        )
    shares = generator_of(seed).lognormal(0.0, sigma, (num_classes, cycles, classes_per_client))
    shares = (counts - needed)[:, None, None] * shares / shares.sum((1, 2), keepdims=True)
    by_class = [np.flatnonzero(classes == c) for c in range(num_classes)]
    taken = np.zeros(num_classes, np.int64)
    clients: list[list[IntArray]] = [[] for _ in range(num_clients)]
    for client, own in enumerate(clients):
        for j in range(classes_per_client):
            c = (client + j) % num_classes
            own.append(by_class[c][taken[c] : taken[c] + min_per_class])
            taken[c] += min_per_class
    for client, own in enumerate(clients):
        for j in range(classes_per_client):
            c = (client + j) % num_classes
            share = int(shares[c, client // num_classes, j])
            if taken[c] + share < counts[c]:
                own.append(by_class[c][taken[c] : taken[c] + share])
                taken[c] += share
    return Partition.from_lists([np.concatenate(own) for own in clients], f"lognormal sigma={sigma:g}", seed)


def lognormal_sizes(
    labels: npt.ArrayLike | Tensor, num_clients: int, seed: int, classes_per_client: int = 3, overlapping: bool = False
) -> list[IntArray]:
    """Return the rows of clients whose sizes are lognormal, each with equally many examples of neighbouring classes.

    FedProx's FEMNIST. Client u has the classes u, ..., u + s - 1, modulo C, and of each a share 1 / s of a draw from
    lognormal(4, 1) + 5, rounded down, at least 2. Rows of a class go out in the order of the data set. `overlapping`:
    the published sampler, which by a mistake begins at the start for each client: clients share examples, and test
    examples of one are training examples of others.

    Args:
        labels: class of every example, (n,).
        num_clients: number of clients.
        seed: 0 to 2**32 - 1.
        classes_per_client: s, 1 to C.
        overlapping: whether rows are in several lists.

    Raises:
        ValueError: an argument is out of range, or a class has fewer examples than its clients take.
    """
    classes = whole_labels(labels)
    check_clients(num_clients, len(classes))
    num_classes = int(classes.max()) + 1
    _check_classes(classes_per_client, num_classes, "3 is the published choice")
    sizes = generator_of(seed).lognormal(4.0, 1.0, num_clients) + 5
    each = np.maximum((sizes / classes_per_client).astype(np.int64), 2)
    by_class = [np.flatnonzero(classes == c) for c in range(num_classes)]
    taken = np.zeros(num_classes, np.int64)
    clients: list[list[IntArray]] = [[] for _ in range(num_clients)]
    for client, own in enumerate(clients):
        for j in range(classes_per_client):
            c = (client + j) % num_classes
            start, stop = (0, each[client]) if overlapping else (taken[c], taken[c] + each[client])
            if stop > len(by_class[c]):
                raise ValueError(
                    f"class {c} has {len(by_class[c])} examples, and client {client} takes them up to the {stop}th: "
                    "use fewer clients, more data or another seed"
                )
            own.append(by_class[c][start:stop])
            taken[c] = stop
    return [np.concatenate(own) for own in clients]


def label_blocks(
    labels: npt.ArrayLike | Tensor,
    num_clients: int,
    classes_per_client: int,
    seed: int,
    alpha: float = 1.0,
    min_per_class: int = 10,
) -> Partition:
    """Give client u the classes s u, ..., s u + s - 1, modulo C, in unequal numbers; so clients make groups.

    With C = 10 classes, s = 2 makes five groups of clients with the same two classes (0 and 1, 2 and 3, ...), s = 5 two
    groups, and with s = 10 everybody has every class. A class is shuffled and divided among those that have it:
    `min_per_class` examples to each, the others in proportions from Dirichlet(alpha, ..., alpha).

    Args:
        labels: class of every example, (n,).
        num_clients: number of clients N; with fewer than C / s, some classes belong to nobody.
        classes_per_client: s, 1 to C.
        seed: 0 to 2**32 - 1.
        alpha: concentration, greater than 0; the smaller, the more unequal the numbers.
        min_per_class: examples that a client has at least of each of its classes, at least 1.

    Raises:
        ValueError: an argument is out of range, a class is too small for `min_per_class`, or `alpha` for its draws.
    """
    classes = whole_labels(labels)
    check_clients(num_clients, len(classes))
    num_classes = int(classes.max()) + 1
    _check_classes(classes_per_client, num_classes, "2 makes groups of clients that share two classes")
    if not (alpha > 0 and math.isfinite(alpha)):
        raise ValueError(f"alpha must be finite and greater than 0, got {alpha}: 1 is unequal, 100 nearly equal")
    if min_per_class < 1:
        raise ValueError(f"min_per_class must be at least 1, got {min_per_class}: 10 is the default")
    generator = generator_of(seed)
    clients: list[list[IntArray]] = [[] for _ in range(num_clients)]
    for c in range(num_classes):
        holders = [u for u in range(num_clients) if (c - classes_per_client * u) % num_classes < classes_per_client]
        rows = np.flatnonzero(classes == c)
        generator.shuffle(rows)
        spare = len(rows) - min_per_class * len(holders)
        if spare < 0:
            raise ValueError(
                f"each of {len(holders)} clients needs {min_per_class} examples of class {c}, got {len(rows)} of it: "
                "use fewer clients, fewer classes per client or a smaller min_per_class"
            )
        shares = generator.dirichlet(np.repeat(alpha, len(holders))) if holders else np.zeros(0)
        if not np.isfinite(shares).all():
            raise ValueError(
                f"alpha must be large enough for shares that are not all lost to underflow, got {alpha} for the "
                f"{len(holders)} clients of class {c}: raise alpha, 0.01 is nearly one client for each class"
            )
        ends = (np.cumsum(shares) * spare).round().astype(np.int64) + min_per_class * np.arange(1, len(holders) + 1)
        for u, own in zip(holders, np.split(rows, ends), strict=False):
            clients[u].append(own)
    return Partition.from_lists([np.concatenate(own) for own in clients], f"label blocks s={classes_per_client}", seed)


def natural(
    owners: Sequence[int] | Sequence[str] | npt.NDArray[np.generic] | Tensor, names: Sequence[str] = ()
) -> Partition:
    """Give every owner its own examples, as the writers of FEMNIST or the speakers of Shakespeare.

    Clients are numbered in the order in which their owners first appear; rows keep the order of the data set.

    Args:
        owners: id of the owner of every example, integers or strings, (n,).
        names: what owners are called whose ids count from 0, such as `Examples.owners`; ids that are strings are names.

    Raises:
        ValueError: there is no example, or the ids are not a list of integers or strings.
    """
    ids = np.asarray(owners.cpu() if isinstance(owners, Tensor) else owners)
    if ids.dtype == object and all(isinstance(owner, str) for owner in ids):  # a column of pandas
        ids = ids.astype(str)
    if ids.ndim != 1 or not len(ids) or not (np.issubdtype(ids.dtype, np.integer) or ids.dtype.kind == "U"):
        raise ValueError(
            f"owners must be a list of integers or strings, at least one, got {ids.dtype} of shape {ids.shape}: "
            "pass one id per example"
        )
    owner, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    client = np.argsort(np.argsort(first))[inverse]  # of each example: the rank of its owner's first appearance
    ranked = owner[np.argsort(first)]
    called = tuple(map(str, ranked)) if ids.dtype.kind == "U" else tuple(names[i] for i in ranked) if names else ()
    return Partition(starts(np.bincount(client)), np.argsort(client, kind="stable"), "natural", None, called)


def _accepted_cuts(
    generator: np.random.RandomState, counts: list[int], members: int, beta: float, max_attempts: int
) -> list[IntArray]:
    """Draw where to cut each class of a group, until the smallest member has half of the mean."""
    mean_size = sum(counts) / members
    required = int(0.5 * mean_size)
    best = -1
    for _ in range(max_attempts):
        sizes = np.zeros(members, np.int64)
        cuts: list[IntArray] = []
        for count in counts:
            proportions = generator.dirichlet(np.repeat(beta, members)) * (sizes < mean_size)
            share = proportions.sum()
            if count == 0:  # drawn all the same: the stream moves on
                cuts.append(np.zeros(members - 1, np.int64))
                continue
            if not share > 0:  # all mass on full members, or lost to underflow at a tiny beta: NaN in the original
                break
            cuts.append((np.cumsum(proportions / share) * count).astype(np.int64)[:-1])
            sizes += np.diff(cuts[-1], prepend=0, append=count)
        else:
            best = max(best, int(sizes.min()))
            if sizes.min() >= required:
                return cuts
    reached = (
        f"the best left {best} to its smallest client" if best >= 0 else "each found only full clients for a class"
    )
    raise ValueError(
        f"every client of a group needs {required} examples, half of the mean, but none of {max_attempts} attempts "
        f"with beta={beta} got there, {reached}: raise beta, take fewer clients, or try another seed"
    )


def _shards_of(members: IntArray, number: int) -> list[IntArray]:
    """Cut the rows of a class into equal shards, and append what remains to the first ones, a row each."""
    size = len(members) // number
    equal = members[: size * number].reshape(number, size)
    rest = members[size * number :]
    return [np.append(rows, rest[i : i + 1]) for i, rows in enumerate(equal)]


def _check_classes(per_client: int, num_classes: int, advice: str) -> None:
    if not 1 <= per_client <= num_classes:
        raise ValueError(
            f"classes_per_client must be in 1..{num_classes}, the number of classes, got {per_client}: {advice}"
        )
