"""FedBN: whole runs, layers that are known by their class, and networks without any."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from common_runs import PEOPLE, FedBNConv, FedBNNet, Followed, close, flatten, local
from conftest import golden
from plain_runs import other
from torch import nn

from fedloom.algorithms import FedAvg, FedBN
from fedloom.core.errors import SettingWarning
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import TINY, clients_of, random_data

ENGINES = [Loop, Stacked, Messages]
CASES: dict[str, tuple[Any, Any]] = {
    "stored": (FedBNNet, lambda: golden("common/fedbn_a")),
    "other": (FedBNNet, lambda: other("fedbn", FedBNNet)),
    "convolutional": (FedBNConv, lambda: other("fedbn", FedBNConv, weighting="uniform")),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_rounds(case: str, engine: Any) -> None:
    build, numbers = CASES[case]
    g = numbers()
    there = Followed.of(g, engine, FedBN(aggregation=str(g["weighting"]), local=local(g)), build)
    for r in range(int(g["n_rounds"])):
        there.round(r)
        evaluated = there.run.personal(there.server, PEOPLE, r)
        there.evaluated(r, evaluated)
        for k in PEOPLE:
            own = {n: t for n, t in (evaluated[k].params | evaluated[k].buffers).items() if n.startswith("bn1.")}
            assert int(own.pop("bn1.num_batches_tracked")) == g[f"r{r}_num_batches_tracked"][k]
            close(flatten(own), g[f"r{r}_personal"][k])
    there.run.close()


def in_order() -> nn.Module:
    """Layers without names, so that none is called bn."""
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4))


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_layers_are_known_by_their_class(engine: Any) -> None:
    run = engine(clients_of(random_data((8, 8)), model=Model(in_order, name="net")), FedBN(local=Local(batch_size=4)))
    sent: dict[int, Any] = {}
    run.watch = lambda exchange: sent.update({exchange.client: exchange.upload.value})
    run.round(run.init(), (0, 1), 0)
    assert {*sent[0].params, *sent[0].buffers} == {f"{i}.{n}" for i in (0, 3) for n in ("weight", "bias")}
    assert {*run.states[0].params} == {"1.weight", "1.bias"}
    assert {*run.states[0].buffers} == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_a_network_without_such_layers_is_told() -> None:
    people, how = clients_of(random_data((5, 11))), Local(epochs=2, batch_size=4)
    said = "FedBN leaves normalisation layers with clients, and tiny has none to train: on it, this is FedAvg"
    with pytest.warns(SettingWarning, match=said):
        run = Loop(people, FedBN(local=how))
    plain = Loop(people, FedAvg(local=how, aggregation="uniform"))
    found, theirs = run.round(run.init(), (0, 1), 0)["tiny"], plain.round(plain.init(), (0, 1), 0)["tiny"]
    for n in TINY.params:
        np.testing.assert_array_equal(found.params[n], theirs.params[n])
