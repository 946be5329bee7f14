"""FedSAM: whole rounds in plain PyTorch, a step by hand, rho = 0, and what BatchNorm follows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from plain_training import LOCAL, SIZES, Tensors, assert_rounds, assert_same_bits, mean, trained
from quadratics import quadratics
from torch import Tensor, nn

from fedloom.algorithms import FedAvg, FedSAM
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import clients_of

ENGINES = [Loop, Stacked, Messages]


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("rho", "aggregation"), [(0.05, "samples"), (0.7, "uniform")])
def test_rounds(rho: float, aggregation: Any, engine: Any) -> None:
    def backward(net: nn.Module, x: Tensor, y: Tensor) -> None:
        params = [*net.parameters()]
        g = torch.autograd.grad(F.cross_entropy(net(x), y), params)
        norm = torch.cat([t.flatten() for t in g]).norm()
        with torch.no_grad():
            for p, t in zip(params, g, strict=True):
                p += rho * t / norm
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for p, t in zip(params, g, strict=True):
                p -= rho * t / norm

    def round(w: Tensors, cohort: Any) -> Tensors:
        counts = [SIZES[k] if aggregation == "samples" else 1 for k in cohort]
        return mean([trained(w, k, backward) for k in cohort], counts)

    assert_rounds(engine, FedSAM(rho=rho, aggregation=aggregation, local=LOCAL), round)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_by_hand(engine: Any) -> None:
    """From 0 the gradient of (w - 3)^2 / 2 is taken at -1/2, where it is -7/2."""
    local = Local(steps=1, batch_size=4, optimiser=SGD(lr=0.1))
    run = engine(quadratics([3.0, 3.0], [1.0, 1.0]), FedSAM(rho=0.5, local=local))
    server = run.round(run.init(), (0, 1), 0)
    assert float(server["point"].params["w"]) == pytest.approx(0.35, abs=1e-14)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_gradient_no_way(engine: Any) -> None:
    """At the optimum there is no worst direction, and nothing moves."""
    local = Local(steps=2, batch_size=4, optimiser=SGD(lr=0.1))
    run = engine(quadratics([0.0, 0.0], [1.0, 1.0]), FedSAM(rho=0.5, local=local))
    assert float(run.round(run.init(), (0, 1), 0)["point"].params["w"]) == 0.0


@pytest.mark.some(1)
@pytest.mark.filterwarnings("ignore:FedSAM with rho = 0")
@pytest.mark.parametrize("engine", ENGINES)
def test_rho_0_is_fedavg(engine: Any) -> None:
    assert_same_bits(engine, FedSAM(rho=0.0, local=LOCAL), FedAvg(local=LOCAL))


@pytest.mark.parametrize("engine", ENGINES)
def test_batch_norm_follows_the_first_pass(engine: Any) -> None:
    """One step of rho = 10 leaves the running statistics of a step of FedAvg."""
    rng = np.random.default_rng(0)
    model = Model(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)), name="normed")
    data = [(rng.normal(size=(8, 6)), rng.integers(4, size=8)) for _ in range(2)]
    local = Local(epochs=1, batch_size=8, optimiser=SGD(lr=0.1))
    runs = [engine(clients_of(data, model=model), a) for a in (FedSAM(rho=10.0, local=local), FedAvg(local=local))]
    ours, plain = (run.round(run.init(), (0, 1), 0)["normed"] for run in runs)
    assert all(torch.equal(ours.buffers[n], t) for n, t in plain.buffers.items())
    assert not torch.allclose(ours.params["0.weight"], plain.params["0.weight"], atol=1e-3)


def test_rho_must_not_be_negative() -> None:
    with pytest.raises(SettingError, match="rho must be >= 0, got -0"):
        FedSAM(rho=-0.1)
