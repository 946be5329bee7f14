"""Ditto: whole runs, the server that is FedAvg's, and how long personal models are trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from common_runs import PEOPLE, Followed, Net, close, flatten, local
from conftest import golden
from plain_runs import other

from fedloom.algorithms import Ditto, FedAvg
from fedloom.core import tree
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import clients_of, random_data

ENGINES = [Loop, Stacked, Messages]
CASES = {
    "stored": lambda: golden("common/ditto_a"),
    "other": lambda: other("ditto", Net, lam=0.3, personal_epochs=3),
    "shorter": lambda: other("ditto", Net, lam=1.5, personal_epochs=1, weighting="uniform"),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_rounds(case: str, engine: Any) -> None:
    """A step's loss of a personal model is the task's and the proximal term."""
    g = CASES[case]()
    settings = {"lam": float(g["lam"]), "personal_epochs": int(g["personal_epochs"])}
    algorithm = Ditto(aggregation=str(g["weighting"]), local=local(g), **settings)
    there = Followed.of(g, engine, algorithm, Net, ["order", "order_personal"])
    for r in range(int(g["n_rounds"])):
        there.round(r, [["losses_personal", "prox_terms"], ["losses"]])
        evaluated = there.run.personal(there.server, PEOPLE, r)
        there.evaluated(r, evaluated)
        for k in PEOPLE:
            close(flatten(evaluated[k].params), g[f"r{r}_personal"][k])
    there.run.close()


@pytest.mark.parametrize("engine", [Loop, Stacked])
@pytest.mark.parametrize("steps", [None, 3])
def test_the_server_is_that_of_fedavg(steps: int | None, engine: Any) -> None:
    people = clients_of(random_data((5, 11, 8)))
    how = Local(epochs=2, batch_size=4, steps=steps, optimiser=SGD(lr=0.2, momentum=0.9, weight_decay=0.01))
    run, plain = engine(people, Ditto(lam=2.0, local=how)), engine(people, FedAvg(local=how))
    server, theirs = run.init(), plain.init()
    for t, cohort in enumerate([(0, 1), (1, 2)]):
        server, theirs = run.round(server, cohort, t), plain.round(theirs, cohort, t)
        assert all(torch.equal(a, b) for a, b in zip(tree.leaves(server), tree.leaves(theirs), strict=True))
        assert run.traffic.losses == plain.traffic.losses


@pytest.mark.parametrize("engine", [Loop, Stacked])
@pytest.mark.parametrize(
    ("steps", "personal_epochs", "taken"),
    [
        (None, None, [[4, 4], [6, 6]]),
        (None, 1, [[2, 4], [3, 6]]),
        (5, None, [[5, 5], [5, 5]]),
        (5, 1, [[3, 5], [3, 5]]),
    ],
)
def test_steps_of_both_models(steps: Any, personal_epochs: Any, taken: list[list[int]], engine: Any) -> None:
    """Two epochs of 5 and 11 examples; where steps are given, an epoch of the personal model is half of them."""
    how = Local(epochs=2, batch_size=4, steps=steps)
    run = engine(clients_of(random_data((5, 11))), Ditto(local=how, personal_epochs=personal_epochs))
    seen: list[list[int]] = []
    run.watch = lambda exchange: seen.append([len(losses) for losses in exchange.losses])
    run.round(run.init(), (0, 1), 0)
    assert seen == taken
