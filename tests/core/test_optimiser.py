"""Optimisers against PyTorch's own, one client and a stack."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.algorithms import FedDF, FedNova, Scaffold
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Digest, Distill, Local
from fedloom.core.optimiser import SGD, Adagrad, Adam, AdamW, Optimiser, RMSprop

SHAPES = [(4, 3), (4,), (), (2, 3, 2)]
CASES: dict[str, tuple[Optimiser, Any]] = {
    "plain": (SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (SGD(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "decay": (SGD(lr=0.1, weight_decay=0.05), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05)),
    "nesterov": (
        SGD(lr=0.1, momentum=0.8, weight_decay=0.05, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, weight_decay=0.05, nesterov=True),
    ),
    "adam": (Adam(lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    "adam_decay": (
        Adam(lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    ),
    "adamw": (AdamW(lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01)),
    "adamw_decay": (
        AdamW(lr=0.01, betas=(0.8, 0.95), weight_decay=0.3),
        lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.95), weight_decay=0.3),
    ),
    "rmsprop": (RMSprop(lr=0.01), lambda p: torch.optim.RMSprop(p, lr=0.01)),
    "rmsprop_momentum": (
        RMSprop(lr=0.01, alpha=0.9, eps=1e-4, momentum=0.8, weight_decay=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, eps=1e-4, momentum=0.8, weight_decay=0.1),
    ),
    "adagrad": (Adagrad(lr=0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)),
    "adagrad_accumulator": (
        Adagrad(lr=0.1, accumulator=0.5, weight_decay=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5, weight_decay=0.1),
    ),
}


def numbers(seed: int) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(np.asarray(rng.normal(size=shape))) for shape in SHAPES]


def reference(make: Any, seed: int, steps: int, clip: float | None) -> list[torch.Tensor]:
    params = [torch.nn.Parameter(t) for t in numbers(seed)]
    optimiser = make(params)
    for s in range(steps):
        for p, g in zip(params, numbers(100 * seed + s + 1), strict=True):
            p.grad = g
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(params, clip)
        optimiser.step()
    return [p.detach() for p in params]


@pytest.mark.some(6)
@pytest.mark.parametrize("clip", [None, 1.5, 1e6])
@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_torch(case: str, clip: float | None) -> None:
    ours, make = CASES[case]
    ours = dataclasses.replace(ours, clip=clip)
    K, steps, rate = 3, 5, torch.tensor(ours.lr, dtype=torch.float64)
    want = [reference(make, k + 1, steps, clip) for k in range(K)]
    stack = [torch.stack(ts) for ts in zip(*(numbers(k + 1) for k in range(K)), strict=True)]
    stack_state = ours.init(stack, 1)
    singles = [numbers(k + 1) for k in range(K)]
    states = [ours.init(p) for p in singles]
    for s in range(steps):
        grads = [numbers(100 * (k + 1) + s + 1) for k in range(K)]
        for k in range(K):
            ours.step_(singles[k], grads[k], states[k], rate)
        ours.step_(stack, [torch.stack(g) for g in zip(*grads, strict=True)], stack_state, rate, lead=1)
    for k in range(K):
        for i, value in enumerate(want[k]):
            np.testing.assert_allclose(singles[k][i], value, rtol=0, atol=1e-12)
            np.testing.assert_allclose(stack[i][k], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", ["plain", "momentum", "decay", "nesterov"])
def test_fused_step_is_the_same_step(case: str) -> None:
    ours, _ = CASES[case]
    assert isinstance(ours, SGD)
    one, two = numbers(1), numbers(1)
    states = [ours.init(p) for p in (one, two)]
    for s in range(4):
        grads = numbers(s + 10)
        ours.step_(one, [g.clone() for g in grads], states[0], torch.tensor(0.05, dtype=torch.float64))
        ours.fused_step_(two, [g.clone() for g in grads], states[1], 0.05)
    for a, b in zip([*one, *states[0]], [*two, *states[1]], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fused_step_takes_gradients_of_any_layout(momentum: float) -> None:
    """PyTorch's kernel ignores strides; gradients of sums are expanded, those of products may be transposed."""
    ours = SGD(lr=0.1, momentum=momentum, weight_decay=0.1)
    for g in (torch.arange(12.0).reshape(3, 4).T, torch.ones(()).expand(4, 3), torch.arange(24.0)[::2].reshape(4, 3)):
        one, two = [torch.ones(4, 3)], [torch.ones(4, 3)]
        states = [ours.init(p) for p in (one, two)]
        for _ in range(2):
            ours.step_(one, [g], states[0], torch.tensor(0.1))
            ours.fused_step_(two, [g], states[1], 0.1)
        assert torch.allclose(one[0], two[0], rtol=1e-6)


@pytest.mark.parametrize(
    "optimiser", [SGD(lr=1.0, momentum=0.9), SGD(lr=1.0, clip=1.0), Adam(lr=1.0), AdamW(lr=1.0, weight_decay=0.5)]
)
def test_a_rate_for_each_client(optimiser: Optimiser) -> None:
    """As many clients as the last axis is long: a rate that broadcast over it would go unnoticed."""
    rates = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    start, g = torch.ones(3, 4, 3, dtype=torch.float64), torch.full((3, 4, 3), 2.0, dtype=torch.float64)
    stack = [start.clone()]
    optimiser.step_(stack, [g.clone()], optimiser.init(stack, 1), rates, lead=1)
    for k in range(3):
        one = [start[k].clone()]
        alone = dataclasses.replace(optimiser, lr=float(rates[k]))  # `lr` itself is nobody's rate here
        alone.step_(one, [g[k].clone()], alone.init(one), rates[k])
        np.testing.assert_allclose(stack[0][k], one[0], rtol=0, atol=1e-12)


def test_apply_is_pure() -> None:
    weights, gradient = {"w": torch.ones(2)}, {"w": torch.full((2,), 3.0)}
    optimiser = SGD(lr=0.5, momentum=0.9)
    start = optimiser.init([weights["w"]])
    moved, after = optimiser.apply(weights, gradient, start)
    again, _ = optimiser.apply(moved, gradient, after)
    assert weights["w"].tolist() == [1, 1]
    assert start[0].tolist() == [0, 0]
    assert moved["w"].tolist() == [-0.5, -0.5]
    assert again["w"].tolist() == pytest.approx([-0.5 - 0.5 * 5.7] * 2)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_effective_steps_sum_what_momentum_does(momentum: float) -> None:
    for n in (0, 1, 7):
        velocity = total = 0.0
        for _ in range(n):  # a constant gradient of 1 moves the weights by the sum of the velocities
            velocity = momentum * velocity + 1
            total += velocity
        assert float(SGD(momentum=momentum).effective_steps(torch.tensor(n))) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(lr=0.0), "lr must be > 0, got 0.0"),
        (lambda: SGD(lr=float("nan")), "lr must be finite, got nan"),
        (lambda: SGD(lr=0.1, clip=-1), "clip must be > 0, got -1"),
        (lambda: SGD(lr=0.1, clip_value=0), "clip_value must be > 0, got 0"),
        (lambda: SGD(lr=0.1, schedule="cosin:5"), r"unknown schedule 'cosin:5' \(did you mean 'cosine'\?\)"),
        (lambda: Distill(batch_size=4, optimiser=SGD(schedule="cosine:5")), r"write cosine:5\?by=step"),
        (
            lambda: Digest(epochs=1, batch_size=4, optimiser=SGD(schedule="step:5?warmup=2")),
            r"got schedule = 'step:5\?warmup=2', by rounds: write step:5\?warmup=2&by=step",
        ),
        (lambda: SGD(lr=0.1, momentum=1.0), "momentum must be >= 0 and < 1, got 1.0"),
        (lambda: SGD(lr=0.1, weight_decay=-1), "weight_decay must be >= 0, got -1"),
        (lambda: SGD(lr=0.1, nesterov=True), "nesterov needs momentum"),
        (lambda: Adam(betas=(0.9, 1.0)), "betas must be >= 0 and < 1, got 1.0"),
        (lambda: Local(epochs=0), "epochs must be >= 1, got 0"),
        (lambda: Local(batch_size=0), "batch_size"),
        (lambda: Local(steps=0), "steps must be >= 1, got 0"),
        (lambda: Local(decay=0.0), "decay must be > 0 and <= 1, got 0.0"),
        (lambda: Distill(batch_size=0, optimiser=SGD()), "batch_size must be >= 1, got 0"),
        (lambda: FedDF(distill=Local(epochs=50)), r"distill must be of type Distill, got Local\(epochs=50"),  # type: ignore[arg-type]
        (lambda: Digest(epochs=0, batch_size=4, optimiser=SGD()), "epochs must be >= 1, got 0"),
        (lambda: Digest(epochs=1, batch_size=0, optimiser=SGD()), "batch_size must be >= 1, got 0"),
    ],
)
def test_settings_are_checked(make: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()


@pytest.mark.parametrize(
    ("kind", "settings"), [(Scaffold, {}), (Scaffold, {"divisor": "steps"}), (FedNova, {})], ids=str
)
def test_adam_is_refused_where_plain_steps_are_counted(kind: Any, settings: dict[str, Any]) -> None:
    name = kind.__name__
    message = (
        f"^{name} reads gradients from its steps, and steps of Adam .*: use SGD for all methods, or leave {name} out"
    )
    with pytest.raises(SettingError, match=message):
        kind(local=Local(optimiser=Adam()), **settings)


def test_a_schedule_by_steps_is_refused_where_plain_steps_are_counted() -> None:
    with pytest.raises(SettingError, match=r"steps of 'cosine:9\?by=step' amount to .*: take one by rounds"):
        FedNova(local=Local(optimiser=SGD(schedule="cosine:9?by=step")))
    FedNova(local=Local(optimiser=SGD(schedule="cosine:9")))


def test_numbers_of_a_gradient_are_cut_before_its_norm() -> None:
    ours = SGD(lr=0.1, clip_value=0.5, clip=1.0)
    params, theirs = numbers(1), [torch.nn.Parameter(t) for t in numbers(1)]
    ours.step_(params, numbers(7), ours.init(params), torch.tensor(0.1, dtype=torch.float64))
    for p, g in zip(theirs, numbers(7), strict=True):
        p.grad = g
    torch.nn.utils.clip_grad_value_(theirs, 0.5)
    torch.nn.utils.clip_grad_norm_(theirs, 1.0)
    torch.optim.SGD(theirs, lr=0.1).step()
    for a, b in zip(params, theirs, strict=True):
        np.testing.assert_allclose(a, b.detach(), rtol=1e-12)


def test_rate_decays_by_round() -> None:
    assert Local(optimiser=SGD(lr=0.1), decay=0.5).rate(0) == 0.1
    assert Local(optimiser=SGD(lr=0.1), decay=0.5).rate(3) == pytest.approx(0.0125)
    assert Local(optimiser=SGD(lr=0.1, schedule="step:2:0.1"), decay=0.5).rate(3) == pytest.approx(0.00125)
    assert Local(optimiser=SGD(lr=0.1, schedule="step:2:0.1?by=step")).rate(3) == 0.1
