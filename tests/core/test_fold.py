"""The seam: what a fold promises, and what it refuses with a remedy."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.batch import Batch, Lazy
from fedloom.core.batches import noise
from fedloom.core.client import Client, on_client
from fedloom.core.errors import ClientError, StackingError
from fedloom.core.fold import fold, minimise
from fedloom.core.fold.execution import Execution, executing
from fedloom.core.local_training import Local
from fedloom.core.losses import task_loss
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Adam, Optimiser
from fedloom.core.random import uniform
from fedloom.core.types import Params, Weights, replace as changed
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from small import TINY, batches_of, clients_of, random_data

ENGINES = [Loop, Stacked]
SIZES = (5, 12, 1, 7)


@dataclass(frozen=True, kw_only=True)
class Runs(Algorithm[Any, Any]):
    """Runs one function on every client, `answer(client, weights) -> upload`; `found`: uploads of the last round."""

    answer: Callable[..., Any]

    found: ClassVar[list[Any]] = []

    def init(self, model: Any, key: int, *, num_clients: int) -> Any:
        return model.init(key)

    @on_client
    def run(self, client: Client[Any], weights: Weights) -> tuple[Any, Any]:
        return client.state, self.answer(client, weights)

    def round(self, server: Any, cohort: Any) -> Any:
        self.found[:] = [cohort.gather(self.run, server).value]
        return server

    def personal(self, client: Client[Any], sent: Any) -> Any:
        raise NotImplementedError


def clients(*sizes: int) -> Any:
    return clients_of(random_data(sizes or SIZES))


def run(answer: Any, engine: Any, compilation: Any = "none", people: Any = None, **local: Any) -> Any:
    """Every client's answer, stacked."""
    people = people or clients()
    algorithm = Runs(answer=answer, local=Local(**{"epochs": 2, "batch_size": 4, **local}))
    engine = engine(people, algorithm, Options(compilation=compilation))
    engine.round(engine.init(), range(people.num_clients), 0)
    return Runs.found[0]


# --- what it computes


@pytest.mark.some(1)
@pytest.mark.parametrize("compilation", ["none", "trace"])
@pytest.mark.parametrize("engine", ENGINES)
def test_ragged_clients_see_their_own_batches_and_drop_off(engine: Any, compilation: Any) -> None:
    def count(carry: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        real = batch.mask.sum()
        seen = torch.where(batch.mask, batch.x[:, 0], 0.0).sum()
        return {"steps": carry["steps"] + 1, "rows": carry["rows"] + real, "sum": carry["sum"] + seen}

    def answer(client: Any, weights: Any) -> Any:
        zero = torch.zeros((), dtype=torch.int64)
        return fold(count, {"steps": zero, "rows": zero, "sum": zero.double()}, client.train)

    people = clients()
    out = run(answer, engine, compilation, people)
    assert out["steps"].tolist() == [4, 6, 2, 4]
    assert out["rows"].tolist() == [2 * n for n in SIZES]
    x, partition = people.federation.train.x, people.federation.partition
    want = [2 * float(x[torch.from_numpy(partition.rows(k).copy())][:, 0].sum()) for k in range(4)]
    np.testing.assert_allclose(out["sum"], want, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("compilation", ["none", "trace"])
@pytest.mark.parametrize("sizes", [(4, 12, 8), (8, 4, 12), (5, 17, 9, 1, 13)])
def test_answers_are_of_the_client_that_was_asked(sizes: tuple[int, ...], compilation: Any) -> None:
    # A stack sorts clients by steps; these orders are not their own inverse: sorting twice does not undo them.
    def answer(client: Any, weights: Any) -> Any:
        loss = task_loss(client.model, client.task)
        return minimise(loss, weights, client.train, SGD(lr=0.1), lr=client.lr), client.num_examples

    loop, stack = (run(answer, e, compilation, clients(*sizes), epochs=1) for e in (Loop, Stacked))
    assert stack[1].tolist() == list(sizes)
    for name, value in loop[0].params.items():
        np.testing.assert_allclose(stack[0].params[name], value, rtol=1e-12, atol=1e-12)
        assert len(value.flatten(1).norm(dim=1).unique()) == len(sizes)


# 32 clients in no order: 16 have at most 16 examples, 8 more at most 64, the other 8 at most 401.
SKEWED = (
    *(9, 300, 3, 60, 150, 16, 1, 33, 401, 12, 40, 120, 5, 14, 201, 2),
    *(50, 7, 35, 11, 199, 4, 64, 6, 110, 8, 20, 10, 180, 13, 25, 15),
)


def told_of_rows(client: Any, weights: Any, widths: list[int] | None = None) -> Any:
    """Of each client the rows in one pass, their sum, the steps, the last key, and the sum of what a model says."""
    model = client.model

    def say(weights: Weights, x: Tensor) -> Tensor:
        return model(weights, x).sum(-1)

    def add(carry: Any, batch: Batch, weights: Weights) -> Any:
        if widths is not None:
            widths.append(len(batch.mask))
        rows, total, steps, _, said = carry
        seen = torch.where(batch.mask, batch.x[:, 0], 0.0).sum().double()
        told = torch.where(batch.mask, batch.said + say(weights, batch.x), 0.0).sum().double()
        return rows + batch.mask.sum(), total + seen, steps + 1, batch.key, said + told

    zero, none = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
    batches = client.train.annotate("said", say, weights).whole()
    return fold(add, (none, zero, none, none, zero), batches, weights)


@pytest.mark.slow
@pytest.mark.parametrize("compilation", ["none", "trace"])
def test_clients_of_any_size_see_their_own_rows_in_a_pass(compilation: Any) -> None:
    people = clients(*SKEWED)
    loop, stack = run(told_of_rows, Loop, people=people), run(told_of_rows, Stacked, compilation, people)
    assert stack[0].tolist() == list(SKEWED)
    assert stack[2].tolist() == [-(-n // 200) for n in SKEWED]
    alike(loop, stack)


@pytest.mark.slow
def test_a_pass_over_small_clients_is_narrow() -> None:
    widths: list[int] = []
    run(functools.partial(told_of_rows, widths=widths), Stacked, people=clients(*SKEWED))
    assert widths == [16, 64, 200, 200, 200]  # a lock-step of one step, another, and one of three


def test_a_pass_over_few_or_equal_clients_is_one_lock_step() -> None:
    for sizes in ((9, 150, 3, 60, 200), (190,) * 21):
        widths: list[int] = []
        run(functools.partial(told_of_rows, widths=widths), Stacked, people=clients(*sizes))
        assert widths == [200]


@pytest.mark.parametrize("engine", ENGINES)
def test_minimise_is_plain_gradient_descent(engine: Any) -> None:
    def answer(client: Any, weights: Weights) -> Any:
        return minimise(task_loss(client.model, client.task), weights, client.train, SGD(lr=0.1), lr=client.lr)

    people = clients()
    got = run(answer, engine, people=people, optimiser=SGD(lr=0.1))
    for k in range(4):
        batches = batches_of(people, [k], Local(epochs=2, batch_size=4))
        module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4)).double()
        start = tree.cast(TINY.init(_init_key(people)), dtype=torch.float64)
        with torch.no_grad():
            for p, w in zip(module.parameters(), start.params.values(), strict=True):
                p.copy_(w)
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        for order, mask in zip(batches.order[0], batches.mask[0], strict=True):
            rows = batches.examples[0][order[mask]]
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(batches.x[rows]), batches.y[rows]).backward()
            optimiser.step()
        for p, w in zip(module.parameters(), tree.take(got, k).params.values(), strict=True):
            np.testing.assert_allclose(p.detach(), w, rtol=1e-12, atol=1e-14)


def _init_key(people: Any) -> int:
    from fedloom.core.random import derive

    return derive(people.seed, "init")


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", [SGD(lr=0.1), SGD(lr=0.1, momentum=0.9, clip=0.5), Adam(lr=0.1)])
def test_a_rate_for_each_client(optimiser: Optimiser) -> None:
    """A rate that depends on the client is a stack of rates; with as many clients as features it must not broadcast."""

    def answer(client: Any, weights: Weights) -> Any:
        lr = client.lr / client.num_examples
        return minimise(task_loss(client.model, client.task), weights, client.train, optimiser, lr=lr)

    people = clients(5, 12, 1, 7, 3, 9)
    alike(run(answer, Loop, people=people), run(answer, Stacked, people=people))
    alike(run(answer, Loop, people=people), run(answer, Stacked, "trace", people=people))


def alike(x: Any, y: Any) -> None:
    for a, b in zip(tree.leaves(x), tree.leaves(y), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.some(1)
@pytest.mark.parametrize("compilation", ["none", "trace"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_fold_that_all_clients_share(engine: Any, compilation: Any) -> None:
    """Nothing in it differs between clients, so that the stack computes it once."""
    people = clients()
    federation = replace(people.federation, public=people.federation.train)
    people = replace(people, federation=federation)

    def answer(client: Any, weights: Weights) -> Any:
        batches = client.public.rows(torch.arange(6), 4)
        return minimise(task_loss(client.model, client.task), weights, batches, SGD(lr=0.1), lr=client.lr)

    got = run(answer, engine, compilation, people)
    assert got.params["fc2.bias"].shape == (4, 4)
    for k in range(1, 4):
        assert torch.equal(got.params["fc2.bias"][0], got.params["fc2.bias"][k])
    alike(got, run(answer, Loop, people=people))


@pytest.mark.parametrize("engine", ENGINES)
def test_buffers_move_and_are_not_trained(engine: Any) -> None:
    def loss(carry: Any, batch: Batch) -> Any:
        w = carry["w"]
        moved = Weights(params=w.params, buffers={"seen": w.buffers["seen"] + batch.mask.sum()})
        return batch.mean((batch.x[:, 0] - w.params["m"]).square()), {"w": moved, "steps": carry["steps"] + 1}

    def answer(client: Any, weights: Any) -> Any:
        zero = torch.zeros((), dtype=torch.float64)
        start = {"w": Weights(params={"m": zero}, buffers={"seen": zero}), "steps": torch.tensor(0)}
        return minimise(loss, start, client.train, SGD(lr=0.1), lr=client.lr)

    out = run(answer, engine)
    assert out["w"].buffers["seen"].tolist() == [2 * n for n in SIZES]
    assert out["steps"].tolist() == [4, 6, 2, 4]
    assert bool((out["w"].params["m"] != 0).all())


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [False, True])
def test_a_graph_is_of_one_structure(stacked: bool) -> None:
    """One loss trains carries whose tensors have the same shapes and other names: each by its own code."""
    batches = noise((1,), 4, 3, 0, torch.zeros(()))

    def loss(part: Params, batch: Batch) -> Tensor:
        w = part["a"] if "a" in part else -part["b"]
        return batch.mean(batch.x[:, 0] * w + w * w)

    def trained(name: str, start: Tensor) -> Tensor:
        return minimise(loss, Params({name: start}), batches, SGD(), lr=torch.tensor(0.1, dtype=torch.float64))[name]

    found = {}
    for compilation in ("none", "trace"):
        with executing(Execution(compilation)) as execution:
            for name in "ab":
                one = functools.partial(trained, name)
                found[compilation, name] = vmap(one)(torch.ones(2)) if stacked else one(torch.ones(()))
        assert len(execution.programs) == (2 if compilation == "trace" else 0)
    for name in "ab":
        torch.testing.assert_close(found["trace", name], found["none", name])
    assert not torch.equal(found["none", "a"], found["none", "b"])


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_loss_does_not_use_stays(engine: Any) -> None:
    def loss(carry: dict[str, Tensor], batch: Batch) -> Tensor:
        return (carry["used"] - 1).square()

    def answer(client: Any, weights: Any) -> Any:
        one = torch.full((2,), 3.0, dtype=torch.float64)
        return minimise(loss, {"used": one[0], "idle": one}, client.train, SGD(lr=0.1, momentum=0.9), lr=client.lr)

    out = run(answer, engine)
    assert out["idle"].tolist() == [[3.0, 3.0]] * 4
    assert bool((out["used"] < 3).all())


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gradients_and_carries_of_any_layout(momentum: float) -> None:
    """Transposed weights whose gradient is a sum: memory is laid out unlike the axes, on every engine."""

    def loss(w: Tensor, batch: Batch, scale: Tensor) -> Tensor:
        return (w.sum() + (w * scale).sum()) * batch.mask.sum() * 0.01

    def answer(client: Any, weights: Weights) -> Any:
        x = client.train.x[client.train.examples[:3]]
        return minimise(
            loss,
            (x.T @ x)[:, :4],
            client.train,
            SGD(lr=0.1, momentum=momentum),
            weights.params["fc2.weight"].sum() * x.T[:, :1] + 0 * x.T[:, :1].expand(6, 4),
            lr=client.lr,
        )

    people = clients(5, 12, 3, 7)
    alike(run(answer, Loop, people=people), run(answer, Stacked, people=people))
    alike(run(answer, Loop, people=people), run(answer, Stacked, "trace", people=people))


def test_losses_and_steps_are_seen() -> None:
    seen = Execution()
    batches = batches_of(clients(), [1], Local(epochs=1, batch_size=5))
    one = tree.take(changed(batches, x=batches.x[None], y=batches.y[None]), 0)
    weights, rate = TINY.init(0, torch.float64), torch.tensor(0.1)
    with executing(seen):
        minimise(lambda w, b: b.mean(TINY.train(w, b)[0][:, 0]), weights, one, SGD(lr=0.1), lr=rate)
    assert seen.steps == [[3]]
    assert seen.losses[0].shape == (3,)
    assert seen.step is None


# --- annotations


def teacher(client: Any, weights: Weights) -> tuple[Any, Any]:
    """Sums of what batches say about their teacher, and of the teacher called on the spot."""
    model = client.model
    batches = client.train.annotate("teacher", model, weights)

    def add(total: Tensor, batch: Batch, weights: Weights) -> Tensor:
        now = model(weights, batch.x)
        each = torch.stack([batch.teacher.sum(1), now.sum(1), batch.x.sum(1)])
        return total + torch.where(batch.mask, each, 0.0).sum(1)

    return batches, fold(add, torch.zeros(3, dtype=torch.float64), batches, weights)


def jitter(x: Tensor, key: Tensor) -> Tensor:
    """A random augmentation of a batch [B, D], of its key and the place in the batch."""
    return x + uniform(key, 0, x.shape)


@dataclass(frozen=True, eq=False)
class Augmented(type(clients())):  # type: ignore[misc]
    def train_batches(self, request: Any, local: Any) -> Any:
        batches = super().train_batches(request, local)
        return changed(batches, augment=jitter)


@pytest.mark.slow
@pytest.mark.parametrize("compilation", ["none", "trace"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("augment", [False, True])
def test_annotations(augment: bool, engine: Any, compilation: Any) -> None:
    plain = clients()
    people = Augmented(plain.federation, plain.models, dtype=plain.dtype) if augment else plain
    kinds = []

    def answer(client: Any, weights: Weights) -> Any:
        batches, sums = teacher(client, weights)
        kinds.append((sorted(batches.notes), sorted(batches.lazy)))
        return sums

    out = run(answer, engine, compilation, people)
    np.testing.assert_allclose(out[:, 0], out[:, 1], rtol=1e-10)  # what the batch says is what the teacher says of it
    assert set(map(str, kinds)) == {"([], ['teacher'])" if augment else "(['teacher'], [])"}
    alike(out, run(lambda c, w: teacher(c, w)[1], Loop, people=people))
    unmoved = run(lambda c, w: teacher(c, w)[1], Loop, people=plain)
    assert torch.equal(out[:, 2], unmoved[:, 2]) is not augment or engine is Stacked


@pytest.mark.parametrize("engine", ENGINES)
def test_no_gradient_flows_into_annotations(engine: Any) -> None:
    def loss(w: Weights, batch: Batch) -> Tensor:
        return batch.mean(batch.teacher.sum(-1)) + 0.0 * w.params["fc2.bias"].sum()

    def answer(client: Any, weights: Weights) -> Any:
        batches = client.train.annotate("teacher", client.model, weights)
        return minimise(loss, weights, batches, SGD(lr=0.1), lr=client.lr)

    moved = run(answer, engine)
    start = tree.cast(TINY.init(_init_key(clients())), dtype=torch.float64)
    for k in range(4):
        alike(tree.take(moved, k), start)


# --- what it refuses, and the remedy it names


SECRET = torch.ones(2)


@dataclass(frozen=True)
class Holder:
    secret: Any

    def step(self, carry: Tensor, batch: Batch) -> Tensor:
        return carry + self.secret.sum()

    def __call__(self, carry: Tensor, batch: Batch) -> Tensor:
        return carry + self.secret.sum()


class StateKeeper:
    """Neither a function nor a dataclass, and it holds a tensor."""

    def __init__(self, secret: Any) -> None:
        self.secret = secret

    def step(self, carry: Tensor, batch: Batch) -> Tensor:
        return carry * self.secret.sum()

    def __call__(self, carry: Tensor, *others: Any) -> Tensor:
        return carry * self.secret.sum()


def capturing(kind: str) -> Any:
    secret = {"w": SECRET}
    plain: Any = lambda carry, batch, s=None: carry + secret["w"].sum()  # noqa: E731
    return {
        "closure": plain,
        "default": lambda carry, batch, s=SECRET: carry + s.sum(),
        "keyword": functools.partial(lambda carry, batch, s: carry + s.sum(), s=SECRET),
        "argument": functools.partial(lambda s, carry, batch: carry + s.sum(), SECRET),
        "nested": lambda carry, batch: plain(carry, batch),
        "method": Holder(SECRET).step,
        "object": Holder(SECRET),
        "weights": Holder(Weights(params={"w": SECRET})),
        "attribute": StateKeeper(SECRET),
        "attribute of self": StateKeeper(SECRET).step,
        "attribute within": functools.partial(lambda held, *args: held.secret(*args), StateKeeper(plain)),
    }[kind]


KINDS = ("closure", "default", "keyword", "argument", "nested", "method", "object", "weights", "attribute",
         "attribute of self", "attribute within")  # fmt: skip


@pytest.mark.some(10)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_captured_tensors_are_refused(engine: Any, kind: str) -> None:
    step = capturing(kind)
    with pytest.raises(StackingError, match=r"captures the tensor.*Pass them as context"):
        run(lambda c, w: fold(step, torch.zeros(()), c.train), engine)
    with pytest.raises(StackingError, match=r"captures the tensor.*Pass them as context"):
        run(lambda c, w: minimise(step, torch.zeros(()), c.train, SGD(lr=0.1), lr=c.lr), engine)


def w_of_each(number: str, client: Any) -> Tensor:
    """Each client's w after steps in whose gradient its own number of examples stands, passed or captured."""
    n, w, optimiser = client.num_examples.double(), torch.zeros((), dtype=torch.float64), SGD(lr=0.1)
    keeper = StateKeeper(n)
    taught = changed(client.train, lazy={"number": Lazy(context=(), fn=lambda x: x[:, 0] * 0 + n)})
    answers: dict[str, Callable[[], Tensor]] = {
        "passed": lambda: minimise(
            lambda w, batch, n: 0 * w, w, client.train, optimiser, n, lr=client.lr, correct=lambda g, n: g + n
        ),
        "correction": lambda: minimise(
            lambda w, batch: 0 * w, w, client.train, optimiser, lr=client.lr, correct=lambda g: g + n
        ),
        "correcting object": lambda: minimise(
            lambda w, batch: w, w, client.train, optimiser, lr=client.lr, correct=keeper
        ),
        "loss": lambda: minimise(keeper, w, client.train, optimiser, lr=client.lr),
        "step": lambda: fold(keeper, w + 1, client.train),
        "teacher": lambda: minimise(lambda w, batch: batch.mean(batch.number) * w, w, taught, optimiser, lr=client.lr),
    }
    return answers[number]()


# Steps 1, 2, 2, 2 of four clients: a traced stack computes all four in both steps, so a captured tensor fits in shape.
UNEQUAL = (5, 12, 7, 9)


@pytest.mark.some(1)
@pytest.mark.parametrize("compilation", ["none", "trace"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_tensor_that_is_passed_is_that_of_its_client(engine: Any, compilation: Any) -> None:
    out = run(lambda c, w: w_of_each("passed", c), engine, compilation, clients(*UNEQUAL), epochs=1, batch_size=6)
    np.testing.assert_allclose(out, [-0.05, -0.24, -0.14, -0.18], rtol=1e-12)


@pytest.mark.parametrize("compilation", ["none", "trace"])
@pytest.mark.parametrize("number", ["correction", "correcting object", "loss", "step", "teacher"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_tensor_that_would_be_another_clients_is_refused(engine: Any, number: str, compilation: Any) -> None:
    people = clients(*UNEQUAL)
    with pytest.raises(StackingError, match=r"captures the tensor.*Pass them as context"):
        run(lambda c, w: w_of_each(number, c), engine, compilation, people, epochs=1, batch_size=6)


def test_a_captured_client_is_said_to_be_one() -> None:
    def with_client(client: Any, w: Tensor) -> Tensor:
        return fold(lambda w, batch: w + client.num_examples, w, client.train)

    with pytest.raises(StackingError, match=r"captures 'client', whose tensors .* model, task_loss = client.model, cl"):
        run(lambda c, w: with_client(c, torch.zeros(())), Loop)


def test_what_a_network_is_built_with_is_no_captured_tensor() -> None:
    centre = torch.ones(6)  # of all clients alike

    def build() -> torch.nn.Module:
        net = torch.nn.Sequential(torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 4))
        net[0].bias.data.copy_(centre)  # type: ignore[union-attr, operator]
        return net

    model = Model(build)
    start, constant = (
        tree.cast(model.init(0), dtype=torch.float64),
        torch.nn.CrossEntropyLoss(weight=torch.ones(4, dtype=torch.float64)),
    )

    def answer(client: Any, weights: Weights) -> Tensor:
        loss = lambda w, batch: constant(model(w, batch.x, batch.mask), batch.y)  # noqa: E731
        return minimise(loss, start, client.train, SGD(lr=0.1), lr=client.lr).params["1.weight"]

    assert run(answer, Stacked, people=clients(*UNEQUAL)).shape == (4, 4, 6)


CHANGES: dict[str, Any] = {
    "structure": lambda c, b: (c, c),
    "shape": lambda c, b: torch.cat([c, c]),
    "dtype": lambda c, b: c.float(),
    "to integers": lambda c, b: c.long(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_keeps_its_carry(engine: Any, change: str) -> None:
    with pytest.raises(StackingError, match="must return a carry of the structure, shapes and dtypes it was given"):
        run(lambda c, w: fold(CHANGES[change], torch.zeros(2, dtype=torch.float64), c.train), engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("loss", "shape"),
    [(lambda w, b: b.x[:, 0] * w, r"\["), (lambda w, b: w[None], r"\[1\]"), (lambda w, b: 1.0, "float")],
)
def test_a_loss_is_one_number(engine: Any, loss: Any, shape: str) -> None:
    zero = torch.zeros((), dtype=torch.float64)
    with pytest.raises(StackingError, match=rf"must return one number for a batch, got {shape}.*batch\.mean"):
        run(lambda c, w: minimise(loss, zero, c.train, SGD(lr=0.1), lr=c.lr), engine)


def test_a_wrong_shape_in_a_traced_step_is_said_by_the_step_alone() -> None:
    said, log = list[Any](), logging.getLogger("torch._subclasses.fake_tensor")
    handler = logging.Handler()
    handler.emit = said.append  # type: ignore[method-assign]
    log.addHandler(handler)
    zero = torch.zeros(5, 2, dtype=torch.float64)

    def answer(c: Any, w: Any) -> Any:
        return minimise(lambda w, b: b.mean((b.x.flatten(1) @ w).sum(1)), zero, c.train, SGD(lr=0.1), lr=c.lr)

    try:
        with pytest.raises(ClientError, match=r"batch 0: RuntimeError: .*(size|shapes).*\b5"):
            run(answer, Loop, "trace")
    finally:
        log.removeHandler(handler)
    assert (said, log.disabled) == ([], False)


@pytest.mark.parametrize("engine", ENGINES)
def test_there_must_be_something_to_train(engine: Any) -> None:
    with pytest.raises(StackingError, match="needs a carry with floating-point leaves"):
        run(lambda c, w: minimise(lambda w, b: w, torch.tensor(3), c.train, SGD(lr=0.1), lr=c.lr), engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_everything_is_a_tensor(engine: Any) -> None:
    with pytest.raises(StackingError, match=r"must be tensors, got float 0\.5"):
        run(lambda c, w: fold(lambda t, b, s: t, torch.zeros(()), c.train, 0.5), engine)


def test_a_fold_inside_a_vmap_of_ones_own_is_refused_in_a_stack() -> None:
    def answer(client: Any, weights: Any) -> Any:
        return vmap(lambda z: fold(lambda t, b: t + 1, z, client.train))(torch.zeros(3))

    with pytest.raises(StackingError, match=r"inside a vmap of the algorithm's own; loop over it"):
        run(answer, Stacked)


@pytest.mark.parametrize("engine", ENGINES)
def test_only_marked_methods_run_on_clients(engine: Any) -> None:
    class Unmarked(Runs):
        def round(self, server: Any, cohort: Any) -> Any:
            return cohort.gather(self.answer, server)

    run = engine(clients(), Unmarked(answer=lambda c, w: ((), ())))
    with pytest.raises(StackingError, match="mark it @on_client"):
        run.round(run.init(), (0, 1), 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_scatter_has_one_entry_for_each_client(engine: Any) -> None:
    class Scatters(Runs):
        def round(self, server: Any, cohort: Any) -> Any:
            return cohort.gather(self.run, scatter=(torch.zeros(3, 2),))

    run = engine(clients(), Scatters(answer=lambda c, w: ()))
    with pytest.raises(StackingError, match="scatter has one entry for 2 clients each"):
        run.round(run.init(), (0, 1), 0)
