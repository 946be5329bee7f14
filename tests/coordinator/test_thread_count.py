"""How many threads a run gets, and that it keeps them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom import FedAvg, Federation, Local, RunSettings, from_arrays, run
from fedloom.algorithms import ALGORITHMS
from fedloom.coordinator import thread_count
from fedloom.coordinator.thread_count import choose_threads
from fedloom.core.model import Model
from fedloom.data import by_lists
from fedloom.deploy.server.devices import Devices
from fedloom.engines.engine import Engine
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.engines.workers import Workers
from fedloom.models import build
from tiny import LOCAL, federation, linear, mlp, population

LINEAR = 4 * 48  # FLOPs of a step: 4 examples, forward 2 x 4 x 3, the gradient of the weights as many


@pytest.fixture
def eight() -> Iterator[None]:
    """Let PyTorch take eight threads, as on a machine of eight cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    yield
    torch.set_num_threads(before)


def of_images(name: str, shape: tuple[int, ...], clients: int, size: int) -> Population:
    """Clients with so many images each."""
    count = clients * size
    train = from_arrays(np.zeros((count, *shape), np.uint8), np.arange(count) % 10, num_classes=10)
    parts = by_lists([range(k * size, (k + 1) * size) for k in range(clients)])
    return Population(Federation(train=train, partition=parts), {name: Model(lambda: build(name, shape, 10))})


@pytest.mark.parametrize(
    ("kind", "flops", "count"),
    [
        (Loop, LINEAR + 1, 1),  # at least one
        (Loop, LINEAR / 2, 2),  # one client at a time, whatever the cohort
        (Stacked, LINEAR, 6),  # a lock-step of all six
        (Stacked, 6 * LINEAR / 2.9, 2),  # as many as are fed whole
        (Stacked, LINEAR / 2, 8),  # at most as many as there are
    ],
)
def test_as_many_threads_as_a_step_feeds(
    kind: type[Engine], flops: float, count: int, eight: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_count, "FLOPS_PER_THREAD", flops)
    assert choose_threads(kind, FedAvg(local=LOCAL), population(), cohort_size=6) == count


def test_the_largest_network_counts(eight: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_count, "FLOPS_PER_THREAD", LINEAR / 2)
    feeds = 2 * 4 * (3 * 14 - 8) * 5 // LINEAR  # of 5 units: three products, but the gradient of the inputs
    assert choose_threads(Loop, FedAvg(local=LOCAL), population({"small": linear, "wide": mlp}), 6) == feeds


@pytest.mark.parametrize(
    ("name", "shape", "clients", "batch", "kind", "count"),
    [
        ("logistic", (1, 28, 28), 10, 10, Stacked, 1),
        ("logistic", (1, 28, 28), 100, 10, Stacked, 1),
        ("lenet", (1, 28, 28), 2, 10, Loop, 1),
        ("fedntd_cnn", (3, 32, 32), 2, 50, Loop, 8),
    ],
)
def test_what_the_guide_says(
    name: str, shape: tuple[int, ...], clients: int, batch: int, kind: type[Engine], count: int, eight: None
) -> None:
    of = of_images(name, shape, clients, batch)
    assert choose_threads(kind, FedAvg(local=Local(batch_size=batch)), of, clients) == count


def test_pytorch_decides_where_this_process_trains_no_client_or_the_server_trains() -> None:
    assert choose_threads(Workers, FedAvg(local=LOCAL), population(), 6) is None
    assert choose_threads(Devices, FedAvg(local=LOCAL), population(), 6) is None
    assert {name for name, kind in ALGORITHMS.items() if kind().requires.server_training} == {
        "feddf", "fedbe", "pfeddf", "dense", "fed_dafl", "fed_adi",
    }  # fmt: skip
    assert choose_threads(Loop, ALGORITHMS["fedbe"](local=LOCAL), population(), 6) is None


def test_a_run_keeps_its_threads(tmp_path: Path, eight: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_count, "FLOPS_PER_THREAD", LINEAR / 3)
    settings, seen = RunSettings(rounds=1, cohort_size=3, engine="loop"), list[int]()

    def go_on(rounds: int, **more: Any) -> None:
        run(
            FedAvg(local=LOCAL), federation(), linear, dataclasses.replace(settings, rounds=rounds),
            directory=tmp_path, on_round=lambda _: seen.append(torch.get_num_threads()), **more,
        )  # fmt: skip

    go_on(1)
    assert json.loads((tmp_path / "manifest.json").read_text())["fixed"]["threads"] == 3
    monkeypatch.setattr(thread_count, "FLOPS_PER_THREAD", LINEAR)  # such as by another version
    go_on(2, resume=True)
    assert seen == [3, 3]
    assert torch.get_num_threads() == 8
