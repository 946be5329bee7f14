"""FedBE: the draws, one step of the server by hand, and what the server makes of its teachers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.algorithms.fedbe import FedBE, draws
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Distill, Local
from fedloom.core.losses import divergence
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.random import derive
from fedloom.core.types import Weights
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.testing.small_networks import MLP
from fedloom.testing.subject import federation

MODEL = Model(MLP, name="mlp")
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.05))


def some(seed: int, like: dict[str, torch.Tensor] | None = None, scale: float = 1.0) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    fresh = {n: torch.from_numpy(rng.normal(size=s)) for n, s in {"a": (30, 40), "b": (7,)}.items()}
    return fresh if like is None else {n: like[n] + scale * fresh[n] for n in fresh}


@pytest.mark.slow
def test_draws_follow_the_gaussian_of_the_clients_directions() -> None:
    w = some(0)
    clients = [some(1, w), some(2, w, 0.3), some(3, w, 2.0)]
    found = list(draws(w, clients, 0.7, 4000, key=9))
    for n in w:
        change = np.stack([(c[n] - w[n]).numpy() for c in clients])
        norms = np.sqrt((change**2).reshape(3, -1).sum(1))
        unit = change / norms.reshape(3, *[1] * w[n].ndim)
        mean = w[n].numpy() + norms.mean() * unit.mean(0)
        deviation = norms.mean() * 0.7 * np.sqrt(np.maximum((unit**2).mean(0) - unit.mean(0) ** 2, 1e-5))
        each = np.stack([d[n].numpy() for d in found[: 4000 if n == "b" else 400]])
        z = (each - mean) / deviation
        assert abs(z.mean()) < 4 / np.sqrt(z.size)
        assert z.std() == pytest.approx(1.0, abs=4 / np.sqrt(2 * z.size))
    assert float(deviation.min()) > 0


def test_draws_without_spread_are_the_mean_direction_and_nothing_moves_what_did_not_move() -> None:
    w = some(0)
    clients = [{**some(k, w), "b": w["b"]} for k in (1, 2)]
    (only,) = draws(w, clients, 0.0, 1, key=0)
    a, b = (c["a"] - w["a"] for c in clients)
    want = w["a"] + 0.5 * (a.norm() + b.norm()) * 0.5 * (a / a.norm() + b / b.norm())
    np.testing.assert_allclose(only["a"], want, rtol=1e-12)
    (wide,) = draws(w, clients, 5.0, 1, key=0)
    assert torch.equal(wide["b"], w["b"])
    first, again, other = (next(draws(w, clients, 1.0, 1, key=k))["a"] for k in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def after(steps: int, engine: Any = Loop, **settings: Any) -> tuple[Weights, list[Weights], Population]:
    """The server after a round with three clients, and what they sent."""
    population = Population(federation(), {"mlp": MODEL}, dtype=torch.float64)
    algorithm = FedBE(**{"local": LOCAL, "steps": steps, "num_sampled": 0, **settings})
    run, sent = engine(population, algorithm), []
    run.watch = lambda exchange: sent.append(exchange.upload.value)
    return run.round(run.init(), (0, 2, 3), 0)["mlp"], sent, population


def test_a_step_of_the_server_by_hand() -> None:
    # 20 public examples in one batch; teachers are the mean and three clients; rate 1 shows the gradient.
    local = Distill(batch_size=20, optimiser=SGD(lr=1.0))
    moved, sent, population = after(1, distill=local)
    with pytest.warns(UserWarning, match="FedBE with steps = 0 is FedAvg"):
        mean, _, _ = after(0)
    x = population.public.batches.x
    p = torch.stack([torch.softmax(MODEL(w, x), -1) for w in (mean, *sent)]).mean(0)
    target = p.square() / p.square().sum(-1, keepdim=True)
    params = {n: t.clone().requires_grad_() for n, t in mean.params.items()}
    logits = MODEL(Weights(params=params), x)
    entries = target * (target.log() - torch.log_softmax(logits, -1))
    entries.mean().backward()  # over all examples and classes
    for n, start in mean.params.items():
        np.testing.assert_allclose(moved.params[n], start - params[n].grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_a_round_by_hand(engine: Any) -> None:
    """Drawn models, sharpening, short batches, momentum and the mean over models, in plain PyTorch."""
    distill = Distill(batch_size=8, optimiser=SGD(lr=0.3, momentum=0.9))
    settings: dict[str, Any] = {"distill": distill, "swa_start": 4, "swa_every": 3, "num_sampled": 3, "T": 0.7}
    found, sent, population = after(12, engine, **settings)
    with pytest.warns(UserWarning, match="is FedAvg"):
        mean, _, _ = after(0, engine)
    start = engine(population, FedBE(local=LOCAL)).init()["mlp"].params
    drawn = draws(start, [w.params for w in sent], 0.1, 3, derive(0, "server", 0, "draws"))
    x = population.public.batches.x
    teachers = [mean, *sent, *(Weights(params=p) for p in drawn)]
    p = torch.stack([torch.softmax(MODEL(w, x), -1) for w in teachers]).mean(0) ** (1 / 0.7)
    target = p / p.sum(-1, keepdim=True)
    batches = population.public.shuffled(8, 12, derive(0, "server", 0, "public"))
    params = {n: t.clone().requires_grad_() for n, t in mean.params.items()}
    optimiser = torch.optim.SGD(params.values(), lr=0.3, momentum=0.9)
    kept = []
    for step in range(12):
        rows = batches.order[step][batches.mask[step]]
        logits = MODEL(Weights(params=params), x[rows])
        optimiser.zero_grad()
        (target[rows] * (target[rows].log() - torch.log_softmax(logits, -1))).mean().backward()
        optimiser.step()
        if step + 1 in (6, 9, 12):
            kept.append({n: t.detach().clone() for n, t in params.items()})
    for n in params:
        want = torch.stack([k[n] for k in kept]).mean(0)
        assert float((want - mean.params[n]).abs().max()) > 1e-3
        np.testing.assert_allclose(found.params[n], want, rtol=0, atol=1e-12)


def test_sharp_targets_do_not_underflow() -> None:
    found, _, _ = after(3, T=1e-3)
    assert all(bool(t.isfinite().all()) for t in found.params.values())


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_the_student_approaches_the_ensemble(engine: Any) -> None:
    local = Distill(batch_size=10, optimiser=SGD(lr=0.3, momentum=0.9))
    student, sent, population = after(80, engine, distill=local, swa_start=40, swa_every=4, T=1.0)
    with pytest.warns(UserWarning, match="is FedAvg"):
        mean, _, _ = after(0, engine)
    x = population.public.batches.x
    p = torch.stack([torch.softmax(MODEL(w, x), -1) for w in (mean, *sent)]).mean(0)
    before, now = (float(divergence(MODEL(w, x), p).mean()) for w in (mean, student))
    assert now < 0.2 * before


def test_sampled_models_teach_too() -> None:
    plain, drawn, wide = (after(3, num_sampled=n, spread=s)[0] for n, s in ((0, 0.1), (4, 0.1), (4, 1.0)))
    weights = [w.params["head.weight"] for w in (plain, drawn, wide)]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])


def test_a_run() -> None:
    people = federation()
    evaluated = fl.Federation(**{**vars(people), "test": people.train})
    algorithm = FedBE(local=LOCAL, steps=3, num_sampled=2)
    history = fl.run(algorithm, evaluated, lambda: MLP(), fl.RunSettings(rounds=2, cohort_size=3, seed=0))
    assert 0 <= history.last("global_accuracy") <= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": -1}, "steps must be >= 0, got -1"),
        ({"num_sampled": -1}, "num_sampled must be >= 0, got -1"),
        ({"spread": -0.1}, "spread must be >= 0, got -0.1"),
        ({"T": 0.0}, "T must be > 0, got 0.0"),
        ({"swa_start": -1}, "swa_start must be >= 0, got -1"),
        ({"swa_every": 0}, "swa_every must be >= 1, got 0"),
    ],
)
def test_refused_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        FedBE(**settings)
