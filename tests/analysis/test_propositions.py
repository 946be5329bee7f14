"""Propositions 2 and 3 as arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import golden
from fedloom.analysis import COUNTEREXAMPLE, expected_distance, kl_parts, mean_optimum, relabelled, smooth_bound


@pytest.mark.parametrize("tau", [1, 2])
def test_parts_are_those_of_the_reference(tau: int) -> None:
    g = golden("fedntd/ntd_variants_derived")
    local, received, y = (torch.as_tensor(g[name]) for name in ("logits", "teacher", "labels"))
    found = kl_parts(local, received, y, tau)

    def mean(name: str) -> float:
        return float(g[f"tau{tau}_{name}"].mean())

    assert found.full == pytest.approx(mean("kl_full_per_sample"), abs=1e-12)
    assert found.true == pytest.approx(mean("true_part_per_sample"), abs=1e-12)
    assert found.not_true == pytest.approx(mean("nottrue_part_per_sample"), abs=1e-12)
    assert found.binary == pytest.approx(mean("kl_binary_per_sample"), abs=1e-12)
    assert found.ntd == pytest.approx(mean("ntd_per_sample"), abs=1e-12)
    assert found.full == pytest.approx(found.true + found.not_true, abs=1e-12)
    assert found.full == pytest.approx(found.binary + found.weighted_ntd, abs=1e-12)


@pytest.mark.parametrize("labels", [[0, 1, 1, 3, 3, 3, 0], [2] * 7])
def test_parts_are_sums_over_classes(labels: list[int]) -> None:
    """Also where a class has no example, or all of them."""
    g = torch.Generator().manual_seed(0)
    found = kl_parts(torch.randn(7, 4, generator=g), torch.randn(7, 4, generator=g), torch.tensor(labels))
    assert found.true_by_class.sum() == pytest.approx(found.true, abs=1e-12)
    assert found.not_true_by_class.sum() == pytest.approx(found.not_true, abs=1e-12)
    missing = sorted(set(range(4)) - set(labels))
    assert (found.true_by_class[missing] == 0).all()


def test_extreme_logits_stay_finite() -> None:
    found = kl_parts(torch.tensor([[80.0, 0, 0]]), torch.tensor([[100.0, 0, 0]]), torch.tensor([0]))
    assert all(np.isfinite(v) for v in (found.full, found.binary, found.ntd, found.weighted_ntd))
    with pytest.raises(ValueError, match=r"logits \[N, C\] and classes \[N\]"):
        kl_parts(torch.zeros(2, 3), torch.zeros(3, 3), torch.zeros(2, dtype=torch.int64))


def test_the_bound_holds_and_is_least_at_the_mean_optimum() -> None:
    rng = np.random.default_rng(0)
    optima, h, least, p = rng.normal(size=(4, 3)), rng.uniform(0.2, 2, 4), rng.random(4), np.array([0.4, 0.3, 0.2, 0.1])
    best = mean_optimum(p, optima)

    def loss(w: np.ndarray) -> float:
        return float(p @ (least + h / 2 * np.square(w - optima).sum(1)))  # class losses that are 2-smooth

    at_best = smooth_bound(best, p, optima, least, 2.0)
    for w in rng.normal(size=(50, 3)):
        assert loss(w) <= smooth_bound(w, p, optima, least, 2.0)
        assert at_best <= smooth_bound(w, p, optima, least, 2.0)


def test_uniform_is_best_for_equidistant_optima() -> None:
    family = relabelled([[0.7, 0.2, 0.1, 0.0], [0.0, 0.5, 0.5, 0.0]])
    assert family.shape == (8, 4)
    np.testing.assert_allclose(family.mean(0), 0.25)
    uniform = expected_distance(np.full(4, 0.25), family, np.eye(4))
    for p in np.random.default_rng(0).dirichlet(np.ones(4), 100):
        assert uniform <= expected_distance(p, family, np.eye(4)) + 1e-12


def test_uniform_is_not_best_for_all_optima() -> None:
    found = [
        expected_distance(p, COUNTEREXAMPLE.clients, COUNTEREXAMPLE.optima) for p in (np.full(3, 1 / 3), [0.5, 0.5, 0])
    ]
    assert found == pytest.approx([4 / 9, 1 / 3], abs=1e-12)
