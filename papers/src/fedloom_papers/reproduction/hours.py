"""Estimate how long runs of recipes take on this machine, from their local steps and the time of one."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from fedloom.algorithms import ALGORITHMS
from fedloom.algorithms.shared.one_shot import OneShot
from fedloom.models import build
from fedloom_papers.reproduction.recipe import Recipe


class Source(NamedTuple):
    """Training examples of a source, those with the test set (`merge`), the shape of one, and the classes."""

    train: int
    merged: int
    shape: tuple[int, ...]
    classes: int


SOURCES = {
    "mnist": Source(60_000, 70_000, (1, 28, 28), 10),
    "fashion_mnist": Source(60_000, 70_000, (1, 28, 28), 10),
    "emnist_letters": Source(124_800, 145_600, (1, 28, 28), 26),
    "emnist_letters_aj": Source(18_573, 18_573, (1, 28, 28), 10),
    "cifar10": Source(50_000, 60_000, (3, 32, 32), 10),
    "cifar10_grey": Source(50_000, 60_000, (1, 32, 32), 10),
    "cifar100": Source(50_000, 60_000, (3, 32, 32), 100),
    "cinic10": Source(90_000, 180_000, (3, 32, 32), 10),
    "svhn": Source(73_257, 99_289, (3, 32, 32), 10),
    "images": Source(100_000, 110_000, (3, 64, 64), 200),  # Tiny-ImageNet
    "vehicle": Source(1_860, 1_860, (100,), 2),
    "vehicle_like": Source(43_695, 43_695, (100,), 2),
    "vehicle_whole": Source(43_695, 43_695, (100,), 2),
}
_LONGEST = 0.2  # seconds for which a network is timed, after its first step
_ROWS = 16  # of a batch are timed, and the others taken to cost as much each: a large network would take minutes


def local_steps(recipe: Recipe) -> int:
    """Return the local steps of the run of a recipe, as if all of its clients had equally many examples."""
    e = recipe.experiment
    data, source = e.data, SOURCES[e.data.source]
    clients = data.clients
    examples = (data.examples or (source.merged if data.merge else source.train)) * (1 - data.test_fraction)
    algorithm = ALGORITHMS[e.algorithm]()
    once = isinstance(algorithm, OneShot)  # one round of uploads, then the server alone
    cohort = clients if algorithm.requires.everyone else e.run.cohort_size or clients
    a_round = e.local.steps or e.local.epochs * math.ceil(examples / clients / e.local.batch_size)
    return a_round * cohort * (1 if once else e.run.rounds)


def seconds_a_step(model: str, source: str, batch: int) -> float:
    """Return the time of a forward and a backward pass of a network on one thread of this machine.

    `model`: several names, with commas, are timed each, and their mean is returned.
    """
    shape, classes = SOURCES[source][2:]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return sum(_timed(name, shape, classes, batch) for name in model.split(",")) / len(model.split(","))
    finally:
        torch.set_num_threads(threads)


def _timed(name: str, shape: tuple[int, ...], classes: int, batch: int) -> float:
    rows = min(batch, _ROWS)
    net, x = build(name, shape, classes), torch.randn(rows, *shape)
    taken: list[float] = []
    while not taken[1:] or (sum(taken[1:]) < _LONGEST and len(taken) < 20):  # the first one makes buffers
        begun = time.perf_counter()
        net(x).square().mean().backward()
        taken.append(time.perf_counter() - begun)
    return min(taken[1:]) * batch / rows


def estimated(recipes: Sequence[Recipe], work: Mapping[str, float]) -> list[float]:
    """Return the core hours of the run of each recipe with one seed, without evaluation and the server's own training.

    `work`: of a step of each algorithm, as a multiple of FedAvg's.
    """
    timed: dict[tuple[str, str, int], float] = {}
    out = []
    for r in recipes:
        e = r.experiment
        key = e.model, e.data.source, e.local.batch_size
        if key not in timed:
            timed[key] = seconds_a_step(*key)
        out.append(local_steps(r) * timed[key] * work.get(e.algorithm, 1.0) / 3600)
    return out


def said(recipes: Sequence[Recipe], work: Mapping[str, float]) -> str:
    """Say how many hours a seed of some recipes takes; "" where this version cannot run any."""
    able = [r for r in recipes if r.missing is None and r.experiment.data.source in SOURCES]
    # Runs that begin alike, as those of one-shot methods with the clients' uploads, are computed once up to there.
    able = list({r.place if r.begins is None else r.begins.place: r for r in able}.values())
    if not able:
        return ""
    hours = estimated(able, work)
    low, high = (_number(of(hours)) for of in (min, max))
    each = low if low == high else f"{low} to {high}"
    return (
        f"About {_number(sum(hours))} core hours on this machine, {len(able)} run{'s' * (len(able) > 1)} with one "
        f"seed, {each} each: local training alone, without evaluation and what a server computes."
    )


def _number(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}" if hours >= 0.1 else f"{hours:.2f}"
