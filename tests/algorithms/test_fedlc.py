"""FedLC: whole rounds in plain PyTorch, classes that a client lacks, and tau = 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from plain_training import DATA, LOCAL, SIZES, Tensors, assert_rounds, assert_same_bits, mean, trained
from torch import Tensor, nn

from fedloom.algorithms import FedAvg, FedLC
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import clients_of

ENGINES = [Loop, Stacked, Messages]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("tau", "aggregation"), [(1.0, "samples"), (3.0, "uniform")])
def test_rounds(tau: float, aggregation: Any, engine: Any) -> None:
    def client(w: Tensors, k: int) -> Tensors:
        n = np.bincount(DATA[k][1], minlength=4)
        present = np.flatnonzero(n)  # a class that is not there has no place in the sum
        margin = torch.from_numpy(tau * n[present] ** -0.25)

        def backward(net: nn.Module, x: Tensor, y: Tensor) -> None:
            z = net(x)[:, present] - margin
            at = torch.from_numpy(np.searchsorted(present, y.numpy()))
            p = z.exp() / z.exp().sum(1, keepdim=True)
            (-p[torch.arange(len(y)), at].log().mean()).backward()

        return trained(w, k, backward)

    def round(w: Tensors, cohort: Any) -> Tensors:
        counts = [SIZES[k] if aggregation == "samples" else 1 for k in cohort]
        return mean([client(w, k) for k in cohort], counts)

    assert_rounds(engine, FedLC(tau=tau, aggregation=aggregation, local=LOCAL), round)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_row_of_an_absent_class_has_no_gradient(engine: Any) -> None:
    run = engine(clients_of(DATA), FedLC(local=Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.2))))
    begin = run.init()
    end = run.round(begin, (1, 2), 0)["tiny"].params["fc2.weight"]
    assert (end != begin["tiny"].params["fc2.weight"]).any(1).tolist() == [True, True, True, False]


@pytest.mark.some(1)
@pytest.mark.filterwarnings("ignore:FedLC with tau = 0")
@pytest.mark.parametrize("engine", ENGINES)
def test_tau_0_is_fedavg(engine: Any) -> None:
    assert_same_bits(engine, FedLC(tau=0.0, local=LOCAL), FedAvg(local=LOCAL))


def test_tau_must_not_be_negative() -> None:
    with pytest.raises(SettingError, match="tau must be >= 0, got -1"):
        FedLC(tau=-1.0)
