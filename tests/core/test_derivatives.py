"""Losses over batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedloom.algorithms.shared.ldam import LDAM, class_weights, margins
from fedloom.core import tree
from fedloom.core.batch import probe
from fedloom.core.batches import Batches
from fedloom.core.derivatives import batch_gradient, mean_gradient, mean_loss, objective_hessian_times
from fedloom.core.local_training import Local
from fedloom.core.losses import task_loss
from fedloom.core.model import Model
from fedloom.core.types import Params, Weights, replace
from fedloom.tasks import Classification, NextToken
from small import TINY, batches_of, clients_of, random_data


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_mean_loss_is_one_over_any_number_of_passes(epochs: int) -> None:
    [(x, y)] = data = random_data([11])
    stacked: Any = batches_of(clients_of(data), [0], Local(epochs=epochs, batch_size=4))
    weights = TINY.init(0, torch.float64)
    found = mean_loss(
        TINY, Classification(), weights, tree.take(replace(stacked, x=stacked.x[None], y=stacked.y[None]), 0)
    )
    expected = torch.nn.functional.cross_entropy(TINY(weights, torch.tensor(x)), torch.tensor(y))
    torch.testing.assert_close(found, expected.double(), rtol=0, atol=1e-12)


def test_the_gradient_of_a_batch_is_a_constant_with_the_loss_and_the_moved_buffers() -> None:
    model = Model(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)), name="normed")
    [(x, y)] = random_data([9])
    batch, weights = probe(torch.tensor(x), torch.tensor(y)), model.init(0, torch.float64)
    params = {n: t.clone().requires_grad_() for n, t in weights.params.items()}
    g, loss, buffers = batch_gradient(task_loss(model, Classification()), Weights(params, weights.buffers), batch)
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)).double()
    net.load_state_dict({**weights.params, **weights.buffers})
    expected = nn.functional.cross_entropy(net(batch.x), batch.y)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=0, atol=1e-12)
    for n, p in net.named_parameters():
        torch.testing.assert_close(g[n], p.grad, rtol=0, atol=1e-12)
        assert not g[n].requires_grad
    for n, b in net.named_buffers():
        torch.testing.assert_close(buffers[n], b, rtol=0, atol=1e-12)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(4, 4), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.project(x.view(-1, 3, 4))
        return self.head(nn.functional.scaled_dot_product_attention(z, z, z).flatten(1))  # type: ignore[no-any-return]


def test_a_hessian_through_attention_against_finite_differences() -> None:
    data = [(torch.randn(7, 12, generator=torch.Generator().manual_seed(0)).double().numpy(), [0, 1, 2, 0, 1, 2, 0])]
    model = Model(Attends(), name="attends")
    stacked: Any = batches_of(clients_of(data, model=model), [0], Local(epochs=1, batch_size=4))
    batches = tree.take(replace(stacked, x=stacked.x[None], y=stacked.y[None]), 0)
    weights = model.init(0, torch.float64)
    v = Params({n: torch.ones_like(p) for n, p in weights.params.items()})
    found = objective_hessian_times(model, Classification(), weights, batches, v)
    x, y, step = batches.x.double(), batches.y, 1e-4

    def gradient(sign: float) -> Params:
        moved = {n: (p + sign * step * v[n]).requires_grad_() for n, p in weights.params.items()}
        loss = nn.functional.cross_entropy(torch.func.functional_call(Attends().double(), moved, x), y)
        return Params(zip(moved, torch.autograd.grad(loss, list(moved.values())), strict=True))

    expected = (gradient(1.0) - gradient(-1.0)) / (2 * step)
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-7)


class Says(nn.Module):
    """The same two logits at each of ten places."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([2.0, 0.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(*x.shape, 2)


def whole(x: torch.Tensor, y: torch.Tensor) -> Batches:
    """One pass over all rows, 200 at a time."""
    none, n = torch.zeros((0, 1), dtype=torch.int64), torch.tensor(len(x))
    made = Batches(x=x, y=y, examples=torch.arange(len(x)), order=none, mask=none.bool(), num_steps=n, num_examples=n,
                   key=n, dtype=torch.float64)  # fmt: skip
    return made.whole()


def test_sequences_count_by_their_places_in_a_mean_loss_and_its_derivatives() -> None:
    y = torch.full((400, 10), -100)
    y[:200, 0], y[200:] = 1, 0  # one place of token 1 each, then ten of token 0: 200 and 2,000
    model, v = Model(Says(), name="says"), torch.tensor([0.5, -1.0], dtype=torch.float64)
    weights, batches = model.init(0, torch.float64), whole(torch.zeros(400, 10, dtype=torch.float64), y)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.expand(4000, 2), y.flatten(), ignore_index=-100)

    at = weights.params["logits"]
    g, product = torch.func.grad(loss)(at), torch.autograd.functional.hvp(loss, at, v)[1]
    torch.testing.assert_close(mean_loss(model, NextToken(), weights, batches), loss(at), rtol=0, atol=1e-12)
    torch.testing.assert_close(mean_gradient(model, NextToken(), weights, batches)["logits"], g, rtol=0, atol=1e-12)
    found = objective_hessian_times(model, NextToken(), weights, batches, Params({"logits": v}))
    torch.testing.assert_close(found["logits"], product, rtol=0, atol=1e-12)
    nothing = whole(batches.x[:3], torch.full((3, 10), -100))
    assert mean_loss(model, NextToken(), weights, nothing) == 0
    assert not mean_gradient(model, NextToken(), weights, nothing)["logits"].any()


class Biased(nn.Module):
    """The same two logits whatever the input."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([2.0, 0.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(x), 2)


def test_classes_count_by_their_weights_in_a_mean_loss_and_its_derivatives() -> None:
    y, weight = (torch.arange(500) < 50).long(), torch.tensor([0.001, 0.009], dtype=torch.float64)  # rare ones first
    task, model = Classification(class_weights=(0.001, 0.009)), Model(Biased(), name="biased")
    weights, batches = model.init(0, torch.float64), whole(torch.zeros(500, 3, dtype=torch.float64), y)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.expand(500, 2), y, weight=weight)

    at = weights.params["logits"]
    v, g = torch.tensor([0.5, -1.0], dtype=torch.float64), torch.func.grad(loss)(at)
    torch.testing.assert_close(mean_loss(model, task, weights, batches), loss(at), rtol=0, atol=1e-12)
    torch.testing.assert_close(mean_gradient(model, task, weights, batches)["logits"], g, rtol=0, atol=1e-12)
    found = objective_hessian_times(model, task, weights, batches, Params({"logits": v}))["logits"]
    torch.testing.assert_close(found, torch.autograd.functional.hvp(loss, at, v)[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("drw", [0.0, 0.8])
def test_an_evaluation_is_at_no_time_of_a_training(drw: float) -> None:
    y, model, task = (torch.arange(1000) >= 950).long(), Model(Biased(), name="biased"), LDAM(drw=drw, s=1.0)
    weights, batches = model.init(0, torch.float64), whole(torch.zeros(1000, 3, dtype=torch.float64), y)
    for name, table in task.notes(y).items():
        batches = batches.note(name, table)
    margin, weight = margins(torch.tensor([950, 50])), class_weights(torch.tensor([950, 50]))

    def loss(logits: torch.Tensor) -> torch.Tensor:
        moved = logits - margin[y][:, None] * nn.functional.one_hot(y, 2)
        return nn.functional.cross_entropy(moved, y, weight=None if drw else weight)

    at = weights.params["logits"]
    torch.testing.assert_close(mean_loss(model, task, weights, batches), loss(at), rtol=0, atol=1e-12)
    g = mean_gradient(model, task, weights, batches)["logits"]
    torch.testing.assert_close(g, torch.func.grad(loss)(at), rtol=0, atol=1e-12)
