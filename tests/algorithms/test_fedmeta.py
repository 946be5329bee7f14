"""FedMeta: the gradients of learn2learn and of a public re-implementation, several steps, and who is evaluated how."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from torch import Tensor
from torch.func import grad

from fedloom.algorithms import FedMeta, PerFedAvg
from fedloom.algorithms.fedmeta import is_query
from fedloom.core.errors import SettingError
from fedloom.core.optimiser import Adam
from fedloom.core.types import Params, Weights
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.tasks import Classification
from fedloom.testing.messages import Messages
from small import TINY, assert_params, clients_of, random_data, weights_at

ENGINES = [Loop, Stacked, Messages]


def of_sets(support: Any, query: Any) -> tuple[Any, Any]:
    """The examples of a client whose support and query sets are these, both (x, y)."""
    n = len(support[1]) + len(query[1])
    to_query = is_query(torch.arange(n), len(support[1]) / n).numpy()
    assert to_query.sum() == len(query[1])
    out = [np.empty((n, *np.shape(part)[1:]), np.asarray(part).dtype) for part in support]
    for whole, mine, asked in zip(out, support, query, strict=True):
        whole[~to_query], whole[to_query] = mine, asked
    return out[0], out[1]


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_of_both_orders_are_those_of_learn2learn(engine: Any) -> None:
    """The meta-gradient, the adapted model and the server's step; other clients of the stack have other examples."""
    g = golden("pfedsd_apfl/maml_family")
    data = [of_sets((g["x"][0], g["y"][0]), (g["x"][1], g["y"][1])), *random_data([5, 12])]
    start = weights_at(g, "w0.")
    for order, prefix in (("second", "maml"), ("first", "fomaml")):
        algorithm = FedMeta(alpha=float(g["alpha"]), beta=float(g["beta"]), order=order, support=0.5)
        run = engine(clients_of(data), algorithm)
        server = run.round({"tiny": start}, (0,), 0)["tiny"]
        assert_params(server, weights_at(g, f"{prefix}_w1."))
        gradient = (1 / float(g["beta"])) * (start - server)
        assert_params(gradient, weights_at(g, f"{prefix}_grad."), rtol=1e-8)
        assert_params(run.personal({"tiny": start}, (0, 1), 0)[0], weights_at(g, f"{prefix}_adapted."))
    together = engine(clients_of(data), algorithm)
    alone = [together.round({"tiny": start}, (k,), 0)["tiny"] for k in (0, 1, 2)]
    mean = (1 / (16 + 5 + 12)) * (16 * alone[0] + 5 * alone[1] + 12 * alone[2])
    assert_params(together.round({"tiny": start}, (0, 1, 2), 0)["tiny"], mean)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_released_code_calls_first_order_maml(engine: Any) -> None:
    """Its gradients of two clients are ours of first order; weights by query examples and Adam stand here."""
    g = golden("pfedsd_apfl/maml_family")
    start, (first, second) = weights_at(g, "w0."), g["fedmeta_query_sizes"]
    sets = [((0, 8), (1, first)), ((2, 8), (1, second))]
    total = 0.0 * start.params
    for k, parts in enumerate(sets):
        support, query = ((g["x"][i][:n], g["y"][i][:n]) for i, n in parts)
        algorithm = FedMeta(alpha=float(g["alpha"]), beta=1.0, order="first", support=8 / (8 + len(query[1])))
        server = engine(clients_of([of_sets(support, query)]), algorithm).round({"tiny": start}, (0,), 0)["tiny"]
        gradient = start.params - server.params
        assert_params(Weights(gradient), weights_at(g, f"fedmeta_repo_client{k}_grad."), rtol=1e-8)
        total = total + len(query[1]) / (first + second) * gradient
    adam = Adam(lr=0.01, eps=1e-8 / 0.001**0.5)  # TensorFlow adds 1e-8 before it corrects the bias
    moved, _ = adam.apply(start.params, total, adam.init(list(start.params.values())))
    assert_params(Weights(moved), weights_at(g, "fedmeta_adam_lr0.01_w1."), rtol=1e-8)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_several_steps_are_differentiated_through(engine: Any) -> None:
    """By autograd through three steps, where the algorithm multiplies by Hessians; more than one pass of 200 rows."""
    (x, y), *others = random_data([430, 7])
    query = is_query(torch.arange(430), 0.8)
    xs, ys, xq, yq = (torch.from_numpy(a)[m] for m in (~query, query) for a in (x, y))

    def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(TINY(Weights(params), x), y)

    def adapted(params: Params) -> Params:
        for _ in range(3):
            params = params - 0.3 * grad(loss)(params, xs, ys)
        return params

    run = engine(clients_of([(x, y), *others]), FedMeta(alpha=0.3, beta=0.5, inner_steps=3))
    start = run.init()
    w = start["tiny"].params
    server = run.round(start, (0,), 0)
    assert_params(server["tiny"], Weights(w - 0.5 * grad(lambda p: loss(adapted(p), xq, yq))(w)))
    assert_params(run.personal(server, (0,), 0)[0], Weights(adapted(server["tiny"].params)))


@dataclass(frozen=True)
class Curved(Classification):
    """An objective that is linear neither in the loss nor in the weights, and feels how many examples there are."""

    def objective(self, loss: Tensor, count: Tensor, params: Params) -> Tensor:
        return loss**2 + 0.01 * count * loss + 0.3 * loss * params.sq_norm() + 0.1 * params.sq_norm() ** 2


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_objective_stands_in_the_place_of_the_loss(engine: Any) -> None:
    """By autograd through two steps, of both orders, and for Per-FedAvg's adaptation; more than one pass of rows."""
    (x, y), *others = random_data([430, 7])
    query, task, alpha = is_query(torch.arange(430), 0.8), Curved(), 0.05
    whole = torch.from_numpy(x), torch.from_numpy(y)
    support, asked = (tuple(a[m] for a in whole) for m in (~query, query))

    def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
        return task.objective(F.cross_entropy(TINY(Weights(params), x), y), torch.tensor(len(y)), params)

    def adapted(params: Params) -> Params:
        for _ in range(2):
            params = params - alpha * grad(loss)(params, *support)
        return params

    population = dataclasses.replace(clients_of([(x, y), *others]), task=task)
    for order in ("second", "first"):
        run = engine(population, FedMeta(alpha=alpha, beta=0.5, inner_steps=2, order=order))
        start = run.init()
        w = start["tiny"].params
        server = run.round(start, (0,), 0)
        through, after = grad(lambda p: loss(adapted(p), *asked))(w), grad(loss)(adapted(w), *asked)
        want = through if order == "second" else after
        assert_params(server["tiny"], Weights(w - 0.5 * want))
        assert_params(run.personal(server, (0,), 0)[0], Weights(adapted(server["tiny"].params)))
    run = engine(population, PerFedAvg(alpha=alpha))
    assert_params(run.personal(start, (0,), 0)[0], Weights(w - alpha * grad(loss)(w, *whole)))


def test_each_fifth_example_is_a_query_example() -> None:
    assert is_query(torch.arange(12), 0.8).nonzero().flatten().tolist() == [4, 9]
    for n in (5, 15, 30, 1000):  # where multiples of 0.2 are no binary fractions
        assert int(is_query(torch.arange(n), 0.8).sum()) == n // 5
    assert is_query(torch.arange(6), 0.5).nonzero().flatten().tolist() == [1, 3, 5]


def test_a_client_without_enough_examples_is_refused() -> None:
    population = clients_of(random_data([9, 4, 12]))
    with pytest.raises(
        SettingError,
        match=r"support and query examples on each client, got 4 and 0 of the 4 of client 1 with support = 0.8: leave",
    ):
        Loop(population, FedMeta())
    Loop(population, FedMeta(support=0.75))
    with pytest.raises(SettingError, match="got 0 and 1 of the 1 of client 0"):
        Loop(clients_of(random_data([1])), FedMeta(support=1e-12))
