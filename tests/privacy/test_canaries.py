"""Canaries arrive as they were put in, and what they show of a run's own clipping, noise and draws."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("dp_accounting")

import fedloom as fl
from fedloom.privacy import canaries
from fedloom.privacy.by_example import ExampleGradients
from fedloom.privacy.leakage import Canaries, Measured, Promise, measured
from tiny import LOCAL, federation, mlp


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canaries, "WANTED", 160)


def of_clients(
    privacy: str, noise: float, rounds: int, cohort: int, algorithm: Any = None, model: Any = mlp
) -> Canaries:
    settings = fl.RunSettings(rounds=rounds, cohort_size=cohort, engine="loop", threads=1, privacy=privacy)
    made = algorithm or fl.FedAvg(local=LOCAL)
    job = fl.Job(algorithm=made, federation=federation(20), model=model, settings=settings)
    name = list(job.population.models)[-1]
    return canaries.of_clients(job, torch.tensor(noise, dtype=torch.float64), rounds, name)


def audited(noise: float, rounds: int, cohort: int) -> Measured:
    found = of_clients(f"central:noise={noise},delta=1e-3,clip=0.5", noise, rounds, cohort)
    return measured(found, Promise(rounds, cohort / 20, noise, 1e-3))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


@pytest.mark.some(1)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"privacy": "central:noise=0,delta=1e-3,clip=adaptive:0.5"},
        {"algorithm": fl.Scaffold(local=LOCAL)},
        {"algorithm": fl.Ditto(local=LOCAL), "model": normalised},
        {"model": {"small": lambda: mlp(3), "large": lambda: mlp(4)}},
    ],
    ids=["fedavg", "adaptive", "scaffold", "ditto", "models"],
)
def test_without_noise_clients_are_seen_as_often_as_they_are_drawn(how: dict[str, Any]) -> None:
    found = of_clients(**{"privacy": "central:noise=0,delta=1e-3,clip=0.5", **how}, noise=0.0, rounds=3, cohort=8)
    assert np.abs(found.inside - found.inside.round()).max() < 1e-4
    assert {*np.unique(found.inside.round())} == {0, 1}
    assert found.inside.mean() == pytest.approx(0.4, abs=4 * (0.24 / found.inside.size) ** 0.5)
    assert np.abs(found.outside).max() < 1e-4
    assert found.noise == 0
    assert len(found.inside) == len(found.outside) >= 160


def test_noise_between_canaries_is_as_large_as_promised() -> None:
    found = of_clients("central:noise=0.7,delta=1e-3,clip=0.5", 0.7, 3, 8)
    assert found.outside.std() == pytest.approx(0.7, rel=0.15)
    assert abs(np.corrcoef(found.outside.T)[0, 1]) < 0.3


@pytest.mark.slow
def test_clients_leak_no_more_than_was_promised_and_not_much_less() -> None:
    found = audited(1.0, 3, 20)
    assert found.kept
    assert 0.4 * found.promise.epsilon < found.epsilon_of_kind <= found.promise.epsilon
    assert 0 < found.epsilon < found.promise.epsilon


@pytest.mark.slow
def test_noise_of_each_round_is_its_own() -> None:
    """Where it repeats, what changes is who was drawn."""
    found = audited(3.0, 4, 8)
    assert found.kept
    assert found.epsilon <= found.promise.epsilon


def of_examples(noise: float, rounds: int = 1, secret: bool = False, **plan: Any) -> Canaries:
    local = dataclasses.replace(LOCAL, epochs=2, batch_size=4, **plan)
    rule = ExampleGradients(clip=0.3, noise=noise, secret=secret)
    return canaries.of_examples(rule, local, 16, 8 * rounds, seed=0)


@pytest.mark.parametrize("plan", [{}, {"steps": 5}, {"optimiser": fl.Adam(lr=0.1, micro_batch=20)}])
def test_without_noise_examples_are_seen_as_often_as_they_are_drawn(plan: dict[str, Any]) -> None:
    found = of_examples(0.0, **plan)
    assert found.inside.shape == found.outside.shape == (256, 8)
    assert np.abs(found.inside - found.inside.round()).max() < 1e-3
    assert {*np.unique(found.inside.round())} == {0, 1}
    assert found.inside.mean() == pytest.approx(0.25, abs=0.04)
    assert np.abs(found.outside).max() < 1e-3


@pytest.mark.slow
def test_examples_leak_no_more_than_was_promised_and_not_much_less() -> None:
    found = measured(of_examples(0.5), Promise(8, 0.25, 0.5, 1e-3))
    assert found.kept
    assert 0.4 * found.promise.epsilon < found.epsilon_of_kind <= found.promise.epsilon


@pytest.mark.slow
def test_noise_of_each_step_is_its_own() -> None:
    found = measured(of_examples(4.0), Promise(8, 0.25, 4.0, 1e-3))
    assert found.kept
    assert found.epsilon <= found.promise.epsilon
