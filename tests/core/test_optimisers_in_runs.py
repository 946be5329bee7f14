"""Every optimiser and schedule in runs: the same on each engine, and resumed exactly."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedloom as fl
from fedloom.core.batch import piece_of, probe
from tiny import federation, mlp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signs(fl.Optimiser):
    """The example in the documentation of `Optimiser`."""

    lr: fl.Positive = 1e-3
    beta: float = 0.9

    def kept(self, p: Tensor) -> tuple[Tensor, ...]:
        return (torch.zeros_like(p),)

    def move_(self, p: Tensor, g: Tensor, kept: Sequence[Tensor], lr: Tensor, steps: Tensor | None) -> None:
        p.sub_(lr * kept[0].lerp_(g, 1 - self.beta).sign())


OPTIMISERS: dict[str, fl.Optimiser] = {
    "sgd": fl.SGD(lr=0.1, momentum=0.9, schedule="cosine:6?by=step&warmup=2", clip_value=0.5),
    "adam": fl.Adam(lr=0.01, schedule="step:2:0.5?by=step"),
    "adamw": fl.AdamW(lr=0.01, weight_decay=0.1, schedule="cosine:3?warmup=1"),
    "rmsprop": fl.RMSprop(lr=0.01, momentum=0.5, schedule="exponential:0.9?by=step"),
    "adagrad": fl.Adagrad(lr=0.1, clip=1.0),
    "own": Signs(lr=0.01, schedule="cosine:6?by=step"),
}


def weights(
    optimiser: fl.Optimiser, engine: str, compilation: str = "none", *, method: Any = fl.FedAvg, **more: Any
) -> dict[str, Tensor]:
    settings = fl.RunSettings(
        rounds=3, cohort_size=4, engine=engine, threads=1, dtype="float64", compilation=compilation,
    )  # fmt: skip
    made = method(local=fl.Local(epochs=2, batch_size=5, optimiser=optimiser))
    server = fl.run(made, federation(), mlp, settings, **more).server["Sequential"]
    return dict(getattr(server, "x", server).params)


@pytest.mark.some(1)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_stack_and_a_trace_are_the_loop(name: str) -> None:
    loop = weights(OPTIMISERS[name], "loop")
    for other in (weights(OPTIMISERS[name], "stacked"), weights(OPTIMISERS[name], "stacked", "trace")):
        for key, value in loop.items():
            np.testing.assert_allclose(other[key], value, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OPTIMISERS.keys() - {"own"}))
def test_workers_are_the_loop_and_a_resumed_run_the_whole_one(name: str, tmp_path: Path) -> None:
    optimiser = OPTIMISERS[name]
    loop = weights(optimiser, "loop", directory=tmp_path / "whole")
    workers = weights(optimiser, "workers")
    job = fl.Job(
        algorithm=fl.FedAvg(local=fl.Local(epochs=2, batch_size=5, optimiser=optimiser)), federation=federation(),
        model=mlp, settings=fl.RunSettings(rounds=2, cohort_size=4, engine="loop", threads=1, dtype="float64"),
    )  # fmt: skip
    job.run(tmp_path / "half")
    more = dataclasses.replace(job, settings=dataclasses.replace(job.settings, rounds=3))
    resumed = more.run(tmp_path / "half", resume=True).server["Sequential"].params
    for key, value in loop.items():
        assert torch.equal(workers[key], value)
        assert torch.equal(resumed[key], value)


def test_another_schedule_is_another_run() -> None:
    plain, falling = fl.SGD(lr=0.1), fl.SGD(lr=0.1, schedule="cosine:2?by=step")
    assert any(not torch.equal(a, b) for a, b in zip(
        weights(plain, "loop").values(), weights(falling, "loop").values(), strict=True
    ))  # fmt: skip


@pytest.mark.some(1)
@pytest.mark.parametrize(("engine", "compilation"), [("loop", "none"), ("stacked", "none"), ("stacked", "trace")])
@pytest.mark.parametrize("method", [fl.FedAvg, fl.FedProx, fl.Scaffold])
def test_a_batch_in_parts_is_the_batch(method: Any, engine: str, compilation: str) -> None:
    """Of batches of 5, the last one of 2 with 3 rows of padding, in parts of 2: 2 + 2 + 1 rows, and 2 + 0 + 0."""
    whole, parts = (
        weights(fl.SGD(lr=0.1, momentum=0.9, clip=0.5, micro_batch=rows), engine, compilation, method=method)
        for rows in (None, 2)
    )
    for key, value in whole.items():
        np.testing.assert_allclose(parts[key], value, rtol=1e-9, atol=1e-11)


def test_parts_of_a_batch_draw_by_keys_of_their_own() -> None:
    batch = probe(torch.zeros(4, 2), notes={"teacher": torch.arange(4.0)})
    first, second = (piece_of(batch, 2 * n, 2 * n + 2, n) for n in (0, 1))
    assert int(first.key) != int(second.key)
    assert second.teacher.tolist() == [2.0, 3.0]
    assert len(first.x) == len(first.y) == len(first.mask) == 2


def test_a_part_that_all_others_leave_out_is_moved_by_it() -> None:
    """Of a network that chooses by its inputs what it uses, each part of a batch may use another tensor."""
    params = {"a": torch.ones(()), "b": torch.ones(())}

    def loss(w: dict[str, Tensor], batch: fl.Batch) -> Tensor:
        return batch.mean(batch.x[:, 0] * w["a" if float(batch.x[0, 0]) == 1 else "b"])

    x = torch.tensor([[1.0], [1.0], [3.0], [3.0]])
    one, rows = torch.tensor(1), torch.arange(4)
    batches = fl.Batches(
        x=x, y=rows * 0, examples=rows, order=rows[None], mask=torch.ones(1, 4, dtype=torch.bool), num_steps=one,
        num_examples=one * 4, key=one * 0,
    )  # fmt: skip
    moved = fl.minimise(loss, params, batches, fl.SGD(lr=1.0, micro_batch=2), lr=torch.tensor(1.0))
    assert (float(moved["a"]), float(moved["b"])) == (1 - 0.5 * 1, 1 - 0.5 * 3)


def test_cut_numbers_move_less() -> None:
    whole, cut = (weights(fl.SGD(lr=0.1, clip_value=value), "loop") for value in (None, 1e-3))
    begin = weights(fl.SGD(lr=1e-9), "loop")
    moved = [max(float((end[key] - begin[key]).abs().max()) for key in begin) for end in (whole, cut)]
    assert 0 < moved[1] < 0.01 < moved[0]


@pytest.mark.some(1)
@pytest.mark.parametrize("method", [fl.FedAvgM, fl.FedAdam])
def test_a_server_slows_down_by_rounds(method: Any) -> None:
    def ends(rounds: int, **more: Any) -> Tensor:
        made = method(local=fl.Local(epochs=1, batch_size=5, optimiser=fl.SGD(lr=0.1)), **more)
        history = fl.run(
            made, federation(), mlp, fl.RunSettings(rounds=rounds, cohort_size=4, engine="loop", threads=1)
        )
        server = history.server["Sequential"]
        params = getattr(server, "x", getattr(server, "w", server)).params
        return torch.cat([t.flatten() for t in params.values()])

    factor = 0.5
    by_hand = [ends(1, server_lr=rate) for rate in (1.0, factor)]
    start = 2 * by_hand[1] - by_hand[0]  # the first step is proportional to the rate
    first = ends(1, server_lr=1.0, server_schedule="exponential:0.5?warmup=1")
    np.testing.assert_allclose(first - start, factor * (by_hand[0] - start), rtol=1e-4, atol=1e-6)
    assert torch.equal(ends(2, server_lr=1.0, server_schedule="step:5"), ends(2, server_lr=1.0))
    assert not torch.equal(ends(2, server_lr=1.0, server_schedule="step:1"), ends(2, server_lr=1.0))
