"""Rows of accuracies, their steadiness, and accuracy on clients' own distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import golden

from fedloom import Classification, Examples, Model
from fedloom.analyses.measures import (
    complement,
    consistency,
    finite_mean,
    finite_std,
    local_accuracy,
    normalised_rows,
    personalised,
    pooled_accuracy,
    shares,
)
from fedloom.evaluate import classify, forgetting, in_local, out_local, relative_forgetting
from fedloom.models import MLP


def test_distributions_are_those_of_the_reference() -> None:
    g = golden("fedntd/measures")
    p = shares(g["counts"])
    np.testing.assert_allclose(p, g["p"], atol=1e-12)
    np.testing.assert_allclose(complement(p), g["p_out"], atol=1e-12)
    with pytest.raises(ValueError, match="a class distribution needs examples"):
        shares([[1, 2], [0, 0]])


def test_rows_and_their_steadiness_are_those_of_the_reference() -> None:
    g = golden("fedntd/measures")
    np.testing.assert_allclose(normalised_rows(g["acc"]), g["acc_normalised_rounds"], atol=1e-12)
    np.testing.assert_allclose(consistency(g["acc"]), g["cosine_consecutive"], atol=1e-12)


def test_rows_without_a_right_answer_and_classes_without_examples() -> None:
    rows = normalised_rows([[0.0, np.nan, 0.0], [0.25, np.nan, 0.75]])
    np.testing.assert_array_equal(rows, [[0.5, np.nan, 0.5], [0.25, np.nan, 0.75]])
    np.testing.assert_allclose(consistency([[1, np.nan, 0], [0, np.nan, 0], [1, np.nan, 1], [2, np.nan, 2]]),
                               [np.nan, np.nan, 1.0])  # fmt: skip
    with pytest.raises(ValueError, match=r"needs accuracies \[rounds, classes\], got shape \(3,\)"):
        consistency([1, 2, 3])


def test_local_accuracy_is_the_official_one() -> None:
    g = golden("fedntd/measures")
    who = g["sampled"]
    found = local_accuracy(g["counts"][who], g["cwa_float32"][who])
    np.testing.assert_allclose(found.inside, g["in_acc_per_client"], atol=1e-6)  # theirs are float32
    np.testing.assert_allclose(found.outside, g["out_acc_per_client"], atol=1e-6)
    assert found.mean()[0] == pytest.approx(float(g["official_in_dist_acc_mean"]), abs=1e-6)
    assert found.mean()[1] == pytest.approx(float(g["official_in_dout_acc_mean"]), abs=1e-6)
    assert found.std()[0] == pytest.approx(float(g["official_in_dist_acc_std"]), abs=1e-6)
    assert found.weighted()[0] == pytest.approx(float(g["official_in_dist_acc_prop"]), abs=1e-6)
    assert found.weighted()[1] == pytest.approx(float(g["official_out_dist_acc"]), abs=1e-6)


def test_means_weigh_clients_and_leave_out_those_that_cannot_be_judged() -> None:
    found = local_accuracy([[3, 0, 0], [0, 1, 0], [0, 0, 5]], [1.0, 0.5, np.nan])
    assert found.inside.tolist()[:2] == [1.0, 0.5]
    assert np.isnan(found.inside[2])
    assert found.mean()[0] == 0.75
    assert found.weighted()[0] == pytest.approx((3 * 1.0 + 1 * 0.5) / 4)
    assert found.std()[0] == pytest.approx(np.std([1.0, 0.5], ddof=1))
    assert np.isnan(local_accuracy([[1, 1]], [1.0, 0.5]).std()[0])


def test_means_and_deviations_of_what_is_known() -> None:
    values = np.array([1.0, np.nan, 4.0])
    assert finite_mean(values) == 2.5
    assert finite_mean(values, [1, 5, 2]) == 3.0
    assert finite_std(values) == pytest.approx(np.std([1, 4], ddof=1))
    assert np.isnan([finite_mean(values[1:2]), finite_std(values[:2])]).all()


def test_aggregated_models_are_judged_on_pooled_examples() -> None:
    counts, a = np.array([[30, 0, 0], [5, 5, 0]]), np.array([0.9, 0.4, 0.1])
    p = np.array([35, 5, 0]) / 40
    assert pooled_accuracy(counts, a) == pytest.approx((p @ a, ((1 - p) / 2) @ a))


def test_a_perfect_model_is_right_everywhere() -> None:
    found = local_accuracy(np.random.default_rng(0).integers(1, 9, (5, 4)), np.ones(4))
    np.testing.assert_allclose(found.inside, 1)
    np.testing.assert_allclose(found.outside, 1)


def test_order_of_clients_changes_nothing() -> None:
    rng = np.random.default_rng(1)
    counts, a, order = rng.integers(1, 9, (6, 4)), rng.random((6, 4)), rng.permutation(6)
    one, other = local_accuracy(counts, a), local_accuracy(counts[order], a[order])
    for name in ("mean", "std", "weighted"):
        np.testing.assert_allclose(getattr(one, name)(), getattr(other, name)(), atol=1e-15)


@pytest.mark.parametrize("convention", ["earlier", "all"])
def test_forgetting_and_accuracy_make_up_the_peak(convention: str) -> None:
    acc = golden("fedntd/measures")["acc"]
    F = forgetting(acc, convention).mean()
    past = acc if convention == "all" else acc[:-1]
    assert F + acc[-1].mean() == pytest.approx(past.max(0).mean(), abs=1e-12)
    assert F + acc[-1].mean() <= 1
    assert relative_forgetting(acc, convention) == pytest.approx(F / past.max(0).mean(), abs=1e-12)


def test_relative_forgetting_leaves_out_what_is_not_known() -> None:
    acc = np.array([[0.8, np.nan, 0.4], [0.6, np.nan, 0.2]])
    assert relative_forgetting(acc) == pytest.approx(0.4 / 1.2)
    assert np.isnan(relative_forgetting(acc[:1]))
    assert np.isnan(relative_forgetting(np.zeros((3, 2))))


def test_personalised_performance() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 6, generator=g, dtype=torch.float64), torch.arange(40) % 4
    model = Model(lambda: MLP(6, 4))
    weights = model.init(0, torch.float64)
    test, own = Examples(x, y, 4), Examples(x[:9], y[:9], 4)
    per_class = classify(model, weights, Classification(), test).per_class
    found = personalised(model, weights, Classification(), own, per_class)
    p = shares(np.bincount(y[:9], minlength=4))
    right = model(weights, x).argmax(1) == y
    assert found.own == pytest.approx(right[:9].double().mean().item())
    assert found.test == pytest.approx(sum(p[c] * right[y == c].double().mean().item() for c in range(4)))
    assert found.test == pytest.approx(in_local(p, per_class))
    assert out_local(p, per_class) != pytest.approx(found.test)
