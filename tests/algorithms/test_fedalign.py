"""FedAlign: numbers of the authors' functions, local steps by plain PyTorch on a ResNet, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from torch import Tensor, nn

from fedloom.algorithms.fedalign import FedAlign, sigma, transmitting
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.engines.loop import Loop
from fedloom.engines.round_traffic import Exchange
from fedloom.engines.stacked import Stacked
from fedloom.models import FedNTDCNN, ResNet
from small import clients_of

STAGES = [[[(3, 16, 1), (3, 16, 1)]], [[(1, 8, 1), (3, 8, 2), (1, 32, 1)], [(1, 8, 1), (3, 8, 1), (1, 32, 1)]]]


def test_losses_are_the_authors() -> None:
    g = golden("fedntd/fedalign_loss")
    t2, t3, s2, s3 = (torch.from_numpy(g[n]).float() for n in ("t2", "t3", "s2", "s3"))
    close = {"rtol": 1e-5, "atol": 1e-6}
    tm_s, tm_t = transmitting(s2, s3), transmitting(t2, t3)
    np.testing.assert_allclose(tm_s, g["TM_s"], **close)
    np.testing.assert_allclose(tm_t, g["TM_t"], **close)
    np.testing.assert_allclose(sigma(tm_s), g["spec_s"].ravel(), **close)
    np.testing.assert_allclose(sigma(tm_t), g["spec_t"].ravel(), **close)
    np.testing.assert_allclose(sigma(tm_s, iterations=500), g["exact_spec_s"].ravel(), rtol=1e-4)
    np.testing.assert_allclose(sigma(tm_t, iterations=500), g["exact_spec_t"].ravel(), rtol=1e-4)
    s3.requires_grad_()
    lip = (sigma(transmitting(s2, s3)) - sigma(tm_t)).square().mean()
    np.testing.assert_allclose(lip.detach(), g["lip"], **close)
    scaled = float(g["mu"]) * (float(g["ce"]) / lip.detach()) * lip
    np.testing.assert_allclose(scaled.detach(), g["scaled"], **close)
    scaled.backward()
    np.testing.assert_allclose(s3.grad, g["grad_s3"], rtol=1e-4, atol=1e-6)


def test_maps_of_zeros_have_no_gradient() -> None:
    zeros = torch.zeros(2, 3, 4, 4, requires_grad=True)
    sigma(transmitting(torch.ones(2, 3, 4, 4), zeros)).sum().backward()
    assert torch.equal(zeros.grad, torch.zeros_like(zeros))


def tiny(norm: Any) -> Model:
    return Model(lambda: ResNet(STAGES, 16, 1, 4, norm), name="tiny")


def by_hand(network: ResNet, x: Tensor, y: Tensor, mu: float, width: float, epochs: int, batch: int) -> None:
    """The authors' loop in plain PyTorch: two backward passes, then one step on the clipped sum."""
    optimiser = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3, nesterov=True)

    def matrix(a: Tensor, b: Tensor) -> Tensor:
        a = F.adaptive_avg_pool2d(a, b.shape[2:]).flatten(2)
        return a @ b.flatten(2).transpose(1, 2) / a.shape[2]

    def top(m: Tensor) -> Tensor:
        v = torch.ones(len(m), m.shape[1], 1, dtype=m.dtype)
        for _ in range(10):
            z = m @ m.transpose(1, 2) @ v
            v = z / z.norm(dim=1, keepdim=True)
        return z.norm(dim=1).sqrt()

    network.train()
    for _ in range(epochs):
        for start in range(0, len(x), batch):
            rows = slice(start, start + batch)
            optimiser.zero_grad()
            before, after, logits = network.stages(x[rows])
            ce = F.cross_entropy(logits, y[rows])
            ce.backward()
            s2, s3 = network.slim(before.detach(), width)
            gap = F.mse_loss(top(matrix(s2, s3)), top(matrix(before.detach(), after.detach())))
            (mu * (ce.item() / gap.item()) * gap).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 0.8)
            optimiser.step()


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Loop, Stacked])
@pytest.mark.parametrize("norm", ["batch", "batch_untracked", "group"])
def test_local_training_is_plain_pytorch(norm: str, engine: Any) -> None:
    rng = np.random.default_rng(0)
    model = tiny(norm)
    data = [(rng.normal(size=(n, 1, 8, 8)), rng.integers(4, size=n)) for n in (5, 12)]  # padded in a stack
    population = clients_of(data, model=model)
    optimiser = SGD(lr=0.02, momentum=0.9, weight_decay=1e-3, nesterov=True, clip=0.8)
    run = engine(population, FedAlign(width=0.5, local=Local(epochs=2, batch_size=4, optimiser=optimiser)))
    sent: dict[int, Any] = {}
    run.watch = lambda exchange: sent.update({exchange.client: exchange.upload.value})
    server = run.init()
    network = ResNet(STAGES, 16, 1, 4, norm).double()  # type: ignore[arg-type]
    network.load_state_dict({**server["tiny"].params, **server["tiny"].buffers})
    run.round(server, (0, 1), 0)
    for k in (0, 1):
        theirs = copy.deepcopy(network)
        by_hand(theirs, torch.from_numpy(data[k][0]), torch.from_numpy(data[k][1]), 0.45, 0.5, 2, 4)
        found = {**sent[k].params, **sent[k].buffers}
        for name, value in theirs.state_dict().items():
            # The guarded division moves a step by 1e-8 / L_lip of itself.
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_alignment_moves_the_weights() -> None:
    rng = np.random.default_rng(0)
    population = clients_of([(rng.normal(size=(8, 1, 8, 8)), rng.integers(4, size=8))], model=tiny("group"))
    ends = []
    for mu in (0.1, 1.0):
        run = Loop(population, FedAlign(mu=mu, width=0.5, local=Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.05))))
        seen: list[Exchange] = []
        run.watch = seen.append
        ends.append(run.round(run.init(), (0,), 0)["tiny"].params)
    assert not torch.equal(ends[0]["body.2.0.convolutions.0.weight"], ends[1]["body.2.0.convolutions.0.weight"])
    assert float(seen[0].losses[0][0]) > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mu": -0.1}, "mu must be >= 0, got -0.1"),
        ({"width": 0.0}, "width must be > 0 and < 1, got 0.0"),
        ({"width": 1.0}, "width must be > 0 and < 1, got 1.0"),
        ({"aggregation": "median"}, "aggregation must be one of samples, uniform, got 'median'"),
    ],
)
def test_refused_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        FedAlign(**settings)


@pytest.mark.parametrize("network", [FedNTDCNN(1, 8, 4), nn.Linear(3, 2)])
def test_networks_that_cannot_be_slimmed_are_refused(network: nn.Module) -> None:
    with pytest.raises(SettingError, match=rf"{type(network).__name__} cannot: use resnet10, resnet18 or resnet56"):
        FedAlign().init(Model(network), 0, num_clients=1)
