"""KT-pFL's rounds against the same arithmetic in NumPy and plain PyTorch, without anything of fedloom's core.

Three architectures, one with BatchNorm, clients of unequal sizes, a partial cohort, temperature 2.5, two steps of C:
eq. 2 to 7 by hand.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from spoken import LOCAL as SPOKEN, after_a_round, taught, whole
from torch import nn
from torch.func import grad

from fedloom.algorithms import FedMDKT, KTpFL, KTpFLWeights
from fedloom.algorithms.kt_pfl import coefficient_loss
from fedloom.algorithms.shared.transfer import project_simplex
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Digest, Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Weights
from fedloom.data import Federation, Partition, from_arrays
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import InOrder

TAU, LAM, RHO, ETA3, STEPS = 2.5, 1.7, 0.3, 0.4, 2
ETA1, ETA2, EPOCHS, BATCH = 0.1, 0.6, 2, 4
SIZES = (5, 17, 9, 12, 8)
PUBLIC = 13
COHORTS = ((0, 2, 3), (1, 2, 4), (0, 1, 2, 3))
LOCAL = Local(epochs=EPOCHS, batch_size=BATCH, optimiser=SGD(lr=ETA1))
# All public examples in one batch: in which order they are drawn does not matter.
DISTILL = Digest(epochs=2, batch_size=PUBLIC, optimiser=SGD(lr=ETA2))


def narrow() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 4))


ARCHITECTURES = {"narrow": narrow, "wide": wide, "normed": normed}
ASSIGNMENT = ("narrow", "wide", "wide", "normed", "normed")  # the last two have no batch of one example


def examples(seed: int, n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 6)), rng.integers(4, size=n)


def modules() -> list[nn.Module]:
    torch.manual_seed(7)
    return [ARCHITECTURES[name]().double() for name in ASSIGNMENT]


def soft_prediction(module: nn.Module, x: torch.Tensor) -> Any:
    """s = exp(z / tau) / sum exp(z / tau), [P, C]."""
    with torch.no_grad():
        z = module.eval()(x).numpy() / TAU
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def on_simplex(row: Any) -> Any:
    """The nearest distribution: max(row - theta, 0) with the theta that makes it sum to 1, by bisection."""
    low, high = row.min() - 1, row.max()
    for _ in range(200):
        theta = (low + high) / 2
        low, high = (theta, high) if np.maximum(row - theta, 0).sum() > 1 else (low, theta)
    return np.maximum(row - (low + high) / 2, 0)


def train(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimiser = torch.optim.SGD(module.train().parameters(), lr=ETA1)
    for _ in range(EPOCHS):
        for rows in torch.arange(len(y)).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(module(x[rows]), y[rows]).backward()
            optimiser.step()


def distil(module: nn.Module, x: torch.Tensor, target: torch.Tensor, own: torch.Tensor) -> None:
    """(6), and then the statistics that BatchNorm has on the client's own examples, from those of before."""
    before = {name: b.clone() for name, b in module.named_buffers()}
    optimiser = torch.optim.SGD(module.train().parameters(), lr=ETA2)
    for _ in range(DISTILL.epochs):
        optimiser.zero_grad()
        log_s = torch.log_softmax(module(x) / TAU, 1)
        (target * (target.log() - log_s)).sum(1).mean().backward()
        optimiser.step()
    module.load_state_dict(before, strict=False)
    for _ in range(EPOCHS):
        for rows in torch.arange(len(own)).split(BATCH):
            module(own[rows])


def reference_round(c: Any, clients: list[nn.Module], cohort: tuple[int, ...], data: Any, public: torch.Tensor) -> Any:
    """One round: `clients` are trained, the new C [N, N] is returned."""
    K, sizes = len(cohort), np.array([SIZES[k] for k in cohort], float)
    for k in cohort:
        train(clients[k], *(torch.from_numpy(a) for a in data[k]))
    s = [soft_prediction(clients[k], public) for k in cohort]
    block = np.array([[c[n, m] for m in cohort] for n in cohort])
    mass = block.sum(1)
    block = block / mass[:, None]
    p = [sum(block[n, m] * s[m] for m in range(K)) for n in range(K)]
    for n, k in enumerate(cohort):
        distil(clients[k], public, torch.from_numpy(p[n]), torch.from_numpy(data[k][0]))
    for _ in range(STEPS):
        slope = np.zeros((K, K))
        for n in range(K):
            mixed = sum(block[n, m] * s[m] for m in range(K))
            for m in range(K):  # d/dC[n, m] of D_n / D KL(p_n || s_n), mean over x
                kl = (s[m] * (np.log(mixed / s[n]) + 1)).sum(1).mean()
                slope[n, m] = LAM * sizes[n] / sizes.sum() * kl + 2 * RHO * (block[n, m] - 1 / K)
        block = np.array([on_simplex(row) for row in block - ETA3 * slope])
    c = c.copy()
    for n, k in enumerate(cohort):
        for m, j in enumerate(cohort):
            c[k, j] = block[n, m] * mass[n]
    return c


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Loop, Stacked, Messages])
def test_rounds_by_hand(engine: Any) -> None:
    data = [examples(k, n) for k, n in enumerate(SIZES)]
    x_public, y_public = examples(99, PUBLIC)
    ends = np.cumsum([0, *SIZES])
    federation = Federation(
        train=from_arrays(*(np.concatenate([d[i] for d in data]) for i in (0, 1)), num_classes=4),
        partition=Partition.from_lists([np.arange(a, b) for a, b in itertools.pairwise(ends)]),
        public=from_arrays(x_public, y_public, num_classes=4),
    )
    models = {name: Model(build, name=name) for name, build in ARCHITECTURES.items()}
    population = InOrder(federation, models, assignment=ASSIGNMENT, dtype=torch.float64)
    algorithm = KTpFL(
        local=LOCAL, distill=DISTILL, num_public=PUBLIC, tau=TAU, lam=LAM, rho=RHO, eta3=ETA3, coefficient_steps=STEPS
    )
    run, clients = engine(population, algorithm), modules()
    for k, module in enumerate(clients):
        run.states[k] = Weights(
            params={n: p.detach().clone() for n, p in module.named_parameters()},
            buffers={n: b.clone() for n, b in module.named_buffers()},
        )
    assert bool((run.init()[""] == np.float32(0.2)).all())
    # A C that is not symmetric and whose rows differ, so that no index can be taken for another.
    c = np.random.default_rng(5).dirichlet(np.ones(5), size=5)
    server = {"": torch.from_numpy(c.copy())}
    public = torch.from_numpy(x_public)
    for t, cohort in enumerate(COHORTS):
        server = run.round(server, cohort, t)
        before = c
        c = reference_round(c, clients, cohort, data, public)
        np.testing.assert_allclose(server[""], c, rtol=1e-8, atol=1e-10, err_msg=f"C after round {t}")
        assert abs(c - before).max() > 0.01
        np.testing.assert_allclose(c.sum(1), 1.0, rtol=1e-9)  # a row keeps its mass
        for k, module in enumerate(clients):
            got = {**run.states[k].params, **run.states[k].buffers}
            assert got.keys() == module.state_dict().keys()
            for name, want in module.state_dict().items():
                np.testing.assert_allclose(
                    got[name], want, rtol=1e-8, atol=1e-10, err_msg=f"{name} of {k} after round {t}"
                )
    evaluated = run.personal(server, range(5), len(COHORTS))
    for k, module in enumerate(clients):
        np.testing.assert_allclose(evaluated[k].params["0.weight"], module[0].weight.detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", [Loop, Stacked, Messages])
def test_a_round_of_the_equations(engine: Any) -> None:
    """What clients learn and what C becomes, from the C of the reference, which has rows that do not sum to 1."""
    g = golden("ktpfl_dense/ktpfl_paper_equations")
    logits, c = g["logits"], torch.from_numpy(g["C"])
    tau, lam, rho, eta3 = (float(g[n]) for n in ("T", "lam", "rho", "eta3"))
    count, local = logits.shape[1], Local(epochs=1, batch_size=64, optimiser=SGD(lr=0.1))
    algorithm = KTpFL(local=local, distill=whole(count), num_public=count, tau=tau, lam=lam, rho=rho, eta3=eta3)
    after, end = after_a_round(algorithm, logits, engine, server=c, sizes=g["data_sizes"])
    np.testing.assert_allclose(taught(logits, after, tau), g["personal_soft"], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(end, g["C_after_simplex"], rtol=1e-6, atol=1e-8)  # D_n / D is in float32 there


def gradient_of_divergence(c: Any, soft: Any, sizes: Any) -> Any:
    """d/dC[n, m] of sum_n D_n / D KL(p_n || s_n), mean over x: what pulls C away from 1/N, in closed form."""
    log_ratio = np.log(np.einsum("nm,mpc->npc", c, soft) / soft) + 1
    return (sizes / sizes.sum())[:, None] * np.einsum("mpc,npc->nmp", soft, log_ratio).mean(-1)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Loop, Stacked, Messages])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_larger_rho_pulls_the_coefficients_to_uniform_mixing(steps: int, engine: Any) -> None:
    """With eta3 = 0.5 / rho a step is the projection of 1/N - lam / (2 rho) gradient, wherever C was before.

    A projection onto a convex set moves no two points apart, and 1/N is on the simplex: so each row ends within
    lam / (2 rho) times its gradient's length of 1/N. In the next round clients learn what FedMD teaches, in this limit.
    """
    rng = np.random.default_rng(3)
    logits, sizes = rng.normal(scale=2.0, size=(4, 6, 3)), np.array([3, 9, 5, 7])
    begun = rng.dirichlet(np.ones(4) / 4, size=4)  # rows near to one client each
    soft = torch.softmax(torch.from_numpy(logits), -1).numpy()
    settings: dict[str, Any] = {"local": LOCAL, "distill": whole(6), "num_public": 6}
    uniform, _ = after_a_round(FedMDKT(**settings), logits, Loop)
    lam, far, apart = 1.7, [], []
    for rho in (1.0, 10.0, 100.0, 1e6):
        algorithm = KTpFL(**settings, lam=lam, rho=rho, eta3=0.5 / rho, coefficient_steps=steps)
        _, c = after_a_round(algorithm, logits, engine, server=torch.from_numpy(begun), sizes=sizes)
        if steps == 1:
            bound = lam / (2 * rho) * np.linalg.norm(gradient_of_divergence(begun, soft, sizes), axis=1)
            assert (np.linalg.norm(c.numpy() - 0.25, axis=1) <= 1.001 * bound + 1e-12).all()
        far.append(float((c - 0.25).abs().max()))
        after, _ = after_a_round(algorithm, logits, engine, server=c, sizes=sizes)
        apart.append(float(np.abs(after - uniform).max()))
    for found in (far, apart):
        np.testing.assert_allclose([found[1] / found[2], found[2] / found[3]], [10, 1e4], rtol=0.1)
    assert far[0] > 0.05  # and it does move
    assert max(far[3], apart[3]) < 1e-6


@pytest.mark.parametrize("kind", [KTpFL, KTpFLWeights])
def test_a_pull_that_would_overshoot_is_refused(kind: Any) -> None:
    """At eta3 * rho = 1 what C differs from 1/N changes its sign in each step, and beyond it grows."""
    rule = r"eta3 \* rho < 1, got 0\.1 \* 1000 = 100: set eta3 below 0\.001 \(at 0\.0005 the pull reaches 1 / N in one"
    with pytest.raises(SettingError, match=rule):
        kind(rho=1000.0)
    with pytest.raises(SettingError, match=r"got 0\.5 \* 2 = 1: set eta3 below 0\.5"):
        kind(rho=2.0, eta3=0.5)
    kind(rho=3.0)  # the largest of the paper's sweep
    kind(rho=0.0, eta3=100.0)


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_a_client_that_learns_from_nobody_who_answered_learns_from_all_of_them(engine: Any) -> None:
    """Rows on the simplex have zeros: where a row has nothing on those who answer there is no mixture to scale up."""
    logits = np.random.default_rng(3).normal(size=(3, 4, 5))
    begun = np.array([[0, 0, 1.0], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]])
    algorithm = KTpFL(distill=whole(4), num_public=4, lam=1.7, rho=0.3, eta3=0.4, local=SPOKEN)
    after, c = after_a_round(algorithm, logits, engine, server=torch.from_numpy(begun), asked=(0, 1))
    soft = F.softmax(torch.from_numpy(logits), -1).numpy()
    learnt = taught(logits, after)
    np.testing.assert_allclose(learnt[0], (soft[0] + soft[1]) / 2, rtol=1e-9)
    np.testing.assert_allclose(learnt[1], 0.25 * soft[0] + 0.75 * soft[1], rtol=1e-9)
    np.testing.assert_array_equal(c[0], begun[0])  # what it had of them was nothing
    np.testing.assert_allclose(c.sum(1), 1.0, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rho", "tau", "least", "most"), [(0.7, 1.0, 0.8, 1.0), (0.1, 1.0, 0.99, 1.0), (0.7, 10.0, 0.5, 0.55)]
)
def test_coefficients_find_two_groups(rho: float, tau: float, least: float, most: float) -> None:
    """Twenty clients, ten of which know the classes 0 to 4 and ten 5 to 9: at T = 1 they learn from their own group.

    At T = 10 predictions are near to uniform, and so C stays: KT-pFL is then FedMD.
    """
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(10, (200,), generator=rng)
    z = torch.randn(20, 200, 10, generator=rng, dtype=torch.float64)
    for n in range(20):
        known = torch.arange(10) // 5 == n // 10
        z[n, :, known] += 3.0  # what it has seen in training
        z[n, torch.arange(200), y] += 3.0 * known[y]
    soft, share = torch.softmax(z / tau, -1), torch.full((20,), 0.05, dtype=torch.float64)
    c = torch.full((20, 20), 0.05, dtype=torch.float64)
    for _ in range(100):
        c = project_simplex(c - 0.1 * grad(coefficient_loss)(c, soft, share, 1.0, rho, 0.05))
    inside = torch.cat([c[:10, :10].sum(1), c[10:, 10:].sum(1)])
    assert least <= float(inside.min())
    assert float(inside.max()) <= most + 1e-9


def test_the_record_has_the_coefficients(tmp_path: Any) -> None:
    import fedloom as fl
    from tiny import LOCAL as TINY_LOCAL, examples as clouds, federation, linear

    people = federation(public=clouds(24, seed=5))
    settings = fl.RunSettings(rounds=2, cohort_size=3, engine="loop", threads=1)
    found = fl.run(KTpFL(local=TINY_LOCAL, num_public=8, rho=0.3, eta3=2.0), people, linear, settings)
    assert "server_coefficients" not in found.metrics[0]
    for record in found.metrics[1:]:
        assert len(record["server_coefficients"]) == 36
    np.testing.assert_array_equal(found.metrics[-1]["server_coefficients"], found.server[""].flatten().tolist())
    assert len(set(found.metrics[-1]["server_coefficients"])) > 1
