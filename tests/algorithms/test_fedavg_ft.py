"""Fine-tuning and stored local models: what evaluates clients, against plain PyTorch; the server stays FedAvg's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedloom.algorithms import FedAvg, FedAvgFT, FedAvgStored
from fedloom.core import tree
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.core.types import Weights
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import Tiny, assert_params, batches_of, clients_of, random_data

ENGINES = [Loop, Stacked, Messages]
SIZES = (5, 11, 8)
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.2, momentum=0.9, weight_decay=1e-2), decay=0.5)


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("settings", "epochs", "lr", "names"),
    [
        ({}, 2, 0.2 * 0.5, ["fc1", "fc2"]),
        ({"ft_epochs": 3, "ft_lr": 0.05}, 3, 0.05, ["fc1", "fc2"]),
        ({"ft_epochs": 1, "ft_part": "head"}, 1, 0.2 * 0.5, ["fc2"]),
    ],
)
def test_fine_tuning(settings: dict[str, Any], epochs: int, lr: float, names: list[str], engine: Any) -> None:
    data = random_data(SIZES)
    run = engine(clients_of(data), FedAvgFT(local=LOCAL, **settings))
    plain = engine(clients_of(data), FedAvg(local=LOCAL))
    server, theirs = run.init(), plain.init()
    for t in range(2):
        run.personal(server, range(3), t)  # being evaluated moves nothing
        server, theirs = run.round(server, (0, 1), t), plain.round(theirs, (0, 1), t)
    assert same(server, theirs)
    assert not run.states
    evaluated = run.personal(server, range(3), 1)
    for k, (x, y) in enumerate(data):
        module, x, y = Tiny().double(), torch.from_numpy(x), torch.from_numpy(y)
        module.load_state_dict(server["tiny"].params)
        trained = [p for n, p in module.named_parameters() if n.partition(".")[0] in names]
        optimiser = torch.optim.SGD(trained, lr=lr, momentum=0.9, weight_decay=1e-2)
        for rows in [r for _ in range(epochs) for r in torch.arange(len(y)).split(4)]:
            module.zero_grad()
            F.cross_entropy(module(x[rows]), y[rows]).backward()
            optimiser.step()
        assert_params(evaluated[k], Weights(params={n: p.detach() for n, p in module.named_parameters()}))
    run.close()
    plain.close()


def test_fine_tuning_draws_batches_of_its_own() -> None:
    population = clients_of(random_data(SIZES))
    evaluated, trained = (batches_of(population, [1], LOCAL, 1, exchange) for exchange in ("evaluate", 0))
    assert not torch.equal(evaluated.key, trained.key)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_stored_models_judge_and_the_server_stays_fedavgs(engine: Any) -> None:
    data = random_data(SIZES)
    run, plain = (engine(clients_of(data), kind(local=LOCAL)) for kind in (FedAvgStored, FedAvg))
    server, theirs = run.init(), plain.init()
    sent: dict[int, Any] = {}
    run.watch = lambda exchange: sent.update({exchange.client: exchange.upload.value})
    for t, cohort in enumerate([(0, 1), (1,)]):
        server, theirs = run.round(server, cohort, t), plain.round(theirs, cohort, t)
    assert same(server, theirs)
    evaluated = run.personal(server, range(3), 1)
    assert same(evaluated, {0: sent[0], 1: sent[1], 2: server["tiny"]})
    has = [bool(run.algorithm.has_personal(tree.take(run.stack([k]), 0))) for k in range(3)]
    assert has == [True, True, False]
    run.close()
    plain.close()
