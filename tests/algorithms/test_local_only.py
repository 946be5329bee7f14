"""Local-only training against plain PyTorch: everybody from the same model, nobody hears of anybody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedloom.algorithms import LocalOnly
from fedloom.coordinator import Job, RunSettings
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.core.random import derive
from fedloom.core.types import Weights
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from small import TINY, Tiny, assert_params, clients_of, random_data


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_every_client_trains_alone_from_the_common_model(engine: Any) -> None:
    rng = np.random.default_rng(2)
    data = [(rng.normal(size=(n, 6)), rng.integers(4, size=n)) for n in (5, 11, 8, 6)]
    local = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.2), decay=0.5)
    run = engine(clients_of(data), LocalOnly(local=local))
    server, start = run.init(), TINY.init(derive(0, "init"))
    modules = [Tiny().double() for _ in data]
    for module in modules:
        module.load_state_dict(start.params)
    for t, cohort in enumerate([(0, 2), (1, 2)]):  # client 3 is never asked
        server = run.round(server, cohort, t)
        for k in cohort:
            x, y = (torch.from_numpy(a) for a in data[k])
            optimiser = torch.optim.SGD(modules[k].parameters(), lr=0.2 * 0.5**t)
            for rows in [r for _ in range(2) for r in torch.arange(len(y)).split(4)]:
                optimiser.zero_grad()
                F.cross_entropy(modules[k](x[rows]), y[rows]).backward()
                optimiser.step()
    for k, evaluated in run.personal(server, range(4), 2).items():
        assert_params(evaluated, Weights(params={n: p.detach() for n, p in modules[k].named_parameters()}))


def test_everybody_may_train_in_every_round() -> None:
    data = random_data((6, 7, 8, 9))
    population = clients_of(data)
    settings = RunSettings(rounds=2, cohort_size=1, engine="loop", dtype="float64", compilation="none")
    found = {}
    for schedule in ("cohort", "every_round"):
        algorithm = LocalOnly(schedule=schedule, local=Local(epochs=1, batch_size=4))
        history = Job(algorithm=algorithm, federation=population.federation, model=TINY, settings=settings).run()
        found[schedule] = [m["clients"] for m in history.metrics[1:]]
    assert all(len(asked) == 1 for asked in found["cohort"])
    assert found["every_round"] == [[0, 1, 2, 3]] * 2
