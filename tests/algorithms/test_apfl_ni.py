"""APFL (Ni) against arithmetic of its own: steps, rounds, importance, the window; what travels, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import golden
from fedloom.algorithms.apfl_ni import STARTS, APFLNi, Own, Server
from fedloom.core import tree
from fedloom.core.batches import Batch
from fedloom.core.client import Client, on_client
from fedloom.core.decomposition import decompose, effective
from fedloom.core.fisher import fisher
from fedloom.core.loss_window import Window
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Local
from fedloom.core.types import Params, Weights
from fedloom.core.types import replace as with_fields
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import TINY, assert_params, clients_of, random_data, weights_at

ENGINES = [Loop, Stacked, Messages]
YES = torch.tensor(True)
NAMES = {"fc1.weight": "W1", "fc1.bias": "b1", "fc2.weight": "W2", "fc2.bias": "b2"}
MASKS = {"fc1.weight.mask": "m1", "fc2.weight.mask": "m2"}
FOUND: list[Any] = []


def shared_at(g: Any, prefix: str) -> Weights:
    return Weights(params={n: torch.from_numpy(g[f"{prefix}.{short}"]) for n, short in NAMES.items()})


def own_at(g: Any, own: str, mask: str) -> Weights:
    params = {f"{n}.own": t for n, t in shared_at(g, own).params.items()}
    return Weights(params={**params, **{n: torch.from_numpy(g[f"{mask}.{short}"]) for n, short in MASKS.items()}})


@dataclass(frozen=True, kw_only=True)
class Steps(APFLNi):  # type: ignore[misc]  # final for users
    """Local training alone, from parts, an anchor and an importance that the test gives."""

    @on_client
    def fit(
        self, client: Client[Own], start: Weights, anchor: Params, F: Params, decomposed: Tensor
    ) -> tuple[Own, Weights]:
        return client.state, self.together(client, start, anchor, F, decomposed)

    def round(self, server: Server, cohort: Any) -> Server:
        FOUND.append(cohort.gather(self.fit, *FOUND.pop()).values[-1])
        return server


# ---- decomposition and local training


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("decomposition", ["function_preserving", "paper_literal", "zero_personal"])
def test_local_steps(decomposition: str, engine: Any) -> None:
    """W_S begins off the anchor, so that the pull acts; another client, with fewer steps, trains beside."""
    g = golden(f"pfedsd_apfl/apfl_mlp_{decomposition}")
    x, y = g["x"].reshape(-1, 6), g["y"].reshape(-1)
    anchor, F = shared_at(g, "WS0"), shared_at(g, "fisher").params
    algorithm = Steps(decomposition=decomposition, mu=float(g["mu"]))  # type: ignore[arg-type]
    begun, own = decompose(TINY, anchor, *STARTS[decomposition]), own_at(g, "Wk0", "mraw0")
    assert_params(begun.select(lambda name: name.endswith(".own")), own.select(lambda name: name.endswith(".own")))
    for parts in (begun, own):
        assert_params(effective(TINY, anchor.merge(parts), YES), shared_at(g, "effective0"), rtol=1e-8)
    for steps in (1, 2, 3):
        local = Local(steps=steps, batch_size=8, optimiser=SGD(lr=float(g["eta"])))
        run = engine(clients_of([(x[:9], y[:9]), (x, y)]), replace(algorithm, local=local))
        FOUND.append((shared_at(g, "WS_start").merge(own), anchor.params, F, YES))
        run.round(run.init(), (0, 1), 0)
        want = shared_at(g, f"step{steps}_WS").merge(own_at(g, f"step{steps}_Wk", f"step{steps}_mraw"))
        assert_params(FOUND.pop(), want, rtol=1e-9, atol=1e-12)
        run.close()
    losses = run.last.losses[0].reshape(-1, 3)[-1]
    np.testing.assert_allclose(losses, g["loss_task"] + g["penalty"], rtol=1e-9)


def test_gradients_of_the_three_parts() -> None:
    g = golden("pfedsd_apfl/apfl_mlp_function_preserving")
    batch = Batch(x=torch.from_numpy(g["x"][0]), y=torch.from_numpy(g["y"][0]), mask=YES, key=YES.long(), full=True)
    start = shared_at(g, "WS_start").merge(own_at(g, "Wk0", "mraw0"))

    anchor, F = shared_at(g, "WS0").params, shared_at(g, "fisher").params

    def loss(params: Params) -> Tensor:
        w = effective(TINY, Weights(params=params), YES)
        pull = sum((F[n] * (params[n] - anchor[n]) ** 2).sum() for n in F)
        return nn.functional.cross_entropy(TINY.train(w, batch)[0], batch.y) + float(g["mu"]) / 2 * pull

    found = torch.func.grad(loss)(start.params)
    assert_params(Weights(params=found), shared_at(g, "grad0_WS").merge(own_at(g, "grad0_Wk", "grad0_mraw")))


def test_units_of_a_convolution() -> None:
    g = golden("pfedsd_apfl/apfl_conv_unit")
    model = Model(lambda: nn.Conv2d(3, 4, 2), name="conv")
    given = {"weight": "WS", "bias": "bS", "weight.own": "Wk", "bias.own": "bk", "weight.mask": "mraw"}
    parts = Weights(params={name: torch.from_numpy(g[key]) for name, key in given.items()})
    found = effective(model, parts, YES)
    np.testing.assert_allclose(found.params["weight"], g["W_eff"], rtol=1e-9)
    np.testing.assert_allclose(found.params["bias"], g["b_eff"], rtol=1e-9)
    np.testing.assert_allclose(model(found, torch.from_numpy(g["x"])), g["out"], rtol=1e-9)


# ---- importance


@dataclass(frozen=True, kw_only=True)
class Halves(APFLNi):  # type: ignore[misc]
    """Importance of the two halves of each client's examples, up to 5 in each."""

    def importance(self, client: Client[Own], w: Weights) -> Params:
        n, at = client.num_examples, torch.arange(5)
        half = n // 2
        mask = torch.stack([at < half, half + at < n])
        order = torch.where(mask, torch.stack([at, half + at]), 0)
        batches = with_fields(client.train.in_order(1), order=order, mask=mask, num_steps=0 * n + 2)
        return fisher(client.model, client.task, w, batches)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("kind", "estimator", "wanted"),
    [
        (APFLNi, "client_grad_sq", "F_eq5_literal"),
        (APFLNi, "per_sample", "F_per_sample"),
        (Halves, "per_batch", "F_two_batches"),
    ],
)
def test_importance_is_that_of_eq_5(kind: Any, estimator: str, wanted: str, engine: Any) -> None:
    g = golden("pfedsd_apfl/apfl_fisher_online")
    model = Model(lambda: nn.Linear(7, 5), name="linear")
    data = [(g[f"x{k}"], g[f"y{k}"]) for k in range(3)]
    local = Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.1))
    run = engine(
        clients_of(data, model=model, num_classes=5), kind(estimator=estimator, lam=float(g["lam"]), local=local)
    )
    w = Weights(params={"weight": torch.from_numpy(g["W"]), "bias": torch.from_numpy(g["b"])})
    F = Params(weight=torch.from_numpy(g["F_old"][:, :-1]), bias=torch.from_numpy(g["F_old"][:, -1]))
    server = run.round({"linear": with_fields(run.init()["linear"], w=w, F=F)}, (0, 1, 2), 0)["linear"]
    found = np.column_stack([server.F["weight"], server.F["bias"]])
    np.testing.assert_allclose(found, g[wanted], rtol=1e-9, atol=1e-12)
    run.close()


@dataclass(frozen=True)
class Nothing:
    """A task without a loss."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return 0.0 * logits.sum()

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        return y == y


@pytest.mark.parametrize("engine", ENGINES)
def test_elastic_weight_consolidation(engine: Any) -> None:
    """Importance over two tasks, the second measured on batches of 5, and its pull alone as one step of rate 1."""
    g = golden("pfedsd_apfl/ewc_fisher")
    w = weights_at(g, "w_star.")
    F, both = (tree.cast(weights_at(g, of).params, dtype=torch.float64) for of in ("fisher_bs1.", "online_decay0.9."))
    local = Local(steps=1, batch_size=5, optimiser=SGD(lr=1.0))
    population = clients_of([(g["x"], g["y"]), *random_data([3])])
    run = engine(population, APFLNi(estimator="per_batch", lam=0.9, mu=0.1, local=local))
    server = run.round({"tiny": with_fields(run.init()["tiny"], w=w, F=F)}, (0,), 0)["tiny"]
    assert_params(Weights(params=server.F), Weights(params=both), rtol=1e-5, atol=1e-8)
    run.close()
    run = engine(replace(population, task=Nothing()), Steps(mu=2 * float(g["ewc_lambda"]), local=local))
    moved = weights_at(g, "w_moved.")
    FOUND.append((moved.merge(decompose(TINY, moved, 1.0, 0.0)), w.params, both, ~YES))
    run.round(run.init(), (0,), 0)
    step = moved.params - FOUND.pop().params.select(moved.params.__contains__)
    assert_params(Weights(params=step), weights_at(g, "penalty_grad."), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(run.last.losses[0], g["penalty_avalanche"].reshape(1, 1), rtol=1e-5)
    run.close()


# ---- the window


@pytest.mark.parametrize("case", ["L5_min1", "L5_full", "L3_full"])
def test_window(case: str) -> None:
    g = golden("pfedsd_apfl/loss_window")
    below_mean, below_std, length, min_fill = (float(a) for a in g[f"apfl_{case}_cfg"])
    window = tree.cast(Window.new(int(length)), dtype=torch.float64)
    told: dict[str, list[Any]] = {name: [] for name in ("mean", "std", "update", "peak_after", "mu_old", "sigma_old")}
    for loss in g["series"]:
        window, plateau = window.push(torch.tensor(loss), below_mean, below_std, int(min_fill))
        for name, value in zip(told, (*window.now, plateau, window.armed, window.mean, window.std), strict=True):
            told[name].append(value.item())
    for name, values in told.items():
        np.testing.assert_allclose(values, g[f"apfl_{case}_{name}"], rtol=1e-9, atol=1e-12, err_msg=name)
    assert sum(told["update"]) > 0


# ---- rounds


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("decomposition", ["function_preserving"])
def test_rounds(decomposition: str, engine: Any) -> None:
    g = golden(f"pfedsd_apfl/apfl_rounds_{decomposition}")
    model = Model(lambda: nn.Linear(6, 4), name="linear")
    local = Local(epochs=int(g["E"]), batch_size=int(g["batch"]), optimiser=SGD(lr=float(g["eta"])))
    algorithm = APFLNi(
        mu=float(g["mu"]),
        lam=float(g["lam"]),
        z=int(g["z"]),
        decomposition=decomposition,  # type: ignore[arg-type]
        forced_rounds=tuple(g["forced"].tolist()),
        window=int(g["window"]),
        delta_mu=float(g["delta_mu"]),
        delta_sigma=float(g["delta_sigma"]),
        window_loss="global_all_clients",
        local=local,
    )
    run = engine(clients_of([(g[f"x{k}"], g[f"y{k}"]) for k in range(4)], model=model), algorithm)

    def split(w: Any) -> Params:
        return Params(weight=torch.from_numpy(w[:, :-1].copy()), bias=torch.from_numpy(w[:, -1].copy()))

    server = {"linear": with_fields(run.init()["linear"], w=Weights(params=split(g["W0"])))}
    for t, cohort in enumerate(g["participants"].tolist()):
        before = server["linear"]
        server = run.round(server, cohort, t)
        now = server["linear"]
        assert_params(now.w, Weights(params=split(g["hist_W"][t])))
        assert_params(Weights(params=now.F), Weights(params=split(g["hist_F"][t])))
        mean, std = now.window.now
        told = {
            "loss": now.window.losses[-1],
            "win_mean": mean,
            "win_std": std,
            "peak": now.window.armed,
            "trigger": now.pending,
            "fisher_round": now.version > before.version,
            "mu_old": now.window.mean,
            "sigma_old": now.window.std,
        }
        for name, value in told.items():
            np.testing.assert_allclose(value, g[f"hist_{name}"][t], rtol=1e-9, atol=1e-12, err_msg=f"{name}, {t}")
    for k in range(4):
        own = run.states[k].parts.value.params
        found = {"weight": own["weight.own"], "bias": own["bias.own"], "mask": own["weight.mask"]}
        want = {**split(g[f"final_Wk{k}"]), "mask": torch.from_numpy(g[f"final_mraw{k}"])}
        assert_params(Weights(params=found), Weights(params=want))
    run.close()
