"""FedRoD: golden numbers, what moves what, and networks that end in another way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from common_rounds import (
    EXACT,
    MODEL,
    assert_evaluated,
    begun,
    evaluated,
    local_of,
    rounds,
    sampled,
    step_of,
    watched,
    weights_of,
)
from common_runs import PEOPLE, flatten as flat
from conftest import golden
from torch import nn

from fedloom.algorithms import FedAvg, FedRoD
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Params
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import assert_params, clients_of, random_data

ENGINES = [Loop, Stacked, Messages]
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.2, momentum=0.5, weight_decay=0.01))


def with_states(engine: Any, g: Any, steps: int | None = None, states: Any = None) -> Any:
    """An engine whose clients have these heads, or those at the beginning of a file."""
    weighting: Any = str(g["weighting"])
    run = begun(engine, FedRoD(aggregation=weighting, local=local_of(g, steps)), g)
    for k in PEOPLE:
        weight, bias = torch.from_numpy(g["init_personal"][k]).split([20, 4])
        own = Params({"head.weight": weight.reshape(4, 5), "head.bias": bias})
        run.states[k] = own if states is None else states[k]
    return run


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_rounds(engine: Any) -> None:
    g = golden("common/fedrod_a")
    run, start = with_states(engine, g), weights_of(g, g["init"])
    server, seen = {"net": start}, watched(run)
    first = run.algorithm.init_client(start, MODEL, 0)  # in this file the personal heads begin as the generic one
    np.testing.assert_allclose(flat(first), g["init_personal"][0], **EXACT)
    for r in rounds(g):
        server = run.round(server, sampled(g, r), r)
        np.testing.assert_allclose(flat(server["net"].params), g[f"r{r}_global"], **EXACT)
        for k in sampled(g, r):
            np.testing.assert_allclose(flat(seen[k].upload.value.params), g[f"r{r}_k{k}_upload"], **EXACT)
            both = g[f"r{r}_k{k}_losses_balanced"] + g[f"r{r}_k{k}_losses_personal"]
            np.testing.assert_allclose(seen[k].losses[0], both, **EXACT)
        for k in PEOPLE:
            np.testing.assert_allclose(flat(run.states[k]), g[f"r{r}_personal"][k], **EXACT)
            generic = evaluated(g, k, server["net"])[0]
            np.testing.assert_allclose(generic, g[f"r{r}_eval_loss_generic"][k], **EXACT)
        assert_evaluated(g, run, server, r)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_steps(engine: Any) -> None:
    """Each of the two losses with which a step begins, at what the steps before it have made."""
    g = golden("common/fedrod_a")
    run, server = with_states(engine, g), {"net": weights_of(g, g["init"])}
    for r in rounds(g):
        for s in range(max(len(g[f"r{r}_k{k}_losses_balanced"]) for k in sampled(g, r))):
            part = with_states(engine, g, s or 1, run.states)
            seen = watched(part)
            part.round(server, sampled(g, r), r)
            for k in sampled(g, r):
                if s >= len(g[f"r{r}_k{k}_losses_balanced"]):
                    continue
                w, P = (seen[k].upload.value, part.states[k]) if s else (server["net"], run.states[k])
                (x, y), n = step_of(g, r, k, s), torch.from_numpy(g["class_counts"][k])
                logits, z = MODEL.with_features(w, x, "input:head")
                balanced = F.cross_entropy(logits + n.double().log(), y)
                personal = F.cross_entropy(logits + F.linear(z, P["head.weight"], P["head.bias"]), y)
                np.testing.assert_allclose(balanced, g[f"r{r}_k{k}_losses_balanced"][s], **EXACT)
                np.testing.assert_allclose(personal, g[f"r{r}_k{k}_losses_personal"][s], **EXACT)
        server = run.round(server, sampled(g, r), r)


# ---- what moves what


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_generic_model_is_that_of_fedavg_where_classes_are_balanced(engine: Any) -> None:
    """Personal heads reach neither the body nor the generic head."""
    data = [(x, np.arange(len(x)) % 4) for x, _ in random_data([4, 8, 12])]
    ours, plain = (engine(clients_of(data), kind(local=LOCAL)) for kind in (FedRoD, FedAvg))
    servers = [run.init() for run in (ours, plain)]
    for t in range(2):
        servers = [run.round(server, (0, 1, 2), t) for run, server in zip((ours, plain), servers, strict=True)]
    assert_params(servers[0]["tiny"], servers[1]["tiny"])


@pytest.mark.parametrize("engine", ENGINES)
def test_the_row_of_an_absent_class_has_no_gradient(engine: Any) -> None:
    data = [(x, y % 3) for x, y in random_data([9, 5])]
    run = engine(clients_of(data), FedRoD(local=Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.2))))
    begin = run.init()
    end = run.round(begin, (0, 1), 0)["tiny"].params["fc2.weight"]
    moved = (end != begin["tiny"].params["fc2.weight"]).any(1).tolist()
    assert moved == [True, True, True, False]
    assert (run.states[0]["fc2.weight"] != begin["tiny"].params["fc2.weight"]).any(1).all()


def test_a_network_without_a_linear_end_is_refused() -> None:
    model = Model(lambda: nn.Sequential(nn.Linear(6, 4), nn.LogSoftmax(-1)), name="ends")
    with pytest.raises(SettingError, match="FedRoD needs a network whose logits are the outputs of its last layer"):
        Loop(clients_of(random_data([5, 5]), model=model), FedRoD())
