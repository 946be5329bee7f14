"""What a server trains with: batches of public examples, the mean of many predictions, a falling rate."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.core.client import Public
from fedloom.core.optimiser import SGD, Adam, Optimiser
from fedloom.data import Federation, Normalise, Partition
from fedloom.data.examples import Examples
from fedloom.engines.population import Population
from small import TINY


def public(n: int) -> Public:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(n, 6)))
    examples = Examples(x, torch.zeros(n, dtype=torch.int64), 4, normalise=Normalise(mean=(0.5,), std=(2.0,)))
    people = Federation(train=examples, partition=Partition.from_lists([range(n)]), public=examples)
    return Population(people, {"tiny": TINY}, dtype=torch.float64).public


@pytest.mark.parametrize(("n", "size", "steps"), [(10, 4, 7), (10, 50, 3), (3, 3, 1)])
def test_shuffled_batches_are_passes_over_permutations(n: int, size: int, steps: int) -> None:
    batches = public(n).shuffled(size, steps, key=5)
    assert batches.order.shape == batches.mask.shape == (steps, min(n, size))
    assert int(batches.num_steps) == steps
    seen = batches.order[batches.mask].tolist()
    passes = [seen[i : i + n] for i in range(0, len(seen), n)]
    assert all(sorted(p) == list(range(n)) for p in passes[:-1])
    assert len(set(passes[-1])) == len(passes[-1])
    again, other = (public(n).shuffled(size, steps, key=k).order for k in (5, 6))
    assert torch.equal(batches.order, again)
    assert n == 3 or not torch.equal(batches.order, other)


def test_consensus_is_the_mean_over_prepared_examples() -> None:
    examples, teachers = public(7), [TINY.init(k, torch.float64) for k in range(3)]
    x = (examples.batches.x - 0.5) / 2.0
    want = torch.stack([TINY(w, x) for w in teachers]).mean(0)
    np.testing.assert_allclose(examples.consensus([(TINY, w) for w in teachers]), want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Adam(lr=0.1, clip=0.5), lambda p: torch.optim.Adam(p, lr=0.1)),
        (SGD(lr=0.1, momentum=0.9, clip=0.5), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    ],
)
def test_cosine_is_that_of_torch(ours: Optimiser, theirs: Any) -> None:
    rng = np.random.default_rng(0)
    start = [torch.from_numpy(rng.normal(size=s)) for s in ((4, 3), (3,))]
    grads = [[torch.from_numpy(rng.normal(size=p.shape)) for p in start] for _ in range(8)]
    params = [torch.nn.Parameter(p.clone()) for p in start]
    reference = theirs(params)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(reference, T_max=8)
    cosine, weights = dataclasses.replace(ours, schedule="cosine:8?by=step"), [p.clone() for p in start]
    state = cosine.init(weights)
    stacked = [torch.stack([p, 2 * p]) for p in start]  # two clients, each with a rate of its own
    stacked_state, rates = cosine.init(stacked, lead=1), torch.tensor([0.1, 0.05], dtype=torch.float64)
    for g in grads:
        for p, value in zip(params, g, strict=True):
            p.grad = value.clone()
        torch.nn.utils.clip_grad_norm_(params, 0.5)
        reference.step()
        schedule.step()
        cosine.step_(weights, g, state, torch.tensor(cosine.lr, dtype=torch.float64))
        cosine.step_(stacked, [torch.stack([v, v]) for v in g], stacked_state, rates, lead=1)
        for a, b, c in zip(weights, params, stacked, strict=True):
            np.testing.assert_allclose(a, b.detach(), rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(c[0], a, rtol=1e-12, atol=1e-14)
    for a, b, c in zip(start, weights, stacked, strict=True):
        np.testing.assert_allclose(c[1] - 2 * a, 0.5 * (b - a), rtol=1e-9, atol=1e-12)  # half the rate, half the way
    resting = [p.clone() for p in weights]
    cosine.step_(resting, grads[0], state, torch.tensor(cosine.lr, dtype=torch.float64))
    assert all(torch.equal(a, b) for a, b in zip(resting, weights, strict=True))  # past its end the rate is 0
