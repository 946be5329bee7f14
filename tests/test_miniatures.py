"""Algorithms that are not in the package yet, in miniature: the core must carry their shapes, on every engine.

Each runs on the loop and on the stack, which must agree to 1e-9 (float64), and where the authors' numbers are at hand
they are compared with those.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from torch import Tensor
from torch.func import grad, vmap

from fedloom import RunSettings, run as fedloom_run, verify
from fedloom.algorithms import FedMeta
from fedloom.coordinator.directory import RunDirectory, identity
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.batch import Batch
from fedloom.core.client import Client, on_client
from fedloom.core.errors import SettingError, StackingError
from fedloom.core.fold import fold, minimise
from fedloom.core.local_training import Local
from fedloom.core.losses import task_loss
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Maybe, Params, Weighted, Weights
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import TINY, assert_params, clients_of, weights_at

ENGINES = [Loop, Stacked, Messages]


def agree(x: Any, *others: Any) -> None:
    """Trees agree to 1e-9."""
    for y in others:
        assert tree.same_structure(x, y)
        for a, b in zip(tree.leaves(x), tree.leaves(y), strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-9)


def blobs(*sizes: int, seed: int = 0) -> list[tuple[Any, Any]]:
    """Clients with so many examples of 6 features and 4 classes."""
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, 6)), rng.integers(4, size=n)) for n in sizes]


def cross_entropy(model: Model, weights: Weights, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(weights, x), y)


# --- what nothing differentiates through


@pytest.mark.some(4)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seam", [fold, minimise])
def test_differentiating_through_the_seam_says_what_to_do(engine: Any, seam: Any) -> None:
    class Careless(FedMeta):
        @on_client
        def meta_gradient(self, client: Client[tuple[()]], w: Weights) -> tuple[tuple[()], Any]:
            model, loss = client.model, task_loss(client.model, client.task)

            def halve(w: Weights, batch: Batch) -> Weights:
                return 0.5 * w

            def adapted_loss(w: Weights) -> Tensor:
                if seam is fold:
                    w = fold(halve, w, client.train)
                else:
                    w = minimise(loss, w, client.train, SGD(lr=0.1), lr=client.lr)
                return cross_entropy(model, w, client.train.x[:4], client.train.y[:4])

            return (), grad(adapted_loss)(w)

    run = engine(clients_of(blobs(5, 7)), Careless(local=Local(epochs=1, batch_size=4)))
    with pytest.raises(StackingError, match=r"nothing differentiates through fold.*torch\.func\.grad"):
        run.round(run.init(), (0, 1), 0)


# --- EWC and FedCurv: a Fisher matrix from the gradient of every example


@dataclass(frozen=True, kw_only=True)
class Fisher(Algorithm[Weights, Maybe[Params]]):
    def init(self, model: Any, key: int, *, num_clients: int) -> Weights:
        return model.init(key)

    def init_client(self, initial: Weights, model: Model, key: int) -> Maybe[Params]:
        return Maybe.none(initial.params)

    @on_client
    def measure(self, client: Client[Maybe[Params]], w: Weights) -> tuple[Maybe[Params], Weighted[Params]]:
        model = client.model

        def square(total: Params, batch: Batch, w: Weights) -> Params:
            each = vmap(grad(lambda p, x, y: cross_entropy(model, Weights(params=p), x[None], y[None])), (None, 0, 0))
            gradients = each(w.params, batch.x, batch.y)
            real = batch.mask.to(torch.float64)
            return total + Params({n: torch.tensordot(real, g.square(), dims=1) for n, g in gradients.items()})

        batches = client.train.in_order(4)
        mean = 1 / client.num_examples * fold(square, tree.zeros_like(w.params), batches, w)
        return Maybe.some(mean), Weighted(value=mean, weight=client.num_examples)

    def round(self, server: Weights, cohort: Any) -> Weights:
        return Weights(params=cohort.reduce(self.measure, server).mean)

    def global_weights(self, server: Weights) -> Weights:
        return server


@pytest.mark.slow
def test_fisher_of_every_example() -> None:
    g = golden("pfedsd_apfl/ewc_fisher")
    population = clients_of([*blobs(3), (g["x"], g["y"]), *blobs(5, 8)])
    ends = []
    for engine in ENGINES:
        run = engine(population, Fisher())
        server = run.round({"tiny": weights_at(g, "w_star.")}, (0, 1, 2, 3), 0)
        assert bool(run.states[1].present)
        want = weights_at(g, "fisher_bs1.")
        assert_params(Weights(params=run.states[1].value), want, rtol=1e-5, atol=1e-8)  # stored in float32
        ends.append((server, dict(run.states)))
    agree(*ends)


# --- FedFomo in two exchanges: clients learn, then weigh what the others learnt (the package's has one exchange)


@dataclass(frozen=True, kw_only=True)
class FedFomo(Algorithm[tuple[()], Weights]):
    """The paper's weights: (L(base) - L(candidate)) / ||candidate - base||, positive part, normalised."""

    def init(self, model: Any, key: int, *, num_clients: int) -> tuple[()]:
        return ()

    def init_client(self, initial: Weights, model: Model, key: int) -> Weights:
        return model.init(key)

    @on_client
    def learn(self, client: Client[Weights]) -> tuple[Weights, Weights]:
        return client.state, self.train(client, client.state)

    @on_client
    def mix(self, client: Client[Weights], models: Weights) -> tuple[Weights, Tensor]:
        """`models`: [M, ...]"""
        model, base = client.model, client.state

        def add(total: Tensor, batch: Batch, w: Weights) -> Tensor:
            losses = F.cross_entropy(model(w, batch.x), batch.y, reduction="none")
            return total + torch.where(batch.mask, losses, 0.0).sum()

        def loss(w: Weights) -> Tensor:
            total = fold(add, torch.zeros((), dtype=torch.float64), client.val, w)
            return total / client.val.num_examples.clamp(min=1)

        raw = []
        for m in range(models.params["fc2.bias"].shape[0]):
            other = tree.take(models, m)
            raw.append((loss(base) - loss(other)) / (other - base).sq_norm().clamp(min=1e-30).sqrt())
        kept = torch.stack(raw).clamp(min=0.0)
        share = kept / kept.sum().clamp(min=1e-30)
        mixed = tree.map_tree(lambda b, o: b + torch.einsum("m,m...->...", share, o - b), base, models)
        return mixed, torch.stack(raw)

    def round(self, server: tuple[()], cohort: Any) -> tuple[()]:
        sent = cohort.gather(self.learn)

        def candidates(ids: Tensor) -> tuple[Weights]:
            return (tree.stack([sent.value] * len(ids)),)  # [k, M, ...]: those of k clients, when they are computed

        sent.cohort.gather(self.mix, scatter=candidates)
        return server

    def personal(self, client: Client[Weights], sent: tuple[()]) -> Weights:
        return client.state


FOMO = FedFomo(local=Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.1)))


def fomo_population() -> Any:
    val = blobs(3, 9, 4, seed=1)
    return clients_of(blobs(5, 9, 7, 4), held_out={0: val[0], 1: val[1], 3: val[2]})


@pytest.mark.slow
def test_fedfomo_on_both_engines() -> None:
    """Client 2 holds nothing out: its candidates all have loss 0, and it keeps what it has."""
    ends = []
    for engine in ENGINES:
        run = engine(fomo_population(), FOMO)
        server = run.init()
        for t, cohort in enumerate([(0, 1, 2, 3), (1, 2), (0, 3)]):
            server = run.round(server, cohort, t)
        ends.append(dict(run.states))
        assert_params(run.states[2], run.algorithm.init_client((), TINY, _client_key(run, 2)), rtol=0, atol=1e-7)
    agree(*ends)


def _client_key(run: Any, client: int) -> int:
    from fedloom.core.random import derive

    return derive(run.population.seed, "client", client)


@dataclass(frozen=True, kw_only=True)
class Remembers(FedFomo):
    """FedFomo whose server keeps every client's model, and what each one made of its candidates."""

    def init_rows(self, initial: Weights, model: Model, *, num_clients: int) -> dict[str, Any]:
        return {"model": initial, "affinity": torch.zeros(2)}

    def round(self, server: tuple[()], cohort: Any) -> tuple[()]:
        sent = cohort.gather(self.learn)

        def candidates(ids: Tensor) -> tuple[Weights]:
            others = (ids[:, None] + torch.tensor([1, 2])) % cohort.num_clients  # [k, M], who need not be here
            found = cohort.rows("model", others.flatten())
            return (tree.map_tree(lambda t: t.unflatten(0, others.shape), found),)

        replies = sent.cohort.gather(self.mix, scatter=candidates)
        sent.cohort.keep("model", sent.value)
        replies.cohort.keep("affinity", 0.5 * replies.cohort.rows("affinity") + replies.value)
        return server


REMEMBERS = Remembers(local=Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.1)))


@pytest.mark.slow
def test_rows_of_a_server_live_in_the_store() -> None:
    ends = []
    for engine in ENGINES:
        run = engine(fomo_population(), REMEMBERS)
        assert run.fixed()["rows"] == ["affinity", "model"]
        for t, cohort in enumerate([(0, 1, 2, 3), (1, 2), (0, 3)]):
            run.round(run.init(), cohort, t)
        own, kept = dict(sorted(run.clients.items())), dict(sorted(run.states.items()))
        assert list(own) == [0, 1, 2, 3]
        assert list(kept) == list(range(12))  # 4 clients: states, then "affinity", then "model"
        agree(run.rows("model", [2, 0]), tree.stack([kept[10], kept[8]]))
        agree(run.rows("affinity", [1]), kept[5][None])
        assert not torch.equal(run.rows("model", [0]).params["fc1.bias"], run.rows("model", [1]).params["fc1.bias"])
        ends.append(kept)
    agree(*ends)


def test_states_beside_rows_stay_on_disk_until_they_are_asked_for(tmp_path: Path) -> None:
    run = Loop(fomo_population(), REMEMBERS)
    run.keep_states(1, tmp_path)
    run.round(run.init(), (0, 1, 2, 3), 0)
    own = run.clients
    assert (sorted(own), len(own)) == ([0, 1, 2, 3], 4)
    assert run.states._bytes == 0
    agree(own[2], run.states[2])
    with pytest.raises(KeyError, match="5"):
        own[5]  # a row


@pytest.mark.slow
def test_rows_are_kept_where_the_round_ends_well() -> None:
    for engine in ENGINES:
        run = engine(fomo_population(), REMEMBERS, Options(faults=lambda r, e, k: "gone" if (r, e) == (1, 1) else None))
        agree(run.rows("model", [1]), tree.stack([run.runtime.initial("tiny")]))  # as `init_rows` makes it
        server = run.round(run.init(), (0, 1), 0)
        before = {k: run.states[k] for k in (4, 5, 8, 9)}
        run.round(server, (0, 1), 1)  # nobody answers the second exchange: the round ends there
        agree({k: run.states[k] for k in before}, before)
        run.round(server, (0, 1), 2)
        assert not torch.equal(run.states[8].params["fc1.bias"], before[8].params["fc1.bias"])
        with pytest.raises(SettingError, match=r"Remembers keeps rows named \['affinity', 'model'\], got 'modell'"):
            run.rows("modell", [0])


@pytest.mark.slow
def test_rows_are_saved_and_resumed(tmp_path: Path) -> None:
    parts = fomo_population().federation
    settings = RunSettings(rounds=4, cohort_size=2, dtype="float64", engine="loop")
    whole = RunDirectory(tmp_path / "whole")
    history = fedloom_run(REMEMBERS, parts, TINY, settings, directory=whole.path)
    half = dataclasses.replace(settings, rounds=2)
    fedloom_run(REMEMBERS, parts, TINY, half, directory=tmp_path / "half")
    again = fedloom_run(REMEMBERS, parts, TINY, settings, directory=tmp_path / "half", resume=True)
    assert again.metrics == history.metrics
    assert sorted(again.clients) == sorted(history.clients)
    newest = [RunDirectory(tmp_path / name).checkpoints for name in ("whole", "half")]
    assert verify(tmp_path / "half").whole
    for checkpoints in newest:
        checkpoints.identity = identity(RunDirectory(checkpoints.folder.parent).manifest())
    a, b = ({k: f.digest for k, f in c.read(4).clients.items()} for c in newest)
    assert a == b
    assert max(a) >= 8


@pytest.mark.slow
def test_a_client_lost_in_the_second_exchange_keeps_what_the_first_left() -> None:
    ends = []
    for engine in ENGINES:
        population = fomo_population()
        whole, lossy = (
            engine(population, FOMO, Options(faults=fault))
            for fault in (None, lambda r, e, k: "gone" if (r, e, k) == (0, 1, 1) else None)
        )
        for run in (whole, lossy):
            run.round(run.init(), (0, 1, 3), 0)
        first = engine(population, FOMO, Options(faults=lambda r, e, k: "gone" if e == 1 else None))
        first.round(first.init(), (0, 1, 3), 0)
        agree(lossy.states[1], first.states[1])  # what exchange 0 left
        assert not torch.equal(lossy.states[1].params["fc1.weight"], whole.states[1].params["fc1.weight"])
        for k in (0, 3):  # who stayed is not affected: the models were sent before
            agree(lossy.states[k], whole.states[k])
        assert [(f.client, f.reason) for f in lossy.traffic.failed] == [(1, "gone")]
        ends.append(dict(lossy.states))
    agree(*ends)
