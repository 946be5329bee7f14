"""Rows from movements: quotients and trainings in plain PyTorch, and images that come out of a convolution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.core.types import Params, Weights
from fedloom.privacy import inversion
from fedloom.privacy.inversion import Movement, first_layer, fitted, quotients
from fedloom.tasks import Classification


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(6 * 64, 3))


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))


def images(n: int) -> Tensor:
    """Bright rectangles on a dark ground."""
    x, draw = torch.zeros(n, 1, 8, 8), np.random.default_rng(0)
    for i in range(n):
        a, b = draw.integers(0, 4, 2)
        x[i, 0, a : a + 4, b : b + 4] = 1.0
    return x


def trained(
    build: Callable[[], nn.Module], x: Tensor, y: Tensor, steps: int, lr: float = 0.1, **sgd: float
) -> tuple[fl.Model, Movement]:
    """How far PyTorch's own SGD moves a network in so many steps on all rows."""
    model = fl.Model(build, name="net")
    sent = model.init(0)
    network = build()
    network.load_state_dict(sent.params)
    own = torch.optim.SGD(network.parameters(), lr=lr, **sgd)  # type: ignore[arg-type]
    for _ in range(steps):
        own.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        own.step()
    moved = Params({n: sent.params[n] - t.detach() for n, t in network.named_parameters()})
    plan = fl.Local(steps=steps, batch_size=len(x), optimiser=fl.SGD(lr=lr, **sgd))
    return model, Movement(sent, moved, steps, plan, lr)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_quotient_of_one_row_is_the_row(decay: float) -> None:
    x = images(1)
    _, seen = trained(dense, x, torch.tensor([1]), 1, weight_decay=decay)
    found = quotients(seen, "1")
    assert 0 < len(found) <= 8
    assert found.numpy() == pytest.approx(np.tile(x.flatten().numpy(), (len(found), 1)), abs=1e-3)


def test_the_first_layer_is_the_one_that_is_given_the_rows() -> None:
    model = fl.Model(dense)
    assert first_layer(model, model.init(0), images(2)) == "1"
    of_images = fl.Model(convolution)
    assert first_layer(of_images, of_images.init(0), images(2)) is None
    changed = fl.Model(lambda: nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(64, 3)))
    assert first_layer(changed, changed.init(0), images(2)) is None
    without = fl.Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3, bias=False)))
    assert first_layer(without, without.init(0), images(2)) is None


@pytest.mark.parametrize(("steps", "more"), [(1, {}), (3, {"momentum": 0.9, "weight_decay": 0.01})])
def test_a_training_that_is_computed_again_is_that_of_pytorch(steps: int, more: dict[str, float]) -> None:
    x, y = images(4), torch.tensor([0, 1, 2, 1])
    model, seen = trained(convolution, x, y, steps, **more)
    again = inversion._moved(model, Classification(), seen, x, y)
    whole = torch.cat([t.flatten() for t in seen.moved.values()])
    assert again.detach().numpy() == pytest.approx(whole.numpy(), rel=1e-3, abs=1e-6)


def test_of_long_trainings_each_step_stands_for_several() -> None:
    x, y = images(4), torch.tensor([0, 1, 2, 1])
    model, long = trained(convolution, x, y, 10, lr=0.01)
    _, short = trained(convolution, x, y, 5, lr=0.02)
    again = inversion._moved(model, Classification(), long, x, y)
    whole = torch.cat([t.flatten() for t in short.moved.values()])
    assert again.detach().numpy() == pytest.approx(whole.numpy(), rel=1e-3, abs=1e-6)


def test_an_image_comes_out_of_a_convolution() -> None:
    x, y, count = images(1), torch.tensor([2]), list[int]()
    model, seen = trained(convolution, x, y, 1)
    like = torch.cat([x, images(3)])
    found = fitted(model, Classification(), seen, y, like, 100, 0, lambda: count.append(1))
    assert len(count) == 100
    assert float((found - x).square().mean()) < 0.05  # a grey image has 0.25
    assert 0.0 <= float(found.min()) <= float(found.max()) <= 1.0
    noise = Params(
        {n: torch.from_numpy(np.random.default_rng(1).normal(size=t.shape)).to(t) for n, t in seen.moved.items()}
    )
    nothing = fitted(model, Classification(), Movement(seen.sent, noise, 1, seen.plan, 0.1), y, like, 20, 0)
    assert float((nothing - x).square().mean()) > 0.1


def test_other_optimisers_are_taken_for_plain_sgd() -> None:
    seen = Movement(Weights({}), Params({}), 1, fl.Local(optimiser=fl.Adam(lr=0.5)), 0.5)
    assert seen.optimiser == fl.SGD(lr=0.5)
    own = fl.SGD(lr=0.5, momentum=0.9, micro_batch=4)
    assert Movement(seen.sent, seen.moved, 1, fl.Local(optimiser=own), 0.5).optimiser == fl.SGD(lr=0.5, momentum=0.9)
