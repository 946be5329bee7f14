"""pFedMe: the authors' numbers, its one step by hand, the model that evaluates, and settings that cannot be stable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from torch import Tensor, nn
from torch.func import grad

from fedloom.algorithms import PFedMe
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.types import Params, Weights
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import TINY, assert_params, clients_of, random_data, weights_at

ENGINES = [Loop, Stacked, Messages]


def of_file(g: dict[str, Any], **settings: Any) -> PFedMe:
    """pFedMe with the settings of a golden file, but for those given; the authors' mean is by samples."""
    names = {"lam": "lam", "K": "K", "alpha_p": "personal_lr", "eta": "eta", "mu2": "mu_l2"}
    given: dict[str, Any] = {ours: g[theirs].item() for ours, theirs in names.items()}
    local = Local(steps=int(g["R"]), batch_size=int(g["batch_size"]))
    return PFedMe(**{**given, "local": local, "aggregation": "samples", **settings})


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_rounds_of_the_authors(engine: Any) -> None:
    """theta after each inner step of each batch, w_k after each batch, and the server's model, with both beta."""
    g = golden("pfedsd_apfl/pfedme_a")
    population = clients_of([(g[f"c{i}_x"], g[f"c{i}_y"]) for i in range(2)])
    start, batch_size = weights_at(g, "global."), int(g["batch_size"])
    for steps in range(1, int(g["R"]) + 1):
        local = Local(steps=steps, batch_size=batch_size)
        run = engine(population, of_file(g, local=local))
        for i in range(2):  # alone, so that the server's model is w_k
            server = run.round({"tiny": start}, (i,), 0)["tiny"]
            assert_params(run.states[i].value, weights_at(g, f"c{i}_theta.", (steps - 1, -1)))
            assert_params(server, weights_at(g, f"c{i}_w.", steps))
    for k in range(1, int(g["K"]) + 1):
        run = engine(population, of_file(g, K=k, local=Local(steps=1, batch_size=batch_size)))
        run.round({"tiny": start}, (0, 1), 0)
        for i in range(2):
            assert_params(run.states[i].value, weights_at(g, f"c{i}_theta.", (0, k - 1)))
    for beta in (1, 2):
        run = engine(population, of_file(g, beta=float(beta)))
        server = run.round({"tiny": start}, (0, 1), 0)["tiny"]
        assert_params(server, weights_at(g, f"server_beta{beta}."))


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
def test_one_step_on_one_batch(engine: Any) -> None:
    """With R = K = 1 and mu2 = 0 a client ends with w - eta lam alpha_p g; the paper's mean is uniform."""
    data = random_data([6, 6, 4])
    population = clients_of(data)
    algorithm = PFedMe(lam=4.0, eta=0.1, alpha_p=0.3, K=1, mu2=0.0, local=Local(steps=1, batch_size=6))
    run = engine(population, algorithm)
    start = run.init()["tiny"]

    def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(TINY(Weights(params), x), y)

    ends = [start.params - 0.1 * 4.0 * 0.3 * grad(loss)(start.params, *map(torch.from_numpy, part)) for part in data]
    mean = (1 / 3) * (ends[0] + ends[1] + ends[2])
    assert_params(run.round({"tiny": start}, (0, 1, 2), 0)["tiny"], Weights(mean))


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_is_judged_by_theta_and_before_it_has_one_by_the_newest_global_model(engine: Any) -> None:
    run = engine(clients_of(random_data([6, 5, 4])), PFedMe(local=Local(steps=4, batch_size=4)))
    server = run.round(run.round(run.init(), (0, 1), 0), (0,), 1)
    evaluated = run.personal(server, (0, 1, 2), 1)
    for k in (0, 1):
        assert_params(evaluated[k], run.states[k].value, rtol=0, atol=0)
        assert bool(run.algorithm.has_personal(run.states[k]))
    assert not torch.equal(evaluated[0].params["fc1.weight"], server["tiny"].params["fc1.weight"])  # theta is not w_k
    assert_params(evaluated[2], server["tiny"], rtol=0, atol=0)
    assert not bool(run.algorithm.has_personal(run.stack([2])))


class Dropping(nn.Module):
    """Batch normalisation, then dropout of half the features."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.fc = nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.norm(x)))


def test_every_inner_step_draws_its_dropout_and_moves_the_statistics() -> None:
    population = clients_of(random_data([8]), model=Model(Dropping, name="dropping"))
    two, one = (
        Loop(population, PFedMe(lam=1e-9, K=K, alpha_p=1.0, eta=0.1, mu2=0.0, local=Local(steps=1, batch_size=8)))
        for K in (2, 1)
    )
    start = one.init()
    once = one.round(start, (0,), 0)["dropping"], one.states[0].value
    two.round(start, (0,), 0)
    after = two.states[0].value
    assert int(after.buffers["norm.num_batches_tracked"]) == 2
    again = one.round({"dropping": once[1]}, (0,), 0), one.states[0].value  # the same batch key: the first mask again
    assert not np.allclose(again[1].params["fc.weight"], after.params["fc.weight"])
    assert_params(once[0], Weights(start["dropping"].params), atol=1e-6)  # w_k hardly moves
    np.testing.assert_array_equal(once[0].buffers["norm.running_mean"], once[1].buffers["norm.running_mean"])


def test_settings_that_cannot_be_stable_are_refused() -> None:
    with pytest.raises(SettingError, match=r"eta \* lam < 1, got 0.1 \* 15 = 1.5: set eta below 0.0667, or lower lam"):
        PFedMe(eta=0.1)
    with pytest.raises(SettingError, match=r"eta \* lam < 1, got 0.1 \* 10 = 1:"):
        PFedMe(eta=0.1, lam=10.0)
    with pytest.raises(
        SettingError,
        match=r"alpha_p \* \(lam \+ mu2\) < 2, got 0.2 \* \(15 \+ 0.001\) = 3.0002: set alpha_p below 0.133, or lower",
    ):
        PFedMe(alpha_p=0.2)
    PFedMe(alpha_p=0.133, eta=0.0666)
