"""FedNova against the authors' optimiser and the FedNTD authors' trajectories, and what it must equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import golden
from torch import Tensor, nn
from trajectory import flat, setting, unflat

from fedloom.algorithms import FedAvg, FedNova
from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import replace
from fedloom.data import Federation, Partition, from_arrays
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.subject import RecordingLoop, RecordingStacked
from small import InOrder, clients_of

ENGINES = [Loop, Stacked]
RELEASED = {"vanilla": "none", "official_ccvr": "released", "ccvr_weighted_d": "released"}


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "case",
    [
        "vanilla_plain",
        "vanilla_eqmom",
        "official_ccvr_plain",
        "official_ccvr_mom",
        "official_ccvr_eqmom",
        "ccvr_weighted_d_plain",
        "ccvr_weighted_d_mom",
    ],
)
def test_trajectory(case: str, engine: Any) -> None:
    g = golden(f"fedntd/traj_fednova_{case}")
    population, local, init = setting(g)
    released = RELEASED[case.rpartition("_")[0]]
    run = engine(population, FedNova(local=local, variance_reduction=released))
    server, model, n = run.init(), population.models["tiny"], g["sizes"]
    server["tiny"] = unflat(model, init)
    total = np.zeros(len(init))  # D: in ccvr_weighted_d the global direction, which the released server never moves
    last = {k: np.zeros(len(init)) for k in range(4)}
    for r in range(int(g["rounds"])):
        sampled = [int(k) for k in g[f"r{r}_sampled"]]
        if case.startswith("ccvr_weighted_d"):  # the presumed intent, g + D - d_k: a client that keeps d_k - D
            np.testing.assert_allclose(total, g[f"r{r}_weighted_d_before"], rtol=0, atol=1e-12)
            run.states.update({k: unflat(model, last[k] - total).params for k in sampled})
        server = run.round(server, sampled, r)
        np.testing.assert_allclose(flat(server["tiny"].params), g[f"r{r}_global"], rtol=0, atol=1e-12)
        for k in sampled:
            assert run.traffic.losses[k] == pytest.approx(g[f"r{r}_k{k}_step_losses"].mean(), abs=1e-12)
            if released == "none":
                assert not run.states.get(k)  # nothing is kept
                continue
            last[k] = flat(run.states[k])
            np.testing.assert_allclose(last[k], g[f"r{r}_k{k}_d_after"], rtol=0, atol=1e-12)
        share = n[sampled] / n.sum()
        total = (1 - share.sum()) * total + sum(p * last[k] for p, k in zip(share, sampled, strict=True))
    assert 0 not in run.states  # client 0 never takes part


class Vector(nn.Module):
    """w . x, whose gradient with respect to w is the example."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(11))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w[:, None]


class Sum:
    """The logit itself."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return batch.mean(logits[:, 0])

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        return y == 0


@pytest.mark.some(4)
@pytest.mark.parametrize("engine", [RecordingLoop, RecordingStacked])
@pytest.mark.parametrize("case", ["sgd", "mom", "wd", "momwd", "nest"])
def test_normalised_direction_of_the_authors_optimiser(case: str, engine: Any) -> None:
    g = {n.removeprefix(f"{case}_"): v for n, v in golden("fedntd/fednova_jywa_optimizer").items()}
    # Client 1 takes the golden steps; client 0, with fewer of them, shares its stack.
    x = np.concatenate([g["grads"][:2], g["grads"]])
    federation = Federation(
        train=from_arrays(x, np.zeros(len(x), np.int64), num_classes=1),
        partition=Partition.from_lists([range(2), range(2, len(x))]),
    )
    population = InOrder(federation, {"vector": Model(Vector)}, task=Sum(), dtype=torch.float64)
    optimiser = SGD(
        lr=float(g["lr"]),
        momentum=float(g["momentum"]),
        weight_decay=float(g["wd"]),
        nesterov=bool(g["nesterov"]),
    )
    run = engine(population, FedNova(local=Local(epochs=1, batch_size=1, optimiser=optimiser)))
    start = replace(run.init()["vector"], params={"w": torch.from_numpy(g["x0"])})
    run.round({"vector": start}, (0, 1), 0)
    (upload,) = (upload for _, k, _, upload in run.log if k == 1)
    d, a = upload.value
    assert float(a) == pytest.approx(float(g["a"]), rel=1e-12)
    np.testing.assert_allclose(a * d.params["w"], g["cum_grad"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(g["x0"] - (a * d.params["w"]).numpy(), g["traj"][-1], rtol=0, atol=1e-12)
    assert int(upload.weight) == int(g["steps"])


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("aggregation", ["samples", "uniform"])
def test_equal_numbers_of_steps_give_fedavg(aggregation: Any, engine: Any) -> None:
    rng = np.random.default_rng(0)
    population = clients_of([(rng.normal(size=(n, 6)), rng.integers(4, size=n)) for n in (12, 5, 9)])
    local = Local(steps=3, batch_size=4, optimiser=SGD(lr=0.1, momentum=0.9, weight_decay=1e-3))
    mine = engine(population, FedNova(local=local, aggregation=aggregation))
    theirs = engine(population, FedAvg(local=local, aggregation=aggregation))
    a, b = mine.init(), theirs.init()
    for r in range(3):
        a, b = mine.round(a, (0, 1, 2), r), theirs.round(b, (0, 1, 2), r)
        gap = a["tiny"].params - b["tiny"].params
        assert max(float(t.abs().max()) for t in gap.values()) <= 1e-12
    assert mine.traffic.up[0] == theirs.traffic.up[0] + 8  # a_k is one number more


@pytest.mark.parametrize("name", ["aggregation", "variance_reduction"])
def test_unknown_choices_are_refused(name: str) -> None:
    with pytest.raises(SettingError, match=f"{name} must be one of .*, got 'on'"):
        FedNova(**{name: "on"})
