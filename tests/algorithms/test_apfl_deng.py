"""APFL of Deng et al.: golden numbers step by step, when alpha moves, and what becomes of buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from common_rounds import EXACT, MODEL, assert_evaluated, begun, local_of, rounds, sampled, step_of, watched, weights_of
from common_runs import PEOPLE, flatten as flat
from conftest import golden
from torch import nn
from torch.func import grad_and_value

from fedloom.algorithms import APFLDeng
from fedloom.algorithms.apfl_deng import Own
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Weights
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.experiments import catalogue
from fedloom.testing.messages import Messages
from small import assert_params, clients_of, random_data

ENGINES = [Loop, Stacked, Messages]


def algorithm_of(g: Any, steps: int | None = None) -> APFLDeng:
    return APFLDeng(
        alpha_init=float(g["alpha_init"][0]),
        alpha_update=str(g["alpha_update"]),  # type: ignore[arg-type]
        lr_alpha=float(g["lr_alpha"]),
        aggregation=str(g["weighting"]),  # type: ignore[arg-type]
        local=local_of(g, steps),
    )


def assert_step(g: Any, r: int, k: int, s: int, w: Weights, own: Own) -> None:
    """The losses that step s begins with, and the gradient of alpha, at what s steps have made."""
    x, y = step_of(g, r, k, s)

    def loss(params: Any) -> Any:
        return F.cross_entropy(MODEL(Weights(params), x), y)

    v, w_k, alpha = own.v.params, w.params, own.alpha
    slope, mixed = grad_and_value(loss)(alpha * v + (1 - alpha) * w_k)
    np.testing.assert_allclose(loss(w_k), g[f"r{r}_k{k}_losses"][s], **EXACT)
    np.testing.assert_allclose(mixed, g[f"r{r}_k{k}_losses_mixed"][s], **EXACT)
    np.testing.assert_allclose((v - w_k).dot(slope), g[f"r{r}_k{k}_alpha_grads"][s], **EXACT)


def with_states(engine: Any, g: Any, steps: int | None = None, states: Any = None) -> Any:
    """An engine whose clients have these states, or those at the beginning of a file."""
    run = begun(engine, algorithm_of(g, steps), g)
    for k in PEOPLE:
        v, alpha = weights_of(g, g["init_personal"][k]), torch.tensor(g["alpha_init"][k])
        run.states[k] = Own(v=v, alpha=alpha) if states is None else states[k]
    return run


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["apfl_fixed_a", "apfl_adaptive_a"])
def test_rounds(name: str, engine: Any) -> None:
    g = golden(f"common/{name}")
    run = with_states(engine, g)
    server, seen = {"net": weights_of(g, g["init"])}, watched(run)
    assert float(run.algorithm.init_client(server["net"], MODEL, 0).alpha) == g["alpha_init"][0]
    for r in rounds(g):
        server = run.round(server, sampled(g, r), r)
        np.testing.assert_allclose(flat(server["net"].params), g[f"r{r}_global"], **EXACT)
        for k in sampled(g, r):
            np.testing.assert_allclose(flat(seen[k].upload.value.params), g[f"r{r}_k{k}_upload"], **EXACT)
            np.testing.assert_allclose(seen[k].losses[0], g[f"r{r}_k{k}_losses"], **EXACT)
            np.testing.assert_allclose(run.states[k].alpha, g[f"r{r}_k{k}_alphas"][-1], **EXACT)
        for k, weights in run.personal(server, PEOPLE, r).items():
            np.testing.assert_allclose(flat(run.states[k].v.params), g[f"r{r}_personal"][k], **EXACT)
            np.testing.assert_allclose(run.states[k].alpha, g[f"r{r}_alpha"][k], **EXACT)
            np.testing.assert_allclose(flat(weights.params), g[f"r{r}_mixed"][k], **EXACT)
        assert_evaluated(g, run, server, r)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["apfl_fixed_a", "apfl_adaptive_a"])
def test_steps(name: str, engine: Any) -> None:
    """What the first s steps of a round make: losses of the next step, alpha and its gradient."""
    g = golden(f"common/{name}")
    run, server = with_states(engine, g), {"net": weights_of(g, g["init"])}
    for r in rounds(g):
        for k in sampled(g, r):
            assert_step(g, r, k, 0, server["net"], run.states[k])
        for s in range(1, max(len(g[f"r{r}_k{k}_losses"]) for k in sampled(g, r))):
            part = with_states(engine, g, s, run.states)
            seen = watched(part)
            part.round(server, sampled(g, r), r)
            for k in sampled(g, r):
                if s < len(g[f"r{r}_k{k}_losses"]):
                    assert_step(g, r, k, s, seen[k].upload.value, part.states[k])
                    np.testing.assert_allclose(part.states[k].alpha, g[f"r{r}_k{k}_alphas"][s - 1], **EXACT)
        server = run.round(server, sampled(g, r), r)


# ---- when alpha moves


LOCAL = Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.2, momentum=0.5, weight_decay=0.1))


def after_two_rounds(engine: Any, local: Local = LOCAL, **settings: Any) -> Any:
    run = engine(clients_of(random_data([9, 6])), APFLDeng(local=local, **settings))
    server = run.init()
    for t in range(2):
        server = run.round(server, (0, 1), t)
    return run


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_alpha_moves_in_the_first_step_of_a_round(engine: Any) -> None:
    """Its value after a round is that after one step, of clients with other numbers of steps, too."""
    ends = {u: after_two_rounds(engine, alpha_update=u) for u in ("never", "every_step", "first_step_of_round")}
    alpha = {u: [float(run.states[k].alpha) for k in (0, 1)] for u, run in ends.items()}
    assert alpha["never"] == [0.5, 0.5]
    first = engine(clients_of(random_data([9, 6])), APFLDeng(local=LOCAL, alpha_update="first_step_of_round"))
    server = first.round(first.init(), (0, 1), 0)
    assert [float(first.states[k].alpha) for k in (0, 1)] == [0.5, 0.5]  # v and w are still the same
    one = Local(steps=1, batch_size=4, optimiser=LOCAL.optimiser)
    step = engine(clients_of(random_data([9, 6])), APFLDeng(local=one, alpha_update="every_step"))
    step.states.update({k: first.states[k] for k in (0, 1)})
    step.round(server, (0, 1), 1)
    assert alpha["first_step_of_round"] == [float(step.states[k].alpha) for k in (0, 1)]
    assert all(abs(a - b) > 1e-6 for a, b in zip(alpha["first_step_of_round"], alpha["every_step"], strict=True))
    assert all(abs(a - 0.5) > 1e-6 for a in alpha["first_step_of_round"])


def test_alpha_stays_between_0_and_1_and_moves_at_its_rate() -> None:
    far = after_two_rounds(Loop, alpha_update="every_step", lr_alpha=1e6)
    assert {float(far.states[k].alpha) for k in (0, 1)} <= {0.0, 1.0}
    default, same, still = (after_two_rounds(Loop, alpha_update="every_step", lr_alpha=a) for a in (None, 0.2, 0.0))
    assert float(default.states[0].alpha) == float(same.states[0].alpha) != 0.5
    assert float(still.states[0].alpha) == 0.5
    slower = Local(epochs=1, batch_size=4, optimiser=LOCAL.optimiser, decay=0.5)
    decayed = after_two_rounds(Loop, local=slower, alpha_update="every_step")
    kept = after_two_rounds(Loop, local=slower, alpha_update="every_step", lr_alpha=0.2)
    assert float(decayed.states[0].alpha) != float(kept.states[0].alpha)


@pytest.mark.parametrize("engine", ENGINES)
def test_alpha_1_is_local_training_and_alpha_0_leaves_v_alone(engine: Any) -> None:
    """At alpha = 1 the mixture is v, trained alone; at 0 it is w, and v has no gradient."""
    plain = Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.2))
    alone = after_two_rounds(engine, local=plain, alpha_init=1.0)
    still = after_two_rounds(engine, local=plain, alpha_init=0.0, alpha_update="every_step", lr_alpha=0.0)
    want = engine(clients_of(random_data([9, 6])), catalogue.algorithm("local_only", plain, {}))
    server = want.init()
    for t in range(2):
        server = want.round(server, (0, 1), t)
    for k in (0, 1):
        assert_params(alone.states[k].v, want.states[k])
        assert_params(still.states[k].v, still.runtime.initial("tiny"), rtol=0, atol=0)


def test_batch_statistics_are_those_of_the_mixtures() -> None:
    """With alpha = 1 those of v, as in local training; the global model has those of w."""
    network = Model(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)), name="net")
    data, local = random_data([9, 6]), Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.2))
    runs = [
        Loop(clients_of(data, model=network), catalogue.algorithm(name, local, settings))
        for name, settings in (("apfl_deng", {"alpha_init": 1.0}), ("local_only", {}), ("fedavg", {}))
    ]
    ends = []
    for run in runs:
        server = run.round(run.init(), (0, 1), 0)
        ends.append((run.round(server, (0,), 1), run.states))
    (server, mine), (_, alone), (fedavg, _) = ends
    for k in (0, 1):
        assert torch.equal(mine[k].v.buffers["1.running_var"], alone[k].buffers["1.running_var"])
        assert list(mine[k].v.buffers) == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert server["net"].buffers.keys() == fedavg["net"].buffers.keys()
    first = runs[0].personal(server, (0,), 1)[0]
    assert torch.equal(first.buffers["1.running_mean"], mine[0].v.buffers["1.running_mean"])


# ---- settings and names


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha_init": 1.5}, "alpha_init must be >= 0 and <= 1"),
        ({"alpha_update": "always"}, "alpha_update must be one of never, every_step, first_step_of_round"),
        ({"lr_alpha": -1.0}, "lr_alpha must be >= 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        APFLDeng(**settings)
