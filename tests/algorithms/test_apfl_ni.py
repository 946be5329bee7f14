"""APFL (Ni) against arithmetic of its own: steps, rounds, importance, the window; what travels, and what is refused."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import golden
from torch import Tensor, nn

from fedloom.algorithms import FedAvg
from fedloom.algorithms.apfl_deng import APFLDeng
from fedloom.algorithms.apfl_ni import STARTS, APFLNi, Own, Server
from fedloom.algorithms.shared.decomposition import decompose, effective
from fedloom.core import tree
from fedloom.core.batch import Batch
from fedloom.core.client import Client, on_client
from fedloom.core.errors import SettingError
from fedloom.core.fisher import fisher
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Adam
from fedloom.core.types import Params, Weights, replace as with_fields
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.round_traffic import Exchange
from fedloom.engines.stacked import Stacked
from fedloom.experiments import catalogue
from fedloom.tasks import SVM
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


@pytest.mark.some(2)
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
        seen: dict[int, Exchange] = {}
        run.watch = lambda exchange, seen=seen: seen.update({exchange.client: exchange})
        FOUND.append((shared_at(g, "WS_start").merge(own), anchor.params, F, YES))
        run.round(run.init(), (0, 1), 0)
        want = shared_at(g, f"step{steps}_WS").merge(own_at(g, f"step{steps}_Wk", f"step{steps}_mraw"))
        assert_params(FOUND.pop(), want, rtol=1e-9, atol=1e-12)
        run.close()
    np.testing.assert_allclose(seen[1].losses[0], g["loss_task"] + g["penalty"], rtol=1e-9)


@pytest.mark.slow
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


@pytest.mark.some(2)
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


@pytest.mark.slow
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
    seen: list[Exchange] = []
    run.watch = seen.append
    run.round(run.init(), (0,), 0)
    step = moved.params - FOUND.pop().params.select(moved.params.__contains__)
    assert_params(Weights(params=step), weights_at(g, "penalty_grad."), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(seen[0].losses[0], g["penalty_avalanche"].reshape(1), rtol=1e-5)
    run.close()


# ---- rounds


@pytest.mark.slow
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


# ---- what it comes to at its edges

LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.2, momentum=0.9, weight_decay=1e-3))
SIZES = (5, 11, 8)
COHORTS = ((0, 1), (1, 2), (0, 1), (0, 1))  # client 2 takes part once, in round 1


def go(engine: Any, algorithm: Any, cohorts: Any = COHORTS, **settings: Any) -> tuple[Any, list[Any]]:
    """An engine after rounds with these cohorts, and the server's state before and after each."""
    run = engine(clients_of(random_data(SIZES)), replace(algorithm, local=LOCAL), Options(**settings))
    server = run.init()
    servers = [server["tiny"]]
    for t, cohort in enumerate(cohorts):
        server = run.round(server, cohort, t)
        servers.append(server["tiny"])
    return run, servers


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


@dataclass(frozen=True, kw_only=True)
class Frozen(APFLNi):  # type: ignore[misc]
    """Masks and own weights stay as they begin."""

    def together(self, client: Client[Own], start: Weights, anchor: Params, F: Params, decomposed: Tensor) -> Weights:
        model, task_loss = client.model, client.loss

        def loss(parts: Weights, batch: Batch, decomposed: Tensor) -> Any:
            return task_loss(effective(model, parts, decomposed), batch)

        def correct(g: Params, decomposed: Tensor) -> Params:
            return Params({n: 0.0 * t if n.endswith((".own", ".mask")) else t for n, t in g.items()})

        return self.train(client, start, decomposed, loss=loss, correct=correct)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", [APFLNi(mu=0.0, z=9), Frozen(mu=0.0, z=0)], ids=["undecomposed", "frozen"])
def test_it_is_fedavg_where_nothing_pulls_and_nothing_is_decomposed(
    algorithm: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STARTS, "function_preserving", (40.0, 0.0))  # masks of 1, own weights of 0
    (one, mine), (other, theirs) = (go(engine, a) for a in (algorithm, FedAvg()))
    for server, weights in zip(mine, theirs, strict=True):
        assert same(server.w, weights)
    assert int(mine[-1].version) == 0
    one.close()
    other.close()


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_rounds_before_anything_was_measured_are_those_of_fedavg(engine: Any) -> None:
    (one, mine), (other, theirs) = (go(engine, a, COHORTS[:2]) for a in (APFLNi(forced_rounds=(1,)), FedAvg()))
    assert same(mine[2].w, theirs[2])
    assert not any(own.any() for own in mine[1].F.values())
    one.close()
    other.close()


def test_function_preserving_leaves_outputs_and_paper_literal_the_choice_of_a_linear_model() -> None:
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    for model in (TINY, Model(lambda: nn.Linear(6, 4), name="linear")):
        w = model.init(0)
        begun = {kind: w.merge(decompose(model, w, *STARTS[kind])) for kind in STARTS}
        kept = model(effective(model, begun["function_preserving"], YES), x)
        torch.testing.assert_close(kept, model(w, x), rtol=0, atol=1e-6)
        scaled = model(effective(model, begun["paper_literal"], YES), x)
        assert (scaled - model(w, x)).abs().max() > 0.1
    assert torch.equal(scaled.argmax(1), model(w, x).argmax(1))


BEGUN = {  # m and the share of W_S that W_k is
    "function_preserving": (0.7310585786, 0.2689414214),  # 1 / (1 + 1/e), and what is left of 1
    "paper_literal": (0.7310585786, 1.0),
    "mask_one": (0.9999999979, 1.0),  # 1 / (1 + e^-20)
    "zero_personal": (0.9975273768, 0.0),  # 1 / (1 + e^-6)
    "third": (0.7310585786, 0.3333333333),
}


def test_how_own_parts_begin() -> None:
    assert set(BEGUN) == set(STARTS)
    for decomposition, (mask, share) in BEGUN.items():
        run = Loop(clients_of(random_data(SIZES)), APFLNi(decomposition=decomposition))  # type: ignore[arg-type]
        one, w = SimpleNamespace(model=TINY, state=run.fresh(0)), run.init()["tiny"].w
        begun = run.algorithm.parts(one, w).params
        for name, whole in w.params.items():
            torch.testing.assert_close(begun[f"{name}.own"], share * whole, rtol=1e-8, atol=0)
        for name in MASKS:
            torch.testing.assert_close(begun[name].sigmoid(), torch.full_like(begun[name], mask), rtol=1e-8, atol=0)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_plateau_is_answered_in_the_next_round_and_once(engine: Any) -> None:
    algorithm = APFLNi(forced_rounds=(), window=2, delta_mu=100.0, delta_sigma=100.0, lam=0.5)
    run, servers = go(engine, algorithm)
    assert [bool(s.pending) for s in servers] == [False, False, True, False, False]
    assert [int(s.version) for s in servers] == [0, 0, 0, 1, 1]
    assert same(servers[3].F, servers[4].F)
    assert not same(servers[2].F, servers[3].F)
    assert run.traffic.noted["server_measured"] is False
    run.close()


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_importance_stays_with_clients_until_it_is_older_than_the_servers(engine: Any) -> None:
    faults = lambda t, exchange, k: "late" if (t, k) == (2, 0) else None  # noqa: E731
    run, servers = go(engine, APFLNi(forced_rounds=(0, 1), z=0), COHORTS[:3], faults=faults)
    assert not bool(run.states[0].F.present)  # asked in round 0, when there was none, and lost in round 2
    assert same(run.states[1].F.value, servers[2].F)
    assert same(run.states[2].F.value, servers[1].F)
    run.round({"tiny": servers[3]}, (0, 1), 3)
    assert same(run.states[0].F.value, servers[2].F)
    assert run.traffic.kinds["down_fisher"] == 59 * 8  # of 59 parameters, for client 0 alone
    run.close()


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_who_has_parts_of_its_own_and_by_what_others_are_judged(engine: Any) -> None:
    run, servers = go(engine, APFLNi(z=1))
    evaluated = run.personal({"tiny": servers[-1]}, range(3), 3)
    has = [bool(run.algorithm.has_personal(tree.take(run.stack([k]), 0))) for k in range(3)]
    assert has == [True, True, False]  # client 2 took part before anything was decomposed
    assert same(evaluated[2], servers[-1].w)
    own = servers[-1].w.merge(run.states[0].parts.value)
    assert_params(evaluated[0], effective(TINY, own, YES))
    assert not torch.allclose(evaluated[0].params["fc1.weight"], servers[-1].w.params["fc1.weight"])
    run.close()


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_statistics_stay_with_own_parts_and_are_averaged_for_the_others(engine: Any) -> None:
    model = Model(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)), name="norm")
    run = engine(clients_of(random_data(SIZES), model=model), APFLNi(z=0, local=LOCAL))
    server = run.init()
    for t in range(3):
        server = run.round(server, (0, 1), t)
    evaluated = run.personal(server, range(3), 2)
    means = [evaluated[k].buffers["1.running_mean"] for k in range(3)]
    torch.testing.assert_close(means[2], (5 * means[0] + 11 * means[1]) / 16)
    assert not torch.allclose(means[0], means[1])
    run.close()


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_window_has_the_objective_of_the_task_and_importance_its_mean_loss(reduction: Any) -> None:
    """fair_flearn's objective is a sum over a client's examples; F of such gradients would explode."""
    model, data = Model(lambda: nn.Linear(6, 1), name="svm"), [(x, y % 2) for x, y in random_data(SIZES)]
    population = replace(clients_of(data, model=model, num_classes=2), task=SVM(reduction=reduction, ridge=0.5))
    run = Loop(population, APFLNi(local=Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.01))))
    before = run.init()
    after = run.round(before, (0, 1, 2), 0)["svm"]
    w, b = before["svm"].w.params.values()
    losses, squares = [], []
    for x, y in data:
        hinge = torch.relu(1 - (2 * torch.from_numpy(y) - 1) * (torch.from_numpy(x) @ w[0] + b))
        slope = -((hinge > 0) * (2 * torch.from_numpy(y) - 1))[:, None] * torch.from_numpy(x)
        losses.append(0.5 * (w**2).sum() + (hinge.sum() if reduction == "sum" else hinge.mean()))
        squares.append(slope.mean(0) ** 2)
    mean = sum(n / 24 * loss for n, loss in zip(SIZES, losses, strict=True))
    torch.testing.assert_close(after.window.losses[-1], mean)
    torch.testing.assert_close(after.F["weight"][0], sum(n / 24 * s for n, s in zip(SIZES, squares, strict=True)))


# ---- what is refused


def test_importance_that_is_too_large_for_the_rate_is_refused() -> None:
    run = Loop(clients_of(random_data(SIZES)), APFLNi(mu=1e5, local=LOCAL))
    with pytest.raises(SettingError, match=r"lr \* mu \* max F < 2, got 0.2 \* 100000 \* .* after round 1: set mu"):
        run.round(run.init(), (0, 1), 0)
    adam = Local(epochs=1, batch_size=4, optimiser=Adam(lr=0.2))  # whose steps do not grow with the gradient
    run = Loop(clients_of(random_data(SIZES)), APFLNi(mu=1e5, local=adam))
    run.round(run.init(), (0, 1), 0)


def test_the_rate_at_which_importance_is_judged_is_that_of_the_round_in_which_it_pulls() -> None:
    measured = Loop(clients_of(random_data(SIZES)), APFLNi(local=LOCAL))
    F = measured.round(measured.init(), (0, 1), 0)["tiny"].F
    mu = 3 / (0.2 * max(float(t.max()) for t in F.values()))  # lr mu max F is 3 at the rate of the first round
    for decay in (1.0, 0.5):
        run = Loop(clients_of(random_data(SIZES)), APFLNi(mu=mu, local=replace(LOCAL, decay=decay)))
        with pytest.raises(SettingError, match=r"got 0.2 .* = 3 after round 1") if decay == 1 else nullcontext():
            run.round(run.init(), (0, 1), 0)


def test_a_network_without_units_is_refused() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.w * x[:, :4]

    run = Loop(clients_of(random_data(SIZES), model=Model(Scale, name="scale")), APFLNi())
    with pytest.raises(SettingError, match="linear and convolutional layers, and scale has none: give it a network"):
        run.init()


def test_settings() -> None:
    for settings, message in (
        ({"mu": -1.0}, "mu must be >= 0"),
        ({"lam": 1.5}, "lam must be >= 0 and <= 1"),
        ({"z": -1}, "z must be >= 0"),
        ({"decomposition": "half"}, "decomposition must be one of function_preserving, paper_literal, mask_one"),
        ({"estimator": "batch"}, "estimator must be one of client_grad_sq, per_batch, per_sample"),
        ({"forced_rounds": (0.5,)}, "forced_rounds must be of type int"),
        ({"window": 0}, "window must be >= 1"),
        ({"window_loss": "all"}, "window_loss must be one of participants_before, global_all_clients"),
    ):
        with pytest.raises(SettingError, match=message):
            APFLNi(**settings)  # type: ignore[arg-type]


def test_the_bare_name_asks_which_is_meant() -> None:
    with pytest.raises(SettingError, match=r"Ni, Shen and Zhang .*, apfl_ni, or that of Deng, .*, apfl_deng: write"):
        catalogue.kind("apfl")
    assert catalogue.kind("apfl_ni") is APFLNi
    assert catalogue.kind("apfl_deng") is APFLDeng
