"""Numbers of the authors' own code for single pieces: losses and local runs (whole runs: test_trajectories)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from torch import Tensor, nn
from torch.func import grad

from fedloom.algorithms import FedNTD, PFedSD
from fedloom.algorithms.kt_pfl import coefficient_loss
from fedloom.algorithms.shared.transfer import mixture, project_simplex
from fedloom.core import tree
from fedloom.core.averaging import Kept
from fedloom.core.batch import Batch
from fedloom.core.local_training import Local
from fedloom.core.losses import distillation, divergence, not_true
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Maybe, Weighted, Weights
from fedloom.engines.loop import Loop
from fedloom.engines.round_traffic import Exchange
from fedloom.engines.stacked import Stacked
from small import TINY, assert_params, clients_of, weights_at

ENGINES = [Loop, Stacked]


@pytest.mark.parametrize("case", [f"c{i}" for i in range(8)])
def test_ntd_loss(case: str) -> None:
    g = golden("fedntd/ntd_loss")
    assert set(g["case_names"]) == {f"c{i}" for i in range(8)}
    logits, teacher, y = (torch.from_numpy(g[f"{case}_{n}"]) for n in ("logits", "teacher", "labels"))
    tau, beta = float(g[f"{case}_tau"]), float(g[f"{case}_beta"])
    algorithm = FedNTD(beta=beta, tau=tau)
    batch = Batch(
        x=logits, y=y, mask=torch.ones(len(y), dtype=torch.bool), key=torch.tensor(0), notes={"teacher": teacher}
    )

    def ce(z: Tensor) -> Tensor:
        return batch.mean(F.cross_entropy(z, y, reduction="none"))

    def ntd(z: Tensor) -> Tensor:
        return batch.mean(distillation(not_true(z, y), not_true(teacher, y), tau))

    def total(z: Tensor) -> Tensor:
        return ce(z) + algorithm.penalty(z, batch)

    for name, fn in (("ce", ce), ("ntd", ntd), ("total", total)):
        np.testing.assert_allclose(fn(logits), g[f"{case}_{name}"], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(grad(fn)(logits), g[f"{case}_grad_{name}"], rtol=1e-12, atol=1e-12)


class LeNet(nn.Module):
    """The pFedSD authors' network for CIFAR-10: 62,006 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.classifier = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        z = F.max_pool2d(F.relu(self.conv1(x)), 2)
        z = F.max_pool2d(F.relu(self.conv2(z)), 2).flatten(1)
        return self.classifier(F.relu(self.fc2(F.relu(self.fc1(z)))))


def assert_local_run(g: dict[str, Any], model: Model, engine: Any, dtype: torch.dtype, **close: float) -> None:
    """Three local steps of pFedSD, weights after each and losses, from a golden file."""
    x, y = g["x"].reshape(-1, *g["x"].shape[2:]), g["y"].reshape(-1)
    # Client 1 is the golden one; client 0, with fewer examples and no model of its own yet, shares its stack.
    shorter = (x[3:10][::-1].copy(), y[3:10][::-1].copy())
    population = clients_of([shorter, (x, y)], model=model, num_classes=10, dtype=dtype)
    optimiser = SGD(lr=float(g["lr"]), momentum=float(g["momentum"]), weight_decay=float(g["weight_decay"]))
    start, teacher = weights_at(g, "global."), weights_at(g, "teacher.")
    np.testing.assert_allclose(model(start, torch.from_numpy(x[:4])), g["student_logits0"], **close)
    np.testing.assert_allclose(model(teacher, torch.from_numpy(x[:4])), g["teacher_logits0"], **close)
    for steps in (1, 2, 3):
        local = Local(steps=steps, batch_size=4, optimiser=optimiser)
        run = engine(population, PFedSD(lam=float(g["lam"]), T=float(g["T"]), local=local))
        run.states[1] = Kept(inner=Weights(params={}), v=Maybe.some(teacher), made=torch.tensor(0))
        seen: dict[int, Exchange] = {}
        run.watch = lambda exchange, seen=seen: seen.update({exchange.client: exchange})
        run.round({model.name: start}, (0, 1), 0)
        kept = run.states[1].v
        assert bool(kept.present)
        assert_params(kept.value, weights_at(g, f"step{steps}."), **close)
    (losses,) = seen[1].losses
    np.testing.assert_allclose(losses, g["loss_total"], **close)


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "settings"), [("a", (1, 1)), ("b", (0.5, 3))])
def test_pfedsd_local_run(name: str, settings: tuple[float, float], engine: Any) -> None:
    g = golden(f"pfedsd_apfl/pfedsd_local_{name}")
    assert (float(g["lam"]), float(g["T"])) == settings
    assert_local_run(g, TINY, engine, torch.float64, rtol=1e-9, atol=1e-12)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_pfedsd_local_run_of_the_cnn(engine: Any) -> None:
    g = golden("pfedsd_apfl/pfedsd_local_cnn_cifar10_f32")
    model = Model(LeNet, name="lenet")
    assert model.num_params == 62_006
    assert_local_run(g, model, engine, torch.float32, rtol=1e-4, atol=1e-6)


def test_kt_pfl_equations() -> None:
    g = golden("ktpfl_dense/ktpfl_paper_equations")
    c, soft, logits = (torch.from_numpy(g[n]) for n in ("C", "soft", "logits"))
    tau, lam, rho, eta3 = (float(g[n]) for n in ("T", "lam", "rho", "eta3"))
    close = {"rtol": 1e-9, "atol": 1e-12}
    sizes = torch.from_numpy(g["data_sizes"])
    share = (sizes / sizes.sum()).double()  # the reference forms D_n / D in float32
    personal = mixture(c, soft)
    np.testing.assert_allclose(F.softmax(logits / tau, -1), g["soft"], **close)
    np.testing.assert_allclose(personal, g["personal_soft"], **close)
    for n in range(4):
        one = F.one_hot(torch.tensor(n), 4).double()
        np.testing.assert_allclose(coefficient_loss(c, soft, one, 1.0, 0.0, 0.25), g["kl_per_client"][n], **close)
    none = torch.zeros(4, dtype=torch.float64)
    np.testing.assert_allclose(coefficient_loss(c, soft, none, 1.0, rho, 0.25), g["reg"], **close)
    step = grad(coefficient_loss)(c, soft, share, lam, rho, 0.25)
    np.testing.assert_allclose(step, g["grad_C"], **close)
    np.testing.assert_allclose(c - eta3 * step, g["C_after"], **close)
    np.testing.assert_allclose(project_simplex(c - eta3 * step), g["C_after_simplex"], **close)

    def distil(z: Tensor) -> Tensor:
        return divergence(z / tau, personal[0]).mean()

    np.testing.assert_allclose(distil(logits[0]), g["distill_loss_client0"], **close)
    np.testing.assert_allclose(grad(distil)(logits[0]), g["distill_grad_logits_client0"], **close)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_simplex_projection_is_the_nearest_point(n: int) -> None:
    c = torch.from_numpy(np.random.default_rng(n).normal(size=(50, n)))
    p = project_simplex(c)
    assert float(p.min()) >= 0
    np.testing.assert_allclose(p.sum(-1), 1.0, rtol=1e-12)
    # Optimality: (c - p) . (q - p) <= 0 for every corner q.
    corners = torch.eye(n, dtype=torch.float64)
    slope = ((c - p)[:, None] * (corners - p[:, None])).sum(-1)
    assert float(slope.max()) <= 1e-12
    np.testing.assert_allclose(project_simplex(p), p, atol=1e-12)


def test_mean_of_weights_is_exact_for_one_client() -> None:
    total = tree.WeightedMean()
    weights = TINY.init(0)
    total.add(tree.stack([Weighted(value=weights, weight=torch.tensor(3))]))
    assert_params(total.result(), weights, rtol=0, atol=0)
