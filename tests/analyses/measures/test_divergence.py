"""Distances of weights and of distributions, and their correlation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from fedloom import Weights
from fedloom.analyses.measures import correlation, distribution_distance, weight_divergence


def test_weights_move_by_their_parameters_alone() -> None:
    start = Weights(params={"a": torch.tensor([1.0, 2.0]), "b": torch.zeros(1, 1)}, buffers={"m": torch.zeros(3)})
    moved = Weights(params={"a": torch.tensor([1.0, -1.0]), "b": torch.full((1, 1), 4.0)}, buffers={"m": torch.ones(3)})
    found = weight_divergence(start, moved)
    assert (found.l1, found.l2) == (7.0, 5.0)


def test_distributions_are_apart_by_the_accuracies_as_shares() -> None:
    found = distribution_distance([0.5, 0.5, 0.0, np.nan], [0.75, 0.0, 0.25, 0.0])
    assert found.l1 == pytest.approx(0.25 + 0.5 + 0.25)
    assert found.l2 == pytest.approx(np.sqrt(0.25**2 + 0.5**2 + 0.25**2))


def test_classes_without_a_test_example_are_left_out_of_both_distributions() -> None:
    found = distribution_distance([0.5, 0.5, np.nan], [0.0, 0.2, 0.8])  # (1/2, 1/2) against (0, 1)
    assert (found.l1, found.l2) == pytest.approx((1.0, np.sqrt(0.5)))
    alone = distribution_distance([0.5, 0.5, np.nan], [0.0, 0.0, 1.0])
    assert np.isnan([alone.l1, alone.l2]).all()


def test_pairs_that_are_not_known_are_left_out() -> None:
    x, y = np.array([1.0, np.nan, 2.0, 3.0, 5.0]), np.array([2.0, 9.0, 1.0, 4.0, np.nan])
    assert correlation(x, y) == correlation([1, 2, 3], [2, 1, 4])
    assert correlation(x, y).n == 3


def test_correlations_are_scipys() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 6, 40).astype(float)  # with ties
    y = x**3 + rng.normal(size=40)
    found = correlation(x, y)
    assert found.pearson == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)
    assert found.spearman == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert found.n == 40


def test_what_does_not_vary_has_no_correlation() -> None:
    found = correlation([1, 1, 1], [1, 2, 3])
    assert np.isnan([found.pearson, found.spearman]).all()
    assert np.isnan(correlation([1], [1]).pearson)
    for n in range(2, 40):  # the mean of equal numbers is often not quite that number
        assert np.isnan(correlation([0.1] * n, [0.7] * n).pearson)
        assert np.isnan(correlation([0.1] * n, np.arange(n)).pearson)
    with pytest.raises(ValueError, match=r"\[n\] and \[n\], got shapes \(2,\) and \(3,\)"):
        correlation([1, 2], [1, 2, 3])
