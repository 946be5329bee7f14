"""FedExP: whole rounds by hand, a round whose step is known, and where it is FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
from plain_training import LOCAL, SIZES, Tensors, assert_rounds, assert_same_bits, mean, sq_norm, trained
from quadratics import quadratics

from fedloom.algorithms import FedAvg, FedExP
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages

ENGINES = [Loop, Stacked, Messages]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("aggregation", "eps"), [("uniform", 1e-3), ("samples", 1e-3), ("uniform", 0.3)])
def test_rounds(aggregation: Any, eps: float, engine: Any) -> None:
    steps = []

    def round(w: Tensors, cohort: Any) -> Tensors:
        models = [trained(w, k) for k in cohort]
        counts = [SIZES[k] if aggregation == "samples" else 1 for k in cohort]
        middle = mean(models, counts)
        squares = sum(c * sq_norm(w, m) for c, m in zip(counts, models, strict=True)) / sum(counts)
        steps.append(max(1.0, squares / (2 * (sq_norm(w, middle) + eps))))
        return {n: w[n] - steps[-1] * (w[n] - middle[n]) for n in w}

    assert_rounds(engine, FedExP(eps=eps, aggregation=aggregation, local=LOCAL), round)
    assert steps[1] == 1.0  # one client: half of its own square over it
    assert eps > 0.1 or max(steps) > 1.0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_that_is_known(engine: Any) -> None:
    """Clients go to 3 and -1 in one step: 5 / (2 (1 + 1/4)) = 2, and the step is in the record."""
    local = Local(steps=1, batch_size=4, optimiser=SGD(lr=1.0))
    run = engine(quadratics([3.0, -1.0], [1.0, 1.0]), FedExP(eps=0.25, local=local))
    server = run.round(run.init(), (0, 1), 0)
    assert float(server["point"].params["w"]) == pytest.approx(2.0, abs=1e-14)
    assert float(run.traffic.noted["server_eta_g"]) == 2.0


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_large_eps_gives_fedavg(engine: Any) -> None:
    assert_same_bits(engine, FedExP(eps=1e6, local=LOCAL), FedAvg(aggregation="uniform", local=LOCAL))


def test_eps_must_be_positive() -> None:
    with pytest.raises(SettingError, match="eps must be > 0, got 0"):
        FedExP(eps=0.0)
