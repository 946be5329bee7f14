"""What has no gradient stays: a local training is that of `torch.optim`, on every engine."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_fold import Runs, alike
from torch import Tensor, nn

import fedloom as fl
from fedloom.algorithms.fed_dafl import Both
from fedloom.algorithms.fedbe import minimise_averaged
from fedloom.core import tree
from fedloom.core.batch import Batch
from fedloom.core.fold import minimise, minimise_from
from fedloom.core.fold.steps import Descent
from fedloom.core.local_training import Local
from fedloom.core.losses import task_loss
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Adam, Optimiser
from fedloom.core.types import Params, Weights, replace as changed
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from small import batches_of, clients_of, random_data

SIZES = (6, 12, 7)
FORMS = [(Loop, "none"), (Loop, "trace"), (Stacked, "none"), (Stacked, "trace")]
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.1))
OPTIMISERS: dict[str, tuple[Optimiser, Any]] = {
    "decay": (SGD(lr=0.1, weight_decay=0.2), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.2)),
    "momentum": (
        SGD(lr=0.1, momentum=0.9, weight_decay=0.2),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.2),
    ),
    "nesterov": (
        SGD(lr=0.1, momentum=0.9, weight_decay=0.2, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.2, nesterov=True),
    ),
    "adam": (Adam(lr=0.05), lambda p: torch.optim.Adam(p, lr=0.05)),
    "adam and decay": (Adam(lr=0.05, weight_decay=0.2), lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.2)),
}  # fmt: skip


class Net(nn.Module):
    """A body and a head, and a spare head."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.body, self.head = nn.Linear(5, 4), nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))  # type: ignore[no-any-return]


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body.requires_grad_(False)


class Detached(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)).detach())  # type: ignore[no-any-return]


class WithoutGrad(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            z = torch.tanh(self.body(x))
        return self.head(z) + self.spare(z)  # type: ignore[no-any-return]


class Tied(Net):
    """Two layers with one weight, of which one is used; and two spare ones with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.other = nn.Linear(5, 4), nn.Linear(5, 4)
        self.again.weight, self.other.weight = self.head.weight, self.spare.weight


class Multiplied(Net):
    """The spare head has a gradient, of zeros."""

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.body(x))
        return self.head(z) + 0 * self.spare(z)  # type: ignore[no-any-return]


class Normalised(Net):
    """BatchNorm whose scale nobody uses, with dropout that drops nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.lone = nn.BatchNorm1d(5), nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.norm(torch.tanh(self.body(x))), 0.0, self.training))  # type: ignore[no-any-return]


class Sometimes(Net):
    """Experts, of which a batch uses one: a branch that no stack can take."""

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.body(x))
        return self.spare(z) if bool(x[:, 0].sum() > 0) else self.head(z)  # type: ignore[no-any-return]


NETWORKS = (Net, Frozen, Detached, WithoutGrad, Tied, Multiplied, Normalised)
STILL = {Net: "spare", Frozen: "spare", Detached: "spare body", WithoutGrad: "body", Tied: "spare other"}


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def people(kind: Callable[[], nn.Module], sizes: tuple[int, ...] = SIZES) -> Any:
    return clients_of(random_data(sizes), model=Model(made(kind), name="net"))


def trained(population: Any, answer: Any, engine: Any, compilation: Any = "none", rounds: int = 1, **local: Any) -> Any:
    """What every client answers in the last round, stacked, and the engine."""
    algorithm = Runs(answer=answer, local=replace(LOCAL, **local))
    running = engine(population, algorithm, Options(compilation=compilation))
    server = running.init()
    for t in range(rounds):
        server = running.round(server, range(population.num_clients), t)
    return Runs.found[0], running


def by_torch(
    population: Any, kind: Callable[[], nn.Module], k: int, make: Any, clip: float | None = None, edit: Any = None,
    epochs: int = 2,
) -> dict[str, Tensor]:  # fmt: skip
    """The tensors of a client's network after a training that knows nothing of fedloom."""
    module = made(kind).double()
    optimiser = make([p for p in module.parameters() if p.requires_grad])
    data, partition = population.federation.train, population.federation.partition
    own = partition.indices[partition.indptr[k] : partition.indptr[k + 1]]
    for _ in range(epochs):
        for at in range(0, len(own), 4):
            rows = torch.tensor(own[at : at + 4])
            optimiser.zero_grad()
            F.cross_entropy(module(data.x[rows].double()), data.y[rows]).backward()
            if edit is not None:
                edit(module, k)
            if clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimiser.step()
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def compare(found: Weights, population: Any, kind: Callable[[], nn.Module], make: Any, **more: Any) -> None:
    for k in range(population.num_clients):
        want, mine = by_torch(population, kind, k, make, **more), tree.take(found, k)
        for name, value in {**mine.params, **mine.buffers}.items():
            np.testing.assert_allclose(value, want[name].detach(), rtol=1e-9, atol=1e-11, err_msg=f"{k} {name}")


@pytest.mark.some(3)
@pytest.mark.parametrize("case", OPTIMISERS)
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
@pytest.mark.parametrize(("engine", "compilation"), FORMS)
def test_a_training_is_that_of_torch(engine: Any, compilation: Any, network: Any, case: str) -> None:
    ours, make = OPTIMISERS[case]
    population = people(network)

    def answer(client: Any, w: Weights) -> Any:
        return minimise(task_loss(client.model, client.task), w, client.train, ours, lr=client.lr)

    found, _ = trained(population, answer, engine, compilation, optimiser=ours)
    compare(found, population, network, make)
    start = dict(made(network).double().named_parameters())
    for part in STILL.get(network, "").split():
        for name, value in found.params.items():
            if name.startswith(part):
                assert all(torch.equal(value[k], start[name]) for k in range(len(SIZES))), name


@pytest.mark.some(2)
@pytest.mark.parametrize("case", ["momentum", "adam and decay"])
@pytest.mark.parametrize(("engine", "compilation"), FORMS)
def test_a_clipped_training_is_that_of_torch(engine: Any, compilation: Any, case: str) -> None:
    ours, make = replace(OPTIMISERS[case][0], clip=0.3), OPTIMISERS[case][1]
    population = people(Net)

    def answer(client: Any, w: Weights) -> Any:
        return minimise(task_loss(client.model, client.task), w, client.train, ours, lr=client.lr)

    found, _ = trained(population, answer, engine, compilation, optimiser=ours)
    compare(found, population, Net, make, clip=0.3)


@pytest.mark.parametrize("case", OPTIMISERS)
def test_what_some_batches_use_is_left_out_of_the_others(case: str) -> None:
    """In a loop, step by step: momentum stays too, and Adam counts the steps of each tensor."""
    ours, make = OPTIMISERS[case]
    population = people(Sometimes)

    def answer(client: Any, w: Weights) -> Any:
        return minimise(task_loss(client.model, client.task), w, client.train, ours, lr=client.lr)

    found, _ = trained(population, answer, Loop, optimiser=ours)
    compare(found, population, Sometimes, make)


# ---- a correction gives a tensor a gradient where it changes that of zeros


DRIFT = torch.tensor([[0.0], [0.5], [-0.25]], dtype=torch.float64)  # of each client; the first has none


def drifted(module: nn.Module, k: int) -> None:
    """The step of the correction below: a grad that is None stays so, unless something is added."""
    up = bool(module.head.bias.grad[0] > 0)
    for name, p in module.named_parameters():
        add = torch.full_like(p, float(DRIFT[k])) * (up if name == "spare.bias" else 1)
        if p.grad is not None or add.any():
            p.grad = add if p.grad is None else p.grad + add


@pytest.mark.some(1)
@pytest.mark.parametrize("case", OPTIMISERS)
@pytest.mark.parametrize(("engine", "compilation"), FORMS)
def test_a_correction_gives_a_gradient_where_it_adds_something(engine: Any, compilation: Any, case: str) -> None:
    ours, make = OPTIMISERS[case]
    population = people(Net)

    def correct(g: Params, drift: Tensor) -> Params:
        up = (g["head.bias"][0] > 0).to(drift.dtype)
        return Params({n: t + drift * (up if n == "spare.bias" else 1) for n, t in g.items()})

    def loss(w: Weights, batch: Batch, drift: Tensor) -> Any:
        return plain(w, batch)

    plain = task_loss(population.models["net"], population.task)

    def answer(client: Any, w: Weights) -> Any:
        drift = DRIFT.index_select(0, (client.num_examples == torch.tensor(SIZES)).nonzero_static(size=1)[0])[0, 0]
        return minimise(loss, w, client.train, ours, drift, lr=client.lr, correct=correct)

    found, _ = trained(population, answer, engine, compilation, optimiser=ours)
    compare(found, population, Net, make, edit=drifted)


@pytest.mark.parametrize(("engine", "compilation"), FORMS)
def test_a_penalty_of_all_parameters_gives_each_a_gradient(engine: Any, compilation: Any) -> None:
    """FedProx's term is 0 at first, and has a gradient: weight decay moves what the network does not use."""
    population = people(Net)
    algorithm = fl.FedProx(mu=0.5, local=replace(LOCAL, optimiser=SGD(lr=0.1, weight_decay=0.2)))
    running = engine(population, algorithm, Options(compilation=compilation))
    server = running.round(running.init(), range(3), 0)["net"]
    start = made(Net).double()
    # by hand, for one number p that begins at s: p -= 0.1 * (0.5 * (p - s) + 0.2 * p), for as many steps as each takes
    ends = []
    for n in SIZES:
        p = 1.0
        for _ in range(2 * -(-n // 4)):
            p -= 0.1 * (0.5 * (p - 1) + 0.2 * p)
        ends.append(p)
    share = sum(n * p for n, p in zip(SIZES, ends, strict=True)) / sum(SIZES)
    np.testing.assert_allclose(server.params["spare.weight"], share * start.spare.weight.detach(), rtol=1e-12)


@pytest.mark.some(5)
@pytest.mark.parametrize("engine", ["loop", "stacked", "workers"])
@pytest.mark.parametrize("method", [fl.FedAvg, fl.Scaffold, fl.FedDyn, fl.FedNova])
def test_a_spare_head_stays_through_a_run(method: Any, engine: Any) -> None:
    """SCAFFOLD's variates of it are 0; FedDyn's penalty is one of all parameters, and moves it by decay."""
    from tiny import federation

    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)  # type: ignore[no-any-return]

    module = made(Spare)
    local = Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.1, momentum=0.5, weight_decay=0.1))
    settings = fl.RunSettings(rounds=3, cohort_size=3, engine=engine, workers=2 if engine == "workers" else None)
    history = fl.run(method(local=local), federation(), module, settings)
    nodes = tree.flatten(history.server, is_leaf=lambda node: isinstance(node, Weights))[0]
    (server,) = [node for node in nodes if isinstance(node, Weights)]
    assert torch.equal(server.params["spare.weight"], module.spare.weight) is (method is not fl.FedDyn)
    assert not torch.equal(server.params["used.weight"], module.used.weight)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(("engine", "case"), [(Loop, "momentum"), (Stacked, "adam and decay")])
def test_a_compiled_training_is_that_of_torch(engine: Any, case: str) -> None:
    ours, make = OPTIMISERS[case]
    population = people(Net, (8, 4))

    def answer(client: Any, w: Weights) -> Any:
        return minimise(task_loss(client.model, client.task), w, client.train, ours, lr=client.lr)

    found, running = trained(population, answer, engine, "compile", optimiser=ours)
    assert running.runtime.programs.compiler_works
    assert all(running.runtime.programs.values())
    compare(found, population, Net, make)


# ---- how often it is asked


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[int]]:
    """What was found without a gradient, each time that a stack asked."""
    answers = list[frozenset[int]]()
    given = Descent.find_unused

    def find(*args: Any) -> frozenset[int]:
        answers.append(given(*args))
        return answers[-1]

    monkeypatch.setattr(Descent, "find_unused", find)
    return answers


@pytest.mark.parametrize("compilation", ["none", "trace"])
def test_a_stack_asks_once_for_each_loss(compilation: Any, asked: list[frozenset[int]]) -> None:
    population = people(Net)
    plain = task_loss(population.models["net"], population.task)

    def other(w: Weights, batch: Batch) -> Tensor:
        return (w.params["spare.weight"] - 1).square().sum()

    def answer(client: Any, w: Weights) -> Any:
        w = minimise(plain, w, client.train, SGD(lr=0.1, weight_decay=0.1), lr=client.lr)
        return minimise(other, w, client.train, SGD(lr=0.1, weight_decay=0.1), lr=client.lr)

    found, _ = trained(population, answer, Stacked, compilation, rounds=3)
    assert asked == [{0, 1}, {1, 2, 3, 4, 5}]  # of spare, body and head, with two tensors each
    asked.clear()
    alone, _ = trained(population, answer, Loop, rounds=3)
    assert not asked
    alike(found, alone)


def test_a_loss_that_cannot_be_told_from_others_is_asked_in_every_fold(asked: list[frozenset[int]]) -> None:
    population = people(Net)
    plain, words = task_loss(population.models["net"], population.task), ["a list has no identity"]

    def loss(w: Weights, batch: Batch) -> Any:
        assert words
        return plain(w, batch)

    def answer(client: Any, w: Weights) -> Any:
        return minimise(loss, w, client.train, SGD(lr=0.1, weight_decay=0.1), lr=client.lr)

    trained(population, answer, Stacked, rounds=2)
    assert asked == [{0, 1}] * 2


def test_carries_of_other_structures_are_asked_apart(asked: list[frozenset[int]]) -> None:
    """One loss, and tensors of the same shapes by other names."""

    def loss(part: Params, batch: Batch) -> Tensor:
        return (part["a"] * batch.mask.sum()).sum()

    def answer(client: Any, w: Weights) -> Any:
        one = torch.ones(2, dtype=torch.float64)
        start = Params({"a": one, "b": one}), Params({"b": one, "a": one})
        decay = SGD(lr=0.1, weight_decay=0.1)
        return tuple(minimise(loss, part, client.train, decay, lr=client.lr)["b"] for part in start)

    found, _ = trained(people(Net), answer, Stacked)
    assert asked == [{1}, {0}]
    assert all(bool((part == 1).all()) for part in found)


# ---- training of a server


def pair() -> dict[str, Tensor]:
    return {"idle": torch.full((3,), 2.0, dtype=torch.float64), "used": torch.ones((2, 3), dtype=torch.float64)}


@pytest.mark.parametrize("case", OPTIMISERS)
def test_a_pure_step_leaves_out_what_has_no_gradient(case: str) -> None:
    ours, make = OPTIMISERS[case]
    weights, state = pair(), ours.init([*pair().values()])
    mine = {n: nn.Parameter(p) for n, p in pair().items()}
    optimiser = make(list(mine.values()))
    for s in range(4):
        gradient = {n: torch.full_like(p, s + 1.0) for n, p in weights.items()}
        for n in mine:
            mine[n].grad = gradient[n].clone()
        if s % 2:
            gradient["idle"], mine["idle"].grad = None, None  # type: ignore[assignment]
        weights, state = ours.apply(weights, gradient, state)
        optimiser.step()
    for n, p in weights.items():
        np.testing.assert_allclose(p, mine[n].detach(), rtol=1e-12)
    after = ours.apply(weights, dict.fromkeys(weights), replace(ours, clip=1.0).init([*weights.values()]))[0]
    assert all(torch.equal(after[n], weights[n]) for n in weights)


@pytest.mark.parametrize("of", [SGD(lr=0.1, momentum=0.9, weight_decay=0.2), Adam(lr=0.05, weight_decay=0.2)])
@pytest.mark.parametrize("shared", [False, True])
def test_optimisers_of_several_leave_out_and_put_back_what_they_hold(of: Optimiser, shared: bool) -> None:
    """A tensor that moves in some steps alone moves as one that has no gradient in the others."""

    def optimiser() -> Optimiser:
        return Both(first=of, second=of, count=1) if shared else dataclasses.replace(of, schedule="cosine:9?by=step")

    ends = []
    for masked in (False, True):
        params = list(pair().values())
        ours, rate = optimiser(), torch.tensor(1.0 if shared else 0.1, dtype=torch.float64)
        state = ours.init(params)
        for s in range(6):
            grads = [torch.full_like(p, s + 1.0) for p in params]
            if masked:
                ours.step_(params, grads, state, rate, moves={i: torch.tensor((s + i) % 3 > 0) for i in (0, 1)})
            else:
                given = [g if (s + i) % 3 > 0 else None for i, g in enumerate(grads)]
                ours.step_(params, given, state, rate)
        ends.append([*params, *state])
    for a, b in zip(*ends, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


@pytest.mark.parametrize("case", ["momentum", "adam and decay"])
@pytest.mark.parametrize("network", [Net, Detached, Sometimes], ids=lambda network: network.__name__)
def test_a_server_leaves_out_what_has_no_gradient(network: Any, case: str) -> None:
    """By `minimise`, in two parts that keep the state of the optimiser, and by FedBE's mean of models."""
    ours, make = OPTIMISERS[case]
    population = people(network)
    model = population.models["net"]
    start, loss = tree.cast(model.init(0), dtype=torch.float64), task_loss(model, population.task)
    batches, rate = batches_of(population, [1], LOCAL), torch.tensor(ours.lr, dtype=torch.float64)
    own = {f: getattr(batches, f)[0] for f in ("order", "mask", "examples", "num_steps", "num_examples", "key")}
    batches = changed(batches, **own)
    want = by_torch(population, network, 1, make)
    whole = minimise(loss, start, batches, ours, lr=rate)
    two: Any = (start, tuple(ours.init(tree.leaves(start.params))))
    for part in (slice(2), slice(2, None)):
        order = batches.order[part]
        some = changed(batches, order=order, mask=batches.mask[part], num_steps=torch.tensor(len(order)))
        two = minimise_from(loss, *two, some, ours, lr=rate)
    averaged = minimise_averaged(loss, start, batches, ours, since=99, every=1)  # none: the last model
    for found in (whole, two[0], averaged):
        for name, value in found.params.items():
            np.testing.assert_allclose(value, want[name].detach(), rtol=1e-9, atol=1e-11, err_msg=name)


# ---- what fedloom ships


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* weighs a distance to the running statistics")
def test_no_algorithm_trains_a_tensor_that_has_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no number of theirs depends on what is done with such tensors."""
    from fedloom.testing import Subject
    from test_battery import ALGORITHMS

    found, seen, trying = list[str](), set[str](), [""]
    given = Descent._gradient

    def gradient(self: Any, *args: Any) -> Any:
        out = given(self, *args)
        seen.add(trying[0])
        found.extend([trying[0]] * any(g is None for g in out[0]))
        return out

    monkeypatch.setattr(Descent, "_gradient", gradient)
    for name, algorithm in ALGORITHMS.items():
        trying[0], subject = name, Subject.of(algorithm)
        subject.run(Loop, cohorts=subject.cohorts[:2])
    assert not found
    assert len(seen) > 70
