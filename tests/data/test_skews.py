"""Partitions of pFedSD and FedProx draw for draw, natural owners, the properties of all, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from conftest import golden
from hypothesis import given, settings, strategies as st

from fedloom.data import (
    Partition,
    balanced_dirichlet,
    label_blocks,
    lognormal,
    lognormal_sizes,
    natural,
    pathological,
)

Golden = dict[str, npt.NDArray[np.int64]]
LABELS = np.tile(np.arange(4), 25)


@pytest.fixture(scope="module")
def pfedsd() -> Golden:
    """Partitions of the authors' code; the README beside the files describes them."""
    return golden("pfedsd_apfl/partition_cgcl")


def matrix(partition: Partition) -> npt.NDArray[np.int64]:
    """Rows of clients of one size, (N, n / N)."""
    return np.stack([partition.rows(k) for k in range(partition.num_clients)])


# ---- the official partitions


@pytest.mark.parametrize(("beta", "num_clients"), [(0.1, 20), (1.0, 20), (0.1, 10)])
def test_balanced_dirichlet_gives_the_official_rows(pfedsd: Golden, beta: float, num_clients: int) -> None:
    partition = balanced_dirichlet(pfedsd["targets"], num_clients, beta)
    key = f"dir_a{beta}_n{num_clients}"
    np.testing.assert_array_equal(matrix(partition), pfedsd[f"{key}_clients"])
    np.testing.assert_array_equal(partition.indices, pfedsd[f"{key}_flat_indices"])
    np.testing.assert_array_equal(partition.counts(pfedsd["targets"], 10), pfedsd[f"{key}_class_hist"])


@pytest.mark.parametrize(("per_client", "num_clients"), [(2, 20), (4, 20), (2, 10)])
def test_pathological_gives_the_official_rows(pfedsd: Golden, per_client: int, num_clients: int) -> None:
    partition = pathological(pfedsd["targets"], num_clients, per_client)
    key = f"path_s{per_client}_n{num_clients}"
    np.testing.assert_array_equal(matrix(partition), pfedsd[f"{key}_clients"])
    distinct = (partition.counts(pfedsd["targets"], 10) > 0).sum(axis=1)
    np.testing.assert_array_equal(distinct, pfedsd[f"{key}_distinct_classes"])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_lognormal_gives_the_official_sizes_and_digits_of_mnist(seed: int) -> None:
    g = golden("pfedsd_apfl/fedprox_mnist_sizes")
    labels = np.repeat(np.arange(10), g["class_counts"])
    partition = lognormal(labels, num_clients=1000, seed=seed)
    train, test = g[f"mnist_seed{seed}_train"], g[f"mnist_seed{seed}_test"]
    np.testing.assert_array_equal(partition.sizes, train + test)
    np.testing.assert_array_equal((0.9 * partition.sizes).astype(np.int64), train)
    digits = [np.flatnonzero(row) for row in partition.counts(labels, 10)]
    np.testing.assert_array_equal(digits, g[f"mnist_seed{seed}_labels"])


def test_the_global_generator_is_neither_read_nor_moved() -> None:
    np.random.seed(1)
    expected = np.random.rand()
    np.random.seed(1)
    partitions = [balanced_dirichlet(LABELS, 4, 1.0), pathological(LABELS, 4, 2), lognormal(LABELS, 4, 0)]
    assert np.random.rand() == expected
    again = [balanced_dirichlet(LABELS, 4, 1.0), pathological(LABELS, 4, 2), lognormal(LABELS, 4, 0)]
    assert [p.fingerprint() for p in partitions] == [p.fingerprint() for p in again]


# ---- by hand


def test_natural_numbers_owners_as_they_appear_and_keeps_the_order_of_rows() -> None:
    expected = [[0, 2, 5], [1, 4], [3]]
    for owners in (["z", "a", "z", "k", "a", "z"], [9, -1, 9, 3, -1, 9], torch.tensor([9, 1, 9, 3, 1, 9])):
        partition = natural(owners)
        assert [partition.rows(k).tolist() for k in range(partition.num_clients)] == expected


def test_pathological_appends_what_remains_of_a_class_to_its_first_shards() -> None:
    partition = pathological(np.zeros(11, np.int64), num_clients=4, classes_per_client=1)
    assert sorted(partition.rows(k).tolist() for k in range(4)) == [[0, 1, 8], [2, 3, 9], [4, 5, 10], [6, 7]]


def test_lognormal_with_sigma_0_offers_equal_shares() -> None:
    # 100 of each class, 2 * 10 of them given in advance to 4 clients: a share is 80 / 4, and the last one is skipped.
    labels = np.repeat([0, 1], 100)
    partition = lognormal(labels, num_clients=4, seed=0, sigma=0.0)
    np.testing.assert_array_equal(partition.counts(labels, 2), [[25, 25], [25, 25], [25, 25], [5, 5]])


def test_balanced_dirichlet_leaves_the_last_rows_to_nobody_where_n_does_not_divide() -> None:
    partition = balanced_dirichlet(LABELS, num_clients=23, beta=1.0)
    assert partition.sizes.tolist() == [4] * 23


# ---- properties


@given(
    num_clients=st.integers(1, 33), group_size=st.integers(1, 12), beta=st.floats(0.3, 50), seed=st.integers(0, 1000)
)
@settings(max_examples=40, deadline=None)
def test_balanced_dirichlet_makes_one_size(num_clients: int, group_size: int, beta: float, seed: int) -> None:
    partition = balanced_dirichlet(LABELS, num_clients, beta, seed, group_size)
    assert (partition.sizes == len(LABELS) // num_clients).all()
    assert partition.indices.max() < len(LABELS)


@given(per_client=st.integers(1, 4), factor=st.integers(1, 6), extra=st.integers(0, 9), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_pathological_deals_all_rows_in_few_classes(per_client: int, factor: int, extra: int, seed: int) -> None:
    labels = np.append(LABELS, np.arange(extra) % 4)
    partition = pathological(labels, 4 * factor, per_client, seed)
    assert sorted(partition.indices.tolist()) == list(range(len(labels)))
    assert (partition.counts(labels, 4) > 0).sum(axis=1).max() <= per_client


@given(cycles=st.integers(1, 3), per_client=st.integers(1, 4), sigma=st.floats(0, 4), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_lognormal_gives_neighbouring_classes(cycles: int, per_client: int, sigma: float, seed: int) -> None:
    counts = lognormal(LABELS, 4 * cycles, seed, sigma, per_client, min_per_class=2).counts(LABELS, 4)
    for client, row in enumerate(counts):
        own = [(client + j) % 4 for j in range(per_client)]
        assert (row[own] >= 2).all()
        assert row.sum() == row[own].sum()


def test_natural_takes_text_that_numpy_holds_as_objects() -> None:
    """As `table["client"]` of a pandas data frame is."""
    partition = natural(np.array(["u", "long name", "u"], object))
    assert [partition.rows(k).tolist() for k in range(2)] == [[0, 2], [1]]
    assert partition.clients == ("u", "long name")


@pytest.mark.slow
@given(owners=st.lists(st.integers(-3, 3), min_size=1, max_size=40))
def test_natural_gives_every_row_to_its_owner(owners: list[int]) -> None:
    partition = natural(owners)
    assert sorted(partition.indices.tolist()) == list(range(len(owners)))
    assert all(len({owners[row] for row in partition.rows(k)}) == 1 for k in range(partition.num_clients))
    assert partition.num_clients == len(set(owners))


@pytest.mark.parametrize("overlapping", [False, True])
def test_lognormal_sizes_are_those_of_the_draws(overlapping: bool) -> None:
    """Sizes by hand, equal parts of neighbouring classes in the order of the data set."""
    labels = np.tile(np.arange(5), 900)
    draws = np.random.RandomState(3).lognormal(4, 1, 8) + 5
    lists = lognormal_sizes(labels, 8, 3, 3, overlapping)
    assert [len(rows) for rows in lists] == [3 * max(int(n / 3), 2) for n in draws]
    for u, rows in enumerate(lists):
        assert labels[rows].tolist() == [(u + j) % 5 for j in range(3) for _ in range(len(rows) // 3)]
    first = [rows[0] for rows in lists]
    if overlapping:  # the first examples of its classes, for each client
        assert first == [u % 5 for u in range(8)]
    else:
        assert len(np.unique(np.concatenate(lists))) == sum(map(len, lists))
        of_class_2 = np.concatenate([rows[labels[rows] == 2] for rows in lists])  # in the order of clients
        assert of_class_2.tolist() == (2 + 5 * np.arange(len(of_class_2))).tolist()


# ---- refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: balanced_dirichlet(LABELS, 101, 1.0), "num_clients must be in 1..100.*got 101"),
        (lambda: balanced_dirichlet(LABELS, 4, 0.0), "beta must be finite.*got 0.0"),
        (lambda: balanced_dirichlet(LABELS, 4, 1.0, group_size=0), "group_size must be at least 1, got 0"),
        (lambda: balanced_dirichlet(LABELS, 4, 1.0, max_attempts=0), "max_attempts must be at least 1, got 0"),
        (lambda: balanced_dirichlet(LABELS, 4, 1.0, seed=-1), "seed must be in"),
        (lambda: balanced_dirichlet(LABELS, 10, 0.01, max_attempts=3), "none of 3 attempts with beta=0.01"),
        (lambda: pathological(LABELS, 4, 0), "classes_per_client must be at least 1, got 0"),
        (lambda: pathological(LABELS, 5, 2), "must be a multiple of the number of classes, 4, got 2 .* multiple of 2"),
        (lambda: pathological(LABELS, 60, 2), "each of its 30 shards, got 25 of class 0"),
        (lambda: lognormal(LABELS, 5, 0), "num_clients must be a multiple .* 4, got 5: use 8"),
        (lambda: lognormal(LABELS, 4, 0, sigma=-1.0), "sigma must be finite and at least 0, got -1.0"),
        (lambda: lognormal(LABELS, 4, 0, classes_per_client=5), "classes_per_client must be in 1..4.*got 5"),
        (lambda: lognormal(LABELS, 4, 0, min_per_class=0), "min_per_class must be at least 1, got 0"),
        (lambda: lognormal(LABELS, 12, 0), "every class needs 30 examples .* got 25 of class 0"),
        (lambda: lognormal_sizes(LABELS, 4, 0, 5), "classes_per_client must be in 1..4.*got 5: 3 is the published"),
        (
            lambda: lognormal_sizes(LABELS, 4, 0),
            r"class \d has 25 examples, and client \d takes .* the \d+th",
        ),
        (lambda: natural([]), "owners must be a list of integers or strings"),
        (lambda: natural(np.array([0.5, 1.0])), "got float64 of shape"),
        (lambda: natural(np.zeros((2, 2), np.int64)), r"shape \(2, 2\)"),
        (lambda: natural(np.array(["u", None], object)), "got object of shape"),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# ---- label blocks


@pytest.mark.parametrize(("s", "groups"), [(2, 5), (5, 2), (10, 1)])
def test_label_blocks_make_groups_of_clients_with_the_same_classes(s: int, groups: int) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 300))
    partition = label_blocks(labels, 20, s, seed=3)
    counts = partition.counts(labels, 10)
    for u, row in enumerate(counts):
        assert np.flatnonzero(row).tolist() == sorted((s * u + j) % 10 for j in range(s))
        assert row[row > 0].min() >= 10
    assert len({tuple(row > 0) for row in counts}) == groups
    assert counts.sum() == len(set(partition.indices.tolist())) == 3000  # everything has one owner
    own = counts[:, 0][counts[:, 0] > 0]
    assert own.max() > 2 * own.min()  # in unequal numbers
    again, other = label_blocks(labels, 20, s, seed=3), label_blocks(labels, 20, s, seed=4)
    assert again.fingerprint() == partition.fingerprint() != other.fingerprint()


def test_label_blocks_of_large_alpha_are_nearly_equal() -> None:
    labels = np.repeat(np.arange(10), 300)
    counts = label_blocks(labels, 20, 2, seed=0, alpha=1e6).counts(labels, 10)
    assert abs(counts[counts > 0] - 75).max() <= 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes_per_client": 11}, r"classes_per_client must be in 1..10, the number of classes, got 11: 2 makes"),
        ({"classes_per_client": 0}, r"classes_per_client must be in 1..10"),
        ({"alpha": 0.0}, "alpha must be finite and greater than 0, got 0.0: 1 is unequal"),
        ({"alpha": 1e-5}, r"not all lost to underflow, got 1e-05 for the 4 clients of class \d: raise alpha"),
        ({"min_per_class": 0}, "min_per_class must be at least 1, got 0: 10 is the default"),
        ({"min_per_class": 80}, "each of 4 clients needs 80 examples of class 0, got 300 of it: use fewer clients"),
    ],
)
def test_label_blocks_refuse(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        label_blocks(np.repeat(np.arange(10), 300), 20, **{"classes_per_client": 2, "seed": 0, **arguments})  # type: ignore[arg-type]
