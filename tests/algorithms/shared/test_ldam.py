"""LDAM: the authors' numbers, margins of each client's own on every engine, and what it leaves alone."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from torch import Tensor, nn

from fedloom.algorithms import DENSE, FedAvg, FedMeta, FedProx
from fedloom.algorithms.fedmeta import is_query
from fedloom.algorithms.shared.ldam import LDAM, class_weights, margins
from fedloom.coordinator import RunSettings
from fedloom.core import tree
from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Distill, Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Adam
from fedloom.core.types import Weights, replace
from fedloom.data import Normalise, by_lists, federate, from_arrays
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.experiments.catalogue import task
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_sections import DataSettings
from fedloom.models import CosineHead, SmallConvNet, with_cosines
from fedloom.tasks import Classification
from fedloom.testing.messages import Messages

ENGINES = [Loop, Stacked, Messages]
COUNTS = ((5, 1, 0, 2), (0, 9, 0, 0), (2, 2, 2, 2), (3, 0, 11, 0))  # of four clients and classes


def batch_of(task: LDAM, y: Tensor, counts: Tensor, **more: Any) -> Batch:
    """A batch whose client has so many examples of each class."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), counts)
    first = torch.cat([torch.tensor([0]), counts.cumsum(0)[:-1]])
    notes = {name: table[first[y]].float() for name, table in task.notes(labels).items()}
    mask = torch.ones(len(y), dtype=torch.bool)
    return Batch(x=y, y=y, mask=mask, key=torch.tensor(0), notes=notes, full=True, **more)


@pytest.mark.parametrize(
    ("tag", "task"),
    [
        ("m0.5_s30", LDAM()),
        ("m0.3_s10", LDAM(max_m=0.3, s=10.0)),
        ("m0.5_s30_weighted", LDAM(drw=0.0)),
    ],
)
def test_margins_loss_and_gradient_are_the_authors(tag: str, task: LDAM) -> None:
    """Their logits are cosines, ours are scaled already."""
    g = golden("ktpfl_dense/ldam")
    counts, y = torch.from_numpy(g["cls_num_list"]), torch.from_numpy(g["targets"])
    np.testing.assert_allclose(margins(counts, task.max_m), g[f"{tag}/margins"], rtol=1e-5)
    cosines = torch.from_numpy(g["logits"]).requires_grad_()
    batch = batch_of(task, y, counts)
    if tag.endswith("weighted"):  # by weights that the file does not name, and its gradients give
        batch = replace(batch, notes={**batch.notes, "class_weight": torch.tensor([0.2, 0.5, 0.9, 1.4, 2.0])[y]})
    loss = task.loss(task.s * cosines, batch)
    (gradient,) = torch.autograd.grad(loss, cosines)
    np.testing.assert_allclose(loss.detach(), g[f"{tag}/loss"], rtol=1e-5)
    np.testing.assert_allclose(gradient, g[f"{tag}/grad"], rtol=1e-5, atol=1e-5)


def test_weights_of_deferred_reweighting_are_the_authors() -> None:
    g = golden("ktpfl_dense/ldam")
    np.testing.assert_allclose(
        class_weights(torch.from_numpy(g["cls_num_list"])), g["drw_weights_beta0.9999"], rtol=1e-9
    )


def test_a_class_without_examples_has_neither_margin_nor_weight() -> None:
    """The authors' function gives NaN for all of them; the others have what they would have without that class."""
    g = golden("ktpfl_dense/ldam")
    counts = torch.from_numpy(g["zero_count/cls_num_list"])
    assert np.isnan(g["zero_count/margins"]).any()
    assert np.isnan(g["zero_count/loss"])
    absent = counts == 0
    assert absent.any()
    for fn in (margins, class_weights):
        assert not fn(counts)[absent].any()
    np.testing.assert_allclose(margins(counts)[~absent], margins(counts[~absent]), rtol=1e-9)
    assert margins(counts).max() == pytest.approx(0.5, rel=1e-9)
    share = class_weights(counts)[~absent] / class_weights(counts[~absent])
    np.testing.assert_allclose(share, len(counts) / int((~absent).sum()), rtol=1e-9)
    assert class_weights(counts).sum() == pytest.approx(len(counts), rel=1e-9)
    nobody = torch.zeros(3, dtype=torch.int64)
    assert not margins(nobody).any()
    assert not class_weights(nobody).any()


def test_examples_that_are_no_clients_training_examples_have_no_margin() -> None:
    y, logits = torch.tensor([0, 2]), torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    bare = Batch(x=y, y=y, mask=y >= 0, key=torch.tensor(0), full=True)
    assert torch.equal(LDAM(drw=0.5).loss(logits, bare), Classification().loss(logits, bare))


# ---- every client's own, in training


class Cosines(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(3, 5), CosineHead(5, 4, s=8.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(x)))


def clients(task: LDAM | Classification) -> Population:
    """In float64, their labels in order."""
    y = np.concatenate([np.repeat(np.arange(4), counts) for counts in COUNTS])
    x = np.random.default_rng(0).normal(size=(len(y), 3))
    ends = np.cumsum([0, *(sum(counts) for counts in COUNTS)])
    lists = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    parts = federate(from_arrays(x, y, num_classes=4), by_lists(lists), test_fraction=0)
    return Population(parts, {"net": Model(Cosines, name="net")}, task=task, dtype=torch.float64)


def by_counts(counts: Any, task: LDAM) -> tuple[Tensor, Tensor]:
    """The margin and the weight of each class, by the authors' formulas, over the classes that are there."""
    n = np.array([c for c in counts if c], float)
    wide, weight = n**-0.25 * (task.max_m / np.max(n**-0.25)), (1 - task.beta) / (1 - task.beta**n)
    place = np.cumsum(np.array(counts) > 0) - 1
    return torch.tensor(wide[place]), torch.tensor(weight[place])


def by_hand(
    population: Population, start: Weights, task: LDAM, lr: float, epochs: int, mu: float
) -> list[list[Tensor]]:
    """What each client ends with: whole-batch steps on the authors' loss in plain PyTorch, with a proximal term."""
    out, federation = [], population.federation
    for k, counts in enumerate(COUNTS):
        rows = torch.tensor(federation.partition.rows(k))
        x, y, network = federation.train.x[rows].double(), federation.train.y[rows], Cosines().double()
        network.load_state_dict(dict(start.params))
        margin, weight = by_counts(counts, task)
        for epoch in range(epochs):
            cosines = network(x) / 8.0
            z = task.s * (cosines - margin[y][:, None] * F.one_hot(y, 4))
            late = task.drw is not None and epoch >= task.drw * epochs
            loss = F.cross_entropy(z, y, weight=weight if late else None)
            loss = loss + mu / 2 * sum(
                (p - start.params[name]).square().sum() for name, p in network.named_parameters()
            )
            gradients = torch.autograd.grad(loss, list(network.parameters()))
            for p, g in zip(network.parameters(), gradients, strict=True):
                p.data -= lr * g
        out.append([p.detach() for p in network.parameters()])
    return out


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mu", [0.0, 0.7])
@pytest.mark.parametrize("drw", [None, 0.5])
def test_any_algorithm_trains_with_the_margins_of_each_client(drw: float | None, mu: float, engine: Any) -> None:
    """Four clients, whose margins differ, in one stack too; with FedProx's term beside it."""
    task = LDAM(s=8.0, drw=drw)
    local = Local(epochs=4, batch_size=16, optimiser=SGD(lr=0.05))
    algorithm: Any = FedProx(mu=mu, local=local) if mu else FedAvg(local=local)
    population = clients(task)
    made = engine(population, algorithm)
    try:
        server, sent = made.init(), {}
        made.watch = lambda exchange: sent.update({exchange.client: exchange.upload.value})
        made.round(server, (0, 1, 2, 3), 0)
        wanted = by_hand(population, server["net"], task, 0.05, 4, mu)
        for k, tensors in enumerate(wanted):
            for ours, theirs in zip(sent[k].params.values(), tensors, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    finally:
        made.close()


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_algorithm_that_takes_examples_apart_trains_with_them_too(engine: Any) -> None:
    """FedMeta in plain PyTorch: each client's examples are divided, and the margin of each goes with it."""
    task, alpha, beta, data = LDAM(s=8.0), 0.05, 0.05, clients(LDAM(s=8.0))
    made, network = engine(data, FedMeta(alpha=alpha, beta=beta, support=0.5)), Cosines().double()
    try:
        server = made.init()
        after = made.round(server, (0, 1, 2, 3), 0)["net"].params
    finally:
        made.close()
    start, total = dict(server["net"].params), {name: torch.zeros_like(t) for name, t in server["net"].params.items()}
    for k, counts in enumerate(COUNTS):
        rows = torch.tensor(data.federation.partition.rows(k))
        x, y, query = (
            data.federation.train.x[rows].double(),
            data.federation.train.y[rows],
            is_query(torch.arange(len(rows)), 0.5),
        )
        margin, _ = by_counts(counts, task)

        def loss(params: Any, mine: Tensor, x: Tensor = x, y: Tensor = y, margin: Tensor = margin) -> Tensor:
            cosines = torch.func.functional_call(network, params, x[mine]) / 8.0
            return F.cross_entropy(task.s * (cosines - margin[y[mine]][:, None] * F.one_hot(y[mine], 4)), y[mine])

        def after_a_step(params: Any, loss: Any = loss, query: Tensor = query) -> Tensor:
            slope = torch.func.grad(loss)(params, ~query)
            found: Tensor = loss({name: params[name] - alpha * slope[name] for name in params}, query)
            return found

        for name, g in torch.func.grad(after_a_step)(start).items():
            total[name] += len(rows) / sum(map(sum, COUNTS)) * g
    for name, w in start.items():
        np.testing.assert_allclose(after[name], w - beta * total[name], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("compilation", ["none", "trace"])
def test_reweighting_begins_where_each_clients_training_has_come_so_far(compilation: Any) -> None:
    """Clients of a stack that take 4, 5, 4 and 7 steps are each half-way at another step."""
    task, local = LDAM(s=8.0, drw=0.5), Local(epochs=1, batch_size=2, optimiser=SGD(lr=0.05))
    ends = []
    for engine, more in ((Loop, {}), (Stacked, {"compilation": compilation})):
        made: Any = engine(clients(task), FedAvg(local=local), Options(**more))
        sent: dict[int, Any] = {}
        made.watch = lambda exchange, sent=sent: sent.update({exchange.client: exchange.upload.value})
        made.round(made.init(), (0, 1, 2, 3), 0)
        ends.append(sent)
    never = Loop(clients(LDAM(s=8.0)), FedAvg(local=local))
    plain: dict[int, Any] = {}
    never.watch = lambda exchange: plain.update({exchange.client: exchange.upload.value})
    never.round(never.init(), (0, 1, 2, 3), 0)
    for k in range(4):
        for name, value in ends[0][k].params.items():
            np.testing.assert_allclose(ends[1][k].params[name], value, rtol=1e-9, atol=1e-12)
    moved = [float((ends[0][k].params - plain[k].params).sq_norm()) for k in range(4)]
    assert min(moved[0], moved[3]) > 0
    assert moved[1] == moved[2] == 0  # one class, and classes of one size: weights are equal


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_the_clients_of_dense_train_with_margins(engine: Any) -> None:
    """Their uploads are those of FedAvg with margins, and not those of DENSE without."""
    y = np.concatenate([np.repeat(np.arange(4), counts) for counts in COUNTS])
    x = np.random.default_rng(0).integers(0, 255, size=(len(y), 1, 8, 8)).astype(np.uint8)
    ends = np.cumsum([0, *(sum(counts) for counts in COUNTS)])
    lists = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    data = from_arrays(x, y, num_classes=4, normalise=Normalise((0.0,), (1.0,), 1 / 255))
    parts = federate(data, by_lists(lists), test=data, test_fraction=0)
    local = Local(epochs=3, batch_size=4, optimiser=SGD(lr=0.05))
    model = Model(lambda: with_cosines(SmallConvNet(1, 4, "batch")), name="net")
    sizes = {"synthesis": Distill(batch_size=8, optimiser=Adam()), "distill": Distill(batch_size=8, optimiser=SGD())}

    def uploads(algorithm: Any, task: Any, rounds: int = 1) -> dict[int, Any]:
        made = engine(Population(parts, {"net": model}, task=task, dtype=torch.float64), algorithm)
        try:
            sent: dict[int, Any] = {}
            made.watch = lambda exchange: sent.update({exchange.client: exchange.upload})
            server = made.init()
            for t in range(rounds):
                server = made.round(server, (0, 1, 2, 3) if t == 0 else (), t)
            assert all(t.isfinite().all() for t in tree.leaves(server))
            return sent
        finally:
            made.close()

    dense = DENSE(local=local, nz=3, ngf=2, T_G=2, **sizes)
    with_margins, plain = uploads(dense, LDAM(), 2), uploads(dense, Classification())
    reference = uploads(FedAvg(local=local), LDAM())
    for k in range(4):
        for name, value in reference[k].value.params.items():
            np.testing.assert_allclose(with_margins[k].params[name], value, rtol=1e-9, atol=1e-12)
    moved = [float((with_margins[k].params - plain[k].params).sq_norm()) for k in range(4)]
    assert min(moved) > 0
    assert max(moved) > 1e-4


@pytest.mark.slow
def test_ldam_in_words() -> None:
    assert task("ldam") == LDAM()
    assert task("ldam_drw") == LDAM(drw=0.8)  # epochs 160 to 200
    with pytest.raises(SettingError, match=r"max_m must be > 0, got 0\.0"):
        LDAM(max_m=0.0)
    with pytest.raises(SettingError, match=r"drw must be >= 0 and < 1, got 1\.0"):
        LDAM(drw=1.0)
    found = Experiment(
        algorithm="fedavg",
        model="dense_cnn_mnist_cosine",
        task="ldam",
        data=DataSettings(clients=5, examples=60),
        local=Local(epochs=1, batch_size=32),
        run=RunSettings(rounds=1, cohort_size=5),
    )
    metrics = found.job().run().metrics
    assert metrics[1]["train_loss"] > metrics[1]["global_loss"] > 0  # by the margins
