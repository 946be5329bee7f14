"""FedRep: whole runs, head first, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from common_runs import PEOPLE, Followed, Net, close, flatten, local, of_head
from conftest import golden
from plain_runs import other

from fedloom.algorithms import FedPer, FedRep
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import clients_of, random_data

ENGINES = [Loop, Stacked, Messages]
CASES = {
    "stored": lambda: golden("common/fedrep_a"),
    "other": lambda: other("fedrep", Net, head_epochs=1, body_epochs=3),
    "longer head": lambda: other("fedrep", Net, head_epochs=3, body_epochs=2, weighting="uniform"),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_rounds(case: str, engine: Any) -> None:
    g = CASES[case]()
    settings = {"aggregation": str(g["weighting"]), "head_epochs": int(g["head_epochs"])}
    algorithm = FedRep(personal_layers="head.*", local=local(g, "body_epochs"), **settings)
    there = Followed.of(g, engine, algorithm, Net, ["order_head", "order_body"])
    for r in range(int(g["n_rounds"])):
        there.round(r, [["losses_head"], ["losses_body"]])
        evaluated = there.run.personal(there.server, PEOPLE, r)
        there.evaluated(r, evaluated)
        for k in PEOPLE:
            close(flatten(of_head(evaluated[k])), g[f"r{r}_personal"][k])
    there.run.close()


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_of_steps_the_head_takes_its_share(engine: Any) -> None:
    """3 steps of the body are 2 epochs; one epoch of the head is then 2 steps, whatever a client's examples."""
    run = engine(clients_of(random_data((5, 11))), FedRep(head_epochs=1, local=Local(epochs=2, steps=3, batch_size=4)))
    seen: list[list[int]] = []
    run.watch = lambda exchange: seen.append([len(losses) for losses in exchange.losses])
    run.round(run.init(), (0, 1), 0)
    assert seen == [[2, 3], [2, 3]]


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_without_epochs_of_the_head_it_stays_as_it_began(engine: Any) -> None:
    sgd = SGD(lr=0.2, momentum=0.9, weight_decay=0.1)
    run = engine(clients_of(random_data((5, 11))), FedRep(head_epochs=0, local=Local(epochs=2, optimiser=sgd)))
    start = run.init()
    server = run.round(start, (0, 1), 0)
    for n, t in run.states[0].params.items():
        assert torch.equal(t, start["tiny"].params[n])
    assert not torch.equal(server["tiny"].params["fc1.weight"], start["tiny"].params["fc1.weight"])


def test_a_head_without_layers_is_not_trained() -> None:
    rule = r"FedRep trains personal layers for 10 epochs, and personal_layers = ' ' names none: name some, or set head_"
    with pytest.raises(SettingError, match=rule):
        FedRep(personal_layers=" ")
    with pytest.warns(UserWarning, match=r"FedRep with personal_layers = , head_epochs = 0 is FedAvg"):
        FedRep(personal_layers="", head_epochs=0)
    assert FedRep().shared == FedPer().shared == "* !last:1"
