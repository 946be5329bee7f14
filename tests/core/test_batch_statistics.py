"""BatchNorm that keeps no running statistics: it takes those of the batch in evaluation too, and never of padding."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.algorithms import Centralised, FedAvg, FedNTD, KTpFL, PFedSD
from fedloom.analyses.measures import class_activations, class_gradients
from fedloom.analyses.measures.flat import losses
from fedloom.coordinator import RunSettings, run
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.augment import Augment
from fedloom.core.batch import Batch, at_batch
from fedloom.core.client import Client, on_client
from fedloom.core.errors import StackingError
from fedloom.core.fold import fold, minimise
from fedloom.core.local_training import Digest, Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Weights
from fedloom.data import Federation, federate, from_arrays, iid
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.evaluate import classify
from fedloom.tasks import Classification
from fedloom.testing import CHECKS, Subject
from small import clients_of


class Untracked(nn.Module):
    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.hidden = nn.Linear(12, 8)
        self.norm = nn.BatchNorm1d(8, track_running_stats=False)
        self.head = nn.Linear(8, num_classes)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.hidden(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


KT_PFL = KTpFL(distill=Digest(epochs=1, batch_size=8, optimiser=SGD(lr=0.02)), num_public=13)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        (FedNTD(), "engines_agree"),
        (FedNTD(), "tracing_agrees"),
        (FedNTD(), "empty_steps_change_nothing"),
        (FedNTD(), "data_stay_private"),
        (PFedSD(), "engines_agree"),
        (KT_PFL, "engines_agree"),
        (KT_PFL, "empty_steps_change_nothing"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_padding_changes_nothing(algorithm: Algorithm, name: str) -> None:
    subject = Subject.of(algorithm, models={"untracked": Model(Untracked, name="untracked")})
    assert CHECKS[name](subject) is None


def test_evaluation_is_that_of_torch_on_the_real_rows() -> None:
    module = Untracked().double().eval()
    model = Model(module)
    weights = model.init(0, torch.float64)
    assert not weights.buffers
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 12)))
    padded = torch.cat([x, x[:1].expand(3, -1)])
    mask = torch.arange(8) < 5
    want = module(x).detach()
    for fn, theirs in ((model, want), (model.features, module.features(x).detach())):
        np.testing.assert_allclose(fn(weights, x), theirs, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(at_batch(padded, mask, fn, weights, padded)[:5], theirs, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(model(weights, padded)[:5], want)  # without the mask the padding would count
    assert bool(model(weights, x[:1]).isfinite().all())  # a single row has variance 0


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_the_teacher_sees_the_students_batch(engine: Any) -> None:
    rng = np.random.default_rng(0)
    y = np.sort(rng.integers(4, size=18))  # sorted: the stored order has batches of one class
    x = rng.normal(size=(18, 12)) + 2 * y[:, None]
    model = Model(lambda: Untracked(4), name="untracked")
    algorithm = FedNTD(local=Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.1)))
    run = engine(clients_of([(x, y)], model=model), algorithm)  # batches in stored order, the last a short one
    start = run.init()
    found = run.round(start, (0,), 0)["untracked"]
    student = Untracked(4).double()
    student.load_state_dict(start["untracked"].params)
    teacher = copy.deepcopy(student).eval()
    for rows in torch.arange(18).split(4):
        xb, yb = torch.from_numpy(x)[rows], torch.from_numpy(y)[rows]
        logits, others = student(xb), ~F.one_hot(yb, 4).bool()
        z, t = (v[others].reshape(len(yb), -1) for v in (logits, teacher(xb).detach()))
        ntd = F.kl_div(F.log_softmax(z, 1), F.softmax(t, 1), reduction="batchmean")
        grads = torch.autograd.grad(F.cross_entropy(logits, yb) + ntd, list(student.parameters()))
        with torch.no_grad():
            for p, g in zip(student.parameters(), grads, strict=True):
                p -= 0.1 * g
    for n, p in student.named_parameters():
        np.testing.assert_allclose(found.params[n], p.detach(), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_teachers_of_augmented_images_see_real_rows_alone() -> None:
    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 3, 3, padding=1)
            self.norm = nn.BatchNorm2d(3, track_running_stats=False)
            self.head = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.norm(self.conv(x))).mean((2, 3)))

    rng = np.random.default_rng(0)
    train = from_arrays(rng.normal(size=(37, 1, 6, 6)), rng.integers(3, size=37), num_classes=3)
    # No crop and no flip: cutout draws for each place in the batch, wherever padding is.
    train = dataclasses.replace(train, augment=Augment(crop=0, flip=False, cutout=2))
    federation = Federation(train=train, partition=iid(train.y, 5, seed=0))
    population = Population(federation, {"images": Model(Images, name="images")}, dtype=torch.float64)
    local = Local(epochs=2, batch_size=3, optimiser=SGD(lr=0.1))
    ends = []
    for kind, settings in ((Loop, {}), (Stacked, {}), (Stacked, {"compilation": "trace"})):
        engine = kind(population, FedNTD(local=local), Options(**settings))
        ends.append(engine.round(engine.init(), range(5), 0))
    for other in ends[1:]:
        for a, b in zip(tree.leaves(ends[0]), tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_evaluation_goes_by_batches_of_fifty_and_by_client(engine: Any) -> None:
    """An answer depends on the batch: 50 test examples, as in the FedNTD authors' code; a client's own, apart."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(240, 12)), rng.integers(3, size=240)
    x += y[:, None]
    train, test = from_arrays(x[:120], y[:120], num_classes=3), from_arrays(x[120:], y[120:], num_classes=3)
    people = federate(train, iid(y[:120], 4, seed=0), test=test, test_fraction=0.4)
    settings = RunSettings(rounds=1, cohort_size=4, engine=engine, dtype="float64")
    local = Local(epochs=3, batch_size=6, optimiser=SGD(lr=0.1))
    history = run(FedAvg(local=local), people, Untracked, settings)
    network = Untracked().double()
    network.load_state_dict(history.server["Untracked"].params)
    network.train()

    def right(x: Tensor, y: Tensor) -> float:
        return float((network(x.double()).argmax(1) == y).double().mean())

    parts = [right(xb, yb) * len(yb) for xb, yb in zip(test.x.split(50), test.y.split(50), strict=True)]
    assert history.last("global_accuracy") == pytest.approx(sum(parts) / 120, abs=1e-12)
    assert history.last("global_accuracy") != pytest.approx(right(test.x, test.y), abs=1e-12)
    assert people.local_test is not None
    for k, rate in history.metrics[-1]["personal_by_client"].items():
        rows = torch.from_numpy(people.local_test.rows(int(k)).copy())
        assert rate == pytest.approx(right(train.x[rows], train.y[rows]), abs=1e-12)


def test_pooled_training_is_judged_by_client_too() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=120)
    train = from_arrays(rng.normal(size=(120, 12)) + y[:, None], y, num_classes=3)
    people = federate(train, iid(y, 4, seed=0), test_fraction=0.4)
    history = run(Centralised(), people, Untracked, RunSettings(rounds=1, cohort_size=2, dtype="float64"))
    network = Untracked().double()
    network.load_state_dict(history.server["Untracked"].params)
    assert people.local_test is not None
    for k, rate in history.metrics[-1]["personal_by_client"].items():
        rows = torch.from_numpy(people.local_test.rows(int(k)).copy())
        assert rate == pytest.approx(
            float((network(train.x[rows].double()).argmax(1) == train.y[rows]).double().mean())
        )


def test_analyses_see_the_function_that_is_evaluated() -> None:
    """Fifty examples at a time, like accuracy and loss; class by class there is no such function."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=120)
    test = from_arrays(rng.normal(size=(120, 12)) + y[:, None], y, num_classes=3)
    model, task = Model(Untracked, name="untracked"), Classification()
    weights = model.init(0, torch.float64)
    shares = [(share, float(loss(weights.params))) for share, loss in losses(model, weights, task, test)]
    assert [share for share, _ in shares] == pytest.approx([50 / 120, 50 / 120, 20 / 120])
    assert sum(share * loss for share, loss in shares) == pytest.approx(classify(model, weights, task, test).loss)
    network = Untracked().double()
    network.load_state_dict(weights.params)
    after = torch.cat([network.features(x.double()) for x in test.x.split(50)]).detach()
    means = [after[test.y == c].mean(0).tolist() for c in range(3)]
    (found,) = class_activations(model, weights, test).values()
    np.testing.assert_allclose(found.T, means, rtol=0, atol=1e-12)
    assert class_activations(model, weights, test.select(np.arange(101)))  # whose last batch has one example
    with pytest.raises(ValueError, match="a class has no gradient of its own"):
        class_gradients(model, weights, task, test)


class Elsewhere(Algorithm[Weights, tuple[()]]):
    """Clients tell what a model says of inputs that are not those of the batch, as many as it has rows."""

    mask: ClassVar[bool] = True

    def init(self, model: Any, key: int, *, num_clients: int) -> Weights:
        return model.init(key)

    @on_client
    def says(self, client: Client[tuple[()]], w: Weights, other: Tensor) -> tuple[tuple[()], Tensor]:
        model, told = client.model, self.mask

        def add(total: Tensor, batch: Batch, w: Weights, other: Tensor) -> Tensor:
            x = other[: len(batch.x)]
            return total + model(w, x, torch.ones(len(x), dtype=torch.bool) if told else None).sum(0)

        return (), fold(add, torch.zeros(3, dtype=torch.float64), client.train, w, other)

    def round(self, server: Weights, cohort: Any) -> Weights:
        other = torch.from_numpy(np.random.default_rng(1).normal(size=(8, 12)))
        bias = cohort.gather(self.says, server, other).value.sum(0)
        return Weights(params={**server.params, "head.bias": bias})

    def global_weights(self, server: Weights) -> Weights:
        return server


class Untold(Elsewhere):
    mask = False


def test_the_mask_of_a_batch_belongs_to_its_inputs() -> None:
    """Five rows in a batch of eight: other inputs of that size have eight rows."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, 12)), rng.integers(3, size=n)) for n in (5, 8)]
    model = Model(lambda: Untracked(3), name="untracked")
    population = clients_of(data, model=model, num_classes=3)
    local = Local(epochs=1, batch_size=8)
    server = Stacked(population, Elsewhere(local=local)).init()
    network = Untracked().double()
    network.load_state_dict(server["untracked"].params)
    other = torch.from_numpy(np.random.default_rng(1).normal(size=(8, 12)))
    found = Stacked(population, Elsewhere(local=local)).round(server, (0, 1), 0)["untracked"]
    np.testing.assert_allclose(found.params["head.bias"], 2 * network(other).sum(0).detach(), rtol=1e-12, atol=1e-12)
    with pytest.raises(StackingError, match=r"normalises by the batch.*not batch\.x.*mask=batch\.mask"):
        Stacked(population, Untold(local=local)).round(server, (0, 1), 0)


def test_rows_that_are_no_examples_cannot_be_masked() -> None:
    class Pairs(Untracked):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(torch.cat([x, x]))[: len(x)]

    model, x = Model(lambda: Pairs(3)), torch.ones(4, 12)
    with pytest.raises(StackingError, match="one row for each of its 4 examples, got 8: keep"):
        model(model.init(0), x, torch.arange(4) < 3)


class Consistent(Elsewhere):
    """Local training whose loss asks a frozen model about the batch itself."""

    @on_client
    def learn(self, client: Client[tuple[()]], w: Weights) -> tuple[tuple[()], Weights]:
        model, task = client.model, client.task

        def loss(weights: Weights, batch: Batch, w: Weights) -> Tensor:
            logits, frozen = model.train(weights, batch)[0], model(w, batch.x)
            return task.loss(logits, batch) + batch.mean((logits - frozen).square().sum(-1))

        return (), minimise(loss, w, client.train, self.local.optimiser, w, lr=client.lr)

    def round(self, server: Weights, cohort: Any) -> Weights:
        return tree.map_tree(lambda t: t.mean(0), cohort.gather(self.learn, server).value)


@pytest.mark.slow
def test_the_inputs_of_the_batch_are_known_in_every_way_of_computing() -> None:
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, 12)), rng.integers(3, size=n)) for n in (5, 11, 8)]
    people = clients_of(data, model=Model(lambda: Untracked(3), name="untracked"), num_classes=3)
    algorithm = Consistent(local=Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.1)))
    ends = []
    for kind, settings in ((Loop, {}), (Stacked, {}), (Stacked, {"compilation": "trace"})):
        engine = kind(people, algorithm, Options(**settings))
        ends.append(engine.round(engine.init(), (0, 1, 2), 0))
    for other in ends[1:]:
        for a, b in zip(tree.leaves(ends[0]), tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


class ByExample(nn.Module):
    """Running statistics of InstanceNorm, by which it is evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 3, padding=1)
        self.norm = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)
        self.head = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.norm(self.conv(x[:, None]))).flatten(1))


@pytest.mark.slow
def test_running_statistics_by_example_are_of_real_rows() -> None:
    """Also in a stack, whose batches have padding; and those of PyTorch where there is none."""
    subject = Subject.of(FedAvg(), {"net": Model(ByExample, name="net")})
    assert CHECKS["engines_agree"](subject) is None
    assert CHECKS["tracing_agrees"](subject) is None
    model, module = subject.models["net"], ByExample().double()
    weights = tree.cast(model.init(0), dtype=torch.float64)
    module.load_state_dict({**weights.params, **weights.buffers})
    x = torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = Batch(
        x=x, y=torch.zeros(5, dtype=torch.int64), mask=torch.ones(5, dtype=torch.bool), key=torch.tensor(0), full=True
    )
    got, buffers = model.train(weights, rows)
    torch.testing.assert_close(got, module(x))
    for name, t in module.named_buffers():
        torch.testing.assert_close(buffers[name], t)
