"""Gradient diversity, and proposition 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedloom import Classification, Examples, Model, NextToken
from fedloom.analyses.measures import (
    class_gradients,
    cosines,
    gradient,
    gradient_diversity,
    gram,
)
from fedloom.core import tree
from fedloom.data import Tokens
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


@pytest.mark.parametrize("batch_size", [3, 250])
def test_a_gradient_of_sequences_is_that_of_all_their_places(batch_size: int) -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.randint(4, (7, 6), generator=g)
    y[:4, 1:] = -100
    model = Model(lambda: torch.nn.Embedding(4, 4))
    examples = Examples(torch.randint(4, (7, 6), generator=g), y, 4, Tokens(padding=None))
    weights = model.init(0, torch.float64)
    found = gradient(model, weights, NextToken(), examples, batch_size)
    params = {n: t.clone().requires_grad_() for n, t in weights.params.items()}
    loss = F.cross_entropy(model(type(weights)(params=params), examples.x).flatten(0, 1), y.flatten())
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
    np.testing.assert_allclose(cosines(gram(torch.tensor([[1.0, 0], [2, 2]]))), [[1, 0.5**0.5], [0.5**0.5, 1]])
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
    for bad in (np.nan, np.inf):
        assert np.isnan(gradient_diversity(np.array([[1.0, 0], [bad, 0]])))
    with pytest.raises(ValueError, match=r"at least one client, got \[0, 3\]"):
        gradient_diversity(torch.zeros(0, 3))


def test_weights_are_left_alone() -> None:
    model, examples = data()
    weights = model.init(0, torch.float64)
    before = tree.map_tree(torch.clone, weights)
    class_gradients(model, weights, Classification(), examples)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(before), tree.leaves(weights), strict=True))
