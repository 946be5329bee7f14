"""FedGKD: whole rounds in plain PyTorch, of which models the teacher is the mean, what travels, and gamma = 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plain_training import LOCAL, SIZES, Tensors, assert_rounds, mean, network, trained
from torch import Tensor, nn

from fedloom.algorithms import FedAvg, FedGKD
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import clients_of, random_data

ENGINES = [Loop, Stacked, Messages]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("M", "gamma", "T", "aggregation"), [(2, 0.4, 3.0, "samples"), (1, 2.0, 1.0, "uniform")])
def test_rounds(M: int, gamma: float, T: float, aggregation: Any, engine: Any) -> None:
    past: list[Tensors] = []  # the models that rounds have made

    def client(w: Tensors, k: int) -> Tensors:
        teachers = past[-M:] or [w]
        teacher = network({n: sum(t[n] for t in teachers) / len(teachers) for n in w})  # type: ignore[misc]

        def backward(net: nn.Module, x: Tensor, y: Tensor) -> None:
            z, q = net(x), (teacher(x) / T).softmax(1).detach()
            apart = (q * (q.log() - (z / T).log_softmax(1))).sum(1)
            (F.cross_entropy(z, y) + gamma * T**2 * apart.mean()).backward()

        return trained(w, k, backward)

    def round(w: Tensors, cohort: Any) -> Tensors:
        counts = [SIZES[k] if aggregation == "samples" else 1 for k in cohort]
        past.append(mean([client(w, k) for k in cohort], counts))
        return past[-1]

    assert_rounds(engine, FedGKD(M=M, gamma=gamma, T=T, aggregation=aggregation, local=LOCAL), round)


def test_a_teacher_travels_where_it_is_not_the_model_itself() -> None:
    for M, copies in ((1, [1, 1, 1, 1]), (3, [1, 1, 2, 2])):
        run = Loop(clients_of(random_data([5, 4])), FedGKD(M=M, local=LOCAL))
        server, model = run.init(), 8 * (6 * 5 + 5 + 5 * 4 + 4)
        for t, count in enumerate(copies):
            server = run.round(server, (0, 1), t)
            assert [size // model for size in run.traffic.down.values()] == [count, count]


@pytest.mark.filterwarnings("ignore:FedGKD with gamma = 0")
@pytest.mark.parametrize("engine", ENGINES)
def test_gamma_0_is_fedavg(engine: Any) -> None:
    runs = [engine(clients_of(random_data([5, 9])), a) for a in (FedGKD(gamma=0.0, local=LOCAL), FedAvg(local=LOCAL))]
    ours, plain = (run.round(run.init(), (0, 1), 0)["tiny"] for run in runs)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(ours.last[-1]), tree.leaves(plain), strict=True))


def test_settings_are_bounded() -> None:
    with pytest.raises(SettingError, match="M must be >= 1, got 0"):
        FedGKD(M=0)
