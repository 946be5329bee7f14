"""Per-FedAvg: a step of a public implementation in both forms, batches in order, and the model that evaluates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from torch import Tensor
from torch.func import grad

from fedloom.algorithms import PerFedAvg
from fedloom.algorithms.per_fedavg import whole_steps
from fedloom.core.batches import Batches
from fedloom.core.derivatives import objective_hessian_times
from fedloom.core.local_training import Local
from fedloom.core.types import Params, Weights, replace
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.tasks import Classification
from fedloom.testing.messages import Messages
from small import TINY, assert_params, batches_of, clients_of, random_data, weights_at

ENGINES = [Loop, Stacked, Messages]


def first_of(stacked: Batches) -> Batches:
    """The batches of the first client."""
    own = ("examples", "order", "mask", "num_steps", "num_examples", "key")
    return replace(stacked, **{name: getattr(stacked, name)[0] for name in own})


def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(TINY(Weights(params), x), y)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("form", "files"), [("fo", ("perfedavg_fo", "flbench_fo")), ("hf", ("perfedavg_hf",))])
def test_a_step_of_the_reference(engine: Any, form: Any, files: tuple[str, ...]) -> None:
    """Batches of eight: D, D' and for HF D''. The other client of the stack takes another number of steps."""
    g = golden("pfedsd_apfl/maml_family")
    batches = 2 if form == "fo" else 3
    x, y = g["x"][:batches].reshape(-1, 6), g["y"][:batches].reshape(-1)
    population = clients_of([(x, y), *random_data([37])])
    settings = {"alpha": float(g["alpha"]), "beta": float(g["beta"]), "form": form}
    run = engine(population, PerFedAvg(**settings, local=Local(epochs=1, batch_size=8)))
    start = {"tiny": weights_at(g, "w0.")}
    alone = [run.round(start, (k,), 0)["tiny"] for k in (0, 1)]
    for file in files:
        want = weights_at(g, f"{file}_w1.")
        if form == "fo":
            assert_params(alone[0], want)
        else:
            assert_params(alone[0], want, rtol=1e-5)
    mean = (1 / (len(y) + 37)) * (len(y) * alone[0] + 37 * alone[1])
    assert_params(run.round(start, (0, 1), 0)["tiny"], mean)


def test_differences_of_gradients_are_near_the_exact_product() -> None:
    """The same step with an exact Hessian-vector product on D''."""
    g = golden("pfedsd_apfl/maml_family")
    alpha, beta, w = float(g["alpha"]), float(g["beta"]), weights_at(g, "w0.")
    third = first_of(batches_of(clients_of([(g["x"][2], g["y"][2])]), [0], Local(epochs=1, batch_size=8)))
    u = w.params - alpha * grad(loss)(w.params, *map(torch.from_numpy, (g["x"][0], g["y"][0])))
    slope = grad(loss)(u, *map(torch.from_numpy, (g["x"][1], g["y"][1])))
    product = objective_hessian_times(TINY, Classification(), w, third, slope)
    exact = Weights(w.params - beta * (slope - alpha * product))
    assert_params(exact, weights_at(g, "perfedavg_exact3_w1."))
    near = weights_at(g, "perfedavg_hf_w1.").params
    assert all(torch.allclose(near[n], p, rtol=1e-4) for n, p in exact.params.items())


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
def test_batches_are_taken_in_order_and_the_first_again(engine: Any) -> None:
    """Five batches: FO takes 0 1, 2 3, 4 0. A client with a single batch adapts and learns on the same."""
    data = random_data([18, 3])
    run = engine(clients_of(data), PerFedAvg(alpha=0.2, beta=0.3, local=Local(epochs=1, batch_size=4)))
    start = run.init()
    parts = [[tuple(map(torch.from_numpy, (x[i : i + 4], y[i : i + 4]))) for i in range(0, len(y), 4)] for x, y in data]
    ends = []
    for batches, turns in zip(parts, ([(0, 1), (2, 3), (4, 0)], [(0, 0)]), strict=True):
        w = start["tiny"].params
        for first, second in turns:
            w = w - 0.3 * grad(loss)(w - 0.2 * grad(loss)(w, *batches[first]), *batches[second])
        ends.append(w)
    assert_params(run.round(start, (0, 1), 0)["tiny"], Weights((1 / 21) * (18 * ends[0] + 3 * ends[1])))


def test_the_last_step_is_filled_up() -> None:
    batches = first_of(batches_of(clients_of(random_data([18])), [0], Local(epochs=1, batch_size=4)))
    for each, want in ((2, [0, 4, 8, 12, 16, 0]), (3, [0, 4, 8, 12, 16, 0]), (4, [0, 4, 8, 12, 16, 0, 4, 8])):
        found = whole_steps(batches, each)
        assert (found.order[:, 0].tolist(), int(found.num_steps)) == (want, len(want))
        assert found.mask.sum(1).tolist() == [2 if first == 16 else 4 for first in want]


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", ["fo", "hf"])
def test_a_client_is_judged_after_a_step_on_all_its_training_examples(engine: Any, form: Any) -> None:
    data = random_data([230, 5])
    run = engine(clients_of(data), PerFedAvg(alpha=0.4, form=form, local=Local(epochs=1, batch_size=4)))
    server = run.round(run.init(), (1,), 0)
    evaluated, w = run.personal(server, (0, 1), 0), server["tiny"].params
    for k, part in enumerate(data):
        assert_params(evaluated[k], Weights(w - 0.4 * grad(loss)(w, *map(torch.from_numpy, part))))
