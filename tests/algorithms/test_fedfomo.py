"""FedFomo: the authors' weights and mixtures, who is sent to whom, and what happens where nothing is to be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from conftest import golden
from torch import Tensor

from fedloom.algorithms import FedFomo, LocalOnly
from fedloom.algorithms.fedfomo import FomoClient, affinity_increment, choose, fomo_weights, mixed
from fedloom.core import tree
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.random import generator
from fedloom.core.types import Weights
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import TINY, Tiny, assert_params, clients_of, random_data, weights_at

ENGINES = [Loop, Stacked, Messages]
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.1))


def after_a_round(engine: Any, g: dict[str, Any], norm: Any) -> Any:
    """A round of client 0, whose models are the file's `base` and `cand0`, where clients 1 to 3 had sent the others.

    Client 4, with fewer examples, is asked beside it.
    """
    val = {0: (g["x_val"], g["y_val"]), 4: random_data([5], seed=2)[0]}
    population = clients_of(random_data([8, 3, 3, 3, 5]), held_out=val)
    run = engine(population, FedFomo(M=3, epsilon=0.0, norm=norm, local=LOCAL))
    run.states[0] = FomoClient(base=weights_at(g, "base."), theta=weights_at(g, "cand0."))
    for k in (1, 2, 3):
        run.states[run.keys.row("model", k)] = weights_at(g, f"cand{k}.")
    server = run.round({"tiny": torch.tensor([1, 2, 3, -1, -1])}, (0, 4), 7)
    assert server["tiny"].tolist() == [0, 1, 2, 3, 4]
    return run


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("norm", ["l1", "l2", "l2_root"])
def test_weights_and_mixture_of_the_authors(engine: Any, norm: str) -> None:
    g = golden("pfedsd_apfl/fedfomo_nv")
    run = after_a_round(engine, g, norm)
    assert_params(run.states[0].base, weights_at(g, f"nv_{norm}_new."))  # where local training began
    np.testing.assert_allclose(run.rows("affinity", [0])[0, 1:4], g[f"nv_{norm}_affinity_increment"][1:], rtol=1e-9)
    assert g[f"nv_{norm}_kept_ids"].tolist() == [1, 2]
    raw = torch.from_numpy(g[f"nv_{norm}_w_raw"])
    np.testing.assert_allclose(affinity_increment(raw[None])[0], g[f"nv_{norm}_affinity_increment"], rtol=1e-9)
    gain = torch.from_numpy(g["loss_base"] - g["loss_cand"])
    np.testing.assert_allclose(fomo_weights(gain, torch.from_numpy(g[f"nv_{norm}_dist"])), raw, rtol=1e-9)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_weights_and_mixture_of_the_paper(engine: Any) -> None:
    """Euclidean; PFLlib's, which adds 1e-5 to the distance, are near."""
    g = golden("pfedsd_apfl/fedfomo_l2")
    run = after_a_round(engine, g, "euclid")
    raw = g["paper_w_raw"]
    np.testing.assert_allclose(run.rows("affinity", [0])[0, 1:4], raw[1:] / abs(raw.sum()), rtol=1e-9)
    start = run.states[0].base
    flat = torch.cat([p.flatten() for p in start.params.values()])
    np.testing.assert_allclose(flat, g["paper_new_flat"], rtol=1e-9, atol=1e-12)
    assert_params(start, weights_at(g, "new."), rtol=1e-5, atol=1e-5)


def test_where_no_model_helps_the_base_is_kept() -> None:
    g = golden("pfedsd_apfl/fedfomo_nv")
    base, others = weights_at(g, "base."), [weights_at(g, f"cand{i}.") for i in range(3)]
    assert_params(mixed(base, others, torch.from_numpy(g["allneg_w_raw"])), base, rtol=0, atol=0)
    assert (g["allneg_final_weights"].tolist(), g["allneg_final_ids"].tolist()) == ([1.0], [0])


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
def test_training_that_did_not_help_is_discarded(engine: Any) -> None:
    """Nobody else has uploaded, and the client's own training made its validation loss worse: it starts at base."""
    g = golden("pfedsd_apfl/fedfomo_nv")
    run = engine(clients_of(random_data([8, 5]), held_out={0: (g["x_val"], g["y_val"])}), FedFomo(local=LOCAL))
    run.states[0] = FomoClient(base=weights_at(g, "base."), theta=weights_at(g, "cand3."))
    run.round({"tiny": torch.tensor([0, -1])}, (0,), 3)
    assert_params(run.states[0].base, weights_at(g, "base."), rtol=0, atol=0)


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_identical_model_has_weight_0(engine: Any) -> None:
    """Client 1 sent what client 0 has as its base; nothing is NaN, and the own model alone is weighed."""
    g = golden("pfedsd_apfl/fedfomo_nv")
    run = engine(clients_of(random_data([8, 5]), held_out={0: (g["x_val"], g["y_val"])}), FedFomo(local=LOCAL))
    run.states[0] = FomoClient(base=weights_at(g, "base."), theta=weights_at(g, "cand1."))
    run.states[run.keys.row("model", 1)] = weights_at(g, "base.")
    run.round({"tiny": torch.tensor([1, -1])}, (0,), 3)
    assert_params(run.states[0].base, weights_at(g, "cand1."), atol=1e-12)
    assert run.rows("affinity", [0]).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("far", [1e200, 1.7e308])  # whose distance, and whose difference, is infinite
def test_a_model_whose_loss_is_no_number_has_weight_0(engine: Any, far: float) -> None:
    """Client 1 sent numbers that are finite, and by which the loss is not; the own model alone is weighed."""
    g = golden("pfedsd_apfl/fedfomo_nv")
    run = engine(clients_of(random_data([8, 5]), held_out={0: (g["x_val"], g["y_val"])}), FedFomo(local=LOCAL))
    run.states[0] = FomoClient(base=weights_at(g, "base."), theta=weights_at(g, "cand1."))
    other = weights_at(g, "base.")
    run.states[run.keys.row("model", 1)] = Weights({n: torch.full_like(t, -far) for n, t in other.params.items()})
    run.round({"tiny": torch.tensor([1, -1])}, (0,), 3)
    assert_params(run.states[0].base, weights_at(g, "cand1."), atol=1e-12)
    assert run.rows("affinity", [0]).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("loss", [torch.inf, -torch.inf, torch.nan])
def test_only_finite_losses_are_compared(loss: float) -> None:
    gain, away = torch.tensor([0.1, 0.7 - loss], dtype=torch.float64), torch.tensor([1.0, 5.0])
    w = fomo_weights(gain, away)
    assert w.tolist() == [pytest.approx(0.1), 0.0]
    base, moved = (Weights({"w": torch.full((1,), at)}) for at in (0.0, 9.0))
    spoilt = Weights({"w": torch.full((1,), torch.inf)})
    assert mixed(base, [moved, spoilt], w).params["w"].tolist() == [9.0]
    assert affinity_increment(w[None]).tolist() == [[1.0, 0.0]]


def fomo_population() -> Any:
    return clients_of(
        random_data([5, 9, 7, 4]), held_out={k: random_data([n], seed=9)[0] for k, n in ((0, 3), (1, 9), (3, 4))}
    )


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_round_is_local_training_alone(engine: Any) -> None:
    mine, alone = (engine(fomo_population(), a) for a in (FedFomo(local=LOCAL), LocalOnly(local=LOCAL)))
    for run in (mine, alone):
        run.round(run.init(), (0, 1, 2), 0)
    for k in range(3):
        assert_params(mine.states[k].theta, alone.states[k], rtol=0, atol=0)
        assert_params(mine.rows("model", [k]), tree.stack([alone.states[k]]), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_without_validation_examples_learns_alone(engine: Any) -> None:
    mine, alone = (engine(fomo_population(), a) for a in (FedFomo(local=LOCAL), LocalOnly(local=LOCAL)))
    for run in (mine, alone):
        server = run.init()
        for t in range(3):
            server = run.round(server, (0, 2, 3), t)
    assert_params(mine.states[2].theta, alone.states[2])
    assert not torch.allclose(mine.states[0].theta.params["fc1.weight"], alone.states[0].params["fc1.weight"])


def chosen_in(run: Any, server: Any, cohort: Sequence[int], round: int) -> tuple[Any, dict[int, set[int]]]:
    """The server after a round, and whose models each client was sent: where its row of P moved."""
    before = run.rows("affinity", cohort)
    server = run.round(server, cohort, round)
    moved = run.rows("affinity", cohort) != before
    return server, {k: set(row.nonzero().flatten().tolist()) for k, row in zip(cohort, moved, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_models_of_those_who_uploaded_are_sent(engine: Any) -> None:
    """M at most; never the own one; one that was lost has sent nothing. d parameters each, and a flag for each of M."""
    val = {k: random_data([6], seed=k)[0] for k in range(6)}
    population = clients_of(random_data([6] * 6), held_out=val)
    lost = lambda r, e, k: "lost" if (r, k) == (0, 2) else None  # noqa: E731
    run = engine(population, FedFomo(M=2, epsilon=1.0, decay=0.0, local=LOCAL), Options(faults=lost))
    model = 8 * TINY.num_params
    server, sent = chosen_in(run, run.init(), (0, 1, 2), 0)
    assert server["tiny"].tolist() == [0, 1, -1, -1, -1, -1]
    assert sent == {0: set(), 1: set(), 2: set()}
    assert dict(run.traffic.down) == {0: 2, 1: 2}
    assert dict(run.traffic.up) == {0: model + 3 * 8, 1: model + 3 * 8}
    server, sent = chosen_in(run, server, (0, 3), 1)
    assert sent == {0: {1}, 3: {0, 1}}
    assert dict(run.traffic.down) == {0: model + 2, 3: 2 * model + 2}
    for t in range(2, 6):
        server, sent = chosen_in(run, server, (1, 4), t)
        assert len(sent[1]) == len(sent[4]) == 2
        assert 1 not in sent[1]
        assert sent[1] | sent[4] <= {0, 1, 3, 4}
    assert server["tiny"].tolist() == [0, 1, 3, 4, -1, -1]


def test_a_client_compares_five_models_by_default() -> None:
    """Four of others and its own, as in the paper: the authors' commands for five models say 4."""
    val = {k: random_data([6], seed=k)[0] for k in range(7)}
    run = Loop(clients_of(random_data([6] * 7), held_out=val), FedFomo(local=LOCAL))
    server, _ = chosen_in(run, run.init(), range(7), 0)
    _, sent = chosen_in(run, server, (0,), 1)
    assert len(sent[0]) == 4
    assert run.traffic.up[0] == 8 * TINY.num_params + 5 * 8


def test_candidates_are_chosen_by_affinity_or_at_random() -> None:
    affinity = torch.tensor([0.0, 3.0, 1.0, 2.0, 2.0, 9.0])
    others = [0, 1, 2, 3, 4]  # client 5 has not uploaded
    first = [choose(affinity, others, 3, 0.0, generator(seed)) for seed in range(40)]
    assert {tuple(sorted(c)) for c in first} == {(1, 3, 4)}
    assert all(c[0] == 1 for c in first)
    assert {c[1] for c in first} == {3, 4}  # ties at random
    explored = [choose(affinity, others, 3, 1.0, generator(seed)) for seed in range(400)]
    assert all(len(set(c)) == 3 for c in explored)
    shares = np.bincount([c[0] for c in explored], minlength=6) / 400
    np.testing.assert_allclose(shares, [0.2, 0.2, 0.2, 0.2, 0.2, 0.0], atol=0.07)
    sometimes = [choose(affinity, others, 1, 0.5, generator(seed))[0] for seed in range(400)]
    np.testing.assert_allclose(np.mean(np.array(sometimes) == 1), 0.6, atol=0.08)  # 0.5 + 0.5 / 5
    assert choose(affinity, [2], 3, 0.0, generator(0)) == [2]
    assert choose(affinity, [], 3, 0.5, generator(0)) == []


def test_exploration_decays(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    from fedloom.algorithms import fedfomo

    def noted(affinity: Tensor, others: Any, count: int, explore: float, rng: Any) -> list[int]:
        rates.append(explore)
        return choose(affinity, others, count, explore, rng)

    monkeypatch.setattr(fedfomo, "choose", noted)
    run = Loop(fomo_population(), FedFomo(epsilon=0.3, decay=0.1, local=LOCAL))
    server = run.init()
    for t in range(5):
        server = run.round(server, (0,), t)
    np.testing.assert_allclose(rates, [0.3, 0.2, 0.1, 0.0, -0.1], atol=1e-12)  # below 0 nothing is explored


@pytest.mark.slow
def test_no_more_models_are_read_than_a_chunk_of_clients_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    val = {k: random_data([4], seed=k)[0] for k in range(6)}
    run = Stacked(clients_of(random_data([6] * 6), held_out=val), FedFomo(M=3, local=LOCAL), Options(chunk=2))
    server = run.round(run.init(), range(6), 0)
    read: list[int] = []
    rows = run.rows
    monkeypatch.setattr(run, "rows", lambda name, ids: (name == "model" and read.append(len(ids)), rows(name, ids))[1])
    run.round(server, range(6), 1)
    assert read == [2] * 3 * 3  # three chunks of two clients, three models each


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_candidates_have_the_clients_own_architecture(engine: Any) -> None:
    models = {"tiny": TINY, "other": Model(lambda: torch.nn.Sequential(Tiny(), torch.nn.Linear(4, 4)), name="other")}
    one = fomo_population()
    population = Population(one.federation, models, dtype=torch.float64)  # clients 0 and 2, 1 and 3
    run = engine(population, FedFomo(M=3, epsilon=1.0, local=LOCAL))
    server = run.init()
    for t in range(3):
        server = run.round(server, (0, 1, 2, 3), t)
    assert {name: ids.tolist() for name, ids in server.items()} == {"tiny": [0, 2], "other": [1, 3]}
    affinity = run.rows("affinity", [0, 1, 3])
    assert affinity[0, [1, 3]].tolist() == [0, 0]
    assert affinity[1:, [0, 2]].tolist() == [[0, 0], [0, 0]]
    assert bool(affinity[0, 2] != 0)
    assert bool(affinity[1, 3] != 0)


def test_buffers_are_mixed_and_do_not_count() -> None:
    base = Weights({"w": torch.zeros(2)}, {"mean": torch.tensor([1.0]), "count": torch.tensor(3)})
    other = Weights({"w": torch.ones(2)}, {"mean": torch.tensor([5.0]), "count": torch.tensor(9)})
    found = mixed(base, [base, other], torch.tensor([1.0, 3.0]))
    assert found.params["w"].tolist() == [0.75, 0.75]
    assert (found.buffers["mean"].tolist(), int(found.buffers["count"])) == ([4.0], 3)
