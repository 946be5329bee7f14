"""KD to NTD: the loss between both ends, and both ends themselves."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from conftest import golden
from torch import Tensor
from torch.func import grad
from trajectory import flat, setting, unflat

from fedloom.algorithms import KDNTD, FedNTD
from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError
from fedloom.core.losses import distillation, not_true
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked

G = golden("fedntd/ntd_variants_derived")
LOGITS, TEACHER, Y = (torch.from_numpy(G[n]) for n in ("logits", "teacher", "labels"))


def penalty(lam: float, tau: float, beta: float = 1.0) -> Any:
    """The penalty of a batch as a function of the student's logits."""
    batch = Batch(
        x=LOGITS, y=Y, mask=torch.ones(len(Y), dtype=torch.bool), key=torch.tensor(0), notes={"teacher": TEACHER}
    )
    return lambda z: KDNTD(lam=lam, beta=beta, tau=tau).penalty(z, batch)


@pytest.mark.parametrize("tau", [1, 2])
@pytest.mark.parametrize("lam", ["0.0", "0.1", "0.5", "0.9", "1.0"])
def test_loss(lam: str, tau: int) -> None:
    for beta in (1.0, 0.3):
        value = penalty(float(lam), tau, beta)(LOGITS)
        np.testing.assert_allclose(value, beta * G[f"tau{tau}_mix_lambda{lam}"], rtol=1e-12)


@pytest.mark.parametrize("tau", [1, 2])
def test_divergence_is_a_true_and_a_not_true_part(tau: int) -> None:
    kd = distillation(LOGITS, TEACHER, tau) / tau**2
    ntd = distillation(not_true(LOGITS, Y), not_true(TEACHER, Y), tau) / tau**2
    np.testing.assert_allclose(kd, G[f"tau{tau}_kl_full_per_sample"], rtol=1e-12)
    np.testing.assert_allclose(ntd, G[f"tau{tau}_ntd_per_sample"], rtol=1e-12)
    binary, sure = G[f"tau{tau}_kl_binary_per_sample"], G[f"tau{tau}_teacher_true_prob"]
    np.testing.assert_allclose(kd, binary + (1 - sure) * ntd.numpy(), rtol=1e-12)


@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
def test_gradient_at_the_true_class(lam: float) -> None:
    def at_true(values: Tensor) -> Tensor:
        return values.gather(-1, Y[:, None])[:, 0]

    tau = 2.0
    got = at_true(grad(penalty(lam, tau))(LOGITS))
    student, teacher = (at_true(torch.softmax(z / tau, -1)) for z in (LOGITS, TEACHER))
    np.testing.assert_allclose(got, (1 - lam) * tau * (student - teacher) / len(Y), rtol=1e-12, atol=0)
    if lam == 1.0:
        assert torch.equal(got, torch.zeros_like(got))


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_lam_1_is_fedntd(engine: Any) -> None:
    g = golden("fedntd/traj_fedntd_t3_b0.5_plain")
    population, local, init = setting(g)
    runs = [
        engine(population, kind(beta=0.5, tau=3.0, local=local)) for kind in (FedNTD, lambda **s: KDNTD(lam=1, **s))
    ]
    servers = [{"tiny": unflat(population.models["tiny"], init)} for _ in runs]
    for r in range(int(g["rounds"])):
        sampled = [int(k) for k in g[f"r{r}_sampled"]]
        servers = [run.round(server, sampled, r) for run, server in zip(runs, servers, strict=True)]
        theirs, mine = (flat(server["tiny"].params) for server in servers)
        assert np.array_equal(mine, theirs)
        np.testing.assert_allclose(mine, g[f"r{r}_global"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"lam": -0.1}, "lam must be >= 0 and <= 1, got -0.1"),
        ({"lam": 1.1}, "lam must be >= 0 and <= 1, got 1.1"),
        ({"beta": -1.0}, "beta must be >= 0, got -1.0"),
        ({"tau": 0.0}, "tau must be > 0, got 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], rule: str) -> None:
    with pytest.raises(SettingError, match=re.escape(rule)):
        KDNTD(**settings)
