"""Partitions: the official ones draw for draw, the properties of all, and what they refuse."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from conftest import golden as read
from hypothesis import given, settings, strategies as st

from fedloom.data import Partition, by_lists, dirichlet, iid, pooled, quantity, shards, split

OFFICIAL_SEED = 19940817
CLASS_SIZES = {
    "mnist": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "cifar10": [5000] * 10,
    "cifar100": [500] * 100,
    "cinic10": [9000] * 10,
}
LABELS = np.repeat(np.arange(4), 25)

Golden = dict[str, npt.NDArray[np.int64]]


@pytest.fixture(scope="module")
def golden() -> Golden:
    """Partitions of the authors' code; the README beside the file describes them."""
    return read("fedntd/partitions")


def class_sorted(dataset: str) -> npt.NDArray[np.int64]:
    """Labels of a data set in class order; class counts of a partition do not depend on the order."""
    sizes = CLASS_SIZES[dataset]
    return np.repeat(np.arange(len(sizes)), sizes)


def owned(partition: Partition) -> list[int]:
    """All rows of all clients, in rising order."""
    return sorted(int(row) for k in range(partition.num_clients) for row in partition.rows(k))


# ---- the official partitions


def test_dirichlet_gives_the_official_rows_in_the_official_order(golden: Golden) -> None:
    partition = dirichlet(golden["small_lda_labels"], num_clients=6, alpha=0.5, seed=123)
    for k in range(6):
        np.testing.assert_array_equal(partition.rows(k), golden[f"small_lda_client{k}"])


def test_shards_gives_the_official_rows_in_the_official_order(golden: Golden) -> None:
    partition = shards(golden["small_lda_labels"], num_clients=10, shards_per_client=2, seed=123)
    for k in range(10):
        np.testing.assert_array_equal(partition.rows(k), golden[f"small_shard_client{k}"])


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_dirichlet_gives_the_rows_of_dense_too(alpha: float, seed: int) -> None:
    g = read("ktpfl_dense/dense_dirichlet")
    made = dirichlet(g["small/y"], 3, alpha, seed)
    for client in range(3):
        np.testing.assert_array_equal(made.rows(client), g[f"small/alpha{alpha}/seed{seed}/client{client}"])


def test_dirichlet_gives_the_counts_of_dense_too() -> None:
    """Also those printed in the README of its released code, of seed 1."""
    g, labels = read("ktpfl_dense/dense_dirichlet"), class_sorted("cifar10")
    np.testing.assert_array_equal(dirichlet(labels, 5, 0.5, 1).counts(labels, 10), g["readme_counts"])
    for alpha in (0.1, 0.3, 0.5):
        counts = dirichlet(labels, 5, alpha, 0).counts(labels, 10)
        np.testing.assert_array_equal(counts, g[f"cifar_like/alpha{alpha}/seed0/counts"])


def test_a_plain_dirichlet_divides_each_class_on_its_own() -> None:
    labels = np.repeat(np.arange(4), 500)
    counts = dirichlet(labels, 20, 0.3, 3, min_size=2, capped=False).counts(labels, 4)
    draws = np.random.RandomState(3)
    for c in range(4):  # by hand: shuffle, draw, cut at the floors
        draws.shuffle(np.arange(500))
        cuts = (np.cumsum(draws.dirichlet(np.full(20, 0.3))) * 500).astype(int)[:-1]
        np.testing.assert_array_equal(counts[:, c], np.diff(cuts, prepend=0, append=500))
    assert (counts != dirichlet(labels, 20, 0.3, 3, min_size=2).counts(labels, 4)).any()


@pytest.mark.parametrize(
    ("dataset", "alpha", "num_clients"),
    [
        ("cifar10", 0.1, 100),
        ("cifar10", 0.3, 100),
        ("cifar10", 0.5, 100),
        ("mnist", 0.1, 100),
        ("cifar100", 0.1, 100),
        ("cinic10", 0.1, 200),
        pytest.param(  # the 19,126th draw: 12 to 30 s
            *("cifar10", 0.05, 100),
            marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore:2,000 draws of dirichlet")],
        ),
    ],
)
def test_dirichlet_gives_the_official_counts(golden: Golden, dataset: str, alpha: float, num_clients: int) -> None:
    labels = class_sorted(dataset)
    counts = dirichlet(labels, num_clients, alpha, OFFICIAL_SEED).counts(labels, len(CLASS_SIZES[dataset]))
    np.testing.assert_array_equal(counts, golden[f"lda_{dataset}_a{alpha}_counts"])


@pytest.mark.parametrize(
    ("dataset", "per_client", "num_clients"),
    [
        ("mnist", 2, 100),
        ("cifar10", 2, 100),
        ("cifar10", 3, 100),
        ("cifar10", 5, 100),
        ("cifar10", 10, 100),
        ("cifar100", 10, 100),
        ("cinic10", 2, 200),
    ],
)
def test_shards_gives_the_official_counts_and_classes(
    golden: Golden, dataset: str, per_client: int, num_clients: int
) -> None:
    labels = class_sorted(dataset)
    partition = shards(labels, num_clients, per_client, OFFICIAL_SEED)
    counts = partition.counts(labels, len(CLASS_SIZES[dataset]))
    np.testing.assert_array_equal(counts, golden[f"shard_{dataset}_s{per_client}_counts"])
    for k, classes in enumerate(golden[f"shard_{dataset}_s{per_client}_rand_set"]):
        own = labels[partition.rows(k)]
        np.testing.assert_array_equal(own[np.flatnonzero(np.diff(own, prepend=-1))], _without_repeats(classes))


def _without_repeats(classes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return classes[np.flatnonzero(np.diff(classes, prepend=-1))]


def test_the_global_generators_are_neither_read_nor_moved() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    partitions = [shards(LABELS, 4, 2, 5), dirichlet(LABELS, 4, 1.0, 5, 1), iid(LABELS, 4, 5)]
    assert (random.random(), np.random.rand()) == expected
    again = [shards(LABELS, 4, 2, 5), dirichlet(LABELS, 4, 1.0, 5, 1), iid(LABELS, 4, 5)]
    assert [p.fingerprint() for p in partitions] == [p.fingerprint() for p in again]


# ---- properties


@given(n=st.integers(1, 60), num_clients=st.integers(1, 60), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_iid_deals_every_example_once_and_evenly(n: int, num_clients: int, seed: int) -> None:
    num_clients = min(n, num_clients)
    partition = iid(np.zeros(n, np.int64), num_clients, seed)
    assert owned(partition) == list(range(n))
    assert partition.sizes.max() - partition.sizes.min() <= 1


@given(
    num_classes=st.integers(1, 5),
    per_client=st.integers(1, 4),
    factor=st.integers(1, 4),
    seed=st.integers(0, 1000),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_shards_deals_every_example_once_in_few_classes(
    num_classes: int, per_client: int, factor: int, seed: int, data: st.DataObject
) -> None:
    num_clients = num_classes * factor
    shards_per_class = per_client * factor
    sizes = data.draw(st.lists(st.integers(shards_per_class, 40), min_size=num_classes, max_size=num_classes))
    labels = np.random.RandomState(seed).permutation(np.repeat(np.arange(num_classes), sizes))
    partition = shards(labels, num_clients, per_client, seed)
    assert owned(partition) == list(range(len(labels)))
    assert ((partition.counts(labels, num_classes) > 0).sum(axis=1) <= per_client).all()


@given(num_clients=st.integers(1, 6), alpha=st.floats(0.2, 20), min_size=st.integers(0, 3), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_dirichlet_deals_every_example_once_and_keeps_the_minimum(
    num_clients: int, alpha: float, min_size: int, seed: int
) -> None:
    partition = dirichlet(LABELS, num_clients, alpha, seed, min_size)
    assert owned(partition) == list(range(len(LABELS)))
    assert partition.sizes.min() >= min_size


def test_dirichlet_is_more_even_for_larger_alpha() -> None:
    labels = np.repeat(np.arange(10), 500)
    spread = [dirichlet(labels, 10, alpha, 0, 1).counts(labels, 10).std() for alpha in (0.1, 1.0, 100.0)]
    assert spread[0] > spread[1] > spread[2]


@pytest.mark.parametrize(
    "make", [lambda seed: iid(LABELS, 5, seed), lambda seed: shards(LABELS, 4, 2, seed)], ids=["iid", "shards"]
)
def test_another_seed_gives_another_partition(make: Callable[[int], Partition]) -> None:
    assert make(0).fingerprint() == make(0).fingerprint()
    assert make(0).fingerprint() != make(1).fingerprint()
    assert make(1).seed == 1


def test_pooled_is_one_client_with_everything() -> None:
    assert pooled(5).sizes.tolist() == [5]
    assert owned(pooled(5)) == [0, 1, 2, 3, 4]
    merged = by_lists([[3], [], [1, 0]]).pooled()
    assert [merged.rows(k).tolist() for k in range(merged.num_clients)] == [[3, 1, 0]]


# ---- Partition


def test_partition_counts_by_hand() -> None:
    partition = by_lists([[0, 3, 4], [], [2]])
    labels = torch.tensor([1, 0, 2, 1, 0])
    assert (partition.num_clients, partition.sizes.tolist()) == (3, [3, 0, 1])
    assert partition.counts(labels, 3).tolist() == [[1, 2, 0], [0, 0, 0], [0, 0, 1]]
    assert partition.rows(1).tolist() == []


def test_partition_keeps_its_own_read_only_copy() -> None:
    rows = np.array([2, 1])
    partition = by_lists([rows])
    rows[0] = 9
    assert partition.rows(0).tolist() == [2, 1]
    with pytest.raises(ValueError, match="read-only"):
        partition.indices[0] = 5


def test_rows_of_a_client_are_a_copy_by_which_tensors_are_indexed() -> None:
    partition = by_lists([[2, 1], [0]])
    rows = partition.rows(0)
    assert rows.flags.writeable  # of others PyTorch warns, once in a process
    assert torch.arange(3.0)[rows].tolist() == [2, 1]
    rows[0] = 9
    assert partition.rows(0).tolist() == [2, 1]


def test_fingerprint_follows_rows_and_owners_only() -> None:
    one = Partition.from_lists([[0, 1], [2]], "a", seed=1)
    assert one.fingerprint() == Partition.from_lists([[0, 1], [2]], "b", seed=2).fingerprint()
    others = [[[0], [1, 2]], [[1, 0], [2]], [[0, 1], [2], []]]
    assert len({one.fingerprint(), *(by_lists(lists).fingerprint() for lists in others)}) == 4


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[0, 1], [1]], "row 1 more than once"),
        ([[0, -2]], "must not be negative, got -2"),
        ([[0.5]], "must be a list of integers, got float64"),
        ([], "over at least one client"),
    ],
)
def test_by_lists_refuses(lists: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        by_lists(lists)


@pytest.mark.parametrize("indptr", [[0, 3], [1, 2], [0, 2, 1, 2], [0]])
def test_partition_refuses_a_broken_indptr(indptr: list[int]) -> None:
    with pytest.raises(ValueError, match="indptr must rise from 0 to the number of indices, 2"):
        Partition(np.array(indptr), np.array([0, 1]))


# ---- what the functions refuse


@pytest.mark.parametrize("num_clients", [0, 101])
@pytest.mark.parametrize(
    "make",
    [
        lambda k: iid(LABELS, k, 0),
        lambda k: shards(LABELS, k, 4, 0),
        lambda k: dirichlet(LABELS, k, 1.0, 0),
    ],
    ids=["iid", "shards", "dirichlet"],
)
def test_number_of_clients_out_of_range(make: Callable[[int], Partition], num_clients: int) -> None:
    with pytest.raises(ValueError, match=rf"num_clients must be in 1\.\.100, .* got {num_clients}"):
        make(num_clients)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: by_lists([[0], [7]]).rows(-1), r"client must be in 0\.\.1, got -1"),
        (lambda: by_lists([[0], [7]]).counts(np.zeros(5, np.int64), 1), "got 5 labels for row 7"),
        (lambda: by_lists([[0], [7]]).counts(LABELS, 2), r"labels must be in 0\.\.1, got 0\.\.3"),
        (lambda: shards([0] * 9 + [1] * 2, 4, 2, 0), "for each of its 4 shards, got 2 of class 1"),
        (lambda: shards([0, 0, 0, 1, 1, 1], 3, 1, 0, num_classes=3), "got 0 of class 2"),
        (lambda: shards(LABELS, 4, 0, 0), "shards_per_client must be at least 1, got 0"),
        (
            lambda: dirichlet(LABELS, 5, 1e-300, 0, min_size=1, max_attempts=3),
            "each found only full clients for a class",
        ),
        (lambda: dirichlet(LABELS, 7, 1.0, 0, min_size=15), r"min_size must be in 0\.\.14, .* got 15"),
        (lambda: dirichlet(LABELS, 7, 1.0, 0, max_attempts=0), "max_attempts must be at least 1, got 0"),
        (lambda: iid(LABELS, 2, -1), "got -1: choose one"),
        (lambda: iid(LABELS, 2, 2**32), f"got {2**32}: choose one"),
        (lambda: split(pooled(4), [0] * 4, 0.5, 2**32), f"got {2**32}: choose one"),
        (lambda: shards([0, 1, 2, 3], 2, 2, 0, num_classes=3), r"labels must be in 0\.\.2, got 0\.\.3"),
        (lambda: dirichlet([0.0, 0.5], 1, 1.0, 0), "targets that are no classes, such as 0: divide them by iid"),
        (lambda: dirichlet([0.0, 1.0], 1, 1.0, 0), "labels must"),
        (lambda: dirichlet([[0], [1]], 1, 1.0, 0), "labels must"),
        (lambda: dirichlet([-1, 0], 1, 1.0, 0), "labels must"),
    ],
)
def test_what_cannot_be_divided_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_shards_names_the_nearest_numbers_that_divide() -> None:
    with pytest.raises(ValueError, match=r"number of classes, 4, got 3 \* 7 = 21: use num_clients = 4 or 8 or") as info:
        shards(LABELS, 7, 3, 0)
    assert str(info.value).endswith("shards_per_client = 4 [FL-DATA-012]")
    assert shards(LABELS, 8, 3, 0).num_clients == shards(LABELS, 4, 3, 0).num_clients * 2
    assert shards(LABELS, 7, 4, 0).num_clients == 7


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_dirichlet_refuses_alpha(alpha: float) -> None:
    with pytest.raises(ValueError, match=f"alpha must be finite and greater than 0, got {alpha}"):
        dirichlet(LABELS, 4, alpha, 0)


def test_dirichlet_gives_up_with_the_smallest_size_it_reached() -> None:
    one_draw = dirichlet(LABELS, 5, 0.3, 3, min_size=0)
    with pytest.raises(ValueError, match="min_size=20 examples, but none of 1 attempts") as info:
        dirichlet(LABELS, 5, 0.3, 3, min_size=20, max_attempts=1)
    smallest = one_draw.sizes.min()
    assert str(info.value).endswith(
        f"the best left {smallest} to its smallest client: raise alpha, take fewer clients, try another seed, use "
        "plain_dirichlet:0.3, which has no cap and asks for 2 examples a client, or use balanced_dirichlet:0.3, whose "
        "clients have equally many [FL-DATA-027]"
    )
    with pytest.raises(ValueError, match=r"try another seed, use balanced_dirichlet:0\.3, whose clients have equally"):
        dirichlet(LABELS, 5, 0.3, 3, min_size=20, max_attempts=1, capped=False)


def test_draws_that_cannot_succeed_end_soon() -> None:
    """It alone notices 20,000 draws of which each leaves hundreds of clients short."""
    labels = np.arange(10_000) % 10
    with pytest.raises(ValueError, match="none of 21 attempts"):
        dirichlet(labels, 1000, 0.3, 0)
    with pytest.raises(ValueError, match=r"left fewer than [1-9]\d\d short"):
        quantity(labels, 1000, 0.5, 0)


@pytest.mark.slow
def test_dirichlet_says_that_it_takes_long() -> None:
    with (
        pytest.warns(
            UserWarning, match=r"2,000 draws of dirichlet alpha=0.01 left .* up to 2,001 are made: .* plain_d"
        ),
        pytest.raises(ValueError, match="none of 2001 attempts"),
    ):
        dirichlet(LABELS, 5, 0.01, 3, min_size=20, max_attempts=2001)


# ---- split
