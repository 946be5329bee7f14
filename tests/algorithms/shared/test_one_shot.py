"""Teachers in a stack or one after another, how examples are made and kept, and a server that goes on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import golden
from torch import nn

from fedloom.algorithms import DENSE
from fedloom.algorithms.shared import one_shot
from fedloom.algorithms.shared.one_shot import Teachers, in_one_stack
from fedloom.algorithms.shared.synthetic import as_public, labelled, least, lesser, statistics_distance
from fedloom.core import tree
from fedloom.core.batch import Batch
from fedloom.core.batches import noise
from fedloom.core.fold import fold, minimise, minimise_from
from fedloom.core.losses import divergence, divergence_of_logits
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Adam
from fedloom.core.types import Weights
from fedloom.data import Normalise
from small import TINY, DenseTiny, weights_at

IMAGES = Model(DenseTiny, name="images")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("epochs", "collecting"), [(None, [0]), (1, [0, 2, 4, 6]), (2, [0, 3, 6]), (9, [0])])
def test_in_which_rounds_clients_upload(epochs: int | None, collecting: list[int]) -> None:
    algorithm = DENSE(epochs=epochs)
    assert [t for t in range(8) if algorithm.collects(t)] == collecting


def test_which_teachers_are_computed_in_one_stack() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    asked = {(m.name, d.type): in_one_stack(m, d) for m in (TINY, IMAGES, Model(Recurrent, "lstm")) for d in (cpu, gpu)}
    assert asked == {
        ("tiny", "cpu"): True,
        ("tiny", "cuda"): True,
        ("images", "cpu"): False,
        ("images", "cuda"): True,
        ("lstm", "cpu"): False,
        ("lstm", "cuda"): False,
    }


@pytest.mark.parametrize("stacked", [False, True])
def test_statistics_of_each_client_are_the_authors(stacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_shot, "in_one_stack", lambda model, device: stacked)
    g = golden("ktpfl_dense/dense_generator_losses")
    x, clients = torch.from_numpy(g["x"]), [weights_at(g, f"client{k}/") for k in range(3)]
    teachers = Teachers(weights=(tree.stack(clients[:2]), tree.stack(clients[2:])), models=(IMAGES, IMAGES))
    assert teachers.count == 3
    moments = teachers.each(lambda model, w: model.moments(w, x)[1])
    for k in range(3):
        for layer, (mean, var) in moments.items():
            np.testing.assert_allclose(mean[k], g[f"bn_batch_mean/client{k}/{layer}"], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(var[k], g[f"bn_batch_var/client{k}/{layer}"], rtol=1e-5, atol=1e-6)
    logits, r = teachers.each(lambda model, w: statistics_distance(model, w, x))
    np.testing.assert_allclose(r, g["r_feature"].sum(1), rtol=1e-5)
    np.testing.assert_allclose(logits, g["per_client_logits"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(teachers.logits(x), g["ensemble_logits"], rtol=1e-5, atol=1e-6)


def test_a_network_without_statistics_is_at_no_distance() -> None:
    x = torch.ones(2, 6)
    weights = TINY.init(0)
    logits, r = statistics_distance(TINY, weights, x)
    assert float(r) == 0
    assert torch.equal(logits, TINY(weights, x))
    assert (TINY.has_statistics, IMAGES.has_statistics) == (False, True)
    first = Model(nn.BatchNorm1d(6))  # whose layer has no name
    np.testing.assert_allclose(statistics_distance(first, first.init(0), x)[1], 6**0.5 + 6**0.5)


def test_kl_of_logits_has_gradients_in_both_where_a_class_has_no_probability() -> None:
    teacher, student = torch.tensor([[200.0, 0.0]]), torch.tensor([[1.0, 2.0]])
    want = divergence(student, torch.softmax(teacher, -1))
    torch.testing.assert_close(divergence_of_logits(teacher, student), want)
    leaves = [t.clone().requires_grad_() for t in (teacher, student)]
    slopes = torch.autograd.grad(divergence_of_logits(*leaves).sum(), leaves)
    assert all(bool(s.isfinite().all()) for s in slopes)
    assert float(slopes[1].abs().sum()) > 0


def test_the_batch_of_the_least_loss_is_kept() -> None:
    kept = least(torch.zeros(2, 1), ce=torch.zeros(()))
    for loss in (3.0, 1.0, float("nan"), 2.0):
        kept = lesser(kept, x=torch.full((2, 1), loss), loss=torch.tensor(loss), ce=torch.tensor(-loss))
    assert {n: t.flatten().tolist() for n, t in kept.buffers.items()} == {"x": [1.0, 1.0], "loss": [1.0], "ce": [-1.0]}
    assert not kept.params


def test_made_examples_are_visited_like_public_ones() -> None:
    x = torch.arange(5, dtype=torch.uint8)[:, None] * 51
    public = as_public(x, Normalise(scale=1 / 255), torch.float64)
    batches = public.shuffled(2, 3, key=1)
    seen: list[float] = []

    def look(carry: torch.Tensor, batch: Batch) -> torch.Tensor:
        seen.extend(batch.x[batch.mask].flatten().tolist())
        return carry

    fold(look, torch.zeros(()), batches)
    np.testing.assert_allclose(sorted(seen), [0, 0.2, 0.4, 0.6, 0.8], rtol=1e-12)
    assert int(labelled(torch.tensor([2, 3]), 4, 0).num_steps) == 4


@pytest.mark.parametrize("optimiser", [SGD(lr=0.1, momentum=0.9), Adam(lr=0.05), SGD(lr=0.1)])
def test_a_server_goes_on_where_it_stood(optimiser: SGD | Adam) -> None:
    """Two parts of the same batches, the optimiser's state between them, are the whole, bit for bit."""

    def loss(w: Weights, batch: Batch) -> torch.Tensor:
        return TINY(w, batch.x).square().mean()

    start, lr = TINY.init(0), torch.tensor(optimiser.lr, dtype=torch.float64)
    whole = noise((6,), 4, 6, key=3, like=torch.zeros(()))
    want = minimise(loss, start, whole, optimiser, lr=lr)
    at_rest = optimiser.init(tree.leaves(start.params))
    got, moments = minimise_from(loss, start, at_rest, whole, optimiser, lr=lr)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(want), tree.leaves(got), strict=True))
    assert len(moments) == len(at_rest)
    steps = [noise((6,), 4, 1, key=key, like=torch.zeros(())) for key in (5, 6)]
    first, state = minimise_from(loss, start, at_rest, steps[0], optimiser, lr=lr)
    second, _ = minimise_from(loss, first, state, steps[1], optimiser, lr=lr)
    anew = minimise(loss, first, steps[1], optimiser, lr=lr)
    differs = not torch.equal(second.params["fc1.weight"], anew.params["fc1.weight"])
    assert differs == bool(at_rest)
    assert all(float(m.abs().max()) == 0 for m in at_rest)  # what was given is not moved
