"""q-FedAvg: whole rounds of Algorithm 2 by hand, a round of two quadratics, and q = 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch.nn.functional as F
from plain_training import LOCAL, SIZES, Tensors, assert_rounds, assert_same_bits, examples, network, trained
from quadratics import quadratics

from fedloom.algorithms import FedAvg, QFedAvg
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD, Adam
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages

ENGINES = [Loop, Stacked, Messages]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("q", "aggregation"), [(1.0, "uniform"), (0.3, "samples"), (5.0, "uniform")])
def test_rounds(q: float, aggregation: Any, engine: Any) -> None:
    L = 1 / 0.2

    def round(w: Tensors, cohort: Any) -> Tensors:
        Delta, h = dict.fromkeys(w, 0.0), 0.0
        for k in cohort:
            n_k = SIZES[k] if aggregation == "samples" else 1
            x, y = examples(k)
            loss = float(F.cross_entropy(network(w)(x), y).detach()) + 1e-10
            w_k = trained(w, k)
            d = {n: L * (w[n] - w_k[n]) for n in w}
            Delta = {n: Delta[n] + n_k * loss**q * d[n] for n in w}
            square = sum(float(t.square().sum()) for t in d.values())
            h += n_k * (q * loss ** (q - 1) * square + L * loss**q)
        return {n: w[n] - Delta[n] / h for n in w}

    assert_rounds(engine, QFedAvg(q=q, aggregation=aggregation, local=LOCAL), round)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_of_two_quadratics(engine: Any) -> None:
    """By hand: F = 8 and 1/2, d = -4 and 1, h = 16 + 80 and 1 + 5, so w = 0 + (32 - 1/2) / 102."""
    local = Local(steps=1, batch_size=4, optimiser=SGD(lr=0.1))
    run = engine(quadratics([4.0, -1.0], [1.0, 1.0]), QFedAvg(q=1.0, local=local))
    server = run.round(run.init(), (0, 1), 0)
    assert float(server["point"].params["w"]) == pytest.approx(31.5 / 102, rel=1e-9)


@pytest.mark.some(2)
@pytest.mark.filterwarnings("ignore:QFedAvg with q = 0")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("aggregation", ["uniform", "samples"])
def test_q_0_is_fedavg(aggregation: Any, engine: Any) -> None:
    ours, plain = (kind(aggregation=aggregation, local=LOCAL, **q) for kind, q in ((QFedAvg, {"q": 0.0}), (FedAvg, {})))
    assert_same_bits(engine, ours, plain)


def test_settings() -> None:
    with pytest.warns(SettingWarning, match="QFedAvg with q = 0 is FedAvg"):
        QFedAvg(q=0.0)
    with pytest.raises(SettingError, match="q must be >= 0, got -1"):
        QFedAvg(q=-1.0)
    with pytest.raises(SettingError, match="Adam"):
        QFedAvg(local=Local(optimiser=Adam(lr=0.01)))
