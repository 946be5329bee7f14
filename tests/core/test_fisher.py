"""The Fisher information, against EWC's and FedCurv's reference code, on both engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from conftest import golden
from torch import nn

from fedloom.core.algorithm import Algorithm
from fedloom.core.client import Client, on_client
from fedloom.core.fisher import first_pass, fisher
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.types import Params, Weights
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from small import TINY, assert_params, clients_of, weights_at

ENGINES = [Loop, Stacked]


@dataclass(frozen=True, kw_only=True)
class Measure(Algorithm[Weights, Params]):
    """Clients keep the Fisher information of the model sent to them."""

    width: int = 0  # of the batches, in stored order; 0: the training batches
    examples: int = 10**9  # of the first pass over the training batches

    def init(self, model: Any, key: int, *, num_clients: int) -> Weights:
        return model.init(key)

    def init_client(self, initial: Weights, model: Model, key: int) -> Params:
        return initial.params

    @on_client
    def measure(self, client: Client[Params], w: Weights) -> tuple[Params, tuple[()]]:
        batches = first_pass(client.train, self.local.batch_size, self.examples)
        batches = client.train.in_order(self.width) if self.width else batches
        return fisher(client.model, client.task, w, batches), ()

    def round(self, server: Weights, cohort: Any) -> Weights:
        cohort.gather(self.measure, server)
        return server

    def global_weights(self, server: Weights) -> Weights:
        return server


def blob(n: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 6)), rng.integers(4, size=n)


def measured(engine: Any, data: Any, weights: Weights, **settings: Any) -> dict[int, Weights]:
    run = engine(clients_of(data), Measure(**settings))
    run.round({"tiny": weights}, range(len(data)), 0)
    return {k: Weights(params=run.states[k]) for k in range(len(data))}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("width", [1, 5, 10])
def test_fisher_of_elastic_weight_consolidation(width: int, engine: Any) -> None:
    g = golden("pfedsd_apfl/ewc_fisher")
    found = measured(engine, [blob(3), (g["x"], g["y"]), blob(13)], weights_at(g, "w_star."), width=width)
    assert_params(found[1], weights_at(g, f"fisher_bs{width}."), rtol=1e-5, atol=1e-8)  # stored in float32


@pytest.mark.parametrize("engine", ENGINES)
def test_fisher_is_the_mean_of_squared_gradients(engine: Any) -> None:
    data = [blob(3), blob(7, 1), blob(12, 2)]
    weights = TINY.init(0, torch.float64)
    found = measured(engine, data, weights, width=5)
    for k, (x, y) in enumerate(data):
        squares = []
        for a in range(0, len(y), 5):
            params = {n: p.clone().requires_grad_() for n, p in weights.params.items()}
            logits = TINY(Weights(params=params), torch.from_numpy(x[a : a + 5]))
            loss = nn.functional.cross_entropy(logits, torch.from_numpy(y[a : a + 5]))
            squares.append([g.square() for g in torch.autograd.grad(loss, list(params.values()))])
        mean = [sum(s) / len(squares) for s in zip(*squares, strict=True)]
        assert_params(found[k], Weights(params=dict(zip(weights.params, mean, strict=True))))


@pytest.mark.some(4)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("examples", "batches"),
    [(1, [1, 1, 1]), (3, [1, 1, 1]), (4, [1, 2, 2]), (8, [1, 2, 3]), (11, [1, 2, 3]), (12, [1, 2, 4]), (99, [1, 2, 4])],
)
def test_first_pass_stops_once_more_examples_were_seen(examples: int, batches: list[int], engine: Any) -> None:
    """Clients of 3, 7 and 15 examples in batches of 4, two epochs in stored order."""
    data = [blob(3), blob(7, 1), blob(15, 2)]
    weights, local = TINY.init(0, torch.float64), Local(epochs=2, batch_size=4)
    found = measured(engine, data, weights, local=local, examples=examples)
    cut = [(x[: 4 * b], y[: 4 * b]) for (x, y), b in zip(data, batches, strict=True)]
    for k, whole in measured(engine, cut, weights, width=4).items():
        assert_params(found[k], whole)


@pytest.mark.parametrize("engine", ENGINES)
def test_first_pass_is_no_longer_than_what_was_trained(engine: Any) -> None:
    weights, (x, y) = TINY.init(0, torch.float64), blob(15)
    found = measured(engine, [(x, y)], weights, local=Local(steps=2, batch_size=4))
    assert_params(found[0], measured(engine, [(x[:8], y[:8])], weights, width=4)[0])
