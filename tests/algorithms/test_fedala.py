"""FedALA: whole rounds in plain PyTorch, how long weights are learnt, on which share, and which model is evaluated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from plain_training import DATA, LOCAL, SIZES, Tensors, assert_rounds, examples, mean, network, trained
from torch import nn

from fedloom.algorithms import FedALA
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import clients_of

ENGINES = [Loop, Stacked, Messages]
LAST = ("fc2.weight", "fc2.bias")


def aggregated(v: Tensors, w: Tensors, W: Tensors, k: int, eta: float, threshold: float, most: int, first: bool) -> int:
    """Learn W in place on all examples of client k, in stored order; return how many passes that took."""
    x, y = examples(k)
    losses: list[float] = []
    while True:
        for rows in torch.arange(len(y)).split(4):
            net = network({n: v[n] + (w[n] - v[n]) * W[n] if n in W else w[n] for n in w})
            loss = F.cross_entropy(net(x[rows]), y[rows])
            loss.backward()
            for n in W:
                slope = net.get_parameter(n).grad * (w[n] - v[n])  # type: ignore[operator]
                W[n] = (W[n] - eta * slope).clamp(0, 1)
        losses.append(float(loss.detach()))
        settled = len(losses) > 10 and float(np.std(losses[-10:])) < threshold
        if not first or settled or len(losses) == most:
            return len(losses)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("eta", "p", "threshold", "most", "passes"),
    [(3.0, 1, 0.005, 30, range(12, 30)), (20.0, 0, 1e-9, 13, range(13, 14))],
)
def test_rounds(eta: float, p: int, threshold: float, most: int, passes: Any, engine: Any) -> None:
    own: dict[int, Tensors] = {}
    weights: dict[int, Tensors] = {}
    begun: set[int] = set()
    taken: set[int] = set()

    def client(w: Tensors, k: int) -> Tensors:
        v = own.get(k, own[-1])
        W = weights.setdefault(k, {n: torch.ones_like(t) for n, t in w.items() if p == 0 or n in LAST})
        if any(not torch.equal(v[n], w[n]) for n in w):  # not where all is initial
            taken.add(aggregated(v, w, W, k, eta, threshold, most, k not in begun))
            begun.add(k)
        start = {n: v[n] + (w[n] - v[n]) * W[n] if n in W else w[n] for n in w}
        own[k] = trained(start, k)
        return own[k]

    def round(w: Tensors, cohort: Any) -> Tensors:
        own.setdefault(-1, w)
        return mean([client(w, k) for k in cohort], [SIZES[k] for k in cohort])

    algorithm = FedALA(eta=eta, p=p, s=100.0, threshold=threshold, max_passes=most, local=LOCAL)
    assert_rounds(engine, algorithm, round)
    assert {1} < taken <= {1, *passes}  # until losses settle, and one after that
    found = torch.cat([t.flatten() for W in weights.values() for t in W.values()])
    assert found.min() < 0.5 < found.max()  # and the weights moved


@pytest.mark.parametrize("engine", ENGINES)
def test_clients_are_evaluated_by_the_model_that_they_trained(engine: Any) -> None:
    run = engine(clients_of(DATA), FedALA(local=LOCAL))
    first = run.init()
    server = run.round(first, (0, 1), 0)
    evaluated = run.personal(server, (0, 2), 1)
    for n, t in trained({n: t.clone() for n, t in first["tiny"].params.items()}, 0).items():
        torch.testing.assert_close(evaluated[0].params[n], t, rtol=1e-10, atol=1e-10)
    assert all(torch.equal(evaluated[2].params[n], t) for n, t in first["tiny"].params.items())


def test_weights_are_learnt_on_a_share_of_the_examples() -> None:
    """With 1 percent it is one example of each client, and other weights."""
    found = []
    for s in (1.0, 100.0):
        run = Loop(clients_of(DATA), FedALA(eta=3.0, s=s, local=LOCAL))
        server = run.round(run.init(), (0, 1, 2), 0)
        run.round(server, (0, 1, 2), 1)
        found.append([run.states[k].W["fc2.bias"] for k in range(3)])
    for one, whole in zip(*found, strict=True):
        assert not torch.equal(one, whole)


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_statistics_are_those_received(engine: Any) -> None:
    """Of a step that moves nothing, buffers are what the model received makes of the batch."""
    rng = np.random.default_rng(0)
    model = Model(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)), name="normed")
    data = [(rng.normal(size=(8, 6)) + k, rng.integers(4, size=8)) for k in range(2)]
    local = Local(epochs=1, batch_size=8, optimiser=SGD(lr=1e-12))
    run = engine(clients_of(data, model=model), FedALA(local=local))
    server = run.round(run.init(), (0, 1), 0)
    before = server["normed"].buffers["1.running_mean"]
    server = run.round(server, (0,), 1)
    z = torch.from_numpy(data[0][0]) @ server["normed"].params["0.weight"].T + server["normed"].params["0.bias"]
    want = 0.9 * before + 0.1 * z.mean(0)
    torch.testing.assert_close(server["normed"].buffers["1.running_mean"], want, rtol=1e-8, atol=1e-8)


def test_s_is_a_percentage() -> None:
    with pytest.raises(SettingError, match=r"s must be > 0 and <= 100, got 0\.0"):
        FedALA(s=0.0)
