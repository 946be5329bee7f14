"""Gradients by example against loops over examples, and what holds of their draws on every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.core import tree
from fedloom.core.batches import Batches
from fedloom.core.errors import StackingError
from fedloom.core.fold.execution import Execution, executing
from fedloom.core.model import Model
from fedloom.core.types import Weights
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.memory import step_bytes
from fedloom.engines.stacked import Stacked
from fedloom.engines.workers import Workers
from fedloom.privacy.by_example import ByExample, ExampleGradients
from fedloom.privacy.draws import source
from fedloom.tasks import Classification
from fedloom.testing.in_process import DevicesInProcess
from fedloom.testing.messages import Messages
from tiny import LOCAL, examples, federation, linear, mlp, population

RULE = ExampleGradients(clip=0.5, noise=0.7)


def model_of(network: Any) -> tuple[Model, Weights]:
    model = Model(network).bind(0, torch.float64)
    return model, tree.cast(model.init(0), dtype=torch.float64)


def batches_of(n: int, steps: int = 1, key: int = 5, scale: Any = 1.0) -> Batches:
    """Return batches of one client with n examples, as a round plans them; which rows they have is drawn anew."""
    data = examples(n)
    return Batches(
        x=data.x.double() * scale, y=data.y, examples=torch.arange(n), order=torch.zeros(steps, 4, dtype=torch.int64),
        mask=torch.ones(steps, 4, dtype=torch.bool), num_steps=torch.tensor(steps), num_examples=torch.tensor(n),
        key=torch.tensor(key), dtype=torch.float64, private=True,
    )  # fmt: skip


def trained(rule: Any, model: Model, start: Weights, batches: Batches, **more: Any) -> Weights:
    loss = more.pop("loss", None) or fl.core.losses.task_loss(model, Classification())
    with executing(Execution(gradients=rule)):
        return fl.minimise(loss, start, batches, fl.SGD(lr=1.0, **more), lr=torch.tensor(1.0, dtype=torch.float64))


def step_of(rule: ExampleGradients) -> ByExample:
    return ByExample(lambda *_: None, fl.SGD(lr=1.0), None, False, rule)


def drawn(rule: ExampleGradients, batches: Batches) -> list[list[int]]:
    """Return the rows of each batch that a rule draws."""
    step = step_of(rule)
    made = step.batches(batches)
    return [order[mask].tolist() for order, mask in zip(made.order, made.mask, strict=True)]


def noise_of(rule: ExampleGradients, key: int, like: Weights) -> list[Tensor]:
    """Return the noise of the first step of a training, by the key of its batch."""
    first = fl.core.random.fold_in(torch.tensor(key), torch.tensor(0))
    draw = source(False, int(first), "noise")
    std = rule.noise * rule.clip
    return [std * torch.from_numpy(draw.normal(tuple(p.shape), p.dtype)) for p in like.params.values()]


def by_hand(rule: ExampleGradients, model: Model, start: Weights, batches: Batches, rows: list[int]) -> list[Tensor]:
    """Return (sum of clipped gradients + noise) / expected size, by a loop over examples."""
    loss, total = fl.core.losses.task_loss(model, Classification()), noise_of(rule, int(batches.key), start)
    for i in rows:
        leaves = {n: p.clone().requires_grad_() for n, p in start.params.items()}
        one = fl.core.batch.probe(batches.x[i : i + 1], batches.y[i : i + 1])
        grads = torch.autograd.grad(loss(Weights(fl.Params(leaves), start.buffers), one).value, list(leaves.values()))
        norm = torch.cat([g.flatten() for g in grads]).norm()
        total = [t + g * min(1.0, rule.clip / float(norm + 1e-6)) for t, g in zip(total, grads, strict=True)]
    return [t / min(rule.batch_size, len(batches.x)) for t in total]


@pytest.mark.parametrize(("n", "size"), [(40, 8), (5, 8)])
@pytest.mark.parametrize("micro", [None, 3])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_a_step_is_that_of_a_loop_over_examples(n: int, size: int, micro: int | None, scale: float) -> None:
    rule, (model, start) = ExampleGradients(clip=0.5, noise=0.7, batch_size=size), model_of(mlp)
    batches = batches_of(n, scale=scale, key=4)
    (rows,) = drawn(rule, batches)
    assert len(rows) != size
    after = trained(rule, model, start, batches, micro_batch=micro)
    expected = by_hand(rule, model, start, batches, rows)
    for before, now, g in zip(start.params.values(), after.params.values(), expected, strict=True):
        torch.testing.assert_close(before - now, g, rtol=1e-10, atol=1e-12)
    assert rows == sorted(set(rows))
    assert n > size or rows == [*range(n)]


def test_each_example_is_drawn_at_its_rate() -> None:
    rows = drawn(ExampleGradients(clip=1.0, noise=0.0, batch_size=8), batches_of(40, steps=4000))
    counts = np.bincount([i for each in rows for i in each], minlength=40)
    assert abs(counts / 4000 - 0.2).max() < 5 * (0.2 * 0.8 / 4000) ** 0.5
    sizes = np.array([len(each) for each in rows])
    assert abs(sizes.mean() - 8) < 0.2
    assert abs(sizes.var() - 40 * 0.2 * 0.8) < 0.7
    pairs = [(3 in each, 4 in each) for each in rows]
    assert abs(np.mean([a and b for a, b in pairs]) - 0.04) < 0.02  # whoever else is drawn


def test_a_second_training_of_the_same_batches_draws_others() -> None:
    rule, batches = ExampleGradients(clip=1.0, noise=0.0, batch_size=8), batches_of(40, steps=5)
    with executing(Execution(gradients=rule)) as run:
        first = drawn(rule, batches)
        run.losses.append(torch.zeros(5))
        assert drawn(rule, batches) != first
    assert drawn(rule, batches_of(40, steps=5, key=6)) != first


@pytest.mark.parametrize("seed", range(20))
def test_one_example_moves_the_sum_by_at_most_the_bound(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    rule = ExampleGradients(clip=0.3, noise=0.0)
    step = step_of(rule)
    scale = 10.0 ** torch.randint(-30, 18, (9, 1), generator=draw)
    grads = [torch.randn(9, 3, 2, generator=draw) * scale[..., None], torch.randn(9, 4, generator=draw) * scale]
    mask = torch.ones(9, dtype=torch.bool)
    whole = step._clipped(grads, mask)
    without = step._clipped(grads, mask & (torch.arange(9) != 4))
    moved = torch.cat([(a - b).flatten() for a, b in zip(whole, without, strict=True)]).double().norm()
    assert float(moved) <= 0.3 * (1 + 1e-5)


def test_an_example_whose_gradient_is_not_finite_adds_nothing() -> None:
    step = step_of(ExampleGradients(clip=0.3, noise=0.0))
    mask = torch.ones(3, dtype=torch.bool)
    grads = [torch.tensor([[1.0, 2.0], [torch.inf, 0.0], [torch.nan, 1.0]])]
    (total,) = step._clipped(grads, mask)
    (alone,) = step._clipped([grads[0][:1]], mask[:1])
    torch.testing.assert_close(total, alone)


def test_a_batch_without_examples_is_noise_alone() -> None:
    rule = ExampleGradients(clip=0.5, noise=0.7, batch_size=1)
    model, start = model_of(mlp)
    key = next(k for k in range(99) if drawn(rule, batches_of(40, key=k)) == [[]])
    after = trained(rule, model, start, batches_of(40, key=key))
    for p, now, g in zip(start.params.values(), after.params.values(), noise_of(rule, key, start), strict=True):
        torch.testing.assert_close(p - now, g, rtol=1e-10, atol=1e-12)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)  # type: ignore[no-any-return]


def test_what_has_no_gradient_gets_no_noise() -> None:
    rule, (model, start) = ExampleGradients(clip=0.5, noise=0.7, batch_size=8), model_of(TwoHeads)
    after = trained(rule, model, start, batches_of(40, steps=3), weight_decay=0.1)
    moved = {n for n, p in after.params.items() if not torch.equal(p, start.params[n])}
    assert moved == {"used.weight", "used.bias"}


def test_what_a_correction_leaves_alone_gets_no_noise() -> None:
    rule, (model, start) = ExampleGradients(clip=0.5, noise=0.7, batch_size=8), model_of(TwoHeads)
    loss = fl.core.losses.task_loss(model, Classification())
    with executing(Execution(gradients=rule)):
        after = fl.minimise(
            lambda w, batch, shift: loss(w, batch), start, batches_of(40, steps=3), fl.SGD(lr=1.0),
            torch.tensor(0.5, dtype=torch.float64), lr=torch.tensor(1.0, dtype=torch.float64),
            correct=lambda g, shift: fl.Params({n: t * shift for n, t in g.items()}),
        )  # fmt: skip
    moved = {n for n, p in after.params.items() if not torch.equal(p, start.params[n])}
    assert moved == {"used.weight", "used.bias"}


class Private(fl.Part):
    def __init__(self, **rule: Any) -> None:
        self.gradients = ExampleGradients(**{"clip": 0.5, "noise": 0.7, **rule})


def run(*parts: fl.Part, **more: Any) -> fl.History:
    settings = fl.RunSettings(rounds=2, cohort_size=3, engine="loop", threads=1)
    return fl.run(fl.FedAvg(local=LOCAL), federation(), linear, settings, parts=parts, **more)


@pytest.mark.slow
def test_a_part_brings_the_rule_of_a_run() -> None:
    plain, private, other = run(), run(Private()), run(Private(noise=0.8))
    losses = [history.series("train_loss").tolist() for history in (plain, private, other)]
    assert losses[0] != losses[1] != losses[2]
    assert run(Private()).metrics == private.metrics


def test_a_run_goes_on_with_the_same_rule_alone(tmp_path: Any) -> None:
    run(Private(), directory=tmp_path / "run")
    with pytest.raises(fl.SettingError, match="gradients"):
        run(Private(noise=0.1), directory=tmp_path / "run", resume=True)


def test_dropout_of_an_example_is_its_own() -> None:
    network = lambda: nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3))  # noqa: E731
    rule, (model, start) = ExampleGradients(clip=9.0, noise=0.0, batch_size=8), model_of(network)
    batches = batches_of(8)
    same = tree.map_tree(lambda t: t, batches)
    same = fl.core.types.replace(same, x=batches.x[:1].expand(8, 4), y=batches.y[:1].expand(8))
    seen: list[Tensor] = []
    step = step_of(rule)
    original = ByExample._clipped

    def watched(self: Any, grads: Any, mask: Tensor) -> Any:
        seen.append(grads[2])
        return original(self, grads, mask)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ByExample, "_clipped", watched)
        trained(rule, model, start, same)
    zero = seen[0].abs().sum(1) == 0
    assert len({tuple(row.tolist()) for row in zero}) == 8
    assert step.functional


def after_rounds(kind: Any, algorithm: Any, **more: Any) -> tuple[Any, Any]:
    engine = kind(population(mlp), algorithm, Options(gradients=RULE, **more))
    server = engine.init()
    for round in range(2):
        server = engine.round(server, (0, 1, 2) if not round else (1, 2, 4), round)
    states = engine.all_states() if isinstance(engine, DevicesInProcess) else dict(engine.states)
    engine.close()
    return server, states


@pytest.mark.slow
@pytest.mark.parametrize("method", [fl.FedAvg, fl.Scaffold, fl.FedPer, fl.Ditto])
def test_engines_agree(method: Any) -> None:
    algorithm = method(local=LOCAL)
    expected = tree.leaves(after_rounds(Loop, algorithm))
    for kind in (Messages, DevicesInProcess, Workers):
        found = tree.leaves(after_rounds(kind, algorithm))
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True)), kind
    for more in ({}, {"compilation": "trace"}, {"chunk": 2}):
        for a, b in zip(expected, tree.leaves(after_rounds(Stacked, algorithm, **more)), strict=True):
            assert torch.allclose(a.double(), b.double(), atol=1e-6), more


@pytest.mark.parametrize("micro", [None, 3])
def test_stacks_leave_room_for_gradients_by_example(micro: int | None) -> None:
    """A measured step holds 1.3 to 1.9 times the gradients: they are copied to be summed."""
    p, size = population(mlp), LOCAL.batch_size
    local = fl.replace(LOCAL, optimiser=fl.SGD(lr=0.1, micro_batch=micro))
    rows, each = micro or 2 * size, 4 * p.models["net"].num_params
    step = step_bytes(p.models["net"], p, size)
    stacked = Stacked(p, fl.FedAvg(local=local), Options(gradients=RULE))
    assert stacked.chunks == {"net": (2 << 30) // (step + 2 * rows * each)}
    assert ExampleGradients(clip=1.0, noise=1.0, batch_size=512).held(1 << 20) == 128 << 20


def test_losses_stay_where_draws_are_secret() -> None:
    rule = ExampleGradients(clip=0.5, noise=0.7, secret=True)
    moved = []
    for _ in range(2):
        engine = DevicesInProcess(population(mlp), fl.FedAvg(local=LOCAL), Options(gradients=rule))
        moved.append(tree.leaves(engine.round(engine.init(), (0, 1), 0)))
        assert not engine.traffic.losses
        assert not engine.traffic.failed
        engine.close()
    assert not any(torch.equal(a, b) for a, b in zip(*moved, strict=True))


@pytest.mark.slow
def test_clients_draw_for_themselves() -> None:
    fast = fl.FedAvg(local=fl.Local(epochs=1, batch_size=4, optimiser=fl.SGD(lr=0.1)))
    for a, b in zip(
        tree.leaves(after_rounds(Loop, fast)), tree.leaves(after_rounds(Stacked, fast, compilation="trace")),
        strict=True,
    ):  # fmt: skip
        assert torch.allclose(a.double(), b.double(), atol=1e-6)


def test_examples_are_not_read_beside_their_gradients() -> None:
    model, start = model_of(linear)
    with executing(Execution(gradients=RULE)), pytest.raises(StackingError, match="beside them"):
        fl.fold(lambda carry, batch: carry + batch.x.sum(), torch.zeros((), dtype=torch.float64), batches_of(8))
    with executing(Execution(gradients=RULE)):
        assert batches_of(8).predict(model, start).shape == (8, 3)  # rows that stay apart


def test_secret_draws_are_normal_and_new_each_time() -> None:
    draw = source(True, 3, "noise")
    one, other = draw.normal((200, 100), torch.float32), source(True, 3, "noise").normal((200, 100), torch.float32)
    assert one.dtype == np.float32
    assert not np.array_equal(one, other)
    assert abs(one.mean()) < 0.04
    assert abs(one.std() - 1) < 0.03
    assert abs((one**4).mean() - 3) < 0.3  # of a normal distribution
    uniform = draw.uniform(20_000)
    assert abs(uniform.mean() - 0.5) < 0.02
    assert uniform.min() >= 0
    assert uniform.max() < 1
    rule = ExampleGradients(clip=1.0, noise=0.0, batch_size=8, secret=True)
    assert drawn(rule, batches_of(40, steps=5)) != drawn(rule, batches_of(40, steps=5))
