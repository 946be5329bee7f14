"""Terms of the loss: what a frozen teacher says, compared with the same training in plain PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom.algorithms import FedNTD, PFedSD
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Weights
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from small import assert_params, clients_of

T, WEIGHT = 2.5, 0.7
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.2, momentum=0.9))


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4))


def module_of(weights: Weights) -> nn.Module:
    module = layers().double()
    module.load_state_dict({**weights.params, **weights.buffers})
    return module


def without_truth(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.cat([z[:c], z[c + 1 :]]) for z, c in zip(logits, y.tolist(), strict=True)])


def trained(start: Weights, teacher: Weights, data: tuple[Any, Any], not_true: bool) -> nn.Module:
    """What plain PyTorch makes of `start` with a teacher in evaluation mode."""
    student, frozen = module_of(start).train(), module_of(teacher).eval()
    optimiser = torch.optim.SGD(student.parameters(), lr=0.2, momentum=0.9)
    x, y = (torch.from_numpy(a) for a in data)
    for _ in range(LOCAL.epochs):
        for rows in torch.arange(len(y)).split(LOCAL.batch_size):
            z = student(x[rows])
            with torch.no_grad():
                told = frozen(x[rows])
            own, truth = (without_truth(v, y[rows]) for v in (z, told)) if not_true else (z, told)
            kd = F.kl_div(F.log_softmax(own / T, 1), F.softmax(truth / T, 1), reduction="batchmean")
            optimiser.zero_grad()
            (F.cross_entropy(z, y[rows]) + WEIGHT * T**2 * kd).backward()
            optimiser.step()
    return student


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", [Loop, Stacked])
@pytest.mark.parametrize("algorithm", [PFedSD(lam=WEIGHT, T=T, local=LOCAL), FedNTD(beta=WEIGHT, tau=T, local=LOCAL)])
def test_a_teacher_with_batch_norm_uses_its_running_statistics(algorithm: Any, engine: Any) -> None:
    rng = np.random.default_rng(3)
    data = [(2.0 + rng.normal(size=(n, 6)), rng.integers(4, size=n)) for n in (7, 14, 4)]
    run = engine(clients_of(data, model=Model(layers, name="net")), algorithm)
    ends: dict[int, Weights] = {}
    run.watch = lambda exchange: ends.update({exchange.client: exchange.trained})
    first = run.round(run.init(), (0, 1, 2), 0)
    before = copy.copy(ends)
    run.round(first, (0, 1, 2), 1)
    for k, own in enumerate(data):
        received = first["net"]
        is_ntd = isinstance(algorithm, FedNTD)
        want = trained(received, received if is_ntd else before[k], own, is_ntd).state_dict()
        assert_params(ends[k], Weights(params={n: want[n] for n in ends[k].params}), rtol=1e-7, atol=1e-9)
        for name, value in ends[k].buffers.items():
            np.testing.assert_allclose(value, want[name], rtol=1e-7, atol=1e-9, err_msg=name)
