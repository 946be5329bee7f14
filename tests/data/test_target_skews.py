"""Partitions without classes: quantiles of a target, and sizes that are drawn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fedloom.data import Dataset, Examples, dirichlet, iid, quantiles, quantity, shards
from fedloom.experiments import catalogue


def test_quantiles_are_of_one_size_and_in_order() -> None:
    y = np.random.default_rng(0).permutation(100) / 7
    bins = quantiles(y, 5)
    assert np.bincount(bins).tolist() == [20] * 5
    assert bins[np.argsort(y)].tolist() == sorted(bins)
    np.testing.assert_array_equal(bins, quantiles(torch.from_numpy(y), 5))
    np.testing.assert_array_equal(bins, quantiles(np.stack([y, -y], axis=1), 5))  # the first of several targets


def test_equal_targets_share_a_bin_and_bins_have_no_gaps() -> None:
    bins = quantiles([0.0] * 6 + [1, 2, 3, 4], 5)
    assert bins.tolist() == [0] * 6 + [1, 1, 2, 2]


def test_bins_are_divided_as_classes() -> None:
    y = np.random.default_rng(0).normal(size=200)
    made = shards(quantiles(y, 10), 10, 1, seed=0)
    spans = sorted((y[made.rows(k)].min(), y[made.rows(k)].max()) for k in range(10))
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(spans))


def test_quantity_is_that_of_the_authors() -> None:
    """NIID-Bench's lines, with its global generator."""
    n, parties, beta, seed = 500, 8, 0.5, 3
    draw = np.random.RandomState(seed)
    order = draw.permutation(n)
    smallest = 0.0
    while smallest < 10:
        shares = draw.dirichlet(np.repeat(beta, parties))
        shares = shares / shares.sum()
        smallest = np.min(shares * n)
    rows = np.split(order, (np.cumsum(shares) * n).astype(int)[:-1])
    made = quantity(np.zeros(n, np.int64), parties, beta, seed)
    assert [made.rows(k).tolist() for k in range(parties)] == [part.tolist() for part in rows]
    assert made.sizes.max() > 3 * made.sizes.min()
    targets = np.random.default_rng(0).normal(size=(n, 2))
    assert quantity(targets, parties, beta, seed).fingerprint() == made.fingerprint()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantiles([1.0, 2.0], 3), r"num_bins must be in 2\.\.2, the number of examples, got 3: 10 makes"),
        (lambda: quantiles([1.0, 2.0], 1), r"num_bins must be in 2\.\.2"),
        (lambda: quantiles([1.0, np.nan], 2), "targets must be finite numbers"),
        (lambda: quantiles([4.0] * 5, 2), "targets must differ for quantiles, got 4 in nearly all of 5 examples: use"),
        (lambda: quantity([0] * 10, 2, 0.0, 0), "beta must be finite and greater than 0, got 0.0"),
        (lambda: quantity([0] * 10, 2, 1.0, 0), r"min_size must be in 0\.\.5, .* got 10: take fewer clients"),
        (lambda: quantity([0] * 100, 9, 0.01, 0, max_attempts=3), "none of up to 3 draws .* left fewer than 8"),
        (lambda: dirichlet([0.5, 1.5], 1, 1.0, 0), r"got targets that are no classes, such as 0.5: divide them by iid"),
        (lambda: shards(np.ones((4, 2)), 2, 1, 0), "targets that are no classes, such as 1: divide"),
    ],
)  # fmt: skip
def test_what_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


def data(y: torch.Tensor, **more: object) -> Dataset:
    return Dataset(Examples(torch.zeros(len(y), 2), y, 3, name="visits", **more), None)  # type: ignore[arg-type]


def test_by_name() -> None:
    y = torch.arange(60, dtype=torch.float32) + 0.5
    visits = data(y, targets=("los_days",))
    made = catalogue.partition("quantiles:6:shards:1", visits, 6, 0)
    assert made.name == "shards s=1 of 6 quantiles"
    assert sorted(made.rows(k).min() for k in range(6)) == [0, 10, 20, 30, 40, 50]
    assert catalogue.partition("quantiles:3:dirichlet:100", visits, 3, 0).num_clients == 3
    assert catalogue.partition("quantity:1", visits, 3, 0).sizes.sum() == 60
    assert catalogue.partition("iid", visits, 4, 0).fingerprint() == iid(y, 4, 0).fingerprint()


@pytest.mark.parametrize(
    ("text", "classes", "message"),
    [
        (
            "shards:2",
            False,
            "partition shards:S divides classes, and visits has targets that are none .los_days.: use one of iid, "
            "quantity:BETA, quantiles:Q:P, natural, lists:FILE.json",
        ),
        ("dirichlet:0.1", False, "partition dirichlet:ALPHA divides classes"),
        ("quantiles:3:iid", False, "P of partition quantiles:Q:P must be one of shards:S, .* got 'iid': name one"),
        ("quantiles:3:lognormal_sizes:2:overlapping", False, "got 'lognormal_sizes:2:overlapping': name one"),
        ("quantiles:3:shards:2", True, "divides targets that are no classes, and visits has classes: use shards:2"),
        ("quantiles:many", False, "this partition is written quantiles:Q:P, got 'quantiles:many': Q is a whole number"),
    ],
)
def test_names_that_do_not_suit_the_data(text: str, classes: bool, message: str) -> None:
    y = torch.arange(60) % 3 if classes else torch.arange(60, dtype=torch.float32)
    with pytest.raises(ValueError, match=message):
        catalogue.partition(text, data(y, targets=() if classes else ("los_days",)), 6, 0)
