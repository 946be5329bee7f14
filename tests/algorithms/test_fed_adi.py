"""Fed-ADI: numbers of the authors' code for its loss, what an epoch does, and what is warned of."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from conftest import golden
from torch import Tensor
from torch.func import grad

from colours import LOCAL, federation, one_shot, rounds
from fedloom.algorithms.fed_adi import FedADI, inversion_losses, jensen_shannon, rolled, total_variation
from fedloom.algorithms.shared.one_shot import Teachers
from fedloom.algorithms.shared.synthetic import as_bytes
from fedloom.core import tree
from fedloom.core.errors import SettingWarning
from fedloom.core.fold.execution import Execution, executing
from fedloom.core.local_training import Distill
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Adam
from fedloom.core.random import derive
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from small import DenseTiny, weights_at

TINY = Model(DenseTiny, name="tiny")
SMALL: dict[str, Any] = {
    "steps": 5,
    "synthesis": Distill(batch_size=8, optimiser=Adam(lr=0.05)),
    "distill": Distill(batch_size=8, optimiser=SGD(lr=0.05, momentum=0.9)),
    "local": LOCAL,
}


def test_the_loss_is_the_authors() -> None:
    """CE + 10 (1 - JS) + 2.5e-5 TV + 10 R of one teacher, each of them, and the gradient of the sum."""
    g = golden("ktpfl_dense/adi")
    x, y, student = torch.from_numpy(g["x"]), torch.from_numpy(g["targets"]), weights_at(g, "student/")
    teachers = Teachers(weights=(tree.stack([weights_at(g, "teacher/")]),), models=(TINY,))
    ce, bn, tv, js = inversion_losses(teachers, TINY, student, x, y)
    for value, name in ((ce, "ce"), (bn, "bn"), (tv, "tv"), (1 - js, "competition")):
        np.testing.assert_allclose(value, g[f"loss_{name}"], rtol=1e-5)
    defaults = FedADI()

    def total(x: Tensor) -> Tensor:
        ce, bn, tv, js = inversion_losses(teachers, TINY, student, x, y)
        return ce + defaults.alpha_f * bn + defaults.alpha_tv * tv + defaults.alpha_c * (1 - js)

    np.testing.assert_allclose(total(x), g["total"], rtol=1e-5)
    np.testing.assert_allclose(grad(total)(x), g["grad_x"], rtol=1e-4, atol=1e-4 * abs(g["grad_x"]).max())


def test_r_of_several_clients_is_a_mean() -> None:
    g = golden("ktpfl_dense/dense_generator_losses")
    teachers = Teachers(weights=(tree.stack([weights_at(g, f"client{k}/") for k in range(3)]),), models=(TINY,))
    x, y = torch.from_numpy(g["x"]), torch.from_numpy(g["targets"])
    ce, bn, *_ = inversion_losses(teachers, TINY, weights_at(g, "student/"), x, y)
    np.testing.assert_allclose(3 * bn, g["loss/bn"], rtol=1e-5)
    np.testing.assert_allclose(ce, g["loss/ce"], rtol=1e-5)


def test_pieces_of_the_loss() -> None:
    a, b = torch.tensor([[9.0, 0, 0]]), torch.tensor([[0.0, 9, 0]])
    assert float(jensen_shannon(a, a)) == 0
    assert float(jensen_shannon(a, b)) == float(jensen_shannon(b, a)) > 0.4
    assert float(total_variation(torch.ones(2, 3, 4, 4))) == 0
    for corner in range(4):  # right, below and one diagonal
        assert float(total_variation(torch.eye(4)[corner].reshape(1, 1, 2, 2))) == 3
    assert float(total_variation(torch.rand(3, 5))) == 0  # no neighbours
    x = torch.arange(2 * 36.0).reshape(2, 1, 6, 6)
    moved = {tuple(int(t) for t in rolled(x, torch.tensor(key))[0, 0, 0, :1]) for key in range(300)}
    assert len(moved) == 25
    for key in range(5):
        back = rolled(x, torch.tensor(key))
        assert any(
            torch.equal(back, torch.roll(x, (down, right), (2, 3))) for down in range(-2, 3) for right in range(-2, 3)
        )


@pytest.mark.slow
def test_pixels_go_down_the_loss_and_the_least_is_kept() -> None:
    g = golden("ktpfl_dense/dense_generator_losses")
    adi = dataclasses.replace(FedADI(**SMALL), steps=30).bind(federation(), {"tiny": TINY})
    teachers = Teachers(weights=(tree.stack([weights_at(g, f"client{k}/") for k in range(3)]),), models=(TINY,))
    x, y = torch.rand((8, 3, 8, 8), generator=torch.Generator().manual_seed(0)), torch.arange(8) // 2
    with executing(Execution()) as seen:
        kept = adi.inverted(x, y, teachers, weights_at(g, "student/"))
    losses = seen.losses[0]
    assert float(kept.buffers["loss"]) == float(losses.min()) < 0.85 * float(losses[0])
    parts = {n: float(kept.buffers[n]) for n in ("ce", "bn", "tv", "js")}
    total = parts["ce"] + 10 * parts["bn"] + 2.5e-5 * parts["tv"] + 10 * (1 - parts["js"])
    assert total == pytest.approx(float(losses.min()), rel=1e-5)
    assert not torch.equal(kept.buffers["x"], x)


@pytest.mark.slow
def test_an_epoch_begins_with_pixels_around_the_middle_and_keeps_those_of_the_least_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pixels of the seed's own numbers, 0.5 + 0.25 of each, of which the first loss is that by hand."""
    seen: list[Any] = []

    def watched(self: Any, x: Tensor, *more: Any, f: Any = FedADI.inverted) -> Any:
        with executing(Execution()) as done:
            kept = f(self, x, *more)
        seen.append((x, more, done.losses[0], kept))
        return kept

    monkeypatch.setattr(FedADI, "inverted", watched)
    monkeypatch.setattr("fedloom.algorithms.fed_adi.rolled", lambda x, key: x)
    engine = Loop(Population(federation(), {"tiny": TINY}), FedADI(**SMALL))
    rounds(engine, 3)
    made, pool = engine.algorithm, engine.pool("images")
    for t, (x, (y, teachers, student, _), losses, kept) in enumerate(seen, 1):
        rng = torch.Generator().manual_seed(derive(0, "server", t, "drawn"))
        labels = torch.randint(4, (8,), generator=rng).sort().values
        assert torch.equal(y, labels)
        pixels = 0.5 + 0.25 * torch.randn((8, 3, 8, 8), generator=rng)
        torch.testing.assert_close(x, pixels)
        ce, bn, tv, js = inversion_losses(teachers, TINY, student, pixels, labels)
        first = ce + made.alpha_f * bn + made.alpha_tv * tv + made.alpha_c * (1 - js)
        torch.testing.assert_close(losses[0].float().flatten()[0], first, rtol=1e-5, atol=0)
        assert torch.equal(pool[t - 1].x, as_bytes(kept.buffers["x"]))
    assert len(seen) == len(pool) == 2


@pytest.mark.slow
def test_an_epoch_adds_a_batch_and_the_student_passes_over_the_pool() -> None:
    engine = Loop(Population(federation(), {"tiny": TINY}), FedADI(**SMALL))
    after = rounds(engine, 3)
    assert [int(s[""].student.buffers["bn1.num_batches_tracked"]) for s in after] == [0, 1, 3]
    assert [made.x.shape for made in engine.pool("images")] == [(8, 3, 8, 8)] * 2
    history = one_shot(FedADI(**SMALL), TINY, rounds=3)
    for m in history.metrics[2:]:
        assert m["clients"] == []
        assert min(m[f"server_{name}"] for name in ("loss", "ce", "bn", "tv", "js")) > 0


def test_networks_without_statistics_are_warned_of() -> None:
    bare = Model(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4)), name="bare")
    with pytest.warns(SettingWarning, match=r"alpha_f = 10.0 weighs .* none in bare, .*: set alpha_f = 0, or use"):
        one_shot(FedADI(**SMALL), bare, rounds=1)
    one_shot(FedADI(**SMALL, alpha_f=0.0), bare, rounds=2)
