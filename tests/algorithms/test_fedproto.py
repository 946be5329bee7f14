"""FedProto: golden numbers, several architectures, and classes that nobody in a round has."""

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
from torch import Tensor, nn

from fedloom.algorithms import FedProto, LocalOnly
from fedloom.algorithms.fedproto import Server, gathered
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.data import Federation, Partition, from_arrays
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import TINY, Tiny, assert_params, clients_of, random_data

ENGINES = [Loop, Stacked, Messages]
FILES = ["fedproto_a", "fedproto_otf_a"]
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.2, momentum=0.5, weight_decay=0.01))


def with_states(engine: Any, g: Any, steps: int | None = None, states: Any = None, **other: Any) -> Any:
    """An engine whose clients have these models, or those at the beginning of a file."""
    settings: dict[str, Any] = {name: str(g[name]) for name in ("proto_from", "proto_weighting")} | other
    run = begun(engine, FedProto(lam=float(g["lam"]), local=local_of(g, steps), **settings), g)
    for k in PEOPLE:
        run.states[k] = weights_of(g, g["init_personal"][k]) if states is None else states[k]
    return run


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FILES)
def test_rounds(name: str, engine: Any) -> None:
    g = golden(f"common/{name}")
    run, by_prototypes = with_states(engine, g), with_states(engine, g, inference="prototypes")
    server, seen = run.init(), watched(run)
    for r in rounds(g):
        np.testing.assert_allclose(server[""].C, g[f"r{r}_protos_received"], **EXACT)
        assert server[""].known.tolist() == g[f"r{r}_protos_received_mask"].tolist()
        server = run.round(server, sampled(g, r), r)
        np.testing.assert_allclose(server[""].C, g[f"r{r}_protos"], **EXACT)
        for k in sampled(g, r):
            C_k, n_k = seen[k].upload
            np.testing.assert_allclose(C_k, g[f"r{r}_k{k}_upload_protos"], **EXACT)
            assert n_k.tolist() == g[f"r{r}_k{k}_upload_counts"].tolist()
            np.testing.assert_allclose(seen[k].losses[0], g[f"r{r}_k{k}_losses"], **EXACT)
        for k in PEOPLE:
            np.testing.assert_allclose(flat(run.states[k].params), g[f"r{r}_personal"][k], **EXACT)
        assert_evaluated(g, run, server, r)
        by_prototypes.states.update({k: run.states[k] for k in PEOPLE})
        for k, weights in by_prototypes.personal(server, PEOPLE, r).items():
            right = evaluated(g, k, weights)[1]
            np.testing.assert_allclose(right, g[f"r{r}_eval_acc_nearest_proto"][k], **EXACT)


@pytest.mark.parametrize("name", FILES)
def test_other_weightings_of_the_same_uploads(name: str) -> None:
    g = golden(f"common/{name}")
    for r in rounds(g):
        C_k, n_k = (
            torch.stack([torch.as_tensor(g[f"r{r}_k{k}_upload_{what}"]) for k in sampled(g, r)])
            for what in ("protos", "counts")
        )
        for weighting, key in (("samples", "protos"), ("uniform", "alt_uniform_protos")):
            np.testing.assert_allclose(gathered(C_k, n_k, weighting), g[f"r{r}_{key}"], **EXACT)
        np.testing.assert_allclose(gathered(C_k, n_k, "eq6_literal"), g[f"r{r}_alt_eq6_literal_protos"], **EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FILES)
def test_steps(name: str, engine: Any) -> None:
    """Both parts of the loss with which a step begins, at what the steps before it have made."""
    g = golden(f"common/{name}")
    run = with_states(engine, g)
    server = run.init()
    for r in rounds(g):
        C, known = server[""].C, server[""].known
        for s in range(max(len(g[f"r{r}_k{k}_losses"]) for k in sampled(g, r))):
            part = with_states(engine, g, s or 1, run.states, proto_from="after_training")
            part.round(server, sampled(g, r), r)
            for k in sampled(g, r):
                if s >= len(g[f"r{r}_k{k}_losses"]):
                    continue
                x, y = step_of(g, r, k, s)
                logits, z = MODEL.with_features((part if s else run).states[k], x, "input:head")
                np.testing.assert_allclose(F.cross_entropy(logits, y), g[f"r{r}_k{k}_losses_ce"][s], **EXACT)
                apart = (known[y][:, None] * (z - C[y]).square()).mean()
                np.testing.assert_allclose(apart, g[f"r{r}_k{k}_losses_proto"][s], **EXACT)
        server = run.round(server, sampled(g, r), r)


# ---- several architectures


class Deep(nn.Module):
    """Five features, as `Tiny`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh())
        self.last = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x))


def mixed_population(*builds: Any) -> Population:
    data = random_data([9, 6, 7])
    x, y = (np.concatenate(part) for part in zip(*data, strict=True))
    rows = Partition.from_lists([range(9), range(9, 15), range(15, 22)])
    models = {name: Model(build, name=name) for name, build in builds}
    return Population(Federation(from_arrays(x, y, num_classes=4), rows), models, dtype=torch.float64)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_architectures_share_prototypes(engine: Any) -> None:
    run = engine(mixed_population(("tiny", Tiny), ("deep", Deep)), FedProto(local=LOCAL))
    seen = watched(run)
    server = run.round(run.init(), (0, 1, 2), 0)
    assert {run.population.assignment[k] for k in range(3)} == {"tiny", "deep"}
    C_k, n_k = (torch.stack([seen[k].upload[i] for k in range(3)]) for i in (0, 1))
    np.testing.assert_allclose(server[""].C, (n_k[..., None] * C_k).sum(0) / n_k.sum(0)[:, None], rtol=1e-12)
    ends = [run.round(s, (0, 1, 2), 1)[""].C for s in (server, {"": Server(C=0 * C_k[0], known=server[""].known)})]
    assert not torch.allclose(*ends)


def test_other_widths_are_refused() -> None:
    builds = ("tiny", Tiny), ("wide", lambda: nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 4)))
    with pytest.raises(SettingError, match=r"equally many inputs, got 5 of tiny, 7 of wide: give each network"):
        Loop(mixed_population(*builds), FedProto(local=LOCAL))


def test_prototypes_in_the_last_layer_need_a_bias() -> None:
    model = Model(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4, bias=False)), name="plain")
    population = clients_of(random_data([5]), model=model)
    Loop(population, FedProto())
    with pytest.raises(SettingError, match="must have a bias for it, and that of plain has none"):
        Loop(population, FedProto(inference="prototypes"))


def test_the_last_epoch_needs_epochs() -> None:
    with pytest.raises(SettingError, match=r"last_epoch needs training by epochs, got local\.steps = 5"):
        Loop(clients_of(random_data([5])), FedProto(proto_from="last_epoch", local=Local(steps=5)))


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("epochs", [1, 3, 5, 6, 7])
def test_the_last_epoch_has_each_example_once(epochs: int, engine: Any) -> None:
    """1 - 1/3 is not 2/3 in floating point."""
    data, local = random_data([3, 9, 6, 13]), Local(epochs=epochs, batch_size=2, optimiser=SGD(lr=0.1))
    run = engine(clients_of(data), FedProto(proto_from="last_epoch", local=local))
    seen = watched(run)
    run.round(run.init(), range(4), 0)
    for k, (_, y) in enumerate(data):
        assert seen[k].upload[1].tolist() == np.bincount(y, minlength=4).tolist()


# ---- classes


@pytest.mark.parametrize("engine", ENGINES)
def test_a_class_that_nobody_has_keeps_its_prototype(engine: Any) -> None:
    """Client 0 has classes 0 and 1, client 1 has 1 and 2; class 3 is nobody's, and its clients are near the others."""
    data = [(x, y % 2 + k) for k, (x, y) in enumerate(random_data([9, 6]))]
    run = engine(clients_of(data), FedProto(local=LOCAL, inference="prototypes"))
    first = run.round(run.init(), (0,), 0)[""]
    assert first.known.tolist() == [True, True, False, False]
    assert not first.C[2:].any()
    second = run.round({"": first}, (1,), 1)[""]
    assert second.known.tolist() == [True, True, True, False]
    assert torch.equal(second.C[0], first.C[0])
    assert not torch.allclose(second.C[1], first.C[1])
    x = torch.from_numpy(data[0][0])
    evaluated = run.personal({"": second}, (0,), 1)[0]
    z = TINY.features(run.states[0], x, "input:fc2")
    want = (z[:, None] - second.C[:3]).square().sum(-1).argmin(1)
    assert torch.equal(TINY(evaluated, x).argmax(1), want)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_round_and_lam_0_are_local_training(engine: Any) -> None:
    population = clients_of(random_data([9, 6]))
    ours, without, alone = (
        engine(population, a)
        for a in (FedProto(lam=3.0, local=LOCAL), FedProto(lam=0.0, local=LOCAL), LocalOnly(local=LOCAL))
    )
    servers = [run.round(run.init(), (0, 1), 0) for run in (ours, without, alone)]
    for k in (0, 1):
        assert_params(ours.states[k], alone.states[k], rtol=0, atol=0)
    for run, server in zip((ours, without, alone), servers, strict=True):
        run.round(server, (0,), 1)
    assert_params(without.states[0], alone.states[0], rtol=0, atol=1e-15)
    assert not torch.allclose(ours.states[0].params["fc1.weight"], alone.states[0].params["fc1.weight"])
