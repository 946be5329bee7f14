"""What is held out of each client's examples has the distribution of the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedloom.data import by_lists, iid, pooled, split

LABELS = np.repeat(np.arange(4), 25)


@pytest.mark.slow
@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    num_clients=st.integers(1, 5),
    fraction=st.floats(0, 0.99),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_split_shares_every_client_in_proportion(
    labels: list[int], num_clients: int, fraction: float, seed: int
) -> None:
    partition = iid(labels, min(num_clients, len(labels)), seed)
    train, test = split(partition, labels, fraction, seed)
    whole, held_out = partition.counts(labels, 4), test.counts(labels, 4)
    np.testing.assert_array_equal(train.counts(labels, 4) + held_out, whole)
    for k in range(partition.num_clients):
        size, test_size = int(partition.sizes[k]), int(test.sizes[k])
        assert test_size == min(int(np.floor(fraction * size + 0.5)), size - 1)
        assert (np.abs(held_out[k] - whole[k] * test_size / size) < 1).all()
        order = {int(row): place for place, row in enumerate(partition.rows(k))}
        for part in (train, test):
            places = [order[int(row)] for row in part.rows(k)]
            assert places == sorted(places)


def test_split_is_exact_where_it_can_be() -> None:
    labels = [0] * 20 + [1] * 10 + [2] * 5
    _, test = split(pooled(35), labels, 0.2, seed=0)
    assert test.counts(labels, 3).tolist() == [[4, 2, 1]]


def test_split_breaks_ties_between_classes_at_random() -> None:
    labels = list(range(4)) * 50
    partition = by_lists([range(k * 4, k * 4 + 4) for k in range(50)])
    _, test = split(partition, labels, 0.25, seed=0)
    counts = test.counts(labels, 4)
    assert counts.sum(axis=1).tolist() == [1] * 50
    assert (counts.sum(axis=0) > 0).all()


def test_split_of_a_client_does_not_depend_on_the_others() -> None:
    rows = list(range(50))
    alone, crowded = by_lists([rows]), by_lists([rows, list(range(50, 100))])
    np.testing.assert_array_equal(split(alone, LABELS, 0.3, 1)[1].rows(0), split(crowded, LABELS, 0.3, 1)[1].rows(0))
    assert split(alone, LABELS, 0.3, 1)[1].fingerprint() != split(alone, LABELS, 0.3, 2)[1].fingerprint()


def test_split_of_nothing_and_of_single_examples() -> None:
    partition = by_lists([[0, 1, 2], [3], []])
    train, test = split(partition, LABELS, 0.0, 0)
    assert (train.fingerprint(), test.sizes.tolist()) == (partition.fingerprint(), [0, 0, 0])
    train, test = split(partition, LABELS, 0.9, 0)
    assert (train.sizes.tolist(), test.sizes.tolist()) == ([1, 1, 0], [2, 0, 0])


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_split_refuses_the_fraction(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"test_fraction must be in \[0, 1\), got"):
        split(pooled(4), [0] * 4, fraction, 0)
