"""How long runs take: their steps by hand, and what is said of them."""

from __future__ import annotations

import math

import pytest
import torch

from fedloom_papers import find, recipes, tables
from fedloom_papers.reproduction import hours
from fedloom_papers.reproduction.hours import SOURCES, estimated, local_steps, said, seconds_a_step
from published_runs import cell


@pytest.mark.parametrize(
    ("asked", "steps"),
    [
        (("fedntd-table1", "cifar10-s2", "fedavg"), 200 * 10 * 5 * 10),  # 500 images in batches of 50
        (("fedntd-table8", "cifar10-s2-e1", "fedntd"), 200 * 10 * 10),
        (("apfl-comparison", "mnist", "fedavg"), 150 * 10 * 5 * 7),  # 63 of 70 images, 10 a batch
        (("dense-table1", "mnist-a0.1-m5-cnn", "fedavg"), 5 * 200 * math.ceil(12_000 / 128)),  # clients upload once
        (("dense-table1", "mnist-a0.1-m5-cnn", "dense"), 5 * 200 * math.ceil(12_000 / 128)),
        (("pfedsd-a", "fmnist14k-s2-r0.6", "local_only"), 100 * 12 * 5 * math.ceil(560 / 64)),
    ],
)
def test_local_steps_are_those_of_equal_clients(asked: tuple[str, str, str], steps: int) -> None:
    assert local_steps(cell(*asked)) == steps


@pytest.mark.slow
def test_every_source_of_a_recipe_has_its_size() -> None:
    assert {r.experiment.data.source for table in tables() for r in recipes(table)} == set(SOURCES)


def test_hours_are_steps_times_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []

    def second(model: str, source: str, batch: int) -> float:
        timed.append((model, source, batch))
        return 0.036

    monkeypatch.setattr(hours, "seconds_a_step", second)
    cells = find("fedntd-table1", ["cifar10-s2"], ["fedavg", "fedntd"])
    assert estimated(cells, {"fedntd": 1.5}) == pytest.approx([1.0, 1.5])
    assert timed == [("fedntd_cnn", "cifar10", 50)]
    assert said(cells, {"fedntd": 1.5}).startswith("About 2.5 core hours on this machine, 2 runs with one seed, 1.0 to")
    one = said(cells[:1] * 2, {})
    assert one.startswith("About 1.0 core hours on this machine, 1 run with one seed, 1.0 each: ")
    assert "without evaluation" in one
    assert said([], {}) == ""
    shared = said([cell("dense-table1", "mnist-a0.1-m5-cnn", row) for row in ("feddf", "dense", "fed_adi")], {})
    assert "2 runs with one seed" in shared  # clients upload once for DENSE and Fed-ADI; FedDF has runs of its own


def test_a_network_is_timed_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, seen = torch.get_num_threads(), set()
    timed = hours._timed

    def watched(*asked: object) -> float:
        seen.add(torch.get_num_threads())
        return timed(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(hours, "_timed", watched)
    monkeypatch.setattr(hours, "_LONGEST", 0.01)
    assert seconds_a_step("logistic,lenet", "mnist", 4) > 0
    assert seen == {1}
    assert torch.get_num_threads() == threads
