"""Local training in plain PyTorch, on examples in stored order, and an engine's rounds beside what it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.algorithm import Algorithm
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from small import Tiny, clients_of, random_data

DATA = [(x, y % (4 - k)) for k, (x, y) in enumerate(random_data([5, 9, 7]))]  # client 1 lacks class 3, client 2 also 2
SIZES = [len(y) for _, y in DATA]
COHORTS = ((0, 1), (2,), (0, 1, 2), (1, 2))
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.2, momentum=0.5, weight_decay=0.01))

Tensors = dict[str, Tensor]
Backward = Callable[[nn.Module, Tensor, Tensor], Any]


def examples(k: int) -> tuple[Tensor, Tensor]:
    x, y = DATA[k]
    return torch.from_numpy(x), torch.from_numpy(y)


def network(w: Mapping[str, Tensor]) -> nn.Module:
    net = Tiny().double()
    net.load_state_dict(w)
    return net


def of_cross_entropy(net: nn.Module, x: Tensor, y: Tensor) -> None:
    F.cross_entropy(net(x), y).backward()


def trained(w: Mapping[str, Tensor], k: int, backward: Backward = of_cross_entropy) -> Tensors:
    """Where the steps of LOCAL lead; `backward` leaves the gradient of a batch."""
    net, (x, y) = network(w), examples(k)
    sgd = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.5, weight_decay=0.01)
    for rows in [*torch.arange(len(y)).split(4)] * 2:
        sgd.zero_grad()
        backward(net, x[rows], y[rows])
        sgd.step()
    return {n: p.detach() for n, p in net.named_parameters()}


def mean(models: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    total = sum(weights)
    return {n: sum(c / total * m[n] for c, m in zip(weights, models, strict=True)) for n in models[0]}  # type: ignore[misc]


def sq_norm(a: Tensors, b: Tensors) -> float:
    """The squared distance of two models."""
    return sum(float((a[n] - b[n]).square().sum()) for n in a)


def assert_rounds(
    engine: Any, algorithm: Algorithm[Any, Any], round: Callable[[Tensors, Sequence[int]], Tensors]
) -> None:
    """Each round of an engine gives the model that `round` makes of the last one and the cohort."""
    run = engine(clients_of(DATA), algorithm)
    server = run.init()
    w = {n: t.clone() for n, t in algorithm.global_weights(server["tiny"]).params.items()}  # type: ignore[union-attr]
    for t, cohort in enumerate(COHORTS):
        w, server = round(w, cohort), run.round(server, cohort, t)
        params = algorithm.global_weights(server["tiny"]).params  # type: ignore[union-attr]
        for n, value in w.items():
            torch.testing.assert_close(params[n], value, rtol=1e-10, atol=1e-10)


def assert_same_bits(engine: Any, ours: Algorithm[Any, Any], plain: Algorithm[Any, Any]) -> None:
    """Rounds of both algorithms give the same model to the last bit."""
    runs = [engine(clients_of(DATA), algorithm) for algorithm in (ours, plain)]
    servers = [run.init() for run in runs]
    for t, cohort in enumerate(COHORTS):
        servers = [run.round(server, cohort, t) for run, server in zip(runs, servers, strict=True)]
        a, b = (server["tiny"].params for server in servers)
        assert all(torch.equal(a[n], b[n]) for n in b)
