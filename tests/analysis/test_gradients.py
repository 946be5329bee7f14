"""Gradient diversity, and proposition 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from conftest import golden
from fedloom import Classification, Examples, Model
from fedloom.analysis import (
    class_gradients,
    closed_form,
    complement,
    cosines,
    diversity_at,
    gradient,
    gradient_diversity,
    gram,
    shares,
)
from fedloom.core import tree
from fedloom.models import MLP


def data() -> tuple[Model, Examples]:
    g = torch.Generator().manual_seed(0)
    y = torch.tensor([0, 0, 1, 1, 1, 3, 3, 0, 1, 3, 3])  # no example of class 2
    return Model(lambda: MLP(5, 4, hidden=(7,))), Examples(torch.randn(11, 5, generator=g, dtype=torch.float64), y, 4)


@pytest.mark.parametrize("batch_size", [3, 250])
def test_a_gradient_is_that_of_the_mean_loss(batch_size: int) -> None:
    model, examples = data()
    weights = model.init(0, torch.float64)
    found = gradient(model, weights, Classification(), examples, batch_size)
    params = {n: t.clone().requires_grad_() for n, t in weights.params.items()}
    loss = F.cross_entropy(model(type(weights)(params=params), examples.x), examples.y)
    expected = torch.cat([t.flatten() for t in torch.autograd.grad(loss, list(params.values()))])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_class_gradients_make_up_the_whole() -> None:
    model, examples = data()
    weights = model.init(0, torch.float64)
    each, there = class_gradients(model, weights, Classification(), examples)
    assert there.tolist() == [0, 1, 3]
    share = torch.tensor([3, 4, 4]) / 11
    torch.testing.assert_close(
        share.double() @ each, gradient(model, weights, Classification(), examples), rtol=0, atol=1e-7
    )
    np.testing.assert_allclose(gram(each), (each @ each.T).numpy(), atol=1e-14)
    np.testing.assert_allclose(np.diag(cosines(gram(each))), 1)
    assert np.isnan(cosines(np.array([[0.0, 0.0], [0.0, 2.0]]))[0]).all()


def test_diversity() -> None:
    g = torch.Generator().manual_seed(0)
    table = torch.randn(5, 30, generator=g)
    assert gradient_diversity(table) == pytest.approx(
        float(5 * table.double().square().sum() / table.double().sum(0).square().sum())
    )
    assert gradient_diversity(table) > 1
    assert gradient_diversity(table[[3, 1, 0, 2, 4]]) == pytest.approx(gradient_diversity(table), abs=1e-12)
    assert gradient_diversity(table[:1].repeat(4, 1)) == pytest.approx(1, abs=1e-12)
    assert gradient_diversity(np.array([[1.0, 0], [-1, 0]])) == float("inf")
    with pytest.raises(ValueError, match=r"at least one client, got \[0, 3\]"):
        gradient_diversity(torch.zeros(0, 3))


def test_proposition_1_is_that_of_the_reference() -> None:
    g = golden("fedntd/measures")
    form = closed_form(g["gd_P"])
    assert pytest.approx(float(g["gd_V"]), abs=1e-12) == form.V
    assert pytest.approx(float(g["gd_M"]), abs=1e-12) == form.M
    np.testing.assert_allclose(form.at(g["gd_betas"]), g["gd_lambda_closed"], atol=1e-10)
    np.testing.assert_allclose(form.slope(g["gd_betas"]), g["gd_dlambda_closed"], atol=1e-10)
    np.testing.assert_allclose(diversity_at(g["gd_P"], g["gd_betas"]), g["gd_lambda"], atol=1e-10)


def test_the_closed_form_is_the_direct_one_for_clients_and_their_relabellings() -> None:
    from fedloom.analysis import relabelled

    p = shares(np.random.default_rng(0).integers(0, 30, (5, 7)))
    betas, form = np.linspace(0, 6, 25), closed_form(p)
    family = relabelled(p)
    assert pytest.approx(form.V, abs=1e-12) == closed_form(family).V
    np.testing.assert_allclose(diversity_at(family, betas), form.at(betas), atol=1e-10)
    assert not np.allclose(diversity_at(p, betas), form.at(betas), atol=1e-3)  # whose own mean is not uniform
    assert form.at(6) == pytest.approx(1)
    low = betas <= 7 / 2 - 1
    assert (form.slope(betas)[low] <= -form.M / (1 + betas[low]) ** 2 + 1e-12).all()
    h = 1e-6
    np.testing.assert_allclose(form.slope(betas), (form.at(betas + h) - form.at(betas - h)) / (2 * h), atol=1e-7)


def test_measured_diversity_is_that_of_the_gradients_themselves() -> None:
    rng = np.random.default_rng(1)
    p, G = shares(rng.integers(0, 9, (4, 5)) + np.eye(4, 5, dtype=int)), rng.normal(size=(5, 40))
    clients = p + 0.7 * complement(p)
    assert diversity_at(p, 0.7, G @ G.T)[0] == pytest.approx(gradient_diversity(clients @ G), abs=1e-10)
    with pytest.raises(ValueError, match="at least two classes, got 1"):
        closed_form(np.ones((3, 1)))


def test_weights_are_left_alone() -> None:
    model, examples = data()
    weights = model.init(0, torch.float64)
    before = tree.map_tree(torch.clone, weights)
    class_gradients(model, weights, Classification(), examples)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(before), tree.leaves(weights), strict=True))
